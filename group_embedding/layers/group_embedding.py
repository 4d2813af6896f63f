"""`GroupEmbedding`: many embedding features, one Keras layer, one lookup."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from group_embedding.annotations import InvalidIds
from group_embedding.config import INVALID_IDS, FeatureConfig, check_choice
from group_embedding.keras_compat import IS_KERAS_3, in_call_of, keras
from group_embedding.layers import layer_tables
from group_embedding.layers.feature_plan import plan_features, plan_tables, table_loads
from group_embedding.layers.inputs import (
    check_ids,
    check_weights,
    output_shape,
    pick_inputs,
    to_lookup,
    to_tensors,
)
from group_embedding.layers.layer_config_values import features_from_config, features_to_config
from group_embedding.layers.sequences import (
    mask_of,
    symbolic_mask,
    to_positions,
    to_sequences,
)
from group_embedding.layers.sequential import let_keras_2_build_from_dicts
from group_embedding.lookups.api import group_embedding_lookup_sparse, route_ids
from group_embedding.lookups.lookup_table import variable_of_all
from group_embedding.lookups.routed_ids import RoutedIds
from group_embedding.ranks.sharding.resolve_placements import resolve_placements
from group_embedding.variables import EmbeddingVariable, Statistics, statistics
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

    A feature with `max_length` is a sequence: its vectors are `[B, max_length, dim]`, in the order
    of its ids, zeros after the last one; `compute_mask` and Keras's mask say where ids are. With
    `ragged` they are a RaggedTensor `[B, None, dim]`. Sequences are looked up by the same op as all
    other features. Negative ids are left out, and the ids behind them move up.

    >>> clicks = ge.FeatureConfig("clicks", items, max_length=3)
    >>> layer = ge.layers.GroupEmbedding([clicks])
    >>> ids = {"clicks": tf.ragged.constant([[7], [1, 2, 3, 4]])}
    >>> layer(ids)["clicks"].shape, layer.compute_mask(ids)["clicks"].numpy().tolist()
    (TensorShape([2, 3, 16]), [[True, False, False], [True, True, True]])

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
        let_keras_2_build_from_dicts()
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
        self._tables = layer_tables.LayerTables({})
        sequences = [feature for feature in self._features if feature.is_sequence]
        if self._concat and sequences:
            raise ValueError(
                f"feature '{sequences[0].name}': expected a feature whose rows are combined in "
                f"layer '{self.name}' with concat=True, got a sequence"
            )
        self.supports_masking = bool(sequences)

    @property
    def features(self) -> tuple[FeatureConfig, ...]:
        """The features, a tuple of `FeatureConfig` in the order of the concatenated output."""
        return tuple(self._features)

    @property
    def tables(self) -> dict[str, Any]:
        """The tables' weights by table name; empty until the layer is built."""
        return dict(self._tables.by_name)

    @property
    def keyed_tables(self) -> dict[str, EmbeddingVariable]:
        """The `EmbeddingVariable`s among the tables, by table name; empty until the layer is built.
        Tables that `tf.distribute` has on several replicas are not among them."""
        tables = {name: variable_of_all(w) for name, w in self._tables.by_name.items()}
        return {name: t for name, t in tables.items() if isinstance(t, EmbeddingVariable)}

    def statistics(self) -> Statistics:
        """Reads what the layer's keyed tables hold and were asked for, on this rank, as
        `ge.statistics` does."""
        return statistics(self)

    def build(self, inputs_shape: Any = None) -> None:
        # The configs say all that is needed, whatever the shape of the inputs.
        placements = resolve_placements(table_loads(self._table_configs))
        self._tables = layer_tables.LayerTables(
            {
                table.name: layer_tables.make_layer_table(self, table, placements[table.name])
                for table in self._table_configs
            }
        )
        self.built = True

    def call(self, inputs: Any, weights: Any = None) -> Any:
        return self._look_up(inputs, weights)

    # Apart from `call`, whose signature Keras 2 would not find behind a decorator.
    @tf.autograph.experimental.do_not_convert
    def _look_up(self, inputs, weights):
        refuse_xla_trace(self.name)
        ids, id_weights, splits = self._ids_of(inputs, weights)
        params, arguments = self._lookup_arguments()
        # Tables of different dtypes can be concatenated only when their outputs have been cast.
        concat_in_op = self._concat and len({param.dtype for param in params}) == 1
        with in_call_of(self):
            outputs = group_embedding_lookup_sparse(
                params, ids, sp_weights=id_weights, name=self.name, concat=concat_in_op, **arguments
            )
        if concat_in_op:
            return tf.cast(outputs, self.compute_dtype)
        outputs = [tf.cast(output, self.compute_dtype) for output in outputs]
        if self._concat:
            return tf.concat(outputs, axis=-1)
        outputs = self._by_name(outputs)
        for feature, of_feature in zip(self._sequences(), splits):
            sequence = to_sequences(feature, outputs[feature.name], of_feature)
            sequence._keras_mask = mask_of(feature, of_feature)
            outputs[feature.name] = sequence
        return outputs

    def _set_mask_metadata(self, *args: Any, **kwargs: Any) -> None:
        """Nothing: the call and `compute_output_spec` have set the masks of their results. Keras
        would compute them from the ids once more, which a compiled step has no place for."""

    @tf.autograph.experimental.do_not_convert
    def route(self, inputs: Any, weights: Any = None) -> RoutedIds:
        """Routes inputs of the layer, or ids that `route` packed in a dataset: see `route_ids`.

        Args:
          inputs, weights: As of a call of the layer.

        Returns:
          `RoutedIds`, which the layer takes in the place of its inputs.
        """
        self.build_from_config(None)
        ids, id_weights, splits = self._ids_of(inputs, weights)
        params, arguments = self._lookup_arguments()
        routed = route_ids(params, ids, sp_weights=id_weights, **arguments)
        return routed.with_sequences(splits)

    @tf.autograph.experimental.do_not_convert
    def compute_mask(self, inputs: Any, mask: Any = None) -> Any:
        """The masks of sequences; Keras gives each to the layer that takes the sequence.

        Args:
          inputs: As of a call of the layer.
          mask: Not read: ids have none.

        Returns:
          A dict by feature name: bool `[batch, max_length]`, True where a sequence has an id; None
          for features that are combined, and for ragged sequences. None of a layer without
          sequences.
        """
        if not self.supports_masking:
            return None
        masks = dict.fromkeys(feature.name for feature in self._features)
        for feature, splits in zip(self._sequences(), self._ids_of(inputs, None)[2]):
            masks[feature.name] = mask_of(feature, splits)
        return masks

    def _sequences(self):
        return [feature for feature in self._features if feature.is_sequence]

    def _ids_of(self, inputs, weights):
        """Ids and weights of the inputs, a list each; or routed ids, and None. And row splits of
        each sequence."""
        if not isinstance(inputs, RoutedIds):
            return self._to_lookups(inputs, weights)
        if weights is not None:
            raise ValueError(
                f"layer '{self.name}': expected no weights with routed ids, which have theirs"
            )
        if len(inputs.sequences) != len(self._sequences()):
            raise ValueError(
                f"layer '{self.name}': expected ids that this layer's route packed, with "
                f"{len(self._sequences())} sequences, got {len(inputs.sequences)}"
            )
        return inputs, None, inputs.sequences

    def _to_lookups(self, inputs, weights):
        ids, id_weights, splits = [], [], []
        picked = zip(self._features, *pick_inputs(self.name, self._features, inputs, weights))
        for feature, *given in picked:
            given = to_tensors(feature, *given)
            if feature.is_sequence:
                lookup, of_feature = to_positions(feature, *given)
                ids.append(lookup)
                id_weights.append(None)
                splits.append(of_feature)
                continue
            of_ids, of_weights = to_lookup(feature, *given)
            ids.append(of_ids)
            id_weights.append(of_weights)
        has_weights = any(weights is not None for weights in id_weights)
        return ids, id_weights if has_weights else None, tuple(splits)

    def _lookup_arguments(self):
        """The tables, and all else that a lookup has but for its ids."""
        features = self._features
        tables = self._tables.by_name
        params = [layer_tables.lookup_param(tables[feature.table.name]) for feature in features]
        return params, {
            "combiners": [_combiner(feature) for feature in features],
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
            output_shape(feature, ids.shape) for feature, ids in zip(self._features, picked[0])
        ]

        def make(shape, is_ragged=False):
            return keras.KerasTensor(shape, dtype=self.compute_dtype, ragged=is_ragged)

        outputs = self._map_shapes(make, shapes)
        for feature, ids in zip(self._features, picked[0]):
            if feature.max_length is not None and not feature.ragged:
                outputs[feature.name]._keras_mask = symbolic_mask(feature, ids)
        return outputs

    def compute_output_shape(self, inputs_shape: Any) -> Any:
        """Returns the outputs' shapes, given a dict of the ids' shapes."""
        shapes = [output_shape(feature, inputs_shape[feature.name]) for feature in self._features]
        make = tuple if IS_KERAS_3 else tf.TensorShape
        return self._map_shapes(lambda shape, is_ragged=False: make(shape), shapes)

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
        for name, weight in self._tables.by_name.items():
            layer_tables.store_table(store, name, weight)

    def load_own_variables(self, store: Any) -> None:
        # Into a layer that was never called, too: its tables wait for nothing.
        self.build_from_config(None)
        for name, weight in self._tables.by_name.items():
            layer_tables.restore_layer_table(store, name, weight)

    def _by_name(self, outputs):
        return {feature.name: output for feature, output in zip(self._features, outputs)}

    def _map_shapes(self, make, shapes):
        if self._concat:
            return make(shapes[0][:-1] + (sum(shape[-1] for shape in shapes),))
        return self._by_name([make(s, f.ragged) for s, f in zip(shapes, self._features)])


def _combiner(feature):
    # A position of a sequence has one id, or none: its sum is the row, times a weight.
    return "sum" if feature.is_sequence else feature.combiner or feature.table.combiner
