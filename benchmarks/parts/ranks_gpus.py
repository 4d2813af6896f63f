"""Tables sharded over the GPUs of one host: one process per GPU, the core without TensorFlow.

Each rank looks up a batch of its own (weak scaling: twice the GPUs, twice the samples) and updates
by row-wise Adagrad. Transports: `one GPU` is the fused lookup and update of one process that holds
all tables; `nccl` sends rows and gradients, in float32 or bfloat16; with `peer_memory` ranks write
them into each other's GPU memory. A step's milliseconds are those of the slowest rank: the median
of rounds of consecutive steps, over three sets of ids. `--peer FILE` shows TorchRec's beside them,
from the figures of peers/torchrec_tables.py on the same machine.

    python benchmarks/bench_ranks.py gpus [--ranks 1 2 4 8] [--workloads dcnv2_cap4M ...]
                                          [--alphas 0 1.05] [--dims 64 128 ...] [--profile FILE]
                                          [--transports peer_memory nccl ...] [--peer FILE]
"""

import functools
import gc
import json
import re
import statistics
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
from devices import Gpu
from gpu_ranks import Ranks
from kernel_runner import add_core, load_core
from parts.gpu_exchanges import TRANSPORTS, allocate, make_communicator
from report import print_table, write_results
from workloads import ALPHAS, COLLECTIVE, WORKLOADS, ids_from_uniform

TINY = replace(WORKLOADS["onehot26"], name="onehot26, 16 samples", batch=16, rows=[1000] * 26)
NUM_SETS, STEPS, ROUNDS = 3, 10, 5
SECONDS = 90  # that a case may take, the start of CUDA included


class Rank:
    """One rank of a workload: its shards, its ids, its outputs."""

    def __init__(self, core, meeting, exchange, workload, alpha):
        import torch

        self.torch, self.core, self.exchange = torch, core, exchange
        self.rank, self.num_ranks, self.workload = meeting.rank, meeting.num_ranks, workload
        w = workload
        local_rows = [(r - self.rank + self.num_ranks - 1) // self.num_ranks for r in w.rows]
        self.tables = exchange.make_tables(w, local_rows)
        self.slots = [[torch.full((len(t),), 0.1, device="cuda")] for t in self.tables]
        self.output = torch.randn(w.batch, sum(w.dims), device="cuda")
        ends = np.cumsum(w.dims)
        outputs = [self.output[:, end - dim : end] for end, dim in zip(ends, w.dims)]
        splits = np.concatenate([[0], np.repeat(w.hotness, w.batch).cumsum()])
        torch.manual_seed(100 + self.rank)
        self.sets = [self._draw_ids(alpha) for _ in range(NUM_SETS)]
        self.ids = self.sets[0].clone()
        count = len(w.rows)
        self.group = core.Group(
            tables=self.tables, outputs=outputs, ids=self.ids,
            row_splits=torch.as_tensor(splits, device="cuda"), table_of_feature=list(range(count)),
            combiners=["sum"] * count, max_norms=[0.0] * count, allocate=allocate)  # fmt: skip
        hyper = {"apply": 1, "gradient_scale": 1, "clip_value": np.inf, "learning_rate": 1e-3,
                 "epsilon": 1e-7}  # fmt: skip
        hyper = torch.tensor([float(hyper.get(name, 0)) for name in core.hyper_names]).cuda()
        self.update = core.Update(self.group, rule="rowwise_adagrad", slots=self.slots, hyper=hyper)
        self.sharded = exchange.make_group(self.group, w)

    def _draw_ids(self, alpha):
        w, torch = self.workload, self.torch
        return torch.cat([
            ids_from_uniform(torch.rand(h * w.batch, device="cuda", dtype=torch.float64), r, alpha,
                             lambda x: x.long())
            for h, r in zip(w.hotness, w.rows)
        ])  # fmt: skip

    def forward(self, i):
        self.ids.copy_(self.sets[i % NUM_SETS])
        self.sharded.lookup(self.torch.cuda.current_stream().cuda_stream)

    def step(self, i):
        self.forward(i)
        self.sharded.update(self.update, self.torch.cuda.current_stream().cuda_stream)


def milliseconds(torch, meeting, name, run):
    """Milliseconds per call on this rank: the median of rounds of calls, all ranks at a time."""
    times = []
    for round_ in range(ROUNDS + 1):
        torch.cuda.synchronize()
        meeting.all_gather(f"{name}_{round_}", b"")
        run(0)  # who left the meeting first waits here for who left it last, and is not timed
        start, end = torch.cuda.Event(True), torch.cuda.Event(True)
        start.record()
        for i in range(STEPS):
            run(i)
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) / STEPS)
    return statistics.median(times[1:])


def kernel_milliseconds(torch, run):
    """{name of a kernel: milliseconds a step} of three steps."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        for i in range(NUM_SETS):
            run(i)
        torch.cuda.synchronize()
    return {
        event.key: event.device_time_total / 1e3 / NUM_SETS for event in profiled.key_averages()
    }


core_of_rank = functools.cache(load_core)


def measure_case(meeting, folder, transport, workload, alpha):
    """Measures one case on one rank, and returns its figures."""
    import torch

    torch.cuda.set_device(meeting.rank)
    core = core_of_rank(folder)
    core.set_device(meeting.rank)
    figures = measure(core, torch, meeting, transport, workload, alpha)
    gc.collect()
    torch.cuda.empty_cache()
    return figures


def measure(core, torch, meeting, transport, workload, alpha):
    rank = Rank(core, meeting, TRANSPORTS[transport](core, meeting), workload, alpha)
    for i in range(NUM_SETS):
        rank.step(i)
    rank.sharded.check(torch.cuda.current_stream().cuda_stream)
    figures = {
        "forward": milliseconds(torch, meeting, "forward", rank.forward),
        "step": milliseconds(torch, meeting, "step", rank.step),
        "bytes": rank.sharded.bytes_on_the_wire,
    }
    figures["kernels"] = kernel_milliseconds(torch, rank.step)
    rank.sharded.check(torch.cuda.current_stream().cuda_stream)
    if meeting.num_ranks > 1:
        figures["bare"] = bare_milliseconds(core, torch, meeting, rank, figures["bytes"])
    meeting.all_gather("done", b"")
    return figures


def bare_milliseconds(core, torch, meeting, rank, num_bytes):
    """Milliseconds of an NCCL all-to-all of as many bytes as the step exchanges, in two halves."""
    communicator = getattr(rank.exchange, "communicator", None) or make_communicator(core, meeting)
    peers = meeting.num_ranks - 1
    sizes = [0 if n == meeting.rank else num_bytes // 2 // peers for n in range(meeting.num_ranks)]
    sizes = [size // 16 * 16 for size in sizes]
    least = min(int(b) for b in meeting.all_gather("bare", str(max(sizes)).encode()))
    sizes = [min(size, least) for size in sizes]
    send, receive = (allocate(max(1, sum(sizes))) for _ in range(2))
    send.random_()
    stream = torch.cuda.current_stream().cuda_stream

    def both_directions(i):
        communicator.all_to_all(send, sizes, receive, sizes, stream)
        communicator.all_to_all(receive, sizes, send, sizes, stream)

    return milliseconds(torch, meeting, "bare_all_to_all", both_directions)


def exchange_milliseconds(transport, kernels):
    """Milliseconds of the kernels that exchange rows and gradients. With peer memory, of rows
    only: the kernel that adds gradients writes them to their owner."""
    if transport == "one GPU":
        return 0
    part = "ServeRowsKernel" if transport.startswith("peer_memory") else "nccl"
    return sum(ms for name, ms in kernels.items() if part in name)


def link_bandwidth():
    """GB/s of all NVLinks of a GPU in each direction, as the first GPU's driver reports; None
    without NVLink."""
    command = ["nvidia-smi", "nvlink", "--status", "--id=0"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=60).stdout
    except (OSError, subprocess.TimeoutExpired):
        return None
    return sum(float(gb) for gb in re.findall(r"Link \d+: ([\d.]+) GB/s", said)) or None


def row_of(transport, num_ranks, workload, alpha, ranks, one_gpu, link):
    step = max(rank["step"] for rank in ranks)
    num_bytes = max(rank["bytes"] for rank in ranks)
    bare = max(rank.get("bare", 0.0) for rank in ranks)
    # The least of the ranks: who comes first waits within its kernel for the others.
    exchange = min(exchange_milliseconds(transport, rank["kernels"]) for rank in ranks)
    share = (
        2 if transport.startswith("peer_memory") else 1
    )  # half of the bytes, those of the forward pass
    speed = num_bytes / share / exchange / 1e6 if num_ranks > 1 and exchange else None
    return {
        "workload": workload.name,
        "alpha": alpha,
        "transport": transport,
        "GPUs": num_ranks,
        "forward ms": round(max(rank["forward"] for rank in ranks), 3),
        "step ms": round(step, 3),
        "of one GPU": f"{one_gpu / step:.0%}" if one_gpu else None,
        "MB a step": round(num_bytes / 1e6, 1),
        "exchange ms": round(exchange, 3) if num_ranks > 1 else None,
        "GB/s": round(speed, 1) if speed else None,
        "of the link": f"{speed / link:.0%}" if speed and link else None,
        "bare GB/s": round(num_bytes / bare / 1e6, 1) if bare else None,
        "of bare": f"{bare / share / exchange:.0%}" if bare and exchange else None,
    }


def add_peer(peer, rows):
    """Adds TorchRec's steps to rows of its workload, ids and number of GPUs, each with how many
    times as long they take."""
    for row in rows:
        for of_peer in peer["rows"]:
            if all(of_peer[key] == row[key] for key in ("workload", "alpha", "GPUs")):
                row[f"TorchRec ms, {of_peer['sharding']}"] = of_peer["ms"]
                row[f"TorchRec, {of_peer['sharding']}"] = round(of_peer["ms"] / row["step ms"], 2)


def measure_all(folder, counts, workloads, chosen, profile):
    """Yields the rows of the table after each case, and prints new ones. All cases with the same
    number of GPUs run in the same processes."""
    order = [workload.name for workload, _ in workloads]
    rows, one_gpu, link = [], {}, link_bandwidth()
    for num_ranks in sorted({1, *counts}):
        transports = [transport for transport in chosen if transport != "one GPU" or num_ranks == 1]
        if not transports:
            continue
        with Ranks(num_ranks) as ranks:
            for workload, alpha in workloads:
                for transport in transports:
                    case = transport, workload, alpha
                    found = ranks.run(measure_case, folder, *case, seconds=SECONDS)
                    base = one_gpu.get((workload.name, alpha))
                    rows.append(row_of(transport, num_ranks, workload, alpha, found, base, link))
                    if transport == "one GPU":
                        one_gpu[workload.name, alpha] = rows[-1]["step ms"]
                    if profile:
                        write_kernels(profile, rows[-1], found[0]["kernels"])
                    yield sorted(rows, key=lambda r: (order.index(r["workload"]), r["alpha"]))
                print_table(rows[-len(transports) :])


def workload_of(name, dim):
    workload = WORKLOADS[name]
    if dim is None:
        return workload
    return replace(workload, name=f"{name}, dim {dim}", dims=[dim] * len(workload.dims))


def write_kernels(path, row, kernels):
    with open(path, "a") as file:
        print("\n", row["workload"], row["alpha"], row["transport"], row["GPUs"], file=file)
        for name, ms in sorted(kernels.items(), key=lambda item: -item[1])[:25]:
            print(f"{ms:9.4f} ms  {name[:150]}", file=file)


def plot(path, about, rows):
    import matplotlib.pyplot as plt

    rows = [r for r in rows if r["workload"] != TINY.name]
    if not rows:
        return
    labels = [
        f"{r['workload']}, alpha {r['alpha']:g}\n{r['transport']}, {r['GPUs']} GPU" for r in rows
    ]
    figure, axis = plt.subplots(figsize=(10, 0.42 * len(rows) + 1.6))
    y = np.arange(len(rows))
    colors = dict(zip(TRANSPORTS, ["tab:gray", "tab:orange", "tab:red", "tab:blue", "tab:cyan",
                                   "tab:green", "tab:olive"]))  # fmt: skip
    axis.barh(y, [r["step ms"] for r in rows], color=[colors[r["transport"]] for r in rows])
    axis.barh(y, [r["forward ms"] for r in rows], color="black", alpha=0.25, height=0.35)
    for at, row in zip(y, rows):
        share = f", {row['of one GPU']} of one GPU" if row["of one GPU"] else ""
        axis.text(row["step ms"], at, f" {row['step ms']:.2f} ms{share}", va="center", fontsize=8)
    axis.set_yticks(y, labels, fontsize=8)
    axis.set_ylim(len(rows) - 0.4, -0.6)
    axis.set_xlim(0, 1.3 * max(r["step ms"] for r in rows))
    axis.set_xlabel("ms: a step (bar), its forward pass (thin bar); same samples per GPU")
    axis.set_title(f"Tables spread over GPUs, {about['gpu']}")
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def add_options(parser):
    parser.add_argument("--ranks", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--workloads", nargs="+", default=COLLECTIVE, choices=COLLECTIVE)
    parser.add_argument("--alphas", nargs="+", type=float, default=list(ALPHAS))
    parser.add_argument(
        "--transports", nargs="+", default=list(TRANSPORTS), choices=list(TRANSPORTS)
    )
    parser.add_argument("--dims", nargs="+", type=int, default=[None],
                        help="each of all tables, in place of the workloads' own")  # fmt: skip
    parser.add_argument("--profile", help="file for the times of kernels")
    parser.add_argument("--peer", help="figures of peers/torchrec_tables.py --json")
    add_core(parser)


def run(options):
    import torch

    about, rows = Gpu(torch).about(), []
    peer = json.loads(Path(options.peer).read_text()) if options.peer else {"rows": []}
    if options.peer:
        about["peer"] = peer["about"]
    workloads = [
        (workload_of(name, dim), alpha)
        for name in options.workloads
        for dim in options.dims
        for alpha in options.alphas
    ]
    cases = [(TINY, 0.0), *workloads]
    for rows in measure_all(
        options.core, options.ranks, cases, options.transports, options.profile
    ):
        add_peer(peer, rows)
        write_results(options, about, rows, plot)  # kept if a later case fails
    return about, rows
