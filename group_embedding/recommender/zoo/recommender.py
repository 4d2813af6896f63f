"""`Recommender`: what all models of the zoo have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from group_embedding.config import FeatureConfig
from group_embedding.keras_compat import keras, policy_of
from group_embedding.layers import GroupEmbedding, features_from_config, features_to_config
from group_embedding.recommender.zoo.arguments import KeepsArguments
from group_embedding.recommender.zoo.model_inputs import (
    Dense,
    Features,
    check_combined,
    check_units,
    chosen_features,
    linear_features,
    one_dim,
    plan_dense,
    plan_model_features,
)
from group_embedding.recommender.zoo.routed_inputs import RoutedInputs
from group_embedding.recommender.zoo.served import Served
from group_embedding.training import Model


class LookedUp(NamedTuple):
    """A batch behind the lookup."""

    vectors: dict  # [batch, dim] of each feature, [batch, max_length, dim] of a sequence
    masks: dict  # bool [batch, max_length] of each sequence
    linear: Any  # [batch, features with a linear table], or None
    dense: Any  # [batch, sum of widths], or None
    others: dict  # inputs that a model reads by itself

    def concat(self, features):
        """[batch, sum of dims]: vectors of combined features and dense inputs side by side."""
        columns = [self.vectors[feature.name] for feature in features]
        return tf.concat(columns if self.dense is None else [*columns, self.dense], axis=-1)

    def stack(self, features):
        """[batch, features, dim]: vectors of combined features of one dim."""
        return tf.stack([self.vectors[feature.name] for feature in features], axis=1)

    def linear_logits(self, dense_layer):
        """[batch, 1]: the sum of linear vectors, and of a dense layer on the dense inputs (None:
        there are none)."""
        total = tf.reduce_sum(self.linear, axis=-1, keepdims=True)
        return total if dense_layer is None else total + dense_layer(self.dense)


class Recommender(KeepsArguments, Served, Model):
    """The base of the models: features are looked up by one op, the rest is `predict_logits`.

    A subclass hands its features to this constructor, makes its layers, and computes logits from a
    batch that is looked up. Its training step is compiled, as that of `ge.training.Model`. The
    arguments of its constructor are its config: plain values, lists and dicts of them.

    Example:

    >>> @tf.keras.utils.register_keras_serializable(package="mine")
    ... class Deep(ge.models.Recommender):
    ...     def __init__(self, features, *, units=(16,), dim=16, **kwargs):
    ...         super().__init__(features, dim=dim, **kwargs)
    ...         self.deep, self.logit = ge.models.MLP(units), tf.keras.layers.Dense(1)
    ...
    ...     def predict_logits(self, batch, training=None):
    ...         x = batch.concat(self.features)
    ...         return self.logit(self.deep(x, training=training))
    >>> items = ge.TableConfig("items", num_rows=100, dim=8)
    >>> model = Deep([ge.FeatureConfig("item", items)], units=[8])
    >>> model({"item": tf.constant([5, 7])}).shape, model.get_config()["units"]
    (TensorShape([2, 1]), [8])

    Args:
      features: a `ge.data.Schema`, or `FeatureConfig`s.
      dense: names of dense inputs, float `[batch]` or `[batch, 1]`, or a dict from names to widths
        w of inputs `[batch, w]`. None: the continuous columns of the schema, or none.
      dim: the length of rows, where a schema does not say it.
      plan: None, or a function that takes and returns features: those that the model looks up.
      vectors: names of the features whose vectors are looked up; None: all.
      linear: names of the features that have a linear table, too: one number for each id; None:
        all.
      others: names of inputs that are handed to `predict_logits` as they are; a feature may be one.
      **kwargs: `name`, `dtype` and `trainable`, as for every Keras model.
    """

    def __init__(
        self,
        features: Features,
        *,
        dense: Dense = None,
        dim: int = 16,
        plan: Any = None,
        vectors: Sequence[str] | None = None,
        linear: Sequence[str] | None = (),
        others: tuple[str, ...] = (),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        owner = type(self).__name__
        planned = plan_model_features(features, dim)
        self._dense_widths = plan_dense(owner, features, dense)
        self._features = planned if plan is None else plan(planned)
        self._with_vectors = chosen_features(owner, self._features, vectors)
        chosen = chosen_features(owner, self._features, linear)
        self._linear = [(f.name, g) for f, g in zip(chosen, linear_features(chosen))]
        self._others = others
        arguments = self._arguments.values
        arguments.pop("plan", None)  # the features are kept as it made them
        if dense is None or "dense" in arguments:  # else the subclass says what is dense
            arguments["dense"] = dict(self._dense_widths)
        looked_up = [*self._with_vectors, *(feature for _, feature in self._linear)]
        self._check_names(owner, looked_up)
        self.embedding = GroupEmbedding(looked_up, name="embedding", dtype=self._policy)

    def _check_names(self, owner, features):
        names = [f.name for f in features]
        for name in self._dense_widths:
            if name in names:
                raise ValueError(
                    f"{owner}: expected '{name}' as a feature or a dense input, got both"
                )

    def _check_combined(self, features=None):
        check_combined(type(self).__name__, self._features if features is None else features)

    def _check_units(self, **arguments):
        check_units(type(self).__name__, **arguments)

    def _one_dim(self):
        return one_dim(type(self).__name__, self._features)

    def _logit_layer(self, units=1, **kwargs):
        return keras.layers.Dense(units, dtype=self._policy, **kwargs)

    @property
    def features(self) -> tuple[FeatureConfig, ...]:
        """The features, without those of linear tables."""
        return tuple(self._features)

    @property
    def dense_widths(self) -> dict[str, int]:
        """The width of each dense input."""
        return dict(self._dense_widths)

    @property
    def _policy(self):
        return policy_of(self)

    def build(self, input_shape: Any = None) -> None:
        """Makes all weights, whatever the shapes of the inputs: the features say what they are."""
        if self.built:  # type: ignore[has-type]
            return
        # Eagerly, though the first call may be in a function that Keras traces.
        with tf.init_scope():
            if not self.embedding.built:  # `route` builds it
                self.embedding.build()
            self.predict_logits(self._example(), training=False)
        self.built = True

    def get_build_config(self) -> Any:
        return {"input_shape": None}

    def build_from_config(self, config: Any) -> None:
        self.build()

    def call(self, inputs: Mapping[str, Any] | RoutedInputs, training: Any = None) -> Any:
        """Logits of a batch.

        Args:
          inputs: a dict: ids of each feature, as `ge.layers.GroupEmbedding` takes them, or what
            `route` made of them; and the dense inputs.
          training: whether the model is trained.

        Returns:
          Logits `[batch, 1]`, or what the model says.
        """
        logits = self.predict_logits(self._look_up(inputs), training=training)
        return tf.nest.map_structure(self._as_output, logits)

    def route(self, inputs: Mapping[str, Any]) -> RoutedInputs:
        """Packs the ids of a batch, as in `reader.map(lambda x, y: (model.route(x), y))`; see
        `ge.route_ids`.

        Args:
          inputs: As of a call.

        Returns:
          The inputs, with all ids packed, which the model takes.
        """
        others = {
            name: tf.convert_to_tensor(_input(self, inputs, name)) for name in self._dense_widths
        }
        others.update((name, self._other_of(inputs, name)) for name in self._others)
        return RoutedInputs(self.embedding.route(self._ids_of(inputs)), others)

    def predict_logits(self, batch: LookedUp, training: Any = None) -> Any:
        """The dense part of the model; a subclass has it.

        Args:
          batch: `vectors`, a dict from features to `[batch, dim]`, of a sequence `[batch,
            max_length, dim]`, with bool `masks` `[batch, max_length]`; `linear`, `[batch, features
            with a linear table]`; `dense`, `[batch, sum of widths]`, or None; and `others`, a dict.
            `batch.concat(features)` has vectors and dense inputs side by side, `[batch, width]`;
            `batch.stack(features)` is `[batch, features, dim]`.
          training: whether the model is trained.

        Returns:
          Logits `[batch, 1]`, or a dict of them.
        """
        raise NotImplementedError(f"{type(self).__name__}: expected a method predict_logits")

    def get_config(self) -> dict[str, Any]:
        return {
            **self._arguments.values,
            "name": self.name,
            "dtype": _serialized(self._policy),
            "features": features_to_config(self._features),
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Any:
        config = {**config, "features": features_from_config(config["features"])}
        return cls(**config)

    def _look_up(self, inputs):
        if isinstance(inputs, RoutedInputs):
            ids, inputs = inputs.ids, inputs.others
        else:
            ids = self._ids_of(inputs)
        outputs = self.embedding(ids)
        vectors = {feature.name: outputs[feature.name] for feature in self._with_vectors}
        masks = self._masks_of(vectors, ids)
        linear = None
        if self._linear:
            linear = tf.concat([outputs[feature.name] for _, feature in self._linear], axis=-1)
        others = {name: self._other_of(inputs, name) for name in self._others}
        return LookedUp(vectors, masks, linear, self._dense_of(inputs), others)

    def _masks_of(self, vectors, ids):
        """{feature: bool [batch, max_length]} of the sequences."""
        names = [f.name for f in self._with_vectors if f.max_length is not None]
        masks = {name: getattr(vectors[name], "_keras_mask", None) for name in names}
        if None in masks.values():
            # Keras 2 traces a SavedModel with a stand-in for the layer: results have no masks.
            computed = self.embedding.compute_mask(ids)
            masks = {name: computed[name] for name in names}
        return masks

    def _ids_of(self, inputs):
        ids = dict(inputs)
        for name, feature in self._linear:
            ids[feature.name] = _input(self, inputs, name)
        return ids

    def _other_of(self, inputs, name):
        return tf.convert_to_tensor(_input(self, inputs, name))

    def _dense_of(self, inputs):
        if not self._dense_widths:
            return None
        columns = []
        for name, width in self._dense_widths.items():
            column = tf.cast(_input(self, inputs, name), self.compute_dtype)
            if column.shape.rank == 1:
                column = column[:, None]
            if not column.shape.is_compatible_with([None, width]):
                raise ValueError(
                    f"dense input '{name}': expected shape [batch, {width}], got {column.shape}"
                )
            columns.append(tf.ensure_shape(column, [None, width]))
        return tf.concat(columns, axis=-1)

    def _example(self):
        """A batch of one sample, to build layers by."""
        dtype = self.compute_dtype
        vectors, masks = {}, {}
        for feature in self._with_vectors:
            length = () if feature.max_length is None else (feature.max_length,)
            vectors[feature.name] = tf.zeros([1, *length, feature.table.dim], dtype)
            if length:
                masks[feature.name] = tf.ones([1, *length], tf.bool)
        width = sum(self._dense_widths.values())
        dense = tf.zeros([1, width], dtype) if width else None
        linear = tf.zeros([1, len(self._linear)], dtype) if self._linear else None
        return LookedUp(vectors, masks, linear, dense, {n: tf.zeros([1]) for n in self._others})

    def _as_output(self, logits):
        # In 16 bits a loss would lose what it compares.
        output = tf.cast(logits, self.variable_dtype)
        mask = getattr(logits, "_keras_mask", None)
        if mask is not None:
            output._keras_mask = mask
        return output


def _input(model, inputs, name):
    if name not in inputs:
        raise ValueError(
            f"model '{model.name}': expected an input '{name}', got {', '.join(map(str, inputs))}"
        )
    return inputs[name]


def _serialized(policy):
    return policy.name if hasattr(policy, "name") else keras.mixed_precision.serialize(policy)
