"""One process, which is all ranks there are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from group_embedding.annotations import TensorLike
from group_embedding.ranks.exchange.interface import Exchange


class LocalExchange(Exchange):
    """The exchange of a job of one rank: returns its inputs."""

    @property
    def rank(self) -> int:
        return 0

    @property
    def num_ranks(self) -> int:
        return 1

    def alltoall(
        self, tensor: TensorLike, splits: TensorLike, name: str, what: str | None = None
    ) -> tuple[tf.Tensor, tf.Tensor]:
        return tf.identity(tensor, name), tf.identity(splits)

    def average(self, tensors: Sequence[tf.Tensor], name: str) -> list[tf.Tensor]:
        return list(tensors)

    def allgather(self, tensors: Sequence[tf.Tensor], name: str) -> list[tf.Tensor]:
        return list(tensors)

    def broadcast(self, tensors: Sequence[tf.Tensor], name: str) -> list[tf.Tensor]:
        return list(tensors)

    def barrier(self, name: str) -> Any:
        return tf.no_op(name)
