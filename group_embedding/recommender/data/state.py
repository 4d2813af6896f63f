"""`ReaderState`: how far a reader's batches were consumed, to be saved with a model."""

from __future__ import annotations

import collections
import json
import threading
from typing import Any

import tensorflow as tf

from group_embedding.recommender.data.epoch import Position

# Positions that are kept: of batches that were read ahead of the consumer.
_KEPT = 4096


class ReaderState(tf.train.experimental.PythonState):
    """How far the batches of a `Reader` were consumed: it is saved by `tf.train.Checkpoint`, and as
    JSON, and a reader of the same files and arguments goes on from it to the same batches.

    Example:

    >>> with open("/tmp/ge_state.csv", "w") as file:
    ...     _ = file.write("user,click\\n" + "".join(f"{i},{i % 2}\\n" for i in range(10)))
    >>> reader = ge.data.Reader("/tmp/ge_state.csv", batch_size=2, shuffle_rows=10, seed=1)
    >>> batches = iter(reader.batches())
    >>> _ = next(batches)
    >>> saved = reader.state.to_json()
    >>> following = next(batches)["user"].numpy().tolist()
    >>> reader.state.from_json(saved)
    >>> next(reader.batches())["user"].numpy().tolist() == following
    True

    Attributes:
      consumed: Batches, of all epochs, that were consumed.
      epoch: Epochs whose batches were all consumed.
    """

    def __init__(self, fingerprint: dict[str, Any]) -> None:
        super().__init__()
        self.consumed = 0
        self.position = Position()
        self._fingerprint = fingerprint
        self._log, self._lock = collections.OrderedDict(), threading.Lock()

    @property
    def epoch(self) -> int:
        return self.position.epoch

    def advance(self, num_batches: int = 1) -> None:
        """Notes that batches were consumed, for programs that do not iterate over
        `Reader.batches`.

        Args:
            num_batches: how many, since the last call.

        Raises:
            ValueError: the reader has not read so many, or thousands more.
        """
        if num_batches == 0:
            return
        with self._lock:
            position = self._log.get(self.consumed + num_batches)
        if position is None:
            raise ValueError(
                f"reader: expected batches that were read, no more than {_KEPT} batches ago, got "
                f"number {self.consumed + num_batches}; advance the state by each batch as it is "
                "consumed"
            )
        self.consumed, self.position = self.consumed + num_batches, position

    def reset(self) -> None:
        """Goes back to the first batch of the first epoch."""
        self.consumed, self.position = 0, Position()

    def note(self, number: int, position: Position) -> None:
        """Keeps the position behind the batch with this number, from 1: called by the reader."""
        with self._lock:
            self._log[number] = position
            while len(self._log) > _KEPT:
                self._log.popitem(last=False)

    def to_json(self) -> str:
        """The state as text."""
        return json.dumps(
            {
                "consumed": self.consumed,
                "position": self.position._asdict(),
                "reader": self._fingerprint,
            }
        )

    def from_json(self, text: str) -> None:
        """Takes the state that `to_json` gave.

        Raises:
            ValueError: it is of a reader with other files or other arguments.
        """
        try:
            saved = json.loads(text)
            consumed, position = int(saved["consumed"]), Position(**saved["position"])
            fingerprint = saved["reader"]
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"reader: expected the JSON of ReaderState.to_json, {error!r}"
            ) from None
        for key, expected in self._fingerprint.items():
            if fingerprint.get(key) != expected:
                raise ValueError(
                    f"reader: expected the state of a reader with {key} {_short(expected)}, got "
                    f"one with {_short(fingerprint.get(key))}"
                )
        self.consumed, self.position = consumed, position

    def serialize(self) -> str:
        return self.to_json()

    def deserialize(self, string_value: str) -> None:
        if isinstance(string_value, bytes):
            string_value = string_value.decode()
        self.from_json(string_value)


def _short(value):
    text = json.dumps(value)
    return text if len(text) < 200 else text[:200] + " ..."
