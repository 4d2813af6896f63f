"""`ConfiguredModel`: a network, its loss, optimizer and data, as a config describes them."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow as tf

from group_embedding.keras_compat import IS_KERAS_3, keras
from group_embedding.recommender.config.read import Config
from group_embedding.recommender.data.reader import Reader
from group_embedding.recommender.zoo.config_data import ConfigData, HugeCTRData
from group_embedding.recommender.zoo.learning_rate import LearningRate
from group_embedding.training import make_step


class ConfiguredModel:
    """A model with all that a loop needs: steps, readers, the learning rate.

    `ge.models.from_config` makes it. A batch is what a reader of `make_reader` gives: a pair of
    features by name and labels, a tensor or a dict of tensors [B] by name.

    Attributes:
      config: the complete `Config`.
      network: the Keras model; called on features, it returns the logits [B, 1] of a label, or a
        dict of them by the labels' names.
      optimizer: the wrapped Keras optimizer.
      data: labels and preprocessing.
      labels_are_binary: True if labels are 0 or 1, and logits those of probabilities.
    """

    def __init__(
        self, config: Config, network: Any, optimizer: Any, data: ConfigData | HugeCTRData
    ) -> None:
        self.config, self.network, self.optimizer, self.data = config, network, optimizer, data
        loss = config["loss"]
        self.labels_are_binary = loss["name"] != "mean_squared_error"
        self._has_own_loss = loss["name"] == "model"
        self._weights = loss["weights"]
        function = functools.partial(tf.function, reduce_retracing=True)
        make_train = make_step if config["training"]["compiled"] else function
        self._train_function = make_train(self._train)
        self._evaluate_function = function(self._evaluate)

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the labels."""
        return tuple(self.data.label_columns)

    def make_reader(self, *splits: str, **options: Any) -> Reader:
        """The `Reader` of a split of the config's data.

        Args:
            *splits: "train", "validation" or "test"; of several, the first that has files.
            **options: of `Reader`, in place of what the config says; `has_labels=False` reads files
                without labels.

        Raises:
            ConfigError: the config has no such files.
        """
        return self.data.reader(*splits, **options)

    def batches(self, reader: Reader) -> Iterator[Any]:
        """The batches of a reader, preprocessed ahead; each advances the reader's state.

        Args:
            reader: of `make_reader`.

        Yields:
            Batches that `train_step` takes; features alone, of a reader without labels.
        """
        yield from reader.batches(reader.map(self._prepare).prefetch(2))

    def train_step(self, batch: Any) -> tf.Tensor:
        """Trains on a batch.

        Args:
            batch: (features, labels), of `batches`, or of the reader itself where the config has no
                preprocessing.

        Returns:
            The loss, a float32 scalar: the mean over the batch, summed over labels by weight.
        """
        return self.train_outputs(batch)[0]

    def train_outputs(self, batch: Any) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        """Trains on a batch; returns the loss, and by label the logits [B] before the update."""
        return self._train_function(batch[0], self.labels_of(batch))

    def evaluate_outputs(self, batch: Any) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        """The loss and the logits [B] by label of a batch, without training."""
        return self._evaluate_function(batch[0], self.labels_of(batch))

    def labels_of(self, batch: Any) -> dict[str, Any]:
        """The labels of a batch by name, each [B]."""
        labels = batch[1]
        columns = self.data.label_columns
        if not isinstance(labels, Mapping):
            return {self.labels[0]: labels}
        return {name: labels[columns[name]] for name in self.labels}

    def predict(self, features: Mapping[str, Any]) -> dict[str, tf.Tensor]:
        """Predictions for features that are preprocessed.

        Args:
            features: tensors by name.

        Returns:
            A float32 [B] by label: the probability of 1, or with the loss mean_squared_error the
            predicted number.
        """
        logits = self._logits(self.network(features, training=False))
        return {name: tf.sigmoid(x) if self.labels_are_binary else x for name, x in logits.items()}

    @property
    def learning_rate(self) -> float:
        """The learning rate; assign it between two steps to follow a schedule of your own."""
        return float(tf.convert_to_tensor(inner_optimizer(self.optimizer).learning_rate))

    @learning_rate.setter
    def learning_rate(self, value: float) -> None:
        inner_optimizer(self.optimizer).learning_rate = value

    def learning_rates(self, num_steps: int | None = None) -> LearningRate:
        """The learning rate of each step, as the config says.

        Args:
            num_steps: the steps of the whole training, in which a decay without `decay_steps` ends.
        """
        stated, schedule = self.config["optimizer"], dict(self.config["optimizer"]["schedule"])
        if schedule["decay"] != "none" and schedule["decay_steps"] is None and num_steps:
            start = max(schedule["decay_start"], schedule["warmup_steps"])
            schedule["decay_steps"] = max(1, num_steps - start)
        return LearningRate(stated["learning_rate"], **schedule)

    def _prepare(self, *batch):
        if len(batch) == 1:
            return self.data.features(batch[0])
        return self.data.features(batch[0]), batch[1]

    def _train(self, features, labels):
        with tf.GradientTape() as tape:
            logits = self._logits(self.network(features, training=True))
            loss = self._loss(logits, labels)
            scaled = scale_loss(self.optimizer, loss)
        variables = self.network.trainable_variables
        gradients = tape.gradient(scaled, variables)
        apply_gradients(self.optimizer, gradients, variables)
        return loss, logits

    def _evaluate(self, features, labels):
        logits = self._logits(self.network(features, training=False))
        return self._loss(logits, labels), logits

    def _logits(self, outputs):
        heads = outputs if isinstance(outputs, Mapping) else {self.labels[0]: outputs}
        missing = [name for name in self.labels if name not in heads]
        if missing:
            raise ValueError(
                f"{self.config.path}: model.name: expected a model with an output for each label "
                f"({', '.join(self.labels)}), got one with {', '.join(heads)}"
            )
        return {name: tf.reshape(tf.cast(heads[name], tf.float32), [-1]) for name in self.labels}

    def _loss(self, logits, labels):
        total = tf.zeros([])
        if not self._has_own_loss:
            for name, x in logits.items():
                total += float(self._weights.get(name, 1.0)) * self._loss_of(x, labels[name])
        regularization = getattr(self.network, "regularization", None)
        if regularization is not None:
            total += regularization(tf.shape(next(iter(logits.values())))[0])
        return total + tf.add_n([tf.cast(x, tf.float32) for x in self.network.losses or [0.0]])

    def _loss_of(self, logits, labels):
        labels = tf.reshape(tf.cast(labels, tf.float32), [-1])
        if self.labels_are_binary:
            losses = tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits)
        else:
            losses = tf.square(logits - labels)
        return tf.reduce_mean(losses)


def inner_optimizer(optimizer: Any) -> Any:
    """The optimizer inside of a LossScaleOptimizer, or the optimizer."""
    return getattr(optimizer, "inner_optimizer", optimizer)


def scale_loss(optimizer: Any, loss: tf.Tensor) -> tf.Tensor:
    """The loss times the scale of a LossScaleOptimizer, or the loss."""
    if not isinstance(optimizer, keras.mixed_precision.LossScaleOptimizer):
        return loss
    return optimizer.scale_loss(loss) if IS_KERAS_3 else optimizer.get_scaled_loss(loss)


def apply_gradients(optimizer: Any, gradients: list[Any], variables: list[Any]) -> None:
    """Applies the gradients of a loss that `scale_loss` gave."""
    if isinstance(optimizer, keras.mixed_precision.LossScaleOptimizer) and not IS_KERAS_3:
        gradients = optimizer.get_unscaled_gradients(gradients)
    optimizer.apply_gradients(zip(gradients, variables))
