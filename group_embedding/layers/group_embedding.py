"""`GroupEmbedding`: many embedding features, one Keras layer, one lookup."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from group_embedding.config import INVALID_IDS, FeatureConfig, check_choice
from group_embedding.keras_compat import IS_KERAS_3, keras
from group_embedding.layers import layer_tables
from group_embedding.layers.feature_plan import plan_features, plan_tables, table_loads
from group_embedding.layers.inputs import (
    check_ids,
    check_weights,
    output_shape,
    pick_inputs,
    to_lookup,
)
from group_embedding.layers.layer_config_values import features_from_config, features_to_config
from group_embedding.lookup.api import group_embedding_lookup_sparse, route_ids
from group_embedding.lookup.routed_ids import RoutedIds
from group_embedding.sharding.resolve_placements import resolve_placements
from group_embedding.types import InvalidIds
from group_embedding.variables.keras_xla import NotForXla, refuse_xla_trace


@keras.utils.register_keras_serializable(package="group_embedding")
class GroupEmbedding(NotForXla, keras.layers.Layer):
    """Looks up and combines all its features in one fused op.

    Example:

    >>> items = ge.TableConfig("items", num_rows=1000, dim=16)
    >>> layer = ge.layers.GroupEmbedding([
    ...     ge.FeatureConfig("item", items),
    ...     ge.FeatureConfig("history", items, combiner="sum"),
    ... ])
    >>> vectors = layer({"item": tf.constant([3, 5]), "history": tf.ragged.constant([[1, 2], []])})
    >>> vectors["history"].shape
    TensorShape([2, 16])

    Inputs are a dict by feature name, which may have more than the layer asks for. The ids of a
    feature are integers in one of these forms, and the ids of one sample become one vector:

    * a RaggedTensor `[B, None]`;
    * a SparseTensor of rank 2 or more, whose last axis is combined;
    * a dense tensor `[B, k]`, whose rows are combined, or `[B]`, one id per sample. Fill up shorter
      rows with a negative id.

    Negative ids are left out, and a sample without ids gives zeros. Weights of the ids, of the same
    form and shape and of a floating dtype, come in one of three ways: as a pair `(ids, weights)`
    in place of the ids, as another input, which the feature's `weights_feature` names, or in the
    argument `weights` of the call, a dict by feature name. With "mean" and "sqrtn", ids whose
    weight is not positive are left out.

    A training loop of one's own can have the exchange of the next batch's ids between ranks overlap
    this batch's dense part: `layer.route` takes what the layer does, and the layer what it returns;
    see `route_ids` for where to call it.

    Outputs have the compute dtype of the layer's dtype policy; tables have its variable dtype
    unless their `TableConfig` says otherwise.

    In a functional model, `keras.Input` takes `sparse=True` or `ragged=True`; without them Keras
    fills rows up with zeros, which are ids. `Model.export` makes every input a dense one: rows for
    it are filled up with a negative id, or a signature with `tf.RaggedTensorSpec` is given to
    `keras.export.ExportArchive` in a `tf.function`.

    Args:
      features: The features, an iterable of `FeatureConfig` or a dict of them by name.
      concat: Whether the outputs come as one tensor, concatenated along the last axis in the order
        of `features`, in place of a dict.
      invalid_ids: "raise" makes an id at or past the end of its table an error; "ignore" reads
        zeros for it.
      **kwargs: `name`, `dtype` and `trainable`, as for every Keras layer.

    Returns:
      Called on its inputs: a dict of tensors `[B, dim]` by feature name, or with `concat=True` a
      tensor `[B, sum of dims]`. A SparseTensor `[d0, ..., dR, k]` gives `[d0, ..., dR, dim]`.

    Raises:
      TypeError, ValueError: An argument is not of the form above; the message names the table,
        the feature or the layer. Also under `jit_compile=True`: XLA cannot compile the lookup.
    """

    def __init__(
        self,
        features: Sequence[FeatureConfig],
        concat: bool = False,
        invalid_ids: InvalidIds = "raise",
        **kwargs: Any,
    ) -> None:
        # Weights keep the dtype they come in; ids never had another.
        kwargs.setdefault("autocast", False)
        super().__init__(**kwargs)
        self._allow_non_tensor_positional_args = True  # of Keras 3: RoutedIds are no tensor
        if keras.backend.backend() != "tensorflow":
            raise ValueError(
                f"layer '{self.name}': expected Keras to run on TensorFlow, got the backend "
                f"'{keras.backend.backend()}'; set KERAS_BACKEND=tensorflow"
            )
        owner = f"layer '{self.name}'"
        self._features = plan_features(features)
        self._table_configs = plan_tables(self._features)
        self._concat = bool(concat)
        self._invalid_ids = check_choice(owner, "invalid_ids", invalid_ids, INVALID_IDS)
        self._tables = {}

    @property
    def features(self) -> tuple[FeatureConfig, ...]:
        """The features, a tuple of `FeatureConfig` in the order of the concatenated output."""
        return tuple(self._features)

    @property
    def tables(self) -> dict[str, Any]:
        """The tables' weights by table name; empty until the layer is built."""
        return dict(self._tables)

    def build(self, inputs_shape: Any = None) -> None:
        # The configs say all that is needed, whatever the shape of the inputs.
        placements = resolve_placements(table_loads(self._table_configs))
        self._tables = {
            table.name: layer_tables.make_layer_table(self, table, placements[table.name])
            for table in self._table_configs
        }
        self.built = True

    def call(self, inputs: Any, weights: Any = None) -> Any:
        return self._look_up(inputs, weights)

    # Apart from `call`, whose signature Keras 2 would not find behind a decorator.
    @tf.autograph.experimental.do_not_convert
    def _look_up(self, inputs, weights):
        refuse_xla_trace(self.name)
        ids, id_weights = self._ids_of(inputs, weights)
        params, arguments = self._lookup_arguments()
        # Tables of different dtypes can be concatenated only when their outputs have been cast.
        concat_in_op = self._concat and len({param.dtype for param in params}) == 1
        outputs = group_embedding_lookup_sparse(
            params, ids, sp_weights=id_weights, name=self.name, concat=concat_in_op, **arguments
        )
        if concat_in_op:
            return tf.cast(outputs, self.compute_dtype)
        outputs = [tf.cast(output, self.compute_dtype) for output in outputs]
        return tf.concat(outputs, axis=-1) if self._concat else self._by_name(outputs)

    @tf.autograph.experimental.do_not_convert
    def route(self, inputs: Any, weights: Any = None) -> RoutedIds:
        """Routes inputs of the layer, or ids that `route` packed in a dataset: see `route_ids`.

        Args:
          inputs, weights: As of a call of the layer.

        Returns:
          `RoutedIds`, which the layer takes in the place of its inputs.
        """
        self.build_from_config(None)
        ids, id_weights = self._ids_of(inputs, weights)
        params, arguments = self._lookup_arguments()
        return route_ids(params, ids, sp_weights=id_weights, **arguments)

    def _ids_of(self, inputs, weights):
        """Ids and weights of the inputs, a list each; or routed ids, and None."""
        if not isinstance(inputs, RoutedIds):
            return self._to_lookups(inputs, weights)
        if weights is not None:
            raise ValueError(
                f"layer '{self.name}': expected no weights with routed ids, which have theirs"
            )
        return inputs, None

    def _to_lookups(self, inputs, weights):
        picked = zip(self._features, *pick_inputs(self.name, self._features, inputs, weights))
        ids, id_weights = zip(*(to_lookup(*feature_inputs) for feature_inputs in picked))
        has_weights = any(weights is not None for weights in id_weights)
        return list(ids), list(id_weights) if has_weights else None

    def _lookup_arguments(self):
        """The tables, and all else that a lookup has but for its ids."""
        features = self._features
        params = [
            layer_tables.lookup_param(self._tables[feature.table.name]) for feature in features
        ]
        return params, {
            "combiners": [feature.combiner or feature.table.combiner for feature in features],
            "max_norm": [feature.table.max_norm for feature in features],
            "invalid_ids": self._invalid_ids,
            "feature_names": [feature.name for feature in features],
        }

    def compute_output_spec(self, inputs: Any, weights: Any = None) -> Any:
        """The shapes and dtypes of the outputs. Keras 3 calls it instead of `call` when it builds a
        functional model."""
        picked = pick_inputs(self.name, self._features, inputs, weights)
        for feature, ids, id_weights in zip(self._features, *picked):
            check_ids(feature, ids)
            if id_weights is not None:
                check_weights(feature, ids, id_weights)
        shapes = [
            output_shape(ids.shape, feature.table.dim)
            for feature, ids in zip(self._features, picked[0])
        ]
        return self._map_shapes(
            lambda shape: keras.KerasTensor(shape, dtype=self.compute_dtype), shapes
        )

    def compute_output_shape(self, inputs_shape: Any) -> Any:
        """Returns the outputs' shapes, given a dict of the ids' shapes."""
        shapes = [
            output_shape(inputs_shape[feature.name], feature.table.dim)
            for feature in self._features
        ]
        return self._map_shapes(tuple if IS_KERAS_3 else tf.TensorShape, shapes)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            **features_to_config(self._features),
            "concat": self._concat,
            "invalid_ids": self._invalid_ids,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> GroupEmbedding:
        config = dict(config)
        features = features_from_config(config)
        del config["tables"]
        return cls(**{**config, "features": features})

    def get_build_config(self) -> Any:
        return {"input_shape": None}

    def build_from_config(self, config: Any) -> None:
        if not self.built:
            self.build()

    def save_own_variables(self, store: Any) -> None:
        for name, weight in self._tables.items():
            layer_tables.store_table(store, name, weight)

    def load_own_variables(self, store: Any) -> None:
        # Into a layer that was never called, too: its tables wait for nothing.
        self.build_from_config(None)
        for name, weight in self._tables.items():
            layer_tables.restore_layer_table(store, name, weight)

    def _by_name(self, outputs):
        return {feature.name: output for feature, output in zip(self._features, outputs)}

    def _map_shapes(self, make, shapes):
        if self._concat:
            return make(shapes[0][:-1] + (sum(shape[-1] for shape in shapes),))
        return self._by_name([make(shape) for shape in shapes])
