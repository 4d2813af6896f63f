"""`DIN`: attention from a candidate to what the user did."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from group_embedding.keras_compat import keras
from group_embedding.recommender.zoo.attention import ActivationUnit
from group_embedding.recommender.zoo.histories import HistoryRecommender
from group_embedding.recommender.zoo.mlp import MLP
from group_embedding.recommender.zoo.model_inputs import Dense, Features


@keras.utils.register_keras_serializable(package="group_embedding")
class DIN(HistoryRecommender):
    """Deep Interest Network: Zhou et al., https://arxiv.org/abs/1706.06978.

        history --- one lookup --- [batch, length, dim] ---+
                                                           |-- activation unit -- sum --+
        target ---- one lookup --- [batch, dim] -----------+                            |
        other features, target, dense --------------------------------------------------+
                                                                                        |
                                                                               MLP -- logit

    Example:

    >>> items = ge.TableConfig("items", num_rows=100, dim=8)
    >>> features = [ge.FeatureConfig("item", items), ge.FeatureConfig("seen", items)]
    >>> model = ge.models.DIN(features, history={"seen": "item"}, max_length=10, hidden=[16])
    >>> model({"item": tf.constant([5, 7]), "seen": tf.constant([[1, 2], [3, -1]])}).shape
    TensorShape([2, 1])

    Args:
      features: a `ge.data.Schema`, or `FeatureConfig`s.
      history: a dict from each feature that is a history, oldest first, to the feature that it is
        compared with: `{"seen": "item", "seen_genre": "genre"}`.
      max_length: how many of the newest ids of a history are read, unless its `FeatureConfig` says
        so.
      dense: names of dense inputs, or a dict from names to widths; None: those of the schema.
      dim: the length of rows, where a schema does not say it.
      attention: units of the hidden layers of the activation unit.
      hidden: units of the MLP.
      activation: of both: a name of Keras, or "dice".
      dropout: the share of outputs of the MLP's layers that are dropped in training.
      **kwargs: `name`, `dtype` and `trainable`, as for every Keras model.

    Returns:
      Called on a dict of inputs: logits `[batch, 1]`.

    Raises:
      TypeError, ValueError: An argument is not of the form above.
    """

    def __init__(
        self,
        features: Features,
        *,
        history: Mapping[str, str],
        max_length: int = 50,
        dense: Dense = None,
        dim: int = 16,
        attention: Sequence[int] = (80, 40),
        hidden: Sequence[int] = (200, 80),
        activation: str = "dice",
        dropout: float = 0.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            features, history=history, max_length=max_length, dense=dense, dim=dim, **kwargs
        )
        self._check_units(attention=attention, hidden=hidden)
        self.interest = ActivationUnit(attention, activation, dtype=self._policy)
        self.deep = MLP(hidden, activation, dropout=dropout, dtype=self._policy)
        self.logit = self._logit_layer()

    def predict_logits(self, batch: Any, training: Any = None) -> Any:
        query, keys, mask = self.read_history(batch)
        interest = self.interest(query, keys, mask, training=training)
        x = tf.concat([batch.concat(self.combined), interest], axis=-1)
        return self.logit(self.deep(x, training=training))
