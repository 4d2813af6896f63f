"""The ids of some batches of a model."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import numpy as np
import tensorflow as tf

from group_embedding.config import FeatureConfig


@dataclasses.dataclass(frozen=True)
class SampleOfIds:
    """The ids of some batches, in their order.

    Attributes:
        num_samples: of all batches.
        batch_size: the samples of the first one.
        ids: {feature: int64 [ids]}.
    """

    num_samples: int
    batch_size: int
    ids: dict[str, np.ndarray]

    def of_table(self, name: str, features: Iterable[FeatureConfig]) -> np.ndarray:
        """The ids of all features of a table."""
        return np.concatenate([self.ids[f.name] for f in features if f.table.name == name])


def read_sample(batches: Iterable[Any], features: list[FeatureConfig]) -> SampleOfIds:
    """Reads batches: dicts of ids by feature, or tuples that begin with one, such as a dataset has.

    Raises:
        ValueError: there is no batch, or one lacks a feature; the message names it.
    """
    parts: dict[str, list[np.ndarray]] = {feature.name: [] for feature in features}
    sizes = []
    for batch in batches:
        inputs = batch[0] if isinstance(batch, (tuple, list)) else batch
        for feature in features:
            if not isinstance(inputs, dict) or feature.name not in inputs:
                names = sorted(inputs) if isinstance(inputs, dict) else type(inputs).__name__
                raise ValueError(
                    f"batches: expected a dict with ids of feature '{feature.name}', got {names}"
                )
            size, ids = _ids_of(inputs[feature.name])
            parts[feature.name].append(ids)
        sizes.append(size)
    if not sizes:
        raise ValueError("batches: expected at least one batch, got none")
    ids = {name: np.concatenate(of) for name, of in parts.items()}
    return SampleOfIds(sum(sizes), sizes[0], ids)


def _ids_of(value):
    """(number of samples, ids)"""
    if isinstance(value, tf.SparseTensor):
        return int(value.dense_shape[0]), _flat(value.values)
    if isinstance(value, tf.RaggedTensor):
        return int(value.nrows()), _flat(value.flat_values)
    value = np.asarray(value)
    return len(value), _flat(value)


def _flat(ids):
    return np.asarray(ids).reshape(-1).astype(np.int64)
