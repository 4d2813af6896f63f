"""The sizes of keyed tables as scalars for TensorBoard."""

from __future__ import annotations

import os
from typing import Any

import tensorflow as tf

from group_embedding.variables.embedding_variable import EmbeddingVariable


def statistics(table):
    """{name: scalar tensor} of an EmbeddingVariable: its keys, bytes and load factor."""
    name = table.name.partition(":")[0]
    return {
        f"{name}/keys": table.total_count(),
        f"{name}/memory_bytes": table.memory_bytes(),
        f"{name}/load_factor": table.load_factor(),
    }


class EmbeddingVariableStatisticsHook(tf.compat.v1.train.SessionRunHook):
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
        if every_n_steps < 1:
            raise ValueError(f"every_n_steps: expected at least 1, got {every_n_steps}")
        self._output_dir, self._every = output_dir, every_n_steps
        self._last: int | None = None

    def begin(self) -> None:
        v1 = tf.compat.v1
        self._step = v1.train.get_global_step()
        if self._step is None:
            raise ValueError("EmbeddingVariableStatisticsHook: expected a graph with a global step")
        self._writer = v1.summary.FileWriterCache.get(self._output_dir)
        tables = [v for v in v1.global_variables() if isinstance(v, EmbeddingVariable)]
        self._scalars = {}
        for table in tables:
            self._scalars.update(statistics(table))

    def after_run(self, run_context: Any, run_values: Any) -> None:
        step = int(run_context.session.run(self._step))
        if self._last is not None and step - self._last < self._every:
            return
        self._last = step
        values = run_context.session.run(self._scalars)
        summary = tf.compat.v1.Summary(
            value=[
                tf.compat.v1.Summary.Value(tag=tag, simple_value=float(value))
                for tag, value in values.items()
            ]
        )
        self._writer.add_summary(summary, step)

    def end(self, session: Any) -> None:
        self._writer.flush()
