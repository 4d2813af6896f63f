"""Publishing under Keras's `fit`."""

from __future__ import annotations

from typing import Any

from group_embedding.keras_compat import keras
from group_embedding.serving.publish.publisher import Publisher


class PublisherCallback(keras.callbacks.Callback):
    """Publishes a model while `fit` trains it, and once more when `fit` ends.

    With the publisher's `every_seconds` it publishes between two steps, in the background; else at
    the end of each epoch. The publisher stays open.

    Args:
        publisher: A publisher of the model that is trained.

    Example:

    ```python
    publisher = ge.serving.Publisher(model, "/runs/published", every_seconds=1)
    model.fit(dataset, callbacks=[ge.serving.PublisherCallback(publisher)])
    publisher.close()
    ```
    """

    def __init__(self, publisher: Publisher) -> None:
        super().__init__()
        self._publisher = publisher

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        del batch, logs
        if self._publisher.every_seconds is not None:
            self._publisher.after_step()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        del epoch, logs
        if self._publisher.every_seconds is None:
            self._publisher.publish()

    def on_train_end(self, logs: Any = None) -> None:
        del logs
        if self._publisher.every_seconds is not None:
            self._publisher.publish()
