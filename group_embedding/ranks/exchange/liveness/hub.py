"""Rank 0's part of the watch: it receives the messages of all ranks, and reports ended ranks to
all."""

from __future__ import annotations

import contextlib
import dataclasses
import socket
import threading
import time

from .disagreement import find_disagreement, told_calls
from .lines import (
    TOKEN_SECONDS,
    has_token,
    how_it_ended,
    introduction,
    line_of,
    make_token,
    shut,
    words_from,
)
from .links import LATE, describe_parted, find_parted, told_silence

INTERVAL = 1.0  # seconds between two words of a rank
MAX_STRANGERS = 64  # callers at a time that have not; the oldest make way for new ones


@dataclasses.dataclass
class _Rank:
    """The hub's knowledge of a rank that takes part."""

    who: str
    connection: socket.socket
    heard: float  # when
    calls: list = dataclasses.field(default_factory=list)  # as it last told
    silent: tuple | None = None  # what `told_silence` returned


class Hub:
    """Hears the ranks, and tells all of them of one that ended, left or waits in another call, and
    of two that do not reach each other.

    Args:
        timeout: seconds of silence after which a rank counts as hanging. Ranks that have waited for
            each other for half as long disagree.
        host: the address on which to listen, by which all ranks reach this one.
    """

    def __init__(self, num_ranks, timeout, host="127.0.0.1"):
        self._num_ranks, self._timeout = num_ranks, timeout
        self._late = max(LATE, timeout / 4)  # TCP may need twice as long to go on after a cut
        self._lock = threading.Lock()
        self._strangers = []  # connections
        self._ranks = {}  # number: _Rank
        self._left = {}  # rank: who it was
        self._ended = []  # sentences about ranks that ended, for ranks that join later
        self._suspected = None  # a disagreement, until it is there a second later as well
        self._undisturbed = time.monotonic()  # since when all hosts have reached each other
        self._closed = threading.Event()
        self._listener = socket.create_server((host, 0), backlog=num_ranks + MAX_STRANGERS)
        self._token = make_token()
        self.address = [host, self._listener.getsockname()[1], self._token]
        for work in (self._accept, self._speak):
            threading.Thread(target=work, name="group_embedding liveness hub", daemon=True).start()

    def close(self):
        self._closed.set()
        self._tell(done=True)
        shut(self._listener)
        with self._lock:
            strangers, self._strangers = self._strangers, []
        for stranger in strangers:
            shut(stranger)

    def _accept(self):
        while not self._closed.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:  # closed, or too many files are open
                time.sleep(0.05)
                continue
            with self._lock:
                self._strangers.append(connection)
                oldest = self._strangers.pop(0) if len(self._strangers) > MAX_STRANGERS else None
            if oldest is not None:
                shut(oldest)
            threading.Thread(target=self._hear, args=[connection], daemon=True).start()

    def _speak(self):
        while not self._closed.wait(INTERVAL):
            self._tell(alive=True)
            self._compare()

    def _tell(self, **words):
        line = line_of(words)
        with self._lock:
            if "alive" not in words:
                self._ended.append(line)
            for rank in self._ranks.values():
                with contextlib.suppress(OSError):  # `_hear` of that rank finds out
                    rank.connection.sendall(line)

    def _compare(self):
        now = time.monotonic()
        with self._lock:
            ranks, left = dict(self._ranks), dict(self._left)
            silent = {number: rank.silent for number, rank in ranks.items()}
            calls = {number: rank.calls for number, rank in ranks.items()}
        is_late = any(now - rank.heard > self._late for rank in ranks.values())
        if is_late or any(seconds > self._late for _, seconds in filter(None, silent.values())):
            self._undisturbed = now
        if not is_late:  # else `_hear_rank` says which rank is not reached
            self._tell_parted(ranks, find_parted(silent, self._timeout))
        # A network that is cut, or was a moment ago, lets ranks wait in different calls as well.
        if now - self._undisturbed < self._timeout / 2:
            self._suspected = None
        else:
            self._tell_disagreement({**calls, **dict.fromkeys(left, [])}, left)

    def _tell_parted(self, ranks, pair):
        if pair is not None and all(number in ranks for number in pair):
            sentence = describe_parted(*(ranks[number].who for number in pair), self._timeout)
            self._tell(parted=sentence, ends=pair[1])

    def _tell_disagreement(self, calls, left):
        found = find_disagreement(calls, left, self._timeout / 2)
        if found is not None and found == self._suspected:
            self._tell(disagree=found, all_live=not left)
        self._suspected = found

    def _hear(self, connection):
        try:
            if self._is_of_job(connection):
                words = words_from(connection, self._timeout)
                rank = introduction(next(words, {}), self._num_ranks)
                if rank is not None and self._add(rank, connection):
                    self._hear_rank(rank, connection, words)
                    return
            shut(connection)
        finally:
            with self._lock, contextlib.suppress(ValueError):
                self._strangers.remove(connection)

    def _is_of_job(self, connection):
        if not has_token(connection, self._token, TOKEN_SECONDS):
            return False
        with self._lock:
            if connection not in self._strangers:  # it has made way meanwhile
                return False
            self._strangers.remove(connection)
        return True

    def _add(self, rank, connection):
        """Takes a rank in, once; it hears at once that it was."""
        number = rank["rank"]
        with self._lock:
            if number in self._ranks or number in self._left:
                return False
            self._ranks[number] = _Rank(rank["who"], connection, time.monotonic())
            with contextlib.suppress(OSError):  # the words that follow end then
                connection.sendall(line_of({"alive": True}) + b"".join(self._ended))
        return True

    def _hear_rank(self, rank, connection, all_words):
        for words in all_words:
            if "raised" in words:
                how = f"raised {words['raised']}"
                return self._tell(ended={**rank, "how": how, "hangs": False})
            if "done" in words:
                with self._lock:
                    self._left[rank["rank"]] = rank["who"]
                    del self._ranks[rank["rank"]]
                return self._tell(left=rank["who"])
            if "bad" in words:
                shut(connection)
                how = "sent the watch over ranks what no rank sends"
                return self._tell(ended={**rank, "how": how, "hangs": False})
            with self._lock:
                told = self._ranks[rank["rank"]]
                told.heard, told.calls = time.monotonic(), told_calls(words)
                told.silent = told_silence(words, self._num_ranks)
        if not self._closed.is_set():
            self._tell(ended={**rank, **how_it_ended(connection, self._timeout)})
