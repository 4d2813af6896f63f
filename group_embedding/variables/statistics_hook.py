"""The sizes of keyed tables as scalars for TensorBoard."""

from __future__ import annotations

import os
from typing import Any

import tensorflow as tf

from group_embedding.variables.embedding_variable import EmbeddingVariable
from group_embedding.variables.periodic_hook import PeriodicHook


def statistics(table):
    """{name: scalar tensor} of an EmbeddingVariable: its keys, bytes and load factor."""
    name = table.name.partition(":")[0]
    return {
        f"{name}/keys": table.total_count(),
        f"{name}/memory_bytes": table.memory_bytes(),
        f"{name}/load_factor": table.load_factor(),
    }


class EmbeddingVariableStatisticsHook(PeriodicHook):
    """Writes the sizes of all EmbeddingVariables of the graph: keys, memory_bytes, load_factor.

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
        tables = [v for v in v1.global_variables() if isinstance(v, EmbeddingVariable)]
        self._scalars = {}
        for table in tables:
            self._scalars.update(statistics(table))

    def run_at(self, session: Any, step: int) -> None:
        values = session.run(self._scalars)
        summary = tf.compat.v1.Summary(
            value=[
                tf.compat.v1.Summary.Value(tag=tag, simple_value=float(value))
                for tag, value in values.items()
            ]
        )
        self._writer.add_summary(summary, step)

    def end(self, session: Any) -> None:
        self._writer.flush()
