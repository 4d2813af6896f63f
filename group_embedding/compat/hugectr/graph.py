"""HugeCTR's JSON -> the inputs, embeddings, layers and losses of a network, as plain values."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
from typing import Any

from group_embedding.compat.hugectr.fields import Fields

_EMBEDDINGS = (
    "DistributedSlotSparseEmbeddingHash",
    "LocalizedSlotSparseEmbeddingHash",
    "LocalizedSlotSparseEmbeddingOneHot",
)
_COMBINERS = {0: "sum", 1: "mean", "sum": "sum", "mean": "mean"}
_LOSS = "BinaryCrossEntropyLoss"


@dataclasses.dataclass(frozen=True)
class SparseInput:
    """Some slots of a sample's categorical features.

    Attributes:
      name: its top.
      num_slots: how many slots it has.
      first_slot: how many slots the inputs before it have.
    """

    name: str
    num_slots: int
    first_slot: int

    @property
    def slots(self) -> list[str]:
        """The name of each slot's feature: "data1_0", "data1_1" and so on; of one slot, the top."""
        if self.num_slots == 1:
            return [self.name]
        return [f"{self.name}_{i}" for i in range(self.num_slots)]


@dataclasses.dataclass(frozen=True)
class SparseEmbedding:
    """The embedding table of one sparse input.

    Attributes:
      name: its top.
      bottom: the sparse input.
      dim: the length of a row.
      combiner: "sum" or "mean".
      slot_sizes: how many keys each slot has; empty: the table is keyed.
    """

    name: str
    bottom: str
    dim: int
    combiner: str
    slot_sizes: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Loss:
    """A binary cross-entropy of a logit and a label, with a regularizer of the dense weights."""

    logit: str
    label: str
    regularizer: str | None = None
    factor: float = 0.0


@dataclasses.dataclass(frozen=True)
class Graph:
    """The contents of a HugeCTR file, as plain values.

    Attributes:
      path: the file.
      labels: from the name of a label to how many numbers it has.
      dense: the name and the width of the dense input; width 0: there is none.
      sparse: the sparse inputs.
      embeddings: the sparse embeddings.
      losses: the losses.
      layers: the layers' objects, each with its type, name, bottoms and tops.
      data: keys of the Data layer that say where files are.
      solver: the object of this name; empty where it is missing.
      optimizer: the object of this name; empty where it is missing.
      values: all that the file has.
    """

    path: str
    labels: dict[str, int]
    dense: tuple[str, int]
    sparse: tuple[SparseInput, ...]
    embeddings: tuple[SparseEmbedding, ...]
    layers: tuple[Layer, ...]
    losses: tuple[Loss, ...]
    data: dict[str, Any]
    solver: dict[str, Any]
    optimizer: dict[str, Any]
    values: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Layer:
    """A dense layer: its type and name, the names of its bottoms and tops, and its other keys."""

    type: str
    name: str
    bottoms: tuple[str, ...]
    tops: tuple[str, ...]
    fields: dict[str, Any]

    @property
    def owner(self) -> str:
        """The layer's name for messages."""
        return f"layer '{self.name}' ({self.type})"


def is_hugectr(values: Any) -> bool:
    """Returns whether a JSON value is a HugeCTR file: an object with a list of layers, of which
    the first is of type Data."""
    layers = values.get("layers") if isinstance(values, dict) else None
    return bool(layers) and isinstance(layers, list) and _type_of(layers[0]) == "Data"


def read_graph(path: str | os.PathLike) -> Graph:
    """Reads a HugeCTR JSON file: a configuration of its earlier versions, or what `graph_to_json`
    of its Python interface wrote.

    Args:
        path: the file.

    Returns:
        The `Graph`.

    Raises:
        ValueError: it is none; a layer names a tensor that no layer before it has; a key is
            missing, or none that this reader knows.
    """
    with open(path) as file:
        try:
            values = json.load(file)
        except json.JSONDecodeError as error:
            raise ValueError(f"{path}: expected JSON, {error}") from None
    return graph_of(values, str(path))


def graph_of(values: Any, path: str) -> Graph:
    """The `Graph` of what a file has; `path` names it in messages.

    Raises:
        ValueError: as `read_graph` does.
    """
    if not is_hugectr(values):
        raise ValueError(f"{path}: expected layers, of which the first is of type Data")
    data, *rest = values["layers"]
    data = Fields(f"{path}, layer 'data'", data)
    data.take("type", str)
    data.take("name", str, "data")
    labels, dense = _read_label(data.take_object("label")), _read_dense(data.take_object("dense"))
    sparse = tuple(_read_sparse(data))
    sizes = tuple(data.take("slot_size_array", list, ()))
    num_slots = sum(one.num_slots for one in sparse)
    if sizes and len(sizes) != num_slots:
        raise ValueError(
            f"{data.owner}: expected {num_slots} numbers in slot_size_array, one for each slot, "
            f"got {len(sizes)}"
        )
    known = {*labels, dense[0], *(one.name for one in sparse)}
    embeddings, layers, losses = [], [], []
    for number, one in enumerate(rest):
        if _type_of(one) in _EMBEDDINGS:
            made = _read_embedding(path, one, {s.name: s for s in sparse}, sizes)
            embeddings.append(made)
            known.add(made.name)
            continue
        layer = _read_layer(path, number, one)
        missing = [name for name in layer.bottoms if name not in known]
        if missing:
            raise ValueError(
                f"{path}, {layer.owner}: expected bottoms that the layers before have, got "
                f"'{missing[0]}'"
            )
        known.update(layer.tops)
        if layer.type == _LOSS:
            losses.append(_read_loss(layer, labels))
        else:
            layers.append(layer)
    if not losses:
        raise ValueError(f"{path}: expected a layer of type {_LOSS}, got none")
    return Graph(
        *(path, labels, dense, sparse, tuple(embeddings), tuple(layers), tuple(losses)),
        *(data.left(), values.get("solver", {}), values.get("optimizer", {}), values),
    )


def slot_offsets(sizes: tuple[int, ...]) -> list[int]:
    """The first key of each slot of a table that several slots share: the sum of the sizes of the
    slots before. Slots of size 0 share the keys of the next one."""
    return [0, *itertools.accumulate(sizes)][:-1]


def _type_of(layer):
    return layer.get("type") if isinstance(layer, dict) else None


def _read_label(fields):
    names = fields.take_names("top")
    dims = fields.take("label_dim", (int, list))
    fields.end()
    dims = [dims] * len(names) if isinstance(dims, int) else dims
    wide = [f"'{name}' {dim}" for name, dim in zip(names, dims) if dim != 1]
    if wide:
        raise ValueError(f"{fields.owner}: expected labels of one number, got {', '.join(wide)}")
    return dict(zip(names, dims))


def _read_dense(fields):
    dense = fields.take("top", str), fields.take("dense_dim", int)
    fields.end()
    return dense


def _read_sparse(data):
    first = 0
    for number, one in enumerate(data.take("sparse", list)):
        fields = Fields(f"{data.owner}, 'sparse'[{number}]", one)
        made = SparseInput(fields.take("top", str), fields.take("slot_num", int), first)
        # How long the lists of a slot may be and where HugeCTR keeps its rows: lists here are
        # ragged, and placements are the table's.
        fields.take("type", str, None)
        fields.take("is_fixed_length", (bool, int), None)
        fields.take("nnz_per_slot", (int, list), None)
        fields.take("max_nnz", int, None)
        fields.take("max_feature_num_per_sample", int, None)
        fields.end()
        first += made.num_slots
        yield made


def _read_embedding(path, values, inputs, sizes):
    fields = Fields(f"{path}, layer '{values.get('top', '')}' ({values['type']})", values)
    for key in ("type", "name"):
        fields.take(key, str, None)
    name, bottom = fields.take("top", str), fields.take("bottom", str)
    fields.take("optimizer", dict, None)  # as the file's, which one optimizer applies to all
    inner = fields.take_object("sparse_embedding_hparam")
    fields.end()
    if bottom not in inputs:
        raise ValueError(
            f"{fields.owner}: expected a bottom of {', '.join(inputs)}, got '{bottom}'"
        )
    dim = inner.take("embedding_vec_size", int)
    combiner = inner.take("combiner", (int, str))
    if combiner not in _COMBINERS:
        raise ValueError(f"{inner.owner}: expected combiner sum or mean, got {combiner!r}")
    # Memory that HugeCTR gives the table; tables here grow.
    for key in (
        *("max_vocabulary_size_per_gpu", "max_vocabulary_size_global"),
        *("workspace_size_per_gpu_in_mb", "load_factor"),
    ):
        inner.take(key, (int, float), None)
    own = inner.take("slot_size_array", list, None)
    inner.end()
    source = inputs[bottom]
    if own is None:
        own = sizes[source.first_slot : source.first_slot + source.num_slots]
    if own and len(own) != source.num_slots:
        raise ValueError(
            f"{inner.owner}: expected {source.num_slots} numbers in slot_size_array, got {len(own)}"
        )
    return SparseEmbedding(name, bottom, dim, _COMBINERS[combiner], tuple(own))


def _read_layer(path, number, values):
    fields = Fields(f"{path}, layer {number + 1}", values)
    kind = fields.take("type", str)
    tops = tuple(fields.take_names("top"))
    name = fields.take("name", str, tops[0])
    return Layer(kind, name, tuple(fields.take_names("bottom")), tops, fields.left())


def _read_loss(layer, labels):
    fields = Fields(layer.owner, layer.fields)
    regularizer = fields.take("regularizer", str, None)
    factor = fields.take("lambda", float, 0.0)
    fields.end()
    if regularizer not in (None, "L1", "L2"):
        raise ValueError(f"{layer.owner}: expected regularizer L1 or L2, got {regularizer!r}")
    if len(layer.bottoms) != 2 or layer.bottoms[1] not in labels:
        raise ValueError(
            f"{layer.owner}: expected the bottoms of a logit and a label, which are "
            f"{', '.join(labels)}, got {', '.join(layer.bottoms)}"
        )
    return Loss(*layer.bottoms, regularizer, factor)
