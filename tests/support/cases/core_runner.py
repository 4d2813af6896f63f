"""Runs a case through the core, on arrays in host memory or in GPU memory."""

from types import SimpleNamespace

import numpy as np
import pytest

core = pytest.importorskip("support.core")


class Columns:
    """Columns [begin, end) of a matrix in GPU memory."""

    def __init__(self, matrix, begin, end):
        self.matrix, self.columns = matrix, slice(begin, end)
        whole = matrix.__cuda_array_interface__
        item_bytes = int(whole["typestr"][2:])
        rows, columns = whole["shape"]
        self.__cuda_array_interface__ = whole | {
            "shape": (rows, end - begin),
            "strides": (columns * item_bytes, item_bytes),
            "data": (whole["data"][0] + begin * item_bytes, False),
        }

    def numpy(self):
        return self.matrix.numpy()[:, self.columns]


CPU = SimpleNamespace(
    to_device=np.array,
    to_host=np.asarray,
    allocate=None,
    columns=lambda matrix, begin, end: matrix[:, begin:end],
)
# Every array an allocation of its own: what is beyond its ends is no other array's.
GPU = SimpleNamespace(
    to_device=lambda array: core.DeviceArray(np.ascontiguousarray(array)),
    to_host=lambda array: array.numpy(),
    allocate=lambda num_bytes: core.DeviceArray(np.full(num_bytes, 0xA5, np.uint8)),
    columns=Columns,
)

on_gpu = [
    pytest.mark.gpu,
    pytest.mark.skipif(not core.has_cuda, reason="the core is built without CUDA"),
    pytest.mark.skipif(core.num_devices() == 0, reason="needs an NVIDIA GPU"),
]
PLACES = [pytest.param("cpu"), pytest.param("gpu", marks=on_gpu)]


def arrays_of(place):
    return GPU if place == "gpu" else CPU


class Run:
    """A case on a place; outputs start as NaN, so that one never written is seen."""

    def __init__(self, case, place, num_threads=1, **options):
        self.case, self.arrays = case, arrays_of(place)
        device = self.arrays.to_device
        self.outputs = [
            device(np.full_like(g, 0x7FFF if g.dtype == np.uint16 else np.nan))
            for g in case.gradients
        ]
        self.gradients = [device(g) for g in case.gradients]
        self.kept = {
            "tables": [device(t) for t in case.tables],
            "ids": device(case.ids),
            "row_splits": None if case.row_splits is None else device(case.row_splits),
            "weights": None if case.weights is None else device(case.weights),
            "dtype": case.dtype,
            "table_of_feature": case.table_of_feature,
            "combiners": case.combiners,
            "max_norms": case.max_norms,
            "prune_negative": case.prune_negative,
            "read_zeros": case.read_zeros,
            "allocate": self.arrays.allocate,
            "num_threads": num_threads,
            **options,
        }

    def lookup(self):
        group = core.Group(outputs=self.outputs, **self.kept)
        group.lookup()
        group.check()
        return [self.arrays.to_host(output) for output in self.outputs]

    def row_gradients(self):
        group = core.Group(outputs=self.gradients, **self.kept)
        group.sort_rows()
        first = group.num_unique()
        counts = np.diff(first)
        indices = [self.arrays.to_device(np.full(n, -1, np.int64)) for n in counts]
        values = [
            self.arrays.to_device(np.full((n, t.shape[1]), 7, t.dtype))
            for n, t in zip(counts, self.case.tables)
        ]
        group.reduce_rows(indices, values)
        return ([self.arrays.to_host(i) for i in indices], [self.arrays.to_host(v) for v in values])

    def weight_gradient(self):
        group = core.Group(outputs=self.gradients, **self.kept)
        result = self.arrays.to_device(np.full(self.case.ids.size, np.nan, np.float32))
        group.weight_grad(result)
        return self.arrays.to_host(result)
