"""Publishing from sessions and Estimators."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.training import session_run_hook

from group_embedding.ranks.exchange import current
from group_embedding.serving.publish.graph_of_ranks import GraphOfRanks
from group_embedding.serving.publish.publisher import Publisher
from group_embedding.serving.publish.trained_graph import TrainedGraph


class PublisherHook(session_run_hook.SessionRunHook):
    """Publishes what a session trains, between two steps, and once more at the end.

    Over several ranks each rank has a hook with the same arguments, and trains the same steps. Rank
    0 calls `export` inside `ge.exchange.unsharded()`, with a checkpoint of the whole model.

    Args:
        target: As of `Publisher`.
        export: A function of the prefix of a checkpoint and of an empty folder. It writes the
            checkpoint's model below the folder as a SavedModel, and returns the SavedModel's path:
            for an Estimator `lambda checkpoint, folder: estimator.export_saved_model(folder,
            serving_input_receiver_fn, checkpoint_path=checkpoint)`. Called for each base. The
            variables that the SavedModel shares with the session's graph are published.
        every_steps: Publishes at every so many global steps, and waits for the target.
        every_seconds: Publishes at most this often, in the background.
        **options: Of `Publisher`, but for `signatures` and `build`.

    Raises:
        ValueError: Not one of `every_steps` and `every_seconds` is given, `signatures` or `build`
            is, or the graph has no global step.

    Example:

    ```python
    hook = ge.serving.PublisherHook("/runs/published", export, every_seconds=1)
    estimator.train(input_fn, hooks=[hook])
    ```
    """

    def __init__(
        self,
        target: str | os.PathLike[str],
        export: Callable[[str, str], str | bytes],
        *,
        every_steps: int | None = None,
        every_seconds: float | None = None,
        **options: Any,
    ) -> None:
        if (every_steps is None) == (every_seconds is None):
            raise ValueError(
                "PublisherHook: expected every_steps or every_seconds, got "
                f"{every_steps!r} and {every_seconds!r}"
            )
        if every_steps is not None and every_steps < 1:
            raise ValueError(
                f"PublisherHook: expected every_steps to be at least 1, got {every_steps}"
            )
        for name in sorted({"signatures", "build"} & set(options)):
            raise ValueError(f"PublisherHook: expected no {name}, as `export` makes the model")
        self._target = target
        self._export = export
        self._every_steps = every_steps
        self._options = {"every_seconds": every_seconds, **options}
        self._graph: TrainedGraph | None = None
        self._publisher: Publisher | None = None
        self._next_step = 0

    def begin(self) -> None:
        self._global_step = tf.compat.v1.train.get_global_step()
        if self._global_step is None:
            raise ValueError("PublisherHook: expected a global step in the graph, got none")
        exchange, abandoned_seconds = current(), self._options.get("timeout", 60.0) / 2
        if exchange.num_ranks == 1:
            saver = tf.compat.v1.train.Saver()
            self._graph = TrainedGraph(self._export, saver, abandoned_seconds)
        else:
            self._graph = GraphOfRanks(self._export, exchange, abandoned_seconds)
        self._publisher = None

    def after_create_session(self, session: Any, coord: Any) -> None:
        del coord
        self._graph.session = session
        if self._publisher is None:
            self._publisher = Publisher(self._graph, self._target, **self._options)
        self._next_step = int(session.run(self._global_step)) + (self._every_steps or 0)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        del run_values
        if self._every_steps is None:
            self._publisher.after_step()
            return
        step = int(run_context.session.run(self._global_step))
        if step >= self._next_step:
            self._next_step = step + self._every_steps
            self._publisher.publish(step)

    def end(self, session: Any) -> None:
        del session
        self._publisher.publish()
        self._publisher.close()
