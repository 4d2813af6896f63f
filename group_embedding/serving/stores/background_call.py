"""A call in a thread, for which nobody waits longer than he wants."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


class BackgroundCall(threading.Thread):
    """Calls a function in a thread, which does not keep the process alive."""

    def __init__(self, function: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self._function = function
        self._result: Any = None
        self.error: BaseException | None = None  # what the function raised
        self.start()

    def run(self) -> None:
        try:
            self._result = self._function()
        except BaseException as error:
            self.error = error

    def ends_within(self, seconds: float) -> bool:
        """Waits at most so many seconds for the end."""
        self.join(seconds)
        return not self.is_alive()

    def result(self) -> Any:
        """Returns or raises as the function did. Called after its end."""
        if self.error is not None:
            raise self.error
        return self._result
