"""Functions whose ops are run by the thread that calls them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context

_EXECUTOR = "SINGLE_THREADED_EXECUTOR"
_REFUSAL = "Single-threaded executor does not support"


class OnCallingThread:
    """Calls a `tf.function`, whose ops the calling thread runs in turn where TensorFlow can do so.

    By itself TensorFlow hands ops to threads of a pool. Where ops only launch kernels of a GPU,
    waking these threads takes longer than what they do.

    The first call, in which variables are made, is an ordinary one. TensorFlow refuses functions of
    several devices, and such with branches and loops that are no functions, before any of their ops
    runs: they are called in the ordinary way from then on.

    Args:
        function: the `tf.function`.
    """

    def __init__(self, function: Callable[..., Any]):
        self._function = function
        self._has_been_called = False
        self.is_refused = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Returns what the function returns for these arguments, and raises what it raises."""
        if self._has_been_called and not self.is_refused:
            try:
                with context.function_executor_type(_EXECUTOR):
                    return self._function(*args, **kwargs)
            except (tf.errors.UnimplementedError, tf.errors.FailedPreconditionError) as error:
                if _REFUSAL not in str(error):
                    raise
                self.is_refused = True
        outputs = self._function(*args, **kwargs)
        self._has_been_called = True
        return outputs
