"""A hook that saves checkpoints while training goes on."""

from __future__ import annotations

import os
from typing import Any

import tensorflow as tf
from tensorflow.python.training import basic_session_run_hooks

from group_embedding.checkpoint.background import BackgroundSave, save_changes
from group_embedding.ranks.exchange.active import current


class CheckpointSaverHook(basic_session_run_hooks.CheckpointSaverHook):
    """`tf.compat.v1.train.CheckpointSaverHook` that training does not wait for.

    Between two steps it takes a snapshot of all EmbeddingVariables and copies the dense variables;
    a thread writes them. If the next save is due before, it waits for the thread. With listeners,
    which expect a checkpoint to be complete when they are called, every save is waited for. Among
    the hooks of an Estimator it takes the place of its own.

    Over several ranks every rank has one, with the same arguments, and all save at the same steps:
    seconds are those of rank 0's clock, which each step tells. Every save is waited for.

    Args:
        checkpoint_dir, save_secs, save_steps, ...: as in TensorFlow's hook: full saves.
        save_incremental_secs: in between, saves every so many seconds what changed since the last
            full save; see `save_changes`.

    Example:

        hook = ge.checkpoint.CheckpointSaverHook(folder, save_secs=3600, save_incremental_secs=60)
        with tf.compat.v1.train.MonitoredTrainingSession(
            checkpoint_dir=folder, save_checkpoint_secs=None, chief_only_hooks=[hook]
        ) as session: ...
    """

    def __init__(
        self,
        checkpoint_dir: str | os.PathLike[str],
        save_secs: float | None = None,
        save_steps: int | None = None,
        save_incremental_secs: float | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(checkpoint_dir, save_secs=save_secs, save_steps=save_steps, **kwargs)
        self._exchange = current()
        self._is_shared = self._exchange.num_ranks > 1
        timer = basic_session_run_hooks.SecondOrStepTimer
        if self._is_shared:
            timer = _TimerOfRanks
            self._timer = timer(every_secs=save_secs, every_steps=save_steps)
        self._changes_timer = None
        if save_incremental_secs is not None:
            self._changes_timer = timer(every_secs=save_incremental_secs)
        self._background = None

    def begin(self) -> None:
        super().begin()
        if self._is_shared:
            (self._clock,) = self._exchange.broadcast([tf.timestamp()], "clock")

    def after_create_session(self, session: Any, coord: Any) -> None:
        if self._is_shared:
            self._tell_time(session.run(self._clock))
        super().after_create_session(session, coord)

    def before_run(self, run_context: Any) -> Any:
        arguments = super().before_run(run_context)
        if not self._is_shared:
            return arguments
        return arguments._replace(fetches=[arguments.fetches, self._clock])

    def after_run(self, run_context: Any, run_values: Any) -> None:
        if self._is_shared:
            step, now = run_values.results
            self._tell_time(now)
            run_values = run_values._replace(results=step)
        full_before = self._timer.last_triggered_step()
        super().after_run(run_context, run_values)
        timer, step = self._changes_timer, run_values.results
        if timer is None or not timer.should_trigger_for_step(step + 1):
            return
        step = run_context.session.run(self._global_step_tensor)
        timer.update_last_triggered_step(step)
        if self._timer.last_triggered_step() == full_before:
            self._save(run_context.session, step, changes=True)

    def end(self, session: Any) -> None:
        super().end(session)
        self._wait()

    def _save(self, session, step, changes=False):
        self._wait()
        for listener in self._listeners:
            listener.before_save(session, step)
        saver, where = self._get_saver(), (session, self._save_path)
        kwargs = {"global_step": step, "write_meta_graph": self._save_graph_def}
        if not self._is_shared:
            self._background = BackgroundSave(saver, *where, changes=changes, **kwargs)
        elif changes:
            save_changes(saver, *where, **kwargs)
        else:
            saver.save(*where, **kwargs)
        if not self._listeners:
            return False
        self._wait()
        wishes = [listener.after_save(session, step) for listener in self._listeners]
        return any(wishes)  # whether one of them asks for the end of the training

    def _tell_time(self, now):
        for timer in filter(None, (self._timer, self._changes_timer)):
            timer.now = now

    def _wait(self):
        if self._background is not None:
            background, self._background = self._background, None
            background.result()


class _TimerOfRanks(basic_session_run_hooks.SecondOrStepTimer):
    """A timer whose caller passes the time."""

    now = None  # seconds since 1970, on the clock of rank 0

    def should_trigger_for_step(self, step):
        if self._every_secs is None or self._last_triggered_step in (None, step):
            return super().should_trigger_for_step(step)
        return self.now >= self._last_triggered_time + self._every_secs

    def update_last_triggered_step(self, step):
        result = super().update_last_triggered_step(step)
        self._last_triggered_time = self.now
        return result
