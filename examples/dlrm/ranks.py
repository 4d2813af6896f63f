"""The distributed form of the example: one process, or the ranks that `horovodrun` launched."""

from __future__ import annotations

import os
import tempfile
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Callable

import tensorflow as tf


@dataclass(frozen=True)
class Ranks:
    """This process among those that train together, and what makes its model a grouped one."""

    rank: int = 0
    num_ranks: int = 1
    column_scope: Callable = nullcontext  # embedding columns are made inside
    column_of_keys: Callable | None = None  # of features that have no vocabulary
    wrap_optimizer: Callable = lambda optimizer: optimizer
    alone: Callable = nullcontext  # inside, this process has the whole model
    scratch: tempfile.TemporaryDirectory | None = None  # removed when the process ends

    @property
    def is_first(self):
        return self.rank == 0

    def own(self, folder):
        """The folder for files that the ranks do not write together: `folder` on the first rank."""
        return folder if self.is_first else Path(self.scratch.name)

    def saving_hooks(self, folder, save_steps):
        """Hooks by which the other ranks take part in the first one's checkpoints."""
        if self.is_first:
            return []  # an Estimator makes its own
        # Checkpoints go to `folder`, which ranks share; the events that come with them do not.
        return [
            tf.compat.v1.train.CheckpointSaverHook(
                str(self.own(folder)),
                save_steps=save_steps,
                checkpoint_basename=str(folder / "model.ckpt"),
            )
        ]


STOCK = Ranks()  # TensorFlow alone, one process


def launched():
    """Returns whether horovodrun started this process."""
    return "HOROVOD_RANK" in os.environ


def launched_rank():
    return int(os.environ.get("HOROVOD_RANK", "0"))


def start_grouped():
    """The grouped Ranks; under horovodrun, from here on tables are sharded over the processes."""
    import group_embedding as ge

    if not launched():
        return Ranks(column_scope=ge.group_embedding_column_scope)
    ge.enable_distributed_strategy("collective")
    exchange = ge.exchange.current()
    return Ranks(
        rank=exchange.rank,
        num_ranks=exchange.num_ranks,
        column_scope=ge.group_embedding_column_scope,
        wrap_optimizer=ge.DistributedOptimizer,
        alone=ge.exchange.unsharded,
        scratch=tempfile.TemporaryDirectory(prefix="group_embedding_"),
    )


def with_native_updates(grouped):
    """Returns a form whose tables are updated in the backward pass."""
    import group_embedding as ge

    return replace(grouped, wrap_optimizer=ge.optimizers.wrap)


def with_keys(wrapped):
    """Returns a form whose users and items need no vocabulary: their tables grow."""
    import group_embedding as ge

    return replace(wrapped, column_of_keys=ge.categorical_column_with_embedding)
