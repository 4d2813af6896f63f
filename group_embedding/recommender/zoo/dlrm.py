"""`DLRM`: dot products of features."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from group_embedding.keras_compat import keras
from group_embedding.recommender.zoo.interactions import DotInteraction
from group_embedding.recommender.zoo.mlp import MLP
from group_embedding.recommender.zoo.model_inputs import Dense, Features
from group_embedding.recommender.zoo.recommender import Recommender


@keras.utils.register_keras_serializable(package="group_embedding")
class DLRM(Recommender):
    """Deep learning recommendation model: Naumov et al., https://arxiv.org/abs/1906.00091.

        dense --- MLP (bottom) --------+---------------------+
                                       |                     |
        ids --- one lookup --- dot products of pairs --- side by side --- MLP (top) --- logit

    Example:

    >>> items = ge.TableConfig("items", num_rows=100, dim=8)
    >>> features = [ge.FeatureConfig("item", items), ge.FeatureConfig("seen", items)]
    >>> model = ge.models.DLRM(features, dense=["age"], bottom=[16], top=[16])
    >>> ids = tf.constant([[1, 2], [3, -1]])
    >>> model({"item": tf.constant([5, 7]), "seen": ids, "age": tf.constant([0.3, 0.5])}).shape
    TensorShape([2, 1])

    Args:
      features: a `ge.data.Schema`, or `FeatureConfig`s whose tables have one dim.
      dense: names of dense inputs, or a dict from names to widths; None: those of the schema.
      dim: the length of rows, where a schema does not say it.
      bottom: units of the hidden layers on dense inputs; one of the tables' dim follows.
      top: units of the hidden layers behind the dot products.
      self_interaction: whether a vector meets itself, too.
      dropout: the share of outputs of a layer that are dropped in training.
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
        dense: Dense = None,
        dim: int = 16,
        bottom: Sequence[int] = (512, 256),
        top: Sequence[int] = (512, 256),
        self_interaction: bool = False,
        dropout: float = 0.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(features, dense=dense, dim=dim, **kwargs)
        self._check_combined()
        self._check_units(bottom=bottom, top=top)
        policy, last = self._policy, self._one_dim()
        self.bottom = None
        if self.dense_widths:
            self.bottom = MLP([*bottom, last], dropout=dropout, dtype=policy)
        self.interaction = DotInteraction(self_interaction, dtype=policy)
        self.top = MLP(top, dropout=dropout, dtype=policy)
        self.logit = self._logit_layer()

    def predict_logits(self, batch: Any, training: Any = None) -> Any:
        vectors = batch.stack(self.features)
        if self.bottom is None:
            met = self.interaction(vectors)
        else:
            dense = self.bottom(batch.dense, training=training)
            pairs = self.interaction(tf.concat([dense[:, None], vectors], axis=1))
            met = tf.concat([dense, pairs], axis=-1)
        return self.logit(self.top(met, training=training))
