"""The checkpoints of a run: the newest ones, and the best."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import tensorflow as tf

from group_embedding.ranks import exchange
from group_embedding.ranks.exchange import gather_text
from group_embedding.recommender.config.check import ConfigError
from group_embedding.recommender.zoo.configured_model import ConfiguredModel, inner_optimizer


class RunState(tf.train.experimental.PythonState):
    """How far a run is, beside its variables.

    Attributes:
      step: steps that were trained.
      best: the metric of the best evaluation; None: there was none.
      best_step: its step.
      worse: evaluations since the best one.
      readers: the state of each rank's reader, as JSON.
    """

    def __init__(self) -> None:
        super().__init__()
        self.step, self.best_step, self.worse = 0, 0, 0
        self.best: float | None = None
        self.readers: list[str] = []

    def serialize(self) -> str:
        names = ("step", "best", "best_step", "worse", "readers")
        return json.dumps({name: getattr(self, name) for name in names})

    def deserialize(self, string_value: str | bytes) -> None:
        for name, value in json.loads(string_value).items():
            setattr(self, name, value)


class RunCheckpoints:
    """Saves and restores a run. All ranks make the same calls.

    A checkpoint becomes the newest with one rename of a file, behind all that it consists of: a
    process that is killed leaves the one before.

    Args:
        model: the model, with its variables and those of its optimizer made.
        folder: the run's folder, on a file system that all ranks share.
        keep: how many checkpoints are kept.
    """

    def __init__(self, model: ConfiguredModel, folder: Path, keep: int) -> None:
        self.state = RunState()
        ranks = exchange.current()
        self._checkpoint = tf.train.Checkpoint(
            network=model.network, optimizer=inner_optimizer(model.optimizer), state=self.state
        )
        if inner_optimizer(model.optimizer) is not model.optimizer:
            self._checkpoint.loss_scale = model.optimizer
        # All ranks save; what ranks other than the first write by themselves, nothing reads.
        self._scratch = tempfile.TemporaryDirectory() if ranks.rank else None
        where = Path(self._scratch.name) if self._scratch else folder
        self._newest = tf.train.CheckpointManager(
            self._checkpoint, str(where / "checkpoints"), max_to_keep=keep, checkpoint_name="step"
        )
        self._best = tf.train.CheckpointManager(
            self._checkpoint, str(where / "best"), max_to_keep=1, checkpoint_name="step"
        )
        self._folder = folder
        self.saved_step: int | None = None  # that the newest checkpoint is of

    def save(self, reader: Any) -> None:
        """Saves the run between two steps: `reader` is this rank's."""
        self._gather(reader)
        self._newest.save(self.state.step)
        self.saved_step = self.state.step
        _wait_for_ranks()

    def save_best(self, reader: Any) -> None:
        """Saves the run as the best one so far."""
        self._gather(reader)
        self._best.save(self.state.step)
        _wait_for_ranks()

    def restore(self, which: str = "newest") -> bool:
        """Restores variables and state.

        Args:
            which: "newest" or "best".

        Returns:
            Whether there was such a checkpoint.
        """
        path = find_checkpoint(self._folder, which)
        if path is None:
            return False
        status = self._checkpoint.restore(path)
        status.expect_partial()  # an evaluation has no slots, and a table of keys no variable
        status.assert_existing_objects_matched()
        self.saved_step = self.state.step
        return True

    def restore_reader(self, reader: Any) -> None:
        """Has this rank's reader go on from the state that was restored.

        Raises:
            ConfigError: the run had another number of ranks, or another reader.
        """
        ranks, readers = exchange.current(), self.state.readers
        if len(readers) != ranks.num_ranks:
            raise ConfigError(
                f"{self._folder}: expected ranks.number {len(readers)}, with which this run began, "
                f"got {ranks.num_ranks}; give another checkpoints.folder to begin a new run"
            )
        try:
            reader.state.from_json(readers[ranks.rank])
        except ValueError as error:
            raise ConfigError(
                f"{self._folder}: {error}; give another checkpoints.folder to begin a new run"
            ) from None

    def _gather(self, reader):
        text = reader.state.to_json()
        self.state.readers = gather_text(exchange.current(), text, "reader_states")


def find_checkpoint(folder: Path, which: str) -> str | None:
    """The path of the newest or the best checkpoint of a run's folder, or None."""
    return tf.train.latest_checkpoint(str(folder / ("best" if which == "best" else "checkpoints")))


def _wait_for_ranks():
    ranks = exchange.current()
    if ranks.num_ranks > 1:
        ranks.barrier("saved_run")
