"""Lookups in tables larger than GPU memory, beside FBGEMM's managed memory, on one GPU.

A table of 8 million rows of dim 128, a million ids a call, uniform and by Zipf's law, with a tenth
of the rows in GPU memory and with next to none. A lookup locates keys and reads rows; a step
locates them for training, counts them and moves hot rows to GPU memory besides. FBGEMM, where it is
installed, has its table in managed memory, alone and behind a cache of a tenth; its step has the
update by SGD. Medians of six sets of ids after 200 steps (without Zipf's law: none).

    python benchmarks/bench_tiers.py host_rows [--rows 8000000] [--batch 1048576] [--dim 128]
                                               [--steps 200]

The floor is what the bus needs for the unique rows of a call that are not in GPU memory.
"""

import functools
import statistics

from kernel_runner import add_core, start_on_gpu
from parts import table_tiers
from peers import fbgemm
from workloads import ids_from_uniform

NUM_SETS = 6
SHARES = {"a tenth": 0.1, "next to nothing": 0.002}


class Bench:
    def __init__(self, core, device, args):
        self.core, self.device, self.args = core, device, args
        self.bus = self.bus_bandwidth()

    def bus_bandwidth(self):
        """GB/s of a copy from page-locked memory."""
        torch = self.device.torch
        source = torch.empty(1 << 28, dtype=torch.float32, pin_memory=True)
        target = torch.empty_like(source, device="cuda")
        return 4 * source.numel() / self.device.median(lambda: target.copy_(source)) / 1e6

    def draw(self, alpha):
        uniform = self.device.uniform(self.args.batch)
        return ids_from_uniform(uniform, self.args.rows, alpha, lambda x: x.long())

    def median(self, run, alpha):
        sets = [self.draw(alpha) for _ in range(NUM_SETS + 2)]
        times = [self.device.milliseconds(functools.partial(run, ids)) for ids in sets]
        return round(statistics.median(times[2:]), 3)

    def row(self, name, alpha, in_gpu_memory, **figures):
        row = {"library": name, "alpha": alpha, "in GPU memory": in_gpu_memory} | figures
        print(row, flush=True)
        return row

    def own(self, alpha, name):
        args = self.args
        table_tiers.ALPHA, table_tiers.DIM = alpha, args.dim
        table_tiers.ROW_BYTES = 4 * args.dim + 40
        table = table_tiers.TieredTable(
            self.core, self.device, args.rows, args.batch, share=SHARES[name]
        )
        for _ in range(args.steps if alpha and name == "a tenth" else 0):
            table.step(self.draw(alpha))
        ids = self.draw(alpha)
        num_unique = int(self.device.torch.unique(ids).numel())
        on_device = table.share_on_device(self.device.torch.unique(ids))
        missing = num_unique * (1 - on_device)
        return self.row(
            "group_embedding", alpha, name,
            **{
                "lookup ms": self.median(table.read, alpha),
                "step ms": self.median(table.step, alpha),
                "floor ms": round(missing * 4 * args.dim / self.bus / 1e6, 3),
                "unique rows": num_unique,
            },
        )  # fmt: skip

    def fbgemm(self, alpha, name):
        args, torch, cached = self.args, self.device.torch, name == "a tenth"
        peer = fbgemm.make_tables(
            [(args.rows, args.dim)],
            "sgd",
            "MANAGED_CACHING" if cached else "MANAGED",
            **({"cache_load_factor": SHARES[name]} if cached else {}),
        )
        offsets = torch.arange(args.batch + 1, device="cuda")
        gradient = torch.randn(args.batch, args.dim, device="cuda")

        def step(ids):
            peer(ids, offsets).backward(gradient)

        for _ in range(60 if cached else 2):
            step(self.draw(alpha))
        return self.row(
            "FBGEMM", alpha, name,
            **{
                "lookup ms": self.median(lambda ids: peer(ids, offsets), alpha),
                "step ms": self.median(step, alpha),
                "floor ms": None,
                "unique rows": None,
            },
        )  # fmt: skip


def plot(path, about, rows):
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(9, 0.5 * len(rows) + 1.5))
    colors = {"group_embedding": "tab:blue", "FBGEMM": "tab:gray"}
    for at, row in enumerate(rows):
        axis.barh(at, row["lookup ms"], color=colors[row["library"]])
        axis.text(row["lookup ms"], at, f" {row['lookup ms']:.2f} ms", va="center", fontsize=8)
        if row["floor ms"] is not None:
            axis.plot([row["floor ms"]] * 2, [at - 0.4, at + 0.4], color="black")
    labels = [
        f"{r['library']}, {'Zipf' if r['alpha'] else 'uniform'}\n{r['in GPU memory']} in GPU memory"
        for r in rows
    ]
    axis.set_yticks(range(len(rows)), labels, fontsize=8)
    axis.invert_yaxis()
    axis.margins(x=0.12)
    axis.set_xlabel("a lookup, ms (black line: the bus needs as long for the unique rows)")
    axis.set_title(f"{about['gpu']}, {about['date']}", fontsize=10)
    figure.tight_layout()
    figure.savefig(path, dpi=100)


def add_options(parser):
    parser.add_argument("--rows", type=int, default=8_000_000)
    parser.add_argument("--batch", type=int, default=1 << 20)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--steps", type=int, default=200, help="before Zipf's rows are timed")
    add_core(parser)


def run(options):
    core, device = start_on_gpu(options)
    bench = Bench(core, device, options)
    about = device.about() | {"bus GB/s": round(bench.bus, 1)}
    print(about, flush=True)
    rows = []
    for alpha in (1.05, 0.0):
        for name in SHARES:
            rows.append(bench.own(alpha, name))
            device.release()
            if fbgemm.is_installed():
                rows.append(bench.fbgemm(alpha, name))
                device.release()
    return about, rows
