#!/usr/bin/env python3
"""Tables spread over the GPUs of one host: a process per GPU, the core without TensorFlow.

Each rank looks up a batch of its own (weak scaling: twice the GPUs, twice the samples) and updates
by row-wise Adagrad. Three ways: `one GPU` is the fused lookup and update of one process that holds
all tables; `nccl` sends rows and gradients, `peers` reads them where they are. Milliseconds are a
step's, the slowest rank's, the median of rounds of steps in a row over three sets of ids.

    python benchmarks/bench_collective.py [--ranks 1 2 4 8] [--workloads dcnv2_cap4M ...]
                                          [--alphas 0 1.05] [--json FILE] [--plot FILE.png]
                                          [--profile FILE]
"""

import argparse
import statistics
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
from bench_kernel import load_core
from gpu_ranks import run_ranks
from places import Gpu
from report import print_table, write_json
from workloads import ALPHAS, WORKLOADS, ids_from_uniform

ROOT = Path(__file__).resolve().parents[1]
BATCHES = {"onehot26": 65536, "dcnv2_cap4M": 32768}
TINY = replace(WORKLOADS["onehot26"], name="tiny (onehot26, 16 samples)", batch=16, rows=[1000] * 26)
NUM_SETS, STEPS, ROUNDS = 3, 10, 5


class Rank:
    """One rank of a workload: its shards, its ids, its outputs."""

    def __init__(self, core, meeting, exchange, workload, alpha):
        import torch

        self.torch, self.core, self.exchange = torch, core, exchange
        self.rank, self.num_ranks, self.workload = meeting.rank, meeting.num_ranks, workload
        w = workload
        local_rows = [(r - self.rank + self.num_ranks - 1) // self.num_ranks for r in w.rows]
        self.tables = exchange.make_tables(w, local_rows)
        self.slots = [[torch.full((r,), 0.1, device="cuda")] for r in local_rows]
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
        self.update = core.Update(
            self.group, rule="rowwise_adagrad", slots=self.slots, hyper=hyper
        )
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


def allocate(num_bytes):
    import torch

    return torch.empty(num_bytes, dtype=torch.uint8, device="cuda")


class OneGpu:
    """No exchange: the fused functions of one process."""

    def __init__(self, core, meeting):
        del core, meeting

    def make_tables(self, workload, local_rows):
        import torch

        return [torch.randn(r, d, device="cuda") for r, d in zip(local_rows, workload.dims)]

    def make_group(self, group, workload):
        del workload
        return _Fused(group)


class _Fused:
    bytes_on_the_wire = 0

    def __init__(self, group):
        self.group = group

    def lookup(self, stream):
        self.group.lookup(stream)

    def update(self, update, stream):
        update.run(stream)

    def check(self, stream):
        self.group.check(stream)


class Nccl(OneGpu):
    def __init__(self, core, meeting):
        self.core, self.communicator = core, make_communicator(core, meeting)

    def make_group(self, group, workload):
        return self.core.exchanged_group(group, workload.rows, self.communicator, allocate)


class Peers:
    def __init__(self, core, meeting):
        self.core, self.meeting = core, meeting

    def make_tables(self, workload, local_rows):
        import torch

        w, num_ranks = workload, self.meeting.num_ranks
        self.offsets, end = [], self.core.PeerMemory.reserved_bytes
        for rows, dim in zip(w.rows, w.dims):
            self.offsets.append(end)
            end += -(-(-(-rows // num_ranks) * dim * 4) // 256) * 256
        self.room = end
        room_bytes = self.core.peer_room_bytes(w.rows, w.dims, num_ranks, w.num_ids)
        self.memory = self.core.PeerMemory(end + room_bytes)
        handles = self.meeting.all_gather("handles", self.memory.handle)
        self.ranks = self.core.PeerRanks(self.meeting.rank, self.memory, handles)
        tables = []
        for rows, dim, offset in zip(local_rows, w.dims, self.offsets):
            array = self.core.PeerArray(self.memory, offset, [rows, dim], "<f4")
            tables.append(torch.as_tensor(array, device="cuda").normal_())
        return tables

    def make_group(self, group, workload):
        return self.core.peer_group(
            group, workload.rows, self.ranks, self.offsets, self.room, workload.num_ids, allocate
        )


WAYS = {"one GPU": OneGpu, "nccl": Nccl, "peers": Peers}


def make_communicator(core, meeting):
    (nccl_id, *_) = meeting.all_gather("nccl_id", core.nccl_id() if meeting.rank == 0 else b"")
    return core.nccl_communicator(nccl_id, meeting.rank, meeting.num_ranks)


def milliseconds(torch, meeting, name, run):
    """Of one call, this rank's: the median of rounds of calls in a row, all ranks at a time."""
    times = []
    for round_ in range(ROUNDS + 1):
        torch.cuda.synchronize()
        meeting.all_gather(f"{name}_{round_}", b"")
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


def measure(meeting, folder, way, workload, alpha):
    """What one rank measured."""
    import torch

    torch.cuda.set_device(meeting.rank)
    core = load_core(folder)
    core.set_device(meeting.rank)
    rank = Rank(core, meeting, WAYS[way](core, meeting), workload, alpha)
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
    """An all-to-all by NCCL of as many bytes as the step's exchanges, in two halves as those."""
    communicator = getattr(rank.exchange, "communicator", None) or make_communicator(core, meeting)
    peers = meeting.num_ranks - 1
    sizes = [0 if n == meeting.rank else num_bytes // 2 // peers for n in range(meeting.num_ranks)]
    sizes = [size // 16 * 16 for size in sizes]
    least = min(int(b) for b in meeting.all_gather("bare", str(max(sizes)).encode()))
    sizes = [min(size, least) for size in sizes]
    send, receive = (allocate(max(1, sum(sizes))) for _ in range(2))
    send.random_()
    stream = torch.cuda.current_stream().cuda_stream

    def both_ways(i):
        communicator.all_to_all(send, sizes, receive, sizes, stream)
        communicator.all_to_all(receive, sizes, send, sizes, stream)

    return milliseconds(torch, meeting, "bare_all_to_all", both_ways)


def exchange_milliseconds(way, kernels):
    """Of the kernels that bring rows; the update of `peers` reads gradients as it goes."""
    part = {"nccl": "nccl", "peers": "FetchRowsKernel"}.get(way)
    return sum(ms for name, ms in kernels.items() if part and part in name)


def row_of(way, num_ranks, workload, alpha, ranks, one_gpu):
    step = max(rank["step"] for rank in ranks)
    num_bytes = max(rank["bytes"] for rank in ranks)
    bare = max(rank.get("bare", 0.0) for rank in ranks)
    exchange = max(exchange_milliseconds(way, rank["kernels"]) for rank in ranks)
    share = 1 if way == "nccl" else 2  # `peers` fetches half of the bytes, in the forward pass
    return {
        "workload": workload.name,
        "alpha": alpha,
        "way": way,
        "GPUs": num_ranks,
        "forward ms": round(max(rank["forward"] for rank in ranks), 3),
        "step ms": round(step, 3),
        "of one GPU": f"{one_gpu / step:.0%}" if one_gpu else None,
        "MB a step": round(num_bytes / 1e6, 1),
        "exchange ms": round(exchange, 3) if num_ranks > 1 else None,
        "GB/s": round(num_bytes / share / exchange / 1e6, 1) if num_ranks > 1 and exchange else None,
        "bare GB/s": round(num_bytes / bare / 1e6, 1) if bare else None,
        "of bare": f"{bare / share / exchange:.0%}" if bare and exchange else None,
    }


def run_workload(folder, workload, alpha, counts, profile):
    rows, one_gpu = [], None
    for way, num_ranks in [("one GPU", 1), *((w, n) for n in counts for w in ("nccl", "peers"))]:
        ranks = run_ranks(num_ranks, measure, folder, way, workload, alpha, seconds=150)
        rows.append(row_of(way, num_ranks, workload, alpha, ranks, one_gpu))
        one_gpu = one_gpu or rows[0]["step ms"]
        print_table(rows[-1:])
        if profile:
            with open(profile, "a") as file:
                print(f"\n{workload.name} {alpha} {way} {num_ranks}", file=file)
                for name, ms in sorted(ranks[0]["kernels"].items(), key=lambda item: -item[1])[:25]:
                    print(f"{ms:9.4f} ms  {name[:150]}", file=file)
        sys.stdout.flush()
    return rows


def plot(path, about, rows):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    rows = [r for r in rows if not r["workload"].startswith("tiny")]
    labels = [f"{r['workload']}, alpha {r['alpha']:g}\n{r['way']}, {r['GPUs']} GPU" for r in rows]
    figure, axis = plt.subplots(figsize=(10, 0.42 * len(rows) + 1.6))
    y = np.arange(len(rows))
    colors = {"one GPU": "tab:gray", "nccl": "tab:orange", "peers": "tab:blue"}
    axis.barh(y, [r["step ms"] for r in rows], color=[colors[r["way"]] for r in rows])
    axis.barh(y, [r["forward ms"] for r in rows], color="black", alpha=0.25, height=0.35)
    for at, row in zip(y, rows):
        share = f", {row['of one GPU']} of one GPU" if row["of one GPU"] else ""
        axis.text(row["step ms"], at, f" {row['step ms']:.2f} ms{share}", va="center", fontsize=8)
    axis.set_yticks(y, labels, fontsize=8)
    axis.invert_yaxis()
    axis.set_xlim(0, 1.3 * max(r["step ms"] for r in rows))
    axis.set_xlabel("ms: a step (bar), its forward pass (thin bar); same samples per GPU")
    axis.set_title(f"Tables spread over GPUs, {about['gpu']}")
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--workloads", nargs="+", default=list(BATCHES), choices=list(BATCHES))
    parser.add_argument("--alphas", nargs="+", type=float, default=list(ALPHAS))
    parser.add_argument("--core", default=ROOT / "group_embedding", help="folder of _core*.so")
    parser.add_argument("--json")
    parser.add_argument("--plot")
    parser.add_argument("--profile", help="file for the times of kernels")
    args = parser.parse_args()
    import torch

    about = Gpu(torch).about()
    rows = run_workload(args.core, TINY, 0.0, args.ranks, args.profile)
    for name in args.workloads:
        workload = replace(WORKLOADS[name], batch=BATCHES[name])
        for alpha in args.alphas:
            rows += run_workload(args.core, workload, alpha, args.ranks, args.profile)
    print_table(rows)
    if args.json:
        write_json(args.json, about, rows)
    if args.plot:
        plot(args.plot, about, rows)


if __name__ == "__main__":
    main()
