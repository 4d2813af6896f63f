"""`BST`: a transformer over what the user did and the candidate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from group_embedding.keras_compat import keras
from group_embedding.recommender.zoo.attention import TransformerBlock
from group_embedding.recommender.zoo.histories import HistoryRecommender
from group_embedding.recommender.zoo.mlp import MLP
from group_embedding.recommender.zoo.model_inputs import Dense, Features
from group_embedding.recommender.zoo.positions import PositionEmbedding


@keras.utils.register_keras_serializable(package="group_embedding")
class BST(HistoryRecommender):
    """Behavior Sequence Transformer: Chen et al., https://arxiv.org/abs/1905.06874.

        history, target -- one lookup -- + positions -- transformer blocks -- all positions --+
                                                                                              |
        other features, target, dense --------------------------------------------------------+
                                                                                              |
                                                                                     MLP -- logit

    Positions are those of the ids in the history, where the paper has the time until the target.

    Example:

    >>> items = ge.TableConfig("items", num_rows=100, dim=8)
    >>> features = [ge.FeatureConfig("item", items), ge.FeatureConfig("seen", items)]
    >>> model = ge.models.BST(features, history={"seen": "item"}, max_length=10, hidden=[16])
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
      num_blocks: how many transformer blocks.
      num_heads: heads of each; it divides the width of the history.
      hidden: units of the MLP.
      dropout: the share of outputs that are dropped in training.
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
        max_length: int = 20,
        dense: Dense = None,
        dim: int = 16,
        num_blocks: int = 1,
        num_heads: int = 8,
        hidden: Sequence[int] = (1024, 512, 256),
        dropout: float = 0.2,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            features, history=history, max_length=max_length, dense=dense, dim=dim, **kwargs
        )
        self._check_units(num_blocks=[num_blocks], num_heads=[num_heads], hidden=hidden)
        width = self.history_width
        options = {"activation": "leaky_relu", "dropout": dropout, "dtype": self._policy}
        self.positions = PositionEmbedding(dtype=self._policy)
        self.blocks = [
            TransformerBlock(num_heads, 4 * width, "post", **options) for _ in range(num_blocks)
        ]
        self.deep = MLP(hidden, "leaky_relu", dropout=dropout, dtype=self._policy)
        self.logit = self._logit_layer()

    def predict_logits(self, batch: Any, training: Any = None) -> Any:
        query, keys, mask = self.read_history(batch)
        x = self.positions(tf.concat([keys, query[:, None]], axis=1))
        mask = tf.pad(mask, [[0, 0], [0, 1]], constant_values=True)
        for block in self.blocks:
            x = block(x, mask, training=training)
        x = tf.where(mask[..., None], x, tf.zeros_like(x))
        x = tf.reshape(x, [-1, x.shape[1] * x.shape[2]])
        x = tf.concat([batch.concat(self.combined), x], axis=-1)
        return self.logit(self.deep(x, training=training))
