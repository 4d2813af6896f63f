"""Every rank learns when another one dies, hangs or raises, and ends with an error that says so.

Collectives wait for all ranks, and a rank that is stopped answers no connection's closing. So each
rank has a thread that says each second that it lives, to a hub in rank 0, and the hub says the same
to all. Who is silent for too long hangs; whose connection closes without a word has died.

    rank 1 ── alive, alive, raised: ValueError ──> hub in rank 0 ── ended: rank 1 ... ──> all others

Imports neither TensorFlow nor Horovod: `enable_distributed_strategy` hands it the addresses.
"""

import atexit
import contextlib
import json
import os
import secrets
import signal
import socket
import sys
import threading

INTERVAL = 1.0  # seconds between two words of a rank
GRACE = 5.0  # seconds in which a rank may end by itself, as Horovod often sees that a rank died
HEARSAY = 1.0  # seconds that a rank waits to hear why, when it is to end

# What errors say that were raised because another rank had ended.
SIGNS_OF_A_LOSS = ("Horovod has been shut down", "/gloo/", "the exchange has ended")


class Watch:
    """One rank's part of the watch over all.

    Args:
        rank, num_ranks: of this process.
        timeout: seconds of silence after which a rank counts as hanging.
        restarts: true where a launcher restarts the job without ranks that die: this one then only
            says what happened, and ends a hanging rank of its own host.
        gather: a collective: a string of this rank -> those of all ranks.
        on_loss: called with a sentence when another rank has ended otherwise than well.

    Threads: its own alone call its methods after the constructor, but for `close`.
    """

    def __init__(self, rank, num_ranks, timeout, restarts, gather, on_loss):
        self._rank, self._timeout, self._restarts = rank, timeout, restarts
        self._on_loss = on_loss
        self._closed, self._heard = threading.Event(), threading.Event()
        self._goes_on = threading.Event()  # without the others
        self._hub = _Hub(num_ranks, timeout) if rank == 0 else None
        host, process = socket.gethostname(), os.getpid()
        self._who = f"rank {rank} (process {process} of {host})"
        this = {"rank": rank, "who": self._who, "host": host, "process": process}
        address = self._hub and self._hub.address
        self._first = json.loads(gather(json.dumps({**this, "hub": address}))[0])  # rank 0
        *address, secret = self._first.pop("hub")
        self._connection = socket.create_connection(tuple(address), timeout=timeout)
        self._say(secret=secret)
        self._say(**this)
        self._raised_before, sys.excepthook = sys.excepthook, self._on_exception
        if _is_main_thread() and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._on_terminate)
        atexit.register(self._leave)
        for work in (self._speak, self._listen):
            threading.Thread(target=work, name="group_embedding liveness", daemon=True).start()

    def close(self):
        """This rank is done with the others, and watches no more."""
        self._goes_on.set()
        self._leave()

    def _leave(self):
        if self._closed.is_set():
            return
        self._closed.set()
        sys.excepthook = self._raised_before
        if _is_main_thread() and signal.getsignal(signal.SIGTERM) == self._on_terminate:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        atexit.unregister(self._leave)
        self._say(done=True)
        if self._hub:
            self._hub.close()
        _shut(self._connection)

    def _on_exception(self, kind, error, traceback):
        text = str(error).strip()
        if any(sign in text for sign in SIGNS_OF_A_LOSS):  # another rank ended: which?
            self._heard.wait(HEARSAY)
        elif not issubclass(kind, KeyboardInterrupt):
            first_line = text.partition("\n")[0]
            self._say(raised=f"{kind.__name__}: {first_line}"[:500])
        self._raised_before(kind, error, traceback)

    def _on_terminate(self, number, _):
        # A launcher ends all ranks when one has died, often before the others have heard of it.
        self._heard.wait(HEARSAY)
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    def _say(self, **words):
        with contextlib.suppress(OSError):  # `_listen` finds out
            self._connection.sendall(json.dumps(words).encode() + b"\n")

    def _speak(self):
        while not self._closed.wait(INTERVAL):
            self._say(alive=True)

    def _listen(self):
        for words in _words_from(self._connection, self._timeout):
            if "done" in words:
                return  # rank 0 has ended well, and the watch with it
            if "ended" in words:
                return self._on_end(words["ended"])
        if not self._closed.is_set():
            self._on_end({**self._first, **_how(self._connection, self._timeout)})

    def _on_end(self, ended):
        if self._closed.is_set() or ended["rank"] == self._rank:
            return
        print(f"{self._who}: {ended['who']} {ended['how']}", file=sys.stderr, flush=True)
        self._heard.set()
        self._on_loss(f"{ended['who']} {ended['how']}")
        if self._restarts:
            if ended["hangs"]:
                _end_process(ended)
            return
        # Also where a rank ends by itself: its exit handlers may wait for the one that is lost.
        if not self._goes_on.wait(GRACE):
            print(f"{self._who}: ended, as it cannot go on alone", file=sys.stderr, flush=True)
            os._exit(1)


class _Hub:
    """In rank 0: hears all ranks, and tells all what it hears of one that ended."""

    def __init__(self, num_ranks, timeout):
        self._timeout = timeout
        self._lock = threading.Lock()
        self._connections = []
        self._ended = []  # what was told of ranks that ended, for who comes later
        self._closed = threading.Event()
        self._listener = socket.create_server(("", 0), backlog=num_ranks)
        # The secret tells ranks of this job from whoever else finds the port.
        self._secret = secrets.token_hex(16)
        self.address = [_own_address(), self._listener.getsockname()[1], self._secret]
        for work in (self._accept, self._speak):
            threading.Thread(target=work, name="group_embedding liveness hub", daemon=True).start()

    def close(self):
        self._closed.set()
        self._tell(done=True)
        _shut(self._listener)

    def _accept(self):
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return  # closed
            threading.Thread(target=self._hear, args=[connection], daemon=True).start()

    def _speak(self):
        while not self._closed.wait(INTERVAL):
            self._tell(alive=True)

    def _tell(self, **words):
        line = json.dumps(words).encode() + b"\n"
        with self._lock:
            if "ended" in words:
                self._ended.append(line)
            for connection in self._connections:
                with contextlib.suppress(OSError):  # `_hear` of that rank finds out
                    connection.sendall(line)

    def _hear(self, connection):
        all_words = _words_from(connection, self._timeout)
        if next(all_words, {}).get("secret") != self._secret:
            return connection.close()
        rank = next(all_words, {})
        with self._lock, contextlib.suppress(OSError):  # the words that follow end then
            self._connections.append(connection)
            connection.sendall(b"".join(self._ended))
        for words in all_words:
            if "raised" in words:
                how = f"raised {words['raised']}"
                return self._tell(ended={**rank, "how": how, "hangs": False})
            if "done" in words:
                return
        if rank and not self._closed.is_set():
            self._tell(ended={**rank, **_how(connection, self._timeout)})


def _words_from(connection, timeout):
    """What comes, until the connection closes or is silent for `timeout` seconds."""
    connection.settimeout(timeout)
    try:
        with connection.makefile("rb") as lines:
            for line in lines:
                yield json.loads(line)
    except (OSError, ValueError):
        return


def _is_main_thread():
    return threading.current_thread() is threading.main_thread()


def _how(connection, timeout):
    """What became of a rank from which no more words come."""
    if not _is_open(connection):
        return {"how": "died: its process ended without a word", "hangs": False}
    advice = "enable_distributed_strategy(timeout_seconds=...) waits longer"
    how = f"has not answered for {timeout:g} s: it is stopped, or cannot be reached; {advice}"
    return {"how": how, "hangs": True}


def _is_open(connection):
    """Whether the other side's end is open, after nothing came from there."""
    try:
        connection.settimeout(0.1)
        return connection.recv(1, socket.MSG_PEEK) != b""
    except socket.timeout:
        return True
    except OSError:
        return False


def _end_process(ended):
    """Ends a process of this host that hangs, so that its launcher sees that it is gone."""
    if ended["host"] == socket.gethostname():
        with contextlib.suppress(ProcessLookupError):  # it has died meanwhile
            os.kill(ended["process"], signal.SIGKILL)


def _own_address():
    """That of this host towards the launcher's, by which the other ranks reach it too."""
    launcher = os.environ.get("HOROVOD_GLOO_RENDEZVOUS_ADDR", socket.gethostname())
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((launcher, 9))  # nothing is sent
            return probe.getsockname()[0]
        except OSError:
            return "127.0.0.1"


def _shut(connection):
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()
