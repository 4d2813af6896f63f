"""Shared by benchmarks of the core: the library alone, their options, a workload on a device."""

import importlib.util
import statistics
import sys
from pathlib import Path

import numpy as np
from devices import choose_device
from workloads import ALPHAS, POOLED, WORKLOADS, ids_from_uniform

ROOT = Path(__file__).resolve().parents[1]
CORE = ROOT / "tests" / "support"  # where buildtools.core_module writes it
NUM_SETS = 3


def add_core(parser):
    """The option that says where the library is."""
    parser.add_argument("--core", default=CORE, help="folder of the library")


def add_workloads(parser):
    """The options of benchmarks whose cases are workloads."""
    parser.add_argument("--workloads", nargs="+", choices=list(WORKLOADS), default=POOLED)
    parser.add_argument("--dtypes", nargs="+", choices=["float32", "float16"])
    parser.add_argument("--alphas", nargs="+", type=float, default=ALPHAS)
    parser.add_argument("--cpu", action="store_true", help="even where there is a GPU")
    add_core(parser)


def load_core(folder):
    """The core alone: importing it through the package would import TensorFlow."""
    libraries = sorted(Path(folder).glob(f"_core.c*{sys.version_info.minor}-*.so"))
    if not libraries:
        sys.exit(
            f"no _core library for this Python in {folder}; run `python -m buildtools.core_module`"
        )
    spec = importlib.util.spec_from_file_location("_core", libraries[0])
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def start(options):
    """(core, device, GB/s of a copy there, what the figures are measured on)"""
    core = load_core(options.core)
    device = choose_device(core, options.cpu)
    copy = device.copy_bandwidth()
    about = device.about() | {"copy GB/s": round(copy, 1), "sizes": device.name}
    print(about, flush=True)
    return core, device, copy, about


def start_on_gpu(options):
    """(core, device) of benchmarks that need a GPU.

    Raises:
        SystemExit: There is none, or PyTorch or a core with CUDA is missing.
    """
    core = load_core(options.core)
    device = choose_device(core, force_cpu=False)
    if device.name != "gpu":
        sys.exit("expected an NVIDIA GPU, PyTorch and a core that was built with CUDA")
    return core, device


class Runner:
    """One workload on a device: tables, outputs, and a Group for each set of ids."""

    def __init__(self, core, device, workload, dtype, alpha):
        self.core, self.device, self.dtype = core, device, dtype
        self.workload = device.shape(workload)
        w = self.workload
        self.tables = [device.normal((r, d), dtype) for r, d in zip(w.rows, w.dims)]
        self.output = device.normal((w.batch, sum(w.dims)), dtype)
        ends = np.cumsum(w.dims)
        outputs = [self.output[:, end - dim : end] for end, dim in zip(ends, w.dims)]
        lengths = np.repeat(w.hotness, w.batch)
        self.row_splits = device.int64(np.concatenate([[0], lengths.cumsum()]))
        self.ids = [self.draw_ids(alpha) for _ in range(NUM_SETS)]
        self.groups = [self.make_group(outputs, ids) for ids in self.ids]

    def make_group(self, outputs, ids):
        count = len(self.tables)
        return self.core.Group(
            tables=self.tables, outputs=outputs, ids=ids, row_splits=self.row_splits,
            dtype=self.dtype, table_of_feature=list(range(count)), combiners=["sum"] * count,
            max_norms=[0.0] * count, allocate=self.device.allocate)  # fmt: skip

    def draw_ids(self, alpha):
        w, device = self.workload, self.device
        return device.concatenate(
            [
                ids_from_uniform(device.uniform(h * w.batch), rows, alpha, device.int64)
                for h, rows in zip(w.hotness, w.rows)
            ]
        )

    def median(self, run):
        """run(i): with set i."""
        warm_up = 5 if self.device.name == "gpu" else 1
        times = [
            self.device.milliseconds(lambda i=i: run(i % NUM_SETS))
            for i in range(warm_up + self.device.repeats)
        ]
        return statistics.median(times[warm_up:])

    def samples_of(self, feature, ids, count):
        """(samples, [count, hotness] ids) of samples drawn at random."""
        w = self.workload
        samples = np.random.default_rng(feature).integers(0, w.batch, count)
        hotness = w.hotness[feature]
        first = w.batch * sum(w.hotness[:feature])
        at = first + samples[:, None] * hotness + np.arange(hotness)
        return samples, self.device.host(ids[self.device.int64(at)])
