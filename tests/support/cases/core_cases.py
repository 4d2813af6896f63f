"""Random groups for the tests of the core, and what NumPy says in float64 that they come to."""

from dataclasses import dataclass, field

import numpy as np

ROUNDING = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}


def to_storage(values, dtype):
    """Rounds to dtype; bfloat16, which NumPy lacks, as the uint16 of its bits."""
    if dtype != "bfloat16":
        return np.asarray(values, dtype=dtype)
    bits = np.asarray(values, dtype=np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def from_storage(stored, dtype):
    stored = np.asarray(stored)
    if dtype == "bfloat16":
        return (stored.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return stored.astype(np.float64)


@dataclass
class Case:
    """One group. Arrays are in storage form; `outputs` get the gradients before a backward pass."""

    dtype: str
    tables: list
    max_norms: list
    table_of_feature: list
    combiners: list
    num_samples: list
    ids: np.ndarray
    row_splits: np.ndarray
    weights: np.ndarray = None
    gradients: list = field(default_factory=list)
    prune_negative: bool = True
    read_zeros: bool = False


def draw_case(
    seed,
    dims,
    *,
    dtype="float32",
    num_rows=50,
    num_samples=17,
    max_length=6,
    table_of_feature=None,
    combiners=("sum", "mean", "sqrtn"),
    weighted=False,
    max_norm=0.0,
    bad_ids=False,
    skew=0.0,
):
    """A case of one table per dim. skew: the share of ids that are row 1 of their table."""
    rng = np.random.default_rng(seed)
    table_of_feature = list(range(len(dims))) if table_of_feature is None else table_of_feature
    tables = [
        to_storage(rng.normal(size=(num_rows, dim)).astype(np.float32), dtype) for dim in dims
    ]
    lengths = rng.integers(0, max_length + 1, size=len(table_of_feature) * num_samples)
    ids = rng.integers(0, num_rows, size=lengths.sum())
    ids[rng.random(ids.size) < skew] = 1
    weights = None
    if weighted:
        weights = rng.uniform(0.1, 2.0, size=ids.size).astype(np.float32)
        weights[rng.random(ids.size) < 0.2] *= -1
    if bad_ids:
        kinds = rng.random(ids.size)
        ids[kinds < 0.1] = -3
        ids[(kinds >= 0.1) & (kinds < 0.2)] = num_rows + 5
        ids[(kinds >= 0.2) & (kinds < 0.25)] = 2**62
    return Case(
        dtype=dtype,
        tables=tables,
        max_norms=[max_norm if t % 2 == 0 else 0.0 for t in range(len(dims))],
        table_of_feature=table_of_feature,
        combiners=[combiners[f % len(combiners)] for f in range(len(table_of_feature))],
        num_samples=[num_samples] * len(table_of_feature),
        ids=ids,
        row_splits=np.concatenate([[0], lengths.cumsum()]).astype(np.int64),
        weights=weights,
        gradients=[
            to_storage(rng.normal(size=(num_samples, dims[t])).astype(np.float32), dtype)
            for t in table_of_feature
        ],
        read_zeros=bad_ids,
    )


@dataclass
class Expected:
    outputs: list
    indices: list  # per table
    values: list  # per table
    weight_grad: np.ndarray


def clip_rows(rows, max_norm):
    """Rows read under max_norm, and a function that turns their gradients into those of rows."""
    if max_norm <= 0:
        return rows, lambda gradients: gradients
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    scales = np.where(norms > max_norm, max_norm / np.maximum(norms, 1e-30), 1.0)

    def pull_back(gradients):
        along = (rows * gradients).sum(1, keepdims=True) / np.maximum(norms, 1e-30) ** 2
        clipped = max_norm / np.maximum(norms, 1e-30) * (gradients - along * rows)
        return np.where(norms >= max_norm, clipped, gradients)

    return rows * scales, pull_back


def divide(a, b):
    return np.divide(a, b, out=np.zeros_like(a), where=b != 0)


def expect(case):
    """The meaning of a group, in float64."""
    tables = [from_storage(table, case.dtype) for table in case.tables]
    clipped = [clip_rows(table, norm) for table, norm in zip(tables, case.max_norms)]
    row_grads = [np.zeros_like(table) for table in tables]
    looked_up = [set() for _ in tables]
    weight_grad = np.zeros(case.ids.size)
    outputs, first = [], 0
    for f, t in enumerate(case.table_of_feature):
        num_rows, dim = tables[t].shape
        count = case.num_samples[f]
        splits = case.row_splits[first : first + count + 1]
        first += count
        at = slice(splits[0], splits[-1])
        ids = case.ids[at]
        sample = np.repeat(np.arange(count), np.diff(splits))
        weights = np.ones(ids.size) if case.weights is None else case.weights[at].astype(np.float64)
        used = ids >= 0 if case.prune_negative else np.ones(ids.size, bool)
        combiner = case.combiners[f].replace("signed_", "")
        if combiner == case.combiners[f] != "sum":
            used &= weights > 0
        weights = np.where(used, weights, 0.0)
        reads = used & (ids >= 0) & (ids < num_rows)
        rows = np.where(reads[:, None], clipped[t][0][np.where(reads, ids, 0)], 0.0)

        sums = np.zeros((count, dim))
        np.add.at(sums, sample, weights[:, None] * rows)
        totals, squares = np.zeros(count), np.zeros(count)
        np.add.at(totals, sample, weights)
        np.add.at(squares, sample, weights**2)
        divisor = {"sum": np.ones(count), "mean": totals, "sqrtn": np.sqrt(squares)}[combiner]
        output = divide(sums, np.broadcast_to(divisor[:, None], sums.shape))
        outputs.append(output)

        gradient = from_storage(case.gradients[f], case.dtype)
        scale = divide(np.ones(count), divisor)[sample]
        np.add.at(
            row_grads[t],
            np.where(reads, ids, 0),
            np.where(reads, weights * scale, 0.0)[:, None] * gradient[sample],
        )
        looked_up[t] |= set(ids[reads].tolist())

        dots = (gradient[sample] * rows).sum(1)
        along = (gradient * output).sum(1)[sample]
        grads = {
            "sum": dots,
            "mean": (dots - along) * scale,
            "sqrtn": dots * scale - along * weights * scale**2,
        }[combiner]
        weight_grad[at] = np.where(used, grads, 0.0)
    indices = [np.array(sorted(rows), dtype=np.int64) for rows in looked_up]
    values = [clipped[t][1](row_grads[t])[indices[t]] for t in range(len(tables))]
    return Expected(outputs, indices, values, weight_grad)
