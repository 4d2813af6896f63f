"""TCP connections between ranks, one for each pair, checked by the token of the job."""

import socket
import time

from .lines import TOKEN_SECONDS, has_token, shut

_RANK_DIGITS = 8
_ADVICE = "all hosts must reach each other, on all ports; check routes and firewalls"


class Connector:
    """Connects a rank with others, each of which does so: it reaches those of higher numbers, and
    is reached by those of lower ones.

    Args:
        rank: of this process.
        who: names this process in errors.
        token: the job's, from `lines.make_token`.
        timeout: seconds that connections may take.
    """

    def __init__(self, rank, who, token, timeout):
        self._rank, self._who, self._token, self._timeout = rank, who, token, timeout
        self._deadline = time.monotonic() + timeout

    def connect(self, listener, addresses):
        """Returns {rank: socket}.

        Args:
            listener: a listening socket of this rank, which is closed then.
            addresses: {rank: (host, port)} of the others' listeners.

        Raises:
            ConnectionError: a rank was not reached.
        """
        sockets = {}
        try:
            with listener:
                for rank in sorted(rank for rank in addresses if rank > self._rank):
                    sockets[rank] = self._reach(rank, addresses[rank])
                lower = {rank for rank in addresses if rank < self._rank}
                while not lower <= sockets.keys():
                    self._accept(listener, lower - sockets.keys(), sockets)
        except ConnectionError:
            for one in sockets.values():
                shut(one)
            raise
        return sockets

    def _reach(self, rank, address):
        try:
            connection = socket.create_connection(address, timeout=_seconds_to(self._deadline))
            connection.sendall(f"{self._token}{self._rank:{_RANK_DIGITS}d}".encode())
        except OSError as error:
            raise ConnectionError(
                f"{self._who}: expected to reach the host of rank {rank} at {address[0]}, "
                f"port {address[1]}, within {self._timeout:g} s: {error}; {_ADVICE}"
            ) from error
        return connection

    def _accept(self, listener, expected, sockets):
        """Takes a connection of a rank that is expected, or sends a caller away."""
        try:
            listener.settimeout(_seconds_to(self._deadline))
            connection, _ = listener.accept()
        except OSError as error:
            raise ConnectionError(
                f"{self._who}: expected a connection from the host of rank {min(expected)} within "
                f"{self._timeout:g} s, got none; {_ADVICE}"
            ) from error
        caller = None
        if has_token(connection, self._token, TOKEN_SECONDS):
            caller = _rank_of(connection)
        if caller in expected:
            sockets[caller] = connection
        else:
            shut(connection)


def _rank_of(connection):
    """The rank that a caller with the token says to be, of which no byte more is read; None: it
    says something else."""
    try:
        connection.settimeout(TOKEN_SECONDS)
        text = connection.recv(_RANK_DIGITS, socket.MSG_WAITALL).decode(errors="replace").strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None


def _seconds_to(deadline):
    seconds = deadline - time.monotonic()
    if seconds <= 0:
        raise TimeoutError("timed out")
    return seconds
