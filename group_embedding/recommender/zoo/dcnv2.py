"""`DCNv2`: crosses of all features beside dense layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from group_embedding.config import check_choice
from group_embedding.keras_compat import keras
from group_embedding.recommender.zoo.interactions import CrossNetwork
from group_embedding.recommender.zoo.mlp import MLP
from group_embedding.recommender.zoo.model_inputs import Dense, Features
from group_embedding.recommender.zoo.recommender import Recommender


@keras.utils.register_keras_serializable(package="group_embedding")
class DCNv2(Recommender):
    """Deep and cross network, second version: Wang et al., https://arxiv.org/abs/2008.13535.

        ids --- one lookup --+             +--- crosses ------------+
                             |-- side by --|                        |-- side by side -- logit
        dense ---------------+   side      +--- MLP ("parallel") ---+

    With structure "stacked" the MLP is behind the crosses.

    Example:

    >>> items = ge.TableConfig("items", num_rows=100, dim=8)
    >>> features = [ge.FeatureConfig("item", items), ge.FeatureConfig("seen", items)]
    >>> model = ge.models.DCNv2(features, dense=["age"], num_layers=2, hidden=[16])
    >>> ids = tf.constant([[1, 2], [3, -1]])
    >>> model({"item": tf.constant([5, 7]), "seen": ids, "age": tf.constant([0.3, 0.5])}).shape
    TensorShape([2, 1])

    Args:
      features: a `ge.data.Schema`, or `FeatureConfig`s.
      dense: names of dense inputs, or a dict from names to widths; None: those of the schema.
      dim: the length of rows, where a schema does not say it.
      num_layers: how many crosses.
      rank: of the matrices of the crosses; None: they are whole.
      hidden: units of the MLP.
      structure: "parallel" or "stacked".
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
        dense: Dense = None,
        dim: int = 16,
        num_layers: int = 3,
        rank: int | None = None,
        hidden: Sequence[int] = (256, 128),
        structure: str = "parallel",
        dropout: float = 0.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(features, dense=dense, dim=dim, **kwargs)
        self._check_combined()
        self._check_units(hidden=hidden, num_layers=[num_layers], rank=[rank or 1])
        check_choice("DCNv2", "structure", structure, ("parallel", "stacked"))
        self.crosses = CrossNetwork(num_layers, rank, dtype=self._policy)
        self.deep = MLP(hidden, dropout=dropout, dtype=self._policy)
        self.logit = self._logit_layer()
        self._is_parallel = structure == "parallel"

    def predict_logits(self, batch: Any, training: Any = None) -> Any:
        x = batch.concat(self.features)
        crossed = self.crosses(x)
        if not self._is_parallel:
            return self.logit(self.deep(crossed, training=training))
        return self.logit(tf.concat([crossed, self.deep(x, training=training)], axis=-1))
