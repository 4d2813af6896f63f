"""Whole steps on a table larger than GPU memory, whose rows are prefetched, on one GPU.

A table of 8 million rows of dim 128, a million ids a step by Zipf's law, a tenth of the rows in GPU
memory. A step locates keys for training, looks them up, computes a dense part (matrix products in
bfloat16, 3 ms of them), and updates the rows by their gradients. Three forms: all rows in GPU
memory; a tenth there; a tenth there, and the rows of the next batch brought while the dense part
computes. FBGEMM, where it is installed, has a cache of a tenth, with and without its prefetch.

    python benchmarks/bench_tiers.py prefetch [--rows 8000000] [--batch 1048576] [--dim 128]
                                              [--dense 3] [--steps 200]

Figures are the mean of 40 steps in a row after --steps others, the median of three such runs.
"""

import itertools
import statistics
from types import SimpleNamespace

from kernel_runner import add_core, start_on_gpu
from parts import table_tiers
from parts.fbgemm_train import HYPER
from peers import fbgemm
from workloads import ids_from_uniform

ALPHA, TIMED, RUNS = 1.05, 40, 3
SLOTS = {"sgd": None, "rowwise_adagrad": 1, "adagrad": "dim"}
FORMS = {  # share of the rows in GPU memory, and whether rows are prefetched
    "all in GPU memory": (1, False),
    "a tenth in GPU memory": (0.1, False),
    "a tenth, rows prefetched": (0.1, True),
}


class Dense:
    """Matrix products of about so many milliseconds."""

    def __init__(self, device, milliseconds):
        torch = device.torch
        self.a = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
        self.b, self.out = torch.randn_like(self.a), torch.empty_like(self.a)
        self.torch, self.repeats = torch, 1
        if milliseconds > 0:
            once = device.median(self)
            self.repeats = max(round(milliseconds / once), 1)
        else:
            self.repeats = 0
        self.ms = round(device.median(self), 3) if self.repeats else 0

    def __call__(self):
        for _ in range(self.repeats):
            self.torch.mm(self.a, self.b, out=self.out)


class Own:
    def __init__(self, core, device, args, rule, form):
        share, self.brings = FORMS[form]
        self.core, self.device = core, device
        slot = SLOTS[rule]
        table_tiers.ALPHA, table_tiers.DIM = ALPHA, args.dim
        table_tiers.ROW_BYTES = (
            4 * args.dim + 40 + (0 if slot is None else 4 if slot == 1 else 4 * args.dim)
        )
        tiered = table_tiers.TieredTable(
            core,
            device,
            args.rows,
            args.batch,
            share=share,
            slots=[] if slot is None else [slot == 1],
        )
        self.table, self.rows, self.look_up = tiered.table, tiered.rows, tiered.lookup
        gradient = device.normal((args.batch, args.dim), "float32") * 1e-3
        view = SimpleNamespace(__cuda_array_interface__=self.table.interface())
        slots = [] if slot is None else [self.slot(per_row=slot == 1)]
        group = core.Group(
            tables=[view], outputs=[gradient], ids=self.rows, row_splits=None,
            table_of_feature=[0], combiners=["sum"], max_norms=[0.0], allocate=device.allocate,
            first_host_rows=[self.table.first_host_row],
        )  # fmt: skip
        hyper = device.float32([HYPER.get(name, 0) for name in core.hyper_names])
        num_slots = core.rules[rule][0]
        slots += [None] * (num_slots - len(slots))
        self.update = core.Update(group, rule=rule, slots=[slots], hyper=hyper)

    def slot(self, per_row):
        interface = self.table.interface("slot 0")
        if per_row:
            interface["shape"] = interface["shape"][:1]
        return SimpleNamespace(__cuda_array_interface__=interface)

    def step(self, keys, next_keys, dense):
        stream = self.device.stream
        batch = self.table.begin_batch()
        self.table.locate(keys, self.rows, train=True, step=1, stream=stream)
        self.look_up(stream)
        if self.brings:
            self.core.prefetch_rows([(self.table, next_keys)], stream=stream)
        dense()
        self.update.run(stream)
        self.table.end_batch(batch)

    def share_on_device(self, keys):
        tiers = self.table.describe(self.device.host(keys))["tiers"]
        return round(float((tiers == 0).mean()), 3)


class Fbgemm:
    def __init__(self, device, args, rule, prefetches):
        torch = device.torch
        self.torch, self.prefetches = torch, prefetches
        self.peer = fbgemm.make_tables(
            [(args.rows, args.dim)],
            rule,
            "MANAGED_CACHING",
            eps=1e-8,  # FBGEMM's own
            cache_load_factor=0.1,
            prefetch_pipeline=prefetches,
        )
        self.offsets = torch.arange(args.batch + 1, device="cuda")
        self.gradient = torch.randn(args.batch, args.dim, device="cuda") * 1e-3
        self.beside = torch.cuda.Stream()
        self.is_first = True

    def prefetch(self, keys):
        main = self.torch.cuda.current_stream()
        self.beside.wait_stream(main)
        with self.torch.cuda.stream(self.beside):
            self.peer.prefetch(keys, self.offsets, main)

    def step(self, keys, next_keys, dense):
        if self.prefetches:
            if self.is_first:
                self.prefetch(keys)
            self.is_first = False
            self.torch.cuda.current_stream().wait_stream(self.beside)
        output = self.peer(keys, self.offsets)
        if self.prefetches:
            self.prefetch(next_keys)
        dense()
        output.backward(self.gradient)


class Bench:
    def __init__(self, core, device, args):
        self.core, self.device, self.args = core, device, args
        self.dense = Dense(device, args.dense)
        self.keys = [self.draw() for _ in range(TIMED + 1)]

    def draw(self):
        uniform = self.device.uniform(self.args.batch)
        return ids_from_uniform(uniform, self.args.rows, ALPHA, lambda x: x.long())

    def profile(self, run):
        """Prints the kernels of five steps."""
        from torch.profiler import ProfilerActivity, profile

        with profile(activities=[ProfilerActivity.CUDA]) as profiler:
            run()
            self.device.torch.cuda.synchronize()
        print(profiler.key_averages().table(sort_by="cuda_time_total", row_limit=25))

    def measure(self, library, rule, form, subject):
        def run(keys):
            for now, following in itertools.pairwise(keys):
                subject.step(now, following, self.dense)

        keys = self.draw()
        for _ in range(self.args.steps):
            following = self.draw()
            run([keys, following])
            keys = following
        run([keys, self.keys[0]])
        times = [self.device.milliseconds(lambda: run(self.keys)) / TIMED for _ in range(RUNS)]
        if self.args.profile:
            self.profile(lambda: run(self.keys[:6]))
        row = {
            "library": library,
            "rule": rule,
            "rows": form,
            "step ms": round(statistics.median(times), 3),
            "runs ms": [round(t, 3) for t in times],
        }
        print(row, flush=True)
        return row


def plot(path, about, rows):
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(9, 0.4 * len(rows) + 1.5))
    colors = {"group_embedding": "tab:blue", "FBGEMM": "tab:gray"}
    for at, row in enumerate(rows):
        axis.barh(at, row["step ms"], color=colors[row["library"]])
        axis.text(row["step ms"], at, f" {row['step ms']:.2f} ms", va="center", fontsize=8)
    labels = [f"{r['library']}, {r['rule']}\n{r['rows']}" for r in rows]
    axis.set_yticks(range(len(rows)), labels, fontsize=7)
    axis.invert_yaxis()
    axis.margins(x=0.12)
    axis.axvline(about["dense ms"], color="black", linewidth=1)
    axis.set_xlabel("a whole step, ms (black line: its dense part alone)")
    axis.set_title(f"{about['gpu']}, {about['date']}", fontsize=10)
    figure.tight_layout()
    figure.savefig(path, dpi=100)


def add_options(parser):
    parser.add_argument("--rows", type=int, default=8_000_000)
    parser.add_argument("--batch", type=int, default=1 << 20)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--dense", type=float, default=3, help="ms of the dense part")
    parser.add_argument("--steps", type=int, default=200, help="before steps are timed")
    parser.add_argument("--rules", nargs="+", default=list(SLOTS), choices=list(SLOTS))
    parser.add_argument("--profile", action="store_true", help="print the kernels of five steps")
    add_core(parser)


def run(options):
    core, device = start_on_gpu(options)
    bench = Bench(core, device, options)
    about = device.about() | {"dense ms": bench.dense.ms}
    print(about, flush=True)
    rows = []
    for rule in options.rules:
        for form in FORMS:
            own = Own(core, device, options, rule, form)
            rows.append(bench.measure("group_embedding", rule, form, own))
            del own
            device.release()
        for prefetches in (False, True) if fbgemm.is_installed() else ():
            form = "a tenth cached" + (", rows prefetched" if prefetches else "")
            peer = Fbgemm(device, options, rule, prefetches)
            rows.append(bench.measure("FBGEMM", rule, form, peer))
            del peer
            device.release()
    return about, rows
