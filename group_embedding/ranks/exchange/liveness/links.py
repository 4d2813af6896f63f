"""The connections between hosts, which find two hosts that do not reach each other.

Collectives need all pairs of hosts, and the hub only has those with rank 0's host. So the first
ranks of the other hosts are connected, and send each other a byte each second.

    rank 0 of host a <── hub ── rank 2 of host b
    rank 0 of host a <── hub ── rank 4 of host c
    rank 2 of host b <── link ─ rank 4 of host c
"""

import contextlib
import socket
import time

from .lines import TOKEN_SECONDS, has_token, introduction, line_of, shut, words_from

LATE = 3.0  # seconds: a longer silence is more than a delay

_ADVICE = "all hosts must reach each other, on all ports; check routes and firewalls"


class Links:
    """The connections of a host to the others.

    Args:
        this: the introduction of this rank, the first one of its host.
        listener: a listening socket, by which ranks of lower numbers reach this one; it is closed
            then. None: this rank has no links.
        addresses: {rank: (host, port)} of all such listeners.
        token: the job's.
        timeout: seconds that connections may take.

    Raises:
        ConnectionError: a host was not reached.
    """

    def __init__(self, this, listener, addresses, token, timeout):
        self._this, self._timeout = this, timeout
        self._deadline = time.monotonic() + timeout
        self._connections, self._heard = {}, {}  # of ranks: a socket, and when a byte last came
        if listener is None:
            return
        with listener:
            for rank in (r for r in addresses if r > this["rank"]):
                self._add(rank, self._reach(rank, addresses[rank], token))
            lower = {rank for rank in addresses if rank < this["rank"]}
            while not lower <= self._connections.keys():
                self._accept(listener, lower - self._connections.keys(), token)

    def close(self):
        for connection in list(self._connections.values()):  # `beat` may drop one meanwhile
            shut(connection)

    def beat(self):
        """Sends a byte to each host.

        Returns:
            [rank, seconds]: the rank from which nothing has come for longest. None: all were heard
            lately.
        """
        for rank, connection in list(self._connections.items()):
            came = _exchange_bytes(connection)
            if came is None:  # the process has ended: the hub says how
                shut(self._connections.pop(rank))
            elif came:
                self._heard[rank] = time.monotonic()
        silent = [[rank, time.monotonic() - self._heard[rank]] for rank in self._connections]
        longest = max(silent, key=lambda one: one[1], default=[None, 0.0])
        return longest if longest[1] > LATE else None

    def _add(self, rank, connection):
        connection.setblocking(False)
        self._connections[rank], self._heard[rank] = connection, time.monotonic()

    def _reach(self, rank, address, token):
        try:
            connection = socket.create_connection(address, timeout=_seconds_to(self._deadline))
            connection.sendall(token.encode() + line_of(self._this))
        except OSError as error:
            raise ConnectionError(
                f"{self._this['who']}: expected to reach the host of rank {rank} at {address[0]}, "
                f"port {address[1]}, within {self._timeout:g} s: {error}; {_ADVICE}"
            ) from error
        return connection

    def _accept(self, listener, expected, token):
        """Takes a connection of a rank that is expected, or sends a caller away."""
        try:
            listener.settimeout(_seconds_to(self._deadline))
            connection, _ = listener.accept()
        except OSError as error:
            raise ConnectionError(
                f"{self._this['who']}: expected a connection from the host of rank "
                f"{min(expected)} within {self._timeout:g} s, got none; {_ADVICE}"
            ) from error
        words = {}
        if has_token(connection, token, TOKEN_SECONDS):
            words = next(words_from(connection, TOKEN_SECONDS), {})
        caller = introduction(words, max(expected) + 1)
        if caller is not None and caller["rank"] in expected:
            self._add(caller["rank"], connection)
        else:
            shut(connection)


def _seconds_to(deadline):
    seconds = deadline - time.monotonic()
    if seconds <= 0:
        raise TimeoutError("timed out")
    return seconds


def _exchange_bytes(connection):
    """Sends a byte. Returns whether bytes have come, or None: the connection has closed."""
    try:
        with contextlib.suppress(BlockingIOError):
            connection.send(b".")
        return True if connection.recv(1 << 16) else None
    except ConnectionError:
        return None
    except OSError:  # nothing has come
        return False


def told_silence(words, num_ranks):
    """The rank that the sender of `words` does not hear, and for how many seconds, (rank, seconds);
    None: it hears all of them, or the words have another form."""
    silent = words.get("silent")
    if not isinstance(silent, list) or len(silent) != 2:
        return None
    rank, seconds = silent
    is_rank = type(rank) is int and 0 <= rank < num_ranks
    return (rank, seconds) if is_rank and type(seconds) in (int, float) else None


def find_parted(silent_of_rank, timeout):
    """The first pair of ranks, (rank, rank), whose hosts do not reach each other; None: there is
    none.

    Args:
        silent_of_rank: {rank: what `told_silence` returned}.
        timeout: seconds of silence after which hosts do not reach each other.
    """
    pairs = [
        tuple(sorted((rank, silent[0])))
        for rank, silent in silent_of_rank.items()
        if silent is not None and silent[1] >= timeout
    ]
    return min(pairs, default=None)


def describe_parted(who, other, timeout):
    """The sentence where the hosts of two ranks do not reach each other."""
    return (
        f"{who} and {other} do not reach each other: for {timeout:g} s nothing has come from the "
        "host of one to that of the other, though both reach rank 0; check the network between "
        "these two hosts; enable_distributed_strategy(timeout_seconds=...) waits longer"
    )
