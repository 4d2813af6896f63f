"""CallsInProgress: an object of native code is freed after the calls of other threads."""

import contextlib
import threading


class CallsInProgress:
    """Counts calls, so that what they use is freed after the last one.

    Example:

        >>> calls = CallsInProgress()
        >>> with calls:
        ...     pass  # uses the model, in any thread
        >>> with calls.ended():
        ...     pass  # frees it
    """

    def __init__(self):
        self._changed = threading.Condition()
        self._count = 0

    def __enter__(self):
        with self._changed:
            self._count += 1

    def __exit__(self, *exception):
        with self._changed:
            self._count -= 1
            self._changed.notify_all()

    @contextlib.contextmanager
    def ended(self):
        """Waits until no call is in progress; others wait until the block ends."""
        with self._changed:
            self._changed.wait_for(lambda: self._count == 0)
            yield
