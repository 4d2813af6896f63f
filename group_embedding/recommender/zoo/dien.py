"""`DIEN`: how an interest evolves towards a candidate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from group_embedding.keras_compat import keras
from group_embedding.recommender.zoo.histories import HistoryRecommender, last_of
from group_embedding.recommender.zoo.mlp import MLP
from group_embedding.recommender.zoo.model_inputs import Dense, Features
from group_embedding.recommender.zoo.recurrent import AttentionGRU


@keras.utils.register_keras_serializable(package="group_embedding")
class DIEN(HistoryRecommender):
    """Deep Interest Evolution Network: Zhou et al., https://arxiv.org/abs/1809.03672.

        history --- GRU --- states --- attention to the target --- GRU with attention --- last state
                             |                                                               |
                      auxiliary loss           other features, target, dense --- side by side -- MLP
                                                                                                  |
                                                                                                logit

    The auxiliary loss, added in training, has each state of the first GRU tell the next id of the
    history from another: the one at the same position of the next sample of the batch.

    Example:

    >>> items = ge.TableConfig("items", num_rows=100, dim=8)
    >>> features = [ge.FeatureConfig("item", items), ge.FeatureConfig("seen", items)]
    >>> model = ge.models.DIEN(features, history={"seen": "item"}, max_length=10, hidden=[16])
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
      auxiliary: the weight of the auxiliary loss; 0: none.
      hidden: units of the MLP.
      activation: its activation: a name of Keras, or "dice".
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
        auxiliary: float = 1.0,
        hidden: Sequence[int] = (200, 80),
        activation: str = "dice",
        dropout: float = 0.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            features, history=history, max_length=max_length, dense=dense, dim=dim, **kwargs
        )
        self._check_units(hidden=hidden)
        self._auxiliary = auxiliary
        width = self.history_width
        self.interests = AttentionGRU(width, dtype=self._policy)
        self.attention = keras.layers.Dense(width, use_bias=False, dtype=self._policy)
        self.evolution = AttentionGRU(width, dtype=self._policy)
        self.deep = MLP(hidden, activation, dropout=dropout, dtype=self._policy)
        self.logit = self._logit_layer()

    def predict_logits(self, batch: Any, training: Any = None) -> Any:
        query, keys, mask = self.read_history(batch)
        states = self.interests(keys, mask)
        if training and self._auxiliary:
            self.add_loss(self._auxiliary * auxiliary_loss(states, keys, mask))
        # Equation 12: a softmax over the history of `state W query`.
        scores = tf.einsum("bld,bd->bl", states, self.attention(query))
        scores = tf.where(mask, scores, tf.constant(-6e4, scores.dtype))
        evolved = self.evolution(states, mask, tf.nn.softmax(scores))
        interest = last_of(evolved, mask)
        x = tf.concat([batch.concat(self.combined), interest], axis=-1)
        return self.logit(self.deep(x, training=training))


def auxiliary_loss(states, keys, mask):
    """Equation 7, averaged over positions: how well `state . next key` tells the next key from the
    one at its place in the next sample."""
    others, is_other = tf.roll(keys, 1, axis=0)[:, 1:], tf.roll(mask, 1, axis=0)[:, 1:]
    states, keys, is_next = states[:, :-1], keys[:, 1:], mask[:, 1:]
    weights = tf.cast(tf.stack([is_next, is_next & is_other]), tf.float32)
    logits = tf.stack([tf.reduce_sum(states * keys, -1), -tf.reduce_sum(states * others, -1)])
    losses = tf.nn.softplus(-tf.cast(logits, tf.float32)) * weights
    return tf.math.divide_no_nan(tf.reduce_sum(losses), tf.reduce_sum(weights[0]))
