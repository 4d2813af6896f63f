"""Runs a case through the core on NumPy arrays, or on those of a CUDA library."""

from types import SimpleNamespace

import numpy as np
import pytest

core = pytest.importorskip("group_embedding._core")


def find_gpu_arrays():
    """(to_device, to_host, allocate) of PyTorch or CuPy, or the reason why there is none."""
    if not core.has_cuda:
        return "the core is built without CUDA"
    try:
        import torch

        if torch.cuda.is_available():
            return SimpleNamespace(
                # torch of old has no uint16: bits travel as int16
                to_device=lambda a: torch.as_tensor(
                    a.view(np.int16) if a.dtype == np.uint16 else a).cuda(),
                to_host=lambda a: a.cpu().numpy(),
                allocate=lambda n: torch.empty(n, dtype=torch.uint8, device="cuda"))
    except ImportError:
        pass
    try:
        import cupy

        if cupy.cuda.runtime.getDeviceCount() > 0:
            return SimpleNamespace(to_device=cupy.asarray, to_host=cupy.asnumpy,
                                   allocate=lambda n: cupy.empty(n, dtype=np.uint8))
    except Exception as error:  # CuPy raises its own kinds where there is no driver
        return f"no GPU through CuPy: {error}"
    return "needs a GPU, and PyTorch or CuPy for arrays on it"


GPU = find_gpu_arrays()
on_gpu = [pytest.mark.gpu, pytest.mark.skipif(isinstance(GPU, str), reason=str(GPU))]
PLACES = [pytest.param("cpu"), pytest.param("gpu", marks=on_gpu)]


def arrays_of(place):
    if place == "gpu":
        return GPU
    return SimpleNamespace(to_device=np.array, to_host=np.asarray, allocate=None)


def unsigned(array):
    return array.view(np.uint16) if array.dtype == np.int16 else array


class Run:
    """A case on a place; outputs start as NaN, so that one never written is seen."""

    def __init__(self, case, place, num_threads=1):
        self.case, self.arrays = case, arrays_of(place)
        device = self.arrays.to_device
        self.outputs = [device(np.full_like(g, 0x7FFF if g.dtype == np.uint16 else np.nan))
                        for g in case.gradients]
        self.gradients = [device(g) for g in case.gradients]
        self.kept = dict(
            tables=[device(t) for t in case.tables], ids=device(case.ids),
            row_splits=device(case.row_splits),
            weights=None if case.weights is None else device(case.weights),
            dtype=case.dtype, table_of_feature=case.table_of_feature, combiners=case.combiners,
            max_norms=case.max_norms, prune_negative=case.prune_negative,
            read_zeros=case.read_zeros, allocate=self.arrays.allocate, num_threads=num_threads)

    def lookup(self):
        group = core.Group(outputs=self.outputs, **self.kept)
        group.lookup()
        group.check()
        return [unsigned(self.arrays.to_host(output)) for output in self.outputs]

    def row_gradients(self):
        group = core.Group(outputs=self.gradients, **self.kept)
        group.sort_rows()
        first = group.num_unique()
        counts = np.diff(first)
        indices = [self.arrays.to_device(np.full(n, -1, np.int64)) for n in counts]
        values = [self.arrays.to_device(np.full((n, t.shape[1]), 7, t.dtype))
                  for n, t in zip(counts, self.case.tables)]
        group.reduce_rows(indices, values)
        return ([self.arrays.to_host(i) for i in indices],
                [unsigned(self.arrays.to_host(v)) for v in values])

    def weight_gradient(self):
        group = core.Group(outputs=self.gradients, **self.kept)
        result = self.arrays.to_device(np.full(self.case.ids.size, np.nan, np.float32))
        group.weight_grad(result)
        return self.arrays.to_host(result)
