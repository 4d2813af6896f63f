"""`WideAndDeep`: a linear model beside dense layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from group_embedding.keras_compat import keras
from group_embedding.recommender.zoo.mlp import MLP
from group_embedding.recommender.zoo.model_inputs import Dense, Features, chosen_features
from group_embedding.recommender.zoo.recommender import Recommender


@keras.utils.register_keras_serializable(package="group_embedding")
class WideAndDeep(Recommender):
    """Wide & Deep: Cheng et al., https://arxiv.org/abs/1606.07792.

        ids of `wide` --- a number for each id --- sum ------------+
        dense --- linear ------------------------------------------|-- sum -- logit
        ids of `deep`, dense --- vectors side by side --- MLP -----+

    Crossed ids, which the paper gives to the wide part, are features like any other: the step
    `ge.data.Cross` makes them. Numbers and vectors are looked up by one op.

    Example:

    >>> items = ge.TableConfig("items", num_rows=100, dim=8)
    >>> features = [ge.FeatureConfig("item", items), ge.FeatureConfig("seen", items)]
    >>> model = ge.models.WideAndDeep(features, dense=["age"], wide=["item"], hidden=[16])
    >>> ids = tf.constant([[1, 2], [3, -1]])
    >>> model({"item": tf.constant([5, 7]), "seen": ids, "age": tf.constant([0.3, 0.5])}).shape
    TensorShape([2, 1])

    Args:
      features: a `ge.data.Schema`, or `FeatureConfig`s.
      dense: names of dense inputs, or a dict from names to widths; None: those of the schema.
      dim: the length of rows, where a schema does not say it.
      wide: names of the features of the wide part; None: all.
      deep: names of the features of the deep part; None: all.
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
        wide: Sequence[str] | None = None,
        deep: Sequence[str] | None = None,
        hidden: Sequence[int] = (256, 128),
        dropout: float = 0.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(features, dense=dense, dim=dim, vectors=deep, linear=wide, **kwargs)
        self._check_combined()
        self._check_units(hidden=hidden)
        self._deep_features = chosen_features("WideAndDeep", self.features, deep)
        self.linear = self._logit_layer() if self.dense_widths else None
        self.deep = MLP(hidden, dropout=dropout, dtype=self._policy)
        self.logit = self._logit_layer()

    def predict_logits(self, batch: Any, training: Any = None) -> Any:
        x = batch.concat(self._deep_features)
        deep = self.logit(self.deep(x, training=training))
        return deep + batch.linear_logits(self.linear)
