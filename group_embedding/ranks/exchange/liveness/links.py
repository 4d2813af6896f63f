"""The connections between hosts, which find two hosts that do not reach each other.

Collectives need all pairs of hosts, and the hub only has those with rank 0's host. So the first
ranks of the other hosts are connected, and send each other a byte each second.

    rank 0 of host a <── hub ── rank 2 of host b
    rank 0 of host a <── hub ── rank 4 of host c
    rank 2 of host b <── link ─ rank 4 of host c
"""

import contextlib
import time

from .connections import Connector
from .lines import shut

LATE = 3.0  # seconds: a longer silence is more than a delay


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
        self._connections, self._heard = {}, {}  # of ranks: a socket, and when a byte last came
        if listener is None:
            return
        connector = Connector(this["rank"], this["who"], token, timeout)
        others = {rank: address for rank, address in addresses.items() if rank != this["rank"]}
        for rank, connection in connector.connect(listener, others).items():
            connection.setblocking(False)
            self._connections[rank], self._heard[rank] = connection, time.monotonic()

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
