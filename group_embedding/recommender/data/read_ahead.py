"""Reading units ahead in threads, in the order in which they are wanted."""

from __future__ import annotations

import functools
import queue
import threading

# Pieces of one unit that wait to be taken, at most.
_PIECES_AHEAD = 2


class ReadAhead:
    """Iterates over the items of several sources, one source after the other.

    Each of `num_threads` threads fills the queue of one source. The consumer takes items from the
    first source that is not at its end, so that there is always a thread that works for it.

    Args:
        sources: an iterable of functions that return an iterator each; an endless one is fine.
        num_threads: how many sources are read at the same time.
    """

    def __init__(self, sources, num_threads):
        self._sources, self._lock = iter(sources), threading.Lock()
        self._queues = queue.Queue()  # one per source, in their order, and None after the last
        self._unread = threading.Semaphore(num_threads)  # sources that may be opened
        self._closed = threading.Event()
        self._threads = [
            threading.Thread(target=self._work, name=f"read ahead {i}", daemon=True)
            for i in range(num_threads)
        ]

    def __iter__(self):
        for thread in self._threads:
            thread.start()
        try:
            while True:
                items = self._queues.get()
                if items is None:
                    return
                yield from _items_of(items)
                self._unread.release()
        finally:
            self._closed.set()
            for _ in self._threads:
                self._unread.release()

    def _work(self):
        while True:
            self._unread.acquire()
            with self._lock:
                source = None if self._closed.is_set() else self._next_source()
                items = queue.Queue(_PIECES_AHEAD) if source else None
                self._queues.put(items)
            if source is None:
                return
            self._fill(items, source)

    def _next_source(self):
        try:
            return next(self._sources, None)
        except Exception as error:
            return functools.partial(_fail, error)

    def _fill(self, items, source):
        try:
            for item in source():
                if not self._put(items, (item, None)):
                    return
        except Exception as error:
            self._put(items, (None, error))
            return
        self._put(items, (None, None))

    def _put(self, items, item):
        while not self._closed.is_set():
            try:
                items.put(item, timeout=0.1)
                return True
            except queue.Full:
                continue
        return False


def _items_of(items):
    while True:
        item, error = items.get()
        if error is not None:
            raise error
        if item is None:
            return
        yield item


def _fail(error):
    raise error
