"""The ids of some batches of a model."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from group_embedding.config import FeatureConfig


@dataclasses.dataclass(frozen=True)
class _Input:
    """The ids of one input in one batch.

    Attributes:
        num_samples: of the batch.
        ids: of all samples, one sample after the other, int64 [ids].
        samples: the sample of each id, ascending, int64 [ids].
    """

    num_samples: int
    ids: np.ndarray
    samples: np.ndarray


@dataclasses.dataclass(frozen=True)
class SampleOfIds:
    """The ids of some batches, in their order.

    Attributes:
        num_samples: of all batches.
        batch_size: the samples of the first one.
        batches: {name: input} of each batch.
    """

    num_samples: int
    batch_size: int
    batches: list[dict[str, _Input]]

    def of_feature(self, feature: FeatureConfig) -> np.ndarray:
        """The ids that a feature looks up, int64 [ids]."""
        return _valid(self._looked_up([feature]), feature.table)

    def of_table(self, name: str, features: Iterable[FeatureConfig]) -> np.ndarray:
        """The ids that all features of a table look up, in the order of time, int64 [ids]. An id of
        an input that several of them read counts once."""
        of_table = [f for f in features if f.table.name == name]
        return _valid(self._looked_up(of_table), of_table[0].table)

    def check(self, feature: FeatureConfig, leaves_out_invalid: bool) -> None:
        """Refuses too few ids of a feature, and those past the end of its table.

        Raises:
            ValueError: there are such ids; the message names the feature.
        """
        ids, table = self._looked_up([feature]), feature.table
        if ids.size < 2:
            raise ValueError(
                f"batches: expected at least 2 ids of feature '{feature.name}', got {ids.size}; "
                "give batches that have some"
            )
        is_past_end = table.num_rows is not None and ids.max() >= table.num_rows
        if is_past_end and not leaves_out_invalid:
            raise ValueError(
                f"batches: expected ids of feature '{feature.name}' below the {table.num_rows} "
                f"rows of table '{table.name}', got {ids.max()}; a GroupEmbedding with "
                "invalid_ids='ignore' leaves such ids out"
            )

    def _looked_up(self, features):
        names = dict.fromkeys(feature.name for feature in features)
        parts = []
        for batch in self.batches:
            for name in names:
                of_name = [_is_looked_up(batch[name], f) for f in features if f.name == name]
                parts.append(batch[name].ids[np.logical_or.reduce(of_name)])
        return np.concatenate(parts)


def read_sample(
    batches: Iterable[Any], features: Sequence[FeatureConfig], leaves_out_invalid: bool = False
) -> SampleOfIds:
    """Reads batches: dicts of ids by feature, or tuples that begin with one, such as a dataset has.

    Args:
        leaves_out_invalid: whether ids past the end of a table are left out, and not refused.

    Raises:
        ValueError: there is no batch, or one lacks a feature, has something else than its ids, or
            features of different numbers of samples; or a feature has fewer than two ids; the
            message names it.
    """
    if isinstance(batches, Mapping) or not isinstance(batches, Iterable):
        raise ValueError(
            "batches: expected several, such as a list of dicts of ids by feature, got "
            f"{type(batches).__name__}"
        )
    names = list(dict.fromkeys(feature.name for feature in features))
    found = [_read_batch(batch, names) for batch in batches]
    if not found:
        raise ValueError("batches: expected at least one batch, got none")
    sizes = [batch[names[0]].num_samples for batch in found]
    sample = SampleOfIds(sum(sizes), sizes[0], found)
    for feature in features:
        sample.check(feature, leaves_out_invalid)
    return sample


def _read_batch(batch, names):
    """{name: _Input}; each input is read once, however many features have its name."""
    inputs = batch[0] if isinstance(batch, (tuple, list)) and batch else batch
    for name in names:
        if not isinstance(inputs, Mapping) or name not in inputs:
            got = sorted(inputs) if isinstance(inputs, Mapping) else type(inputs).__name__
            raise ValueError(f"batches: expected a dict with ids of feature '{name}', got {got}")
    found = {name: _read_input(name, inputs[name]) for name in names}
    first = found[names[0]].num_samples
    for name, of_name in found.items():
        if of_name.num_samples != first:
            raise ValueError(
                f"batches: expected as many samples of each feature of a batch, got {first} of "
                f"'{names[0]}' and {of_name.num_samples} of '{name}'"
            )
    return found


def _read_input(name, value):
    if isinstance(value, tuple) and all(len(getattr(part, "shape", ())) > 0 for part in value):
        value = value[0]  # of a pair of ids and weights
    if isinstance(value, tf.SparseTensor):
        samples = value.indices.numpy()[:, 0]
        return _Input(int(value.dense_shape[0]), _flat(name, value.values), samples)
    if isinstance(value, tf.RaggedTensor):
        rows = value.merge_dims(1, -1) if len(value.shape) > 2 else value
        return _Input(int(rows.nrows()), _flat(name, rows.values), rows.value_rowids().numpy())
    try:
        value = np.asarray(value)
    except ValueError:
        raise ValueError(
            f"batches: expected samples of one length of feature '{name}', or a RaggedTensor, got "
            f"a {type(value).__name__} of different ones"
        ) from None
    if value.ndim == 0:
        raise ValueError(
            f"batches: expected ids [samples] or [samples, ids] of feature '{name}', got {value}"
        )
    samples = np.arange(len(value)).repeat(math.prod(value.shape[1:]))
    return _Input(len(value), _flat(name, value), samples)


def _flat(name, ids):
    ids = np.asarray(ids).reshape(-1)
    if not np.issubdtype(ids.dtype, np.integer):
        got = "strings" if ids.dtype.kind in "OSU" else ids.dtype
        raise ValueError(f"batches: expected integer ids of feature '{name}', got {got}")
    return ids.astype(np.int64)


def _valid(ids, table):
    return ids if table.num_rows is None else ids[ids < table.num_rows]


def _is_looked_up(given, feature):
    """Says which ids a feature looks up, bool [ids]: a negative number is none, unless it is
    a key, and a sequence has `max_length` of a sample's ids."""
    if feature.table.num_rows is None:
        is_id = np.ones(len(given.ids), bool)
    else:
        is_id = given.ids >= 0
    if feature.max_length is None:
        return is_id
    counts = np.bincount(given.samples[is_id], minlength=given.num_samples)
    begins = np.cumsum(counts) - counts
    place = np.cumsum(is_id) - 1 - begins[given.samples]
    if feature.keep == "last":
        place = counts[given.samples] - 1 - place
    return is_id & (place < feature.max_length)
