"""A rank's part of the watch over all: it says what becomes of it and which host it does not reach,
and hears what becomes of the others."""

import atexit
import contextlib
import json
import os
import signal
import socket
import sys
import threading
import time

from .disagreement import call_without_rank_0, describe_left, to_tell
from .error_line import error_line
from .hub import INTERVAL, Hub
from .identity import identity_of, network_of_host
from .lines import how_it_ended, line_of, shut, words_from
from .links import Links
from .own_address import LAUNCHER, listening_address

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
        on_loss: on_loss(sentence, all_live) is called when another rank has ended otherwise than
            well, this one ends by an error, hosts do not reach each other, or ranks wait for each
            other in different calls: then all live.
        pending: returns the calls that this rank waits in, a list of PendingCall.

    Threads: its own alone call its methods after the constructor, but for `close`.
    """

    def __init__(self, rank, num_ranks, timeout, restarts, gather, on_loss, pending=list):
        self._rank, self._timeout, self._restarts = rank, timeout, restarts
        self._on_loss, self._pending = on_loss, pending
        self._closed, self._heard = threading.Event(), threading.Event()
        self._goes_on = threading.Event()  # without the others
        self._left = None  # who the rank was whose program ended last
        host, process = socket.gethostname(), os.getpid()
        self._who = f"rank {rank} (process {process} of {host})"
        this = {
            "rank": rank,
            "who": self._who,
            "process": process,
            "identity": identity_of(process),
        }
        hosts = [json.loads(text) for text in gather(json.dumps([host, network_of_host()]))]
        networks = [network for _, network in hosts]
        self._first_of_host = networks.index(networks[rank])
        self._hub, listener, why_not = _open(rank, hosts, timeout)
        listens = {
            "hub": self._hub and self._hub.address,
            "links": listener and listener.getsockname(),
            "why_not": why_not,
        }
        ranks = [json.loads(text) for text in gather(json.dumps({**this, **listens}))]
        for one in ranks:
            if one["why_not"]:
                raise ConnectionError(one["why_not"])
        self._first = ranks[0]
        *address, token = self._first["hub"]
        addresses = {one["rank"]: tuple(one["links"]) for one in ranks if one["links"]}
        self._connection, self._words = _join(tuple(address), token, this, timeout)
        self._raised_before, sys.excepthook = sys.excepthook, self._on_exception
        if _is_main_thread() and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._on_terminate)
        self._links = Links(this, listener, addresses, token, timeout)
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
        self._links.close()
        shut(self._connection)

    def _on_exception(self, kind, error, traceback):
        text = str(error).strip()
        if any(sign in text for sign in SIGNS_OF_A_LOSS):  # another rank ended: which?
            if not self._heard.wait(HEARSAY) and self._left:
                sentence = f"{self._left} has left: its program has ended"
                print(f"{self._who}: {sentence}", file=sys.stderr, flush=True)
        elif not issubclass(kind, KeyboardInterrupt):
            raised = f"{kind.__name__}: {error_line(text)}"
            self._say(raised=raised)
            # Ranks that wait for this one may see its memory end before they hear of the error.
            self._on_loss(f"{self._who} raised {raised}", False)
        self._raised_before(kind, error, traceback)

    def _on_terminate(self, number, _):
        # A launcher ends all ranks when one has died, often before the others have heard of it.
        self._heard.wait(HEARSAY)
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    def _say(self, **words):
        with contextlib.suppress(OSError):  # `_listen` finds out
            self._connection.sendall(line_of(words))

    def _speak(self):
        while not self._closed.wait(INTERVAL):
            words, calls = {"alive": True, "silent": self._links.beat()}, self._pending()
            if any(call[2] > INTERVAL for call in calls):
                words["waits"] = to_tell(calls)
            self._say(**words)

    def _listen(self):
        for words in self._words:
            if "done" in words:  # rank 0 has ended well, and the watch with it
                return self._go_on_without_hub()
            if "left" in words:
                self._left = words["left"]
            if "disagree" in words:
                return self._on_disagreement(words["disagree"], words["all_live"])
            if "parted" in words:
                return self._on_parted(words["parted"], words["ends"])
            if "ended" in words and words["ended"]["rank"] != self._rank:
                return self._on_end(words["ended"])
        if not self._closed.is_set():
            self._on_end({**self._first, **how_it_ended(self._connection, self._timeout)})

    def _go_on_without_hub(self):
        self._left = self._first["who"]
        while not self._closed.wait(INTERVAL):
            call = call_without_rank_0(self._pending(), self._timeout / 2)
            if call is not None:
                self._tell_user(describe_left(self._left, self._rank, call))
                return self._end_unless_it_ends()

    def _on_disagreement(self, sentence, all_live):
        if not self._closed.is_set():
            self._tell_user(sentence, all_live=all_live)
            self._end_unless_it_ends()

    def _on_parted(self, sentence, first_of_host):
        """Hosts do not reach each other. A launcher that restarts the job needs one of them gone,
        the one of which the first rank is given."""
        if self._closed.is_set():
            return
        self._tell_user(sentence)
        if not self._restarts or self._first_of_host == first_of_host:
            self._end_unless_it_ends()

    def _on_end(self, ended):
        if self._closed.is_set():
            return
        self._tell_user(f"{ended['who']} {ended['how']}")
        if not self._restarts:
            self._end_unless_it_ends()
        elif ended["hangs"]:
            _end_process(ended)

    def _tell_user(self, sentence, all_live=False):
        print(f"{self._who}: {sentence}", file=sys.stderr, flush=True)
        self._heard.set()
        self._on_loss(sentence, all_live)

    def _end_unless_it_ends(self):
        # Also where a rank ends by itself: its exit handlers may wait for the one that is lost.
        if not self._goes_on.wait(GRACE):
            print(f"{self._who}: ended, as it cannot go on alone", file=sys.stderr, flush=True)
            os._exit(1)


def _open(rank, hosts, timeout):
    """The hub, if the rank is 0; a listening socket, if it is linked; and an empty text, or why one
    of them could not be opened.

    Args:
        hosts: the hostname and the network of each rank.
    """
    has_links = _is_linked(rank, [network for _, network in hosts])
    if rank != 0 and not has_links:
        return None, None, ""
    try:
        address = listening_address(hosts)
        hub = Hub(len(hosts), timeout, address) if rank == 0 else None
        return hub, socket.create_server((address, 0)) if has_links else None, ""
    except OSError as error:
        return None, None, str(error)


def _is_linked(rank, networks):
    """True if a rank has links: it is the first one of its host, and there are other hosts beside
    its own and rank 0's, to which the hub's connections go."""
    first_ranks = {networks.index(network) for network in networks}
    return rank in first_ranks - {0} and len(first_ranks) > 2


def _join(address, token, this, timeout):
    """A connection to the hub, which has taken this rank in, and the words that come.

    Raises:
        ConnectionError: the hub could not be reached, or took nobody in.
    """
    deadline = time.monotonic() + timeout
    while True:
        try:
            connection = socket.create_connection(address, timeout=timeout)
            connection.sendall(token.encode() + line_of(this))
            words = words_from(connection, timeout)
            if next(words, None) is not None:
                return connection, words
            why = "it closed the connection"
            shut(connection)
        except OSError as error:
            why = str(error)
        if time.monotonic() > deadline:
            raise ConnectionError(
                f"{this['who']}: expected to reach rank 0, which watches over the ranks, at "
                f"{address[0]}, port {address[1]}, within {timeout:g} s: {why}; where that is not "
                f"its address in the network of the ranks, set {LAUNCHER} to it on all of them"
            )
        time.sleep(0.1)


def _is_main_thread():
    return threading.current_thread() is threading.main_thread()


def _end_process(ended):
    """Ends a process of this host that hangs, so that its launcher sees that it is gone."""
    if ended["identity"] and ended["identity"] == identity_of(ended["process"]):
        with contextlib.suppress(ProcessLookupError):  # it has died meanwhile
            os.kill(ended["process"], signal.SIGKILL)
