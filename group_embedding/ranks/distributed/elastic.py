"""`run_elastic`: a job that goes on when a rank dies, with the ranks that are left."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import tensorflow as tf

from group_embedding.ranks.distributed.strategy import (
    disable_distributed_strategy,
    enable_distributed_strategy,
)

_Result = TypeVar("_Result")


def run_elastic(train: Callable[[], _Result], **options: Any) -> _Result:
    """Calls `train()` on every rank; when a rank dies or hangs, anew on those that are left.

    For scripts that `horovodrun --min-np ...` launched; under any other launch `train()` is called
    once. `train` makes its tables, model and optimizer itself, restores the newest checkpoint, if
    there is one, and goes on from it, saving on the way: the checkpoint of any number of ranks is
    restored by any number. What was trained since the newest checkpoint is trained again. Ranks
    that Horovod adds take part from the next such restart on.

    Args:
        train: a function without arguments, which reads `ge.exchange.current()` for its rank and
            the number of ranks.
        **options: of `ge.enable_distributed_strategy`, which is called before each `train()`.

    Returns:
        What `train` returned.

    Raises:
        Exception: whatever `train` raised, unless a collective failed because another rank had
            ended.

    Example, run with `horovodrun --min-np 2 --host-discovery-script hosts.sh python train.py`:

    >>> def train():
    ...     table = ge.get_embedding_variable("user", 16)
    ...     step = tf.Variable(0, dtype=tf.int64)
    ...     checkpoint = tf.train.Checkpoint(table=table, step=step)
    ...     ...  # restore the newest, train, save each 1,000 steps
    ...     return int(step)
    >>> ge.run_elastic(train)
    0
    """
    enable_distributed_strategy(**options)
    from group_embedding.ranks.exchange.horovod import repeat_on_loss  # which this has found

    attempts = []

    def attempt():
        if attempts:
            disable_distributed_strategy()
            tf.keras.backend.clear_session()
            enable_distributed_strategy(**options)
        attempts.append(train)
        return train()

    return repeat_on_loss(attempt)
