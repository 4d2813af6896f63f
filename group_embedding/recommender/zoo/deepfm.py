"""`DeepFM`: a factorization machine beside dense layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from group_embedding.keras_compat import keras
from group_embedding.recommender.zoo.interactions import FactorizationMachine
from group_embedding.recommender.zoo.mlp import MLP
from group_embedding.recommender.zoo.model_inputs import Dense, Features
from group_embedding.recommender.zoo.recommender import Recommender


@keras.utils.register_keras_serializable(package="group_embedding")
class DeepFM(Recommender):
    """DeepFM: Guo et al., https://arxiv.org/abs/1703.04247.

        ids --- a number for each id --- sum --------+
        dense --- linear ----------------------------|
        ids --- vectors --- dot products of pairs ---|-- sum -- logit
        vectors and dense, side by side --- MLP -----+

    Numbers and vectors are looked up by one op.

    Example:

    >>> items = ge.TableConfig("items", num_rows=100, dim=8)
    >>> features = [ge.FeatureConfig("item", items), ge.FeatureConfig("seen", items)]
    >>> model = ge.models.DeepFM(features, dense=["age"], hidden=[16])
    >>> ids = tf.constant([[1, 2], [3, -1]])
    >>> model({"item": tf.constant([5, 7]), "seen": ids, "age": tf.constant([0.3, 0.5])}).shape
    TensorShape([2, 1])

    Args:
      features: a `ge.data.Schema`, or `FeatureConfig`s whose tables have one dim.
      dense: names of dense inputs, or a dict from names to widths; None: those of the schema.
      dim: the length of rows, where a schema does not say it.
      hidden: units of the MLP.
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
        hidden: Sequence[int] = (256, 128),
        dropout: float = 0.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(features, dense=dense, dim=dim, linear=None, **kwargs)
        self._check_combined()
        self._check_units(hidden=hidden)
        self._one_dim()
        self.linear = self._logit_layer() if self.dense_widths else None
        self.pairs = FactorizationMachine(dtype=self._policy)
        self.deep = MLP(hidden, dropout=dropout, dtype=self._policy)
        self.logit = self._logit_layer()

    def predict_logits(self, batch: Any, training: Any = None) -> Any:
        x = batch.concat(self.features)
        deep = self.logit(self.deep(x, training=training))
        pairs = self.pairs(batch.stack(self.features))
        return batch.linear_logits(self.linear) + pairs + deep
