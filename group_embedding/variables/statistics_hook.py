"""Statistics of a graph's keyed tables as scalars for TensorBoard."""

from __future__ import annotations

import os
from typing import Any

import tensorflow as tf

from group_embedding.variables.embedding_variable import EmbeddingVariable
from group_embedding.variables.periodic_hook import PeriodicHook
from group_embedding.variables.table_statistics import Statistics, statistics_from, tensors_of


class EmbeddingVariableStatisticsHook(PeriodicHook):
    """Writes statistics of all EmbeddingVariables of the graph: keys, bytes, hit rates, evictions
    and others of `ge.statistics`, each under `<table>/`.

    Example:

    ```python
    hook = ge.EmbeddingVariableStatisticsHook("/tmp/logs", every_n_steps=100)
    estimator.train(input_fn, hooks=[hook])
    ```

    Args:
        output_dir: folder of the events, such as the Estimator's model_dir.
        every_n_steps: written at the first step and whenever so many have passed.

    Raises:
        ValueError: the graph has no global step, or every_n_steps is below 1.
    """

    def __init__(self, output_dir: str | os.PathLike[str], every_n_steps: int = 100) -> None:
        super().__init__(every_n_steps)
        self._output_dir = output_dir

    def begin(self) -> None:
        super().begin()
        v1 = tf.compat.v1
        self._writer = v1.summary.FileWriterCache.get(self._output_dir)
        self._tables = [v for v in v1.global_variables() if isinstance(v, EmbeddingVariable)]
        self._tensors = tensors_of(self._tables)

    def after_create_session(self, session: Any, coord: Any) -> None:
        super().after_create_session(session, coord)
        self._before: Statistics | None = None  # the session's tables count from 0

    def run_at(self, session: Any, step: int) -> None:
        found = statistics_from(self._tables, session.run(self._tensors))
        summary = tf.compat.v1.Summary(
            value=[
                tf.compat.v1.Summary.Value(tag=tag, simple_value=float(value))
                for tag, value in found.scalars(self._before).items()
            ]
        )
        self._before = found
        self._writer.add_summary(summary, step)

    def end(self, session: Any) -> None:
        self._writer.flush()
