"""A session hook that does something every few steps."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from group_embedding.config import check_int


class PeriodicHook(tf.compat.v1.train.SessionRunHook):
    """Calls `run_at(session, step)` at the first step of a session, and whenever `every_n_steps`
    have passed. A hook may be used for several trainings, one after the other."""

    def __init__(self, every_n_steps: int) -> None:
        self._every = check_int(type(self).__name__, "every_n_steps", every_n_steps, 1)

    def begin(self) -> None:
        self._step = tf.compat.v1.train.get_global_step()
        if self._step is None:
            raise ValueError(f"{type(self).__name__}: expected a graph with a global step")

    def after_create_session(self, session: Any, coord: Any) -> None:
        self._last: int | None = None  # also where a session is recovered, and steps run again

    def after_run(self, run_context: Any, run_values: Any) -> None:
        step = int(run_context.session.run(self._step))
        if self._last is not None and step - self._last < self._every:
            return
        self._last = step
        self.run_at(run_context.session, step)

    def run_at(self, session: Any, step: int) -> None:
        raise NotImplementedError
