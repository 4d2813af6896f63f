"""A training step of the core: forward, and forward + backward + update, with three rules.

On a GPU at full size, beside FBGEMM's table-batched embedding where fbgemm_gpu is installed: the
same process, ids and clock (CUDA events around the calls, host time hidden behind a spin of the
GPU; medians over three sets of ids in turn). On a CPU at a small size, alone. Updates are checked
first, on some rows, in float64. For sequences, whose rows are not pooled, FBGEMM runs without
pooling, and beside the forward pass `torch.nn.functional.embedding` is timed.

    python benchmarks/bench_fbgemm.py train [--workloads onehot26 ...] [--rules sgd ...]
                                            [--alphas 0] [--cpu]

The floor of a step is what must move at least, over the bandwidth of a copy: forward the looked-up
rows and ids read and the outputs written (Workload.forward_bytes); backward the output gradients
read once, the ids once more, and for each unique row the row and its slots read and written. What
a cache spares may bring a step below it.
"""

import math

import numpy as np
from kernel_runner import NUM_SETS, Runner, add_workloads, start
from peers import fbgemm
from workloads import WORKLOADS

RULES = ["sgd", "rowwise_adagrad", "adam"]
HYPER = {
    "apply": 1,
    "gradient_scale": 1,
    "clip_value": np.inf,
    "learning_rate": 0.01,
    "beta_1": 0.9,
    "beta_2": 0.999,
    "beta_1_power": 0.9,
    "beta_2_power": 0.999,
    "epsilon": 1e-6,
}
TITLES = {"sgd": "SGD", "rowwise_adagrad": "row-wise Adagrad", "adam": "Adam"}


class Trainer(Runner):
    """A Runner whose tables are updated; gradients are an array of their own."""

    def __init__(self, core, device, workload, dtype, alpha):
        super().__init__(core, device, workload, dtype, alpha)
        w = self.workload
        self.gradient = device.normal(tuple(self.output.shape), dtype)
        self.columns = [slice(end - dim, end) for end, dim in zip(np.cumsum(w.dims), w.dims)]
        gradients = [self.gradient[:, columns] for columns in self.columns]
        self.backward_groups = [self.make_group(gradients, ids) for ids in self.ids]
        self.num_unique = np.zeros(len(w.rows))
        for group in self.backward_groups:
            group.sort_rows(device.stream)
            self.num_unique += np.diff(group.num_unique(device.stream)) / NUM_SETS

    def prepare(self, rule):
        """An Update for each set of ids; Adam without AMSGrad's slot."""
        device, num_slots = self.device, {"sgd": 0, "rowwise_adagrad": 1, "adam": 2}[rule]
        all_slots, row_slot = self.core.rules[rule]
        self.slots = [
            [
                device.zeros((rows,) if k == row_slot else (rows, dim), "float32")
                for k in range(num_slots)
            ]
            + [None] * (all_slots - num_slots)
            for rows, dim in zip(self.workload.rows, self.workload.dims)
        ]
        hyper = device.float32([HYPER.get(name, 0) for name in self.core.hyper_names])
        self.updates = [
            self.core.Update(group, rule=rule, slots=self.slots, hyper=hyper)
            for group in self.backward_groups
        ]

    def check_update(self, rule):
        """One row of each feature, named in the first set of ids, against float64."""
        w, device = self.workload, self.device
        expected, rows = [], []
        for f, hotness in enumerate(w.hotness):
            first = w.batch * sum(w.hotness[:f])
            ids = device.host(self.ids[0][first : first + w.batch * hotness])
            rows.append(int(ids[0]))
            samples = np.flatnonzero(ids == ids[0]) // hotness
            gradients = device.host(self.gradient[device.int64(samples)][:, self.columns[f]])
            gradient = gradients.astype(np.float64).sum(0)
            expected.append((self.row(f, ids[0]), gradient, len(samples)))
        self.updates[0].run(device.stream)
        error = {"float32": 1e-5, "float16": 2e-2}[self.dtype]
        for f, (before, gradient, uses) in enumerate(expected):
            step = {
                "sgd": lambda g: g,
                "rowwise_adagrad": lambda g: g / (np.sqrt((g * g).mean()) + 1e-6),
                # The first step of Adam, whose epsilon stands beside the uncorrected root.
                "adam": lambda g: g / (np.abs(g) + 1e-6 / math.sqrt(0.001)),
            }[rule](gradient)
            np.testing.assert_allclose(
                self.row(f, rows[f]), before - 0.01 * step, rtol=error, atol=error * uses**0.5
            )

    def row(self, feature, row):
        return self.device.host(self.tables[feature][int(row)]).astype(np.float64)

    def floors(self, rule, bytes_per_ms):
        """(forward, whole step) in ms: see above."""
        w, element_bytes = self.workload, np.dtype(self.dtype).itemsize
        forward = w.forward_bytes(element_bytes)
        slots = {"sgd": lambda d: 0, "rowwise_adagrad": lambda d: 4, "adam": lambda d: 8 * d}[rule]
        rows = sum(2 * n * (d * element_bytes + slots(d)) for n, d in zip(self.num_unique, w.dims))
        step = forward + w.batch * sum(w.dims) * element_bytes + 8 * w.num_ids + rows
        return forward / bytes_per_ms, step / bytes_per_ms

    def measure_rule(self, rule, bytes_per_ms):
        stream = self.device.stream
        self.prepare(rule)
        self.check_update(rule)

        def step(i):
            self.groups[i].lookup(stream)
            self.updates[i].run(stream)

        forward = self.median(lambda i: self.groups[i].lookup(stream))
        update = self.median(lambda i: self.updates[i].run(stream))
        both = self.median(step)
        floor, step_floor = self.floors(rule, bytes_per_ms)
        return {
            "forward ms": round(forward, 4),
            "update ms": round(update, 4),
            "step ms": round(both, 4),
            "forward of floor": f"{floor / forward:.0%}",
            "step of floor": f"{step_floor / both:.0%}",
        }


def measure_fbgemm(trainer, rule):
    """Measures the same step with FBGEMM; empty figures if FBGEMM does not support it."""
    if rule == "adam" and trainer.dtype == "float16":
        return {"fbgemm forward ms": None, "fbgemm step ms": None}  # 1.6.0 refuses it
    w = trainer.workload
    peer = fbgemm.make_tables(
        zip(w.rows, w.dims),
        rule,
        "DEVICE",
        pooling="SUM" if w.pooled else "NONE",
        precision="FP32" if trainer.dtype == "float32" else "FP16",
    )
    for weights in peer.split_embedding_weights():
        weights.normal_()

    def forward(i):
        return peer(trainer.ids[i], trainer.row_splits)

    figures = {
        "fbgemm forward ms": round(trainer.median(forward), 4),
        "fbgemm step ms": round(trainer.median(lambda i: forward(i).backward(trainer.gradient)), 4),
    }
    if not w.pooled:
        look_up, (table,) = trainer.device.torch.nn.functional.embedding, trainer.tables
        figures["torch forward ms"] = round(
            trainer.median(lambda i: look_up(trainer.ids[i], table)), 4
        )
    return figures


def add_ratios(row):
    for part in ("forward", "step"):
        theirs = row[f"fbgemm {part} ms"]
        row[f"{part} ratio"] = None if theirs is None else round(theirs / row[f"{part} ms"], 3)


def print_means(rows):
    """Geometric means of the ratios, and the least."""
    for rule in RULES:
        for part in ("forward", "step"):
            ratios = [r[f"{part} ratio"] for r in rows if r["rule"] == rule]
            ratios = [ratio for ratio in ratios if ratio is not None]
            if ratios:
                mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
                print(f"{rule}: {part} {mean:.2f} times FBGEMM, from {min(ratios):.2f} on")


def plot(path, about, rows):
    import matplotlib.pyplot as plt

    rules = [rule for rule in RULES if any(r["rule"] == rule for r in rows)]
    figure, axes = plt.subplots(
        1, len(rules), squeeze=False, figsize=(6 * len(rules), 0.6 * len(rows) / len(rules) + 2),
        sharey=True)  # fmt: skip
    for axis, rule in zip(axes[0], rules):
        of_rule = [r for r in rows if r["rule"] == rule]
        y = np.arange(len(of_rule))
        step = np.array([r["step ms"] for r in of_rule])
        axis.barh(y - 0.2, step, 0.38, color="tab:blue", label="group_embedding")
        for at, row in zip(y, of_rule):
            theirs = row.get("fbgemm step ms")
            if theirs is not None:
                axis.barh(at + 0.2, theirs, 0.38, color="tab:gray",
                          label="FBGEMM 1.6.0" if at == 0 else None)  # fmt: skip
                axis.text(theirs, at + 0.2, f" {row['step ratio']:.2f} x", va="center", fontsize=8)
        axis.set_yticks(
            y, [f"{r['workload']}\n{r['dtype']}, alpha {r['alpha']:g}" for r in of_rule], fontsize=8
        )
        axis.set_title(TITLES[rule])
        axis.set_xlabel("forward + backward + update, ms")
        axis.margins(x=0.15)
    axes[0][0].invert_yaxis()
    axes[0][0].legend(fontsize=8)
    figure.suptitle(f"{about.get('gpu') or about['cpu']}, {about['date']}")
    figure.tight_layout()
    figure.savefig(path, dpi=100)


def add_options(parser):
    add_workloads(parser)
    parser.add_argument("--rules", nargs="+", choices=RULES, default=RULES)


def run(options):
    core, device, copy, about = start(options)
    with_peer = device.name == "gpu" and fbgemm.is_installed()
    rows = []
    for name in options.workloads:
        for dtype in options.dtypes or device.dtypes:
            for alpha in options.alphas:
                trainer = Trainer(core, device, WORKLOADS[name], dtype, alpha)
                for rule in options.rules:
                    row = {"workload": name, "dtype": dtype, "alpha": alpha, "rule": rule}
                    row |= trainer.measure_rule(rule, copy * 1e6)
                    if with_peer:
                        row |= measure_fbgemm(trainer, rule)
                        add_ratios(row)
                    rows.append(row)
                    print(row, flush=True)
                    device.release()
                del trainer
    if with_peer:
        print_means(rows)
    return about, rows
