"""`Network`: the network of a HugeCTR file as a Keras model."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from group_embedding.compat.hugectr.fields import Fields
from group_embedding.compat.hugectr.graph import Graph, graph_of, read_graph, slot_offsets
from group_embedding.compat.hugectr.layers import LAYERS
from group_embedding.config import FeatureConfig, TableConfig
from group_embedding.keras_compat import IS_KERAS_3, keras
from group_embedding.layers import GroupEmbedding


@keras.utils.register_keras_serializable(package="group_embedding")
class Network(keras.Model):
    """The network that a HugeCTR JSON file describes, layer by layer.

    It is called on a dict: under the name of the dense input its numbers, float [B, dense_dim]; and
    for each slot of a sparse input ids: [B], [B, k], or ragged [B, None], under the name of the
    input, or with several slots under `<name>_0`, `<name>_1` and so on (see `features`). With a
    `slot_size_array` an id is 0 to the size of its slot, all slots of an embedding share one table,
    and each has rows of its own in it; without, ids are keys of a keyed table.

    Example:

    >>> import json
    >>> sparse = {"top": "data", "slot_num": 2, "nnz_per_slot": 1, "is_fixed_length": True}
    >>> file = {"layers": [
    ...     {"type": "Data", "label": {"top": "label", "label_dim": 1},
    ...      "dense": {"top": "dense", "dense_dim": 3}, "sparse": [sparse]},
    ...     {"type": "LocalizedSlotSparseEmbeddingHash", "bottom": "data", "top": "vectors",
    ...      "sparse_embedding_hparam": {
    ...          "embedding_vec_size": 4, "combiner": "sum", "slot_size_array": [10, 20]}},
    ...     {"type": "Reshape", "bottom": "vectors", "top": "flat", "leading_dim": 8},
    ...     {"type": "Concat", "bottom": ["flat", "dense"], "top": "all"},
    ...     {"type": "InnerProduct", "bottom": "all", "top": "fc", "fc_param": {"num_output": 1}},
    ...     {"type": "BinaryCrossEntropyLoss", "bottom": ["fc", "label"], "top": "loss"},
    ... ]}
    >>> with open("/tmp/ge_hugectr.json", "w") as opened:
    ...     json.dump(file, opened)
    >>> network = ge.hugectr.Network("/tmp/ge_hugectr.json")
    >>> network.features
    ['data_0', 'data_1']
    >>> network({"dense": tf.ones([5, 3]), "data_0": tf.range(5), "data_1": tf.range(5)}).shape
    TensorShape([5, 1])

    Args:
        graph: the path of the file, or what `read_graph` made of it.
        initializers: from the name of an embedding to the initializer of its table, as of
            `TableConfig`; others have the default one.
        **kwargs: `name`, `dtype` and `trainable`, as for every Keras model.

    Returns:
        Called on a dict of inputs: the logits [B, 1]; with several losses, a dict of them by the
        label's name.

    Raises:
        ValueError: a layer is of a type that is none of HugeCTR's, or not supported; a key of it is
            missing or unknown. The message names the layer. Or `initializers` names no embedding.
    """

    def __init__(
        self,
        graph: Graph | str | os.PathLike,
        initializers: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**{"name": "hugectr", **kwargs})
        self._initializers = {
            name: keras.initializers.get(one) for name, one in (initializers or {}).items()
        }
        self._graph = graph if isinstance(graph, Graph) else read_graph(graph)
        self._slots = {one.name: one.slots for one in self._graph.sparse}
        names = [one.name for one in self._graph.embeddings]
        if unknown := sorted(set(self._initializers) - set(names)):
            raise ValueError(
                f"{self._graph.path}: expected initializers of {', '.join(names)}, got one of "
                f"'{unknown[0]}'"
            )
        self._embeddings = GroupEmbedding(self._feature_configs(), name="embeddings")
        self._dense_layers = [_make_layer(self._graph.path, one) for one in self._graph.layers]

    @property
    def graph(self) -> Graph:
        """The contents of the file."""
        return self._graph

    @property
    def features(self) -> list[str]:
        """The names of the slots of all sparse inputs, in the order of the file."""
        return [slot for slots in self._slots.values() for slot in slots]

    @property
    def table_configs(self) -> dict[str, TableConfig]:
        """The table of each sparse embedding, by the embedding's name."""
        return {feature.table.name: feature.table for feature in self._embeddings.features}

    @property
    def embeddings(self) -> GroupEmbedding:
        """The layer with the tables of all sparse embeddings; its outputs are by
        `<embedding>/<slot>`."""
        return self._embeddings

    @property
    def dense_variables(self) -> list[Any]:
        """The trained variables of dense layers, in the order of HugeCTR's dense model file: by
        layers, of each kernel before bias; empty until the network was called."""
        return [v for layer in self._dense_layers for v in layer.weights_in_order]

    def slot_offsets(self, embedding: str) -> list[int]:
        """The offsets that make the ids of each slot of an embedding rows of its table; 0
        for keyed tables.

        Args:
            embedding: the name of the embedding.

        Raises:
            KeyError: the file has no such embedding.
        """
        one = {e.name: e for e in self._graph.embeddings}[embedding]
        num_slots = len(self._slots[one.bottom])
        return slot_offsets(one.slot_sizes) if one.slot_sizes else [0] * num_slots

    @property
    def _default_save_signature(self):
        """The function of a SavedModel that names none. Keras 3 would trace it with float32 for
        each argument of `build`, ids too."""
        if not IS_KERAS_3:
            return super()._default_save_signature
        given = {slot: tf.TensorSpec([None, None], tf.int64, slot) for slot in self.features}
        name, width = self._graph.dense
        if width:
            given[name] = tf.TensorSpec([None, width], tf.float32, name)
        return tf.function(lambda inputs: self(inputs, training=False), input_signature=[given])

    def call(self, features: Mapping[str, Any], training: bool | None = None) -> Any:
        tensors = self._look_up(features)
        name, width = self._graph.dense
        if width:
            dense = self._feature(features, name)
            tensors[name] = tf.cast(tf.reshape(dense, [-1, width]), self.compute_dtype)
        for layer, made in zip(self._graph.layers, self._dense_layers):
            bottoms = [tensors[bottom] for bottom in layer.bottoms]
            tops = made(bottoms, training=training) if _trains(layer) else made(bottoms)
            tops = tops if isinstance(tops, (list, tuple)) else [tops]
            if len(tops) != len(layer.tops):
                raise ValueError(
                    f"{self._graph.path}, {layer.owner}: expected {len(tops)} tops, got "
                    f"{len(layer.tops)}"
                )
            tensors.update(zip(layer.tops, tops))
        logits = {one.label: tf.cast(tensors[one.logit], tf.float32) for one in self._graph.losses}
        return logits if len(logits) > 1 else next(iter(logits.values()))

    def regularization(self, batch_size: Any) -> tf.Tensor:
        """The losses' regularizers: lambda / B times the sum of |w|, or of w^2 / 2, over the
        weights of all dense layers.

        Args:
            batch_size: B, the samples of a batch.

        Returns:
            A float32 scalar.
        """
        total = tf.zeros([])
        for one in self._graph.losses:
            if one.regularizer:
                size = tf.abs if one.regularizer == "L1" else lambda w: 0.5 * w * w
                terms = [tf.reduce_sum(size(tf.convert_to_tensor(w))) for w in self.dense_variables]
                total += one.factor / tf.cast(batch_size, tf.float32) * tf.add_n(terms)
        return total

    def get_config(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "path": self._graph.path,
            "values": self._graph.values,
            "initializers": {
                name: keras.initializers.serialize(one) for name, one in self._initializers.items()
            },
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Network:
        graph = graph_of(config["values"], config["path"])
        return cls(graph, config.get("initializers"), name=config["name"])

    def _look_up(self, features):
        """{name of an embedding: [B, slots, dim]}."""
        ids = {}
        for one in self._graph.embeddings:
            for slot, offset in zip(self._slots[one.bottom], self.slot_offsets(one.name)):
                given = self._feature(features, slot)
                ids[f"{one.name}/{slot}"] = _shift(given, offset) if offset else given
        vectors = self._embeddings(ids)
        return {
            one.name: tf.stack([vectors[f"{one.name}/{s}"] for s in self._slots[one.bottom]], 1)
            for one in self._graph.embeddings
        }

    def _feature(self, features, name):
        if name not in features:
            raise ValueError(
                f"{self._graph.path}: expected the feature '{name}', got {', '.join(features)}"
            )
        return features[name]

    def _feature_configs(self):
        features = []
        for one in self._graph.embeddings:
            table = TableConfig(
                *(one.name, sum(one.slot_sizes) or None, one.dim),
                initializer=self._initializers.get(one.name),
            )
            features += [
                FeatureConfig(f"{one.name}/{slot}", table, combiner=one.combiner)
                for slot in self._slots[one.bottom]
            ]
        return features


def _make_layer(path, layer):
    if layer.type not in LAYERS:
        near = difflib.get_close_matches(layer.type, LAYERS, 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ValueError(
            f"{path}, layer '{layer.name}': expected a type of {', '.join(LAYERS)} or "
            f"BinaryCrossEntropyLoss, got '{layer.type}'{hint}"
        )
    fields = Fields(f"{path}, {layer.owner}", layer.fields)
    made = LAYERS[layer.type](fields, layer.name.replace("/", "_"))
    fields.end()
    return made


def _trains(layer):
    """Returns whether a layer differs between training and inference."""
    return layer.type in ("Dropout", "BatchNorm")


def _shift(ids, offset):
    """Adds an offset to ids; negative ones, which stand for none, stay."""
    if isinstance(ids, tf.RaggedTensor):
        return ids.with_flat_values(_shift(ids.flat_values, offset))
    ids = tf.cast(ids, tf.int64)
    return tf.where(ids < 0, ids, ids + offset)
