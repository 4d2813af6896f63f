"""The device that the kernel benchmark runs on: its arrays, random numbers and clock."""

import statistics
import time

import numpy as np
from report import machine


class Cpu:
    """NumPy arrays and the wall clock."""

    name, repeats, dtypes, allocate, stream = "cpu", 5, ["float32"], None, 0

    def __init__(self):
        self.random = np.random.default_rng(0)

    def shape(self, workload):
        return workload.shrunk(batch=1024, rows=20_000)

    def about(self):
        return machine()

    def uniform(self, *shape):
        return self.random.random(shape)

    def normal(self, shape, dtype):
        return self.random.standard_normal(shape, dtype=np.float32).astype(dtype)

    def empty(self, shape, dtype):
        return np.empty(shape, dtype)

    def zeros(self, shape, dtype):
        return np.zeros(shape, dtype)

    def int64(self, array):
        return np.asarray(array).astype(np.int64)

    def float32(self, array):
        return np.asarray(array, np.float32)

    def release(self):
        """Gives memory that is no longer used back to where other libraries find it."""

    def host(self, array):
        return np.asarray(array)

    concatenate = staticmethod(np.concatenate)

    def milliseconds(self, run):
        start = time.perf_counter()
        run()
        return (time.perf_counter() - start) * 1e3

    def copy_bandwidth(self):
        source = np.ones(1 << 26, np.float32)
        target = np.empty_like(source)
        times = [self.milliseconds(lambda: np.copyto(target, source)) for _ in range(5)]
        return 2 * source.nbytes / min(times) / 1e6


class Gpu:
    """PyTorch's arrays and CUDA events."""

    name, repeats, dtypes = "gpu", 20, ["float32", "float16"]
    SPIN_CYCLES = 2_000_000  # about a millisecond

    def __init__(self, torch):
        self.torch = torch
        torch.manual_seed(0)

    @property
    def stream(self):
        return self.torch.cuda.current_stream().cuda_stream

    def shape(self, workload):
        return workload

    def about(self):
        return machine() | {
            "gpu": self.torch.cuda.get_device_name(),
            "torch": self.torch.__version__,
            "cuda": self.torch.version.cuda,
        }

    def allocate(self, num_bytes):
        return self.torch.empty(num_bytes, dtype=self.torch.uint8, device="cuda")

    def uniform(self, *shape):
        return self.torch.rand(*shape, device="cuda", dtype=self.torch.float64)

    def normal(self, shape, dtype):
        return self.empty(shape, dtype).normal_()

    def empty(self, shape, dtype):
        return self.torch.empty(shape, device="cuda", dtype=getattr(self.torch, dtype))

    def zeros(self, shape, dtype):
        return self.empty(shape, dtype).zero_()

    def int64(self, array):
        return self.torch.as_tensor(array, device="cuda").long()

    def float32(self, array):
        return self.torch.tensor(array, device="cuda", dtype=self.torch.float32)

    def release(self):
        self.torch.cuda.empty_cache()

    def host(self, array):
        return array.cpu().numpy()

    def concatenate(self, arrays, axis=0):
        return self.torch.cat(arrays, axis)

    def milliseconds(self, run):
        cuda = self.torch.cuda
        start, stop = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
        cuda._sleep(self.SPIN_CYCLES)
        start.record()
        run()
        stop.record()
        cuda.synchronize()
        return start.elapsed_time(stop)

    def copy_bandwidth(self):
        source = self.normal((1 << 30,), "float32")
        target = self.torch.empty_like(source)
        return 8 * source.numel() / self.median(lambda: target.copy_(source)) / 1e6

    def median(self, run, repeats=10):
        times = [self.milliseconds(run) for _ in range(repeats + 5)]
        return statistics.median(times[5:])


def choose_device(core, force_cpu):
    if core.has_cuda and not force_cpu:
        try:
            import torch

            if torch.cuda.is_available():
                return Gpu(torch)
        except ImportError:
            pass
    return Cpu()
