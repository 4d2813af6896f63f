"""Tables spread over the GPUs of one host by TorchRec: the workloads of `bench_ranks.py gpus`.

    python benchmarks/peers/torchrec_tables.py [--ranks 1 2] [--workloads dcnv2_cap4M ...]
                                               [--alphas 0 1.05] [--json FILE]

It needs torch, torchrec and fbgemm_gpu, and no TensorFlow: run it in an environment of its own, on
the machine on which `bench_ranks.py gpus --peer FILE` runs next, which shows both.

A step looks up a batch, weak scaling, and updates by row-wise Adagrad, fused with the backward
pass. Over several GPUs twice: with all tables row-wise, and as TorchRec's planner places them. A
step's milliseconds are those of the slowest rank: the median of rounds of consecutive steps, over
three sets of ids.
"""

import argparse
import json
import statistics
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from workloads import ALPHAS, COLLECTIVE, WORKLOADS, ids_from_uniform

NUM_SETS, STEPS, ROUNDS = 3, 9, 5
SHARDINGS = {"row-wise": ["row_wise"], "planner": None}  # of placing tables: kinds that are allowed
MEMORY = 75 << 30  # bytes of a GPU that the planner may use


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--ranks", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--workloads", nargs="+", default=COLLECTIVE, choices=COLLECTIVE)
    parser.add_argument("--alphas", nargs="+", type=float, default=list(ALPHAS))
    parser.add_argument("--json", default=None)
    return parser.parse_args()


def draw_ids(workload, alpha):
    """A batch as TorchRec takes it: the ids of all features, one after the other."""
    import torchrec

    def floor(numbers):
        return numbers.long()

    values = [
        ids_from_uniform(
            torch.rand(workload.batch * hotness, device="cuda", dtype=torch.float64),
            rows,
            alpha,
            floor,
        )
        for hotness, rows in zip(workload.hotness, workload.rows)
    ]
    lengths = [torch.full((workload.batch,), h, dtype=torch.int32) for h in workload.hotness]
    return torchrec.KeyedJaggedTensor(
        keys=[f"f{i}" for i in range(len(values))],
        values=torch.cat(values),
        lengths=torch.cat(lengths).cuda(),
    )


def make_tables(workload, num_ranks, kinds, optimizer=None, codecs=None):
    """The tables of a workload as one sharded module, whose backward pass updates them.

    Args:
        kinds: of placing tables that the planner may choose; None: all.
        optimizer: (class, options); None: row-wise Adagrad.
        codecs: that rows and gradients travel by; None: in their own type.
    """
    import torchrec
    from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
    from torchrec.distributed.model_parallel import DistributedModelParallel
    from torchrec.distributed.planner import EmbeddingShardingPlanner, Topology
    from torchrec.distributed.planner.types import ParameterConstraints
    from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward

    tables = torchrec.EmbeddingBagCollection(
        device=torch.device("meta"),
        tables=[
            torchrec.EmbeddingBagConfig(
                name=f"t{i}", embedding_dim=dim, num_embeddings=rows, feature_names=[f"f{i}"]
            )
            for i, (rows, dim) in enumerate(zip(workload.rows, workload.dims))
        ],
    )
    kind, options = optimizer or (torchrec.optim.RowWiseAdagrad, {"lr": 0.01})
    apply_optimizer_in_backward(kind, tables.parameters(), options)
    constraint = ParameterConstraints(sharding_types=kinds, compute_kernels=["fused"])
    planner = EmbeddingShardingPlanner(
        topology=Topology(world_size=num_ranks, compute_device="cuda", hbm_cap=MEMORY),
        batch_size=workload.batch,
        constraints={f"t{i}": constraint for i in range(len(workload.rows))},
    )
    sharder = EmbeddingBagCollectionSharder(qcomm_codecs_registry=codecs)
    plan = planner.collective_plan(tables, [sharder], dist.group.WORLD)
    device = torch.device("cuda", torch.cuda.current_device())
    return DistributedModelParallel(tables, device=device, plan=plan, sharders=[sharder])


def step_ms(step):
    """Milliseconds of a step on the slowest rank."""
    for i in range(2 * NUM_SETS):
        step(i)
    times = []
    for _ in range(ROUNDS):
        dist.barrier()
        torch.cuda.synchronize()
        begin, end = torch.cuda.Event(True), torch.cuda.Event(True)
        begin.record()
        for i in range(STEPS):
            step(i)
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) / STEPS)
    slowest = torch.tensor([statistics.median(times)], device="cuda")
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return round(slowest.item(), 3)


def measure(workload, alpha, num_ranks, kinds):
    tables = make_tables(workload, num_ranks, kinds)
    sets = [draw_ids(workload, alpha) for _ in range(NUM_SETS)]
    cotangent = torch.randn(workload.batch, sum(workload.dims), device="cuda")
    return step_ms(lambda i: tables(sets[i % NUM_SETS]).values().backward(cotangent))


def join(rank, num_ranks, meeting):
    """Makes this process a rank that has a GPU; `meeting` is a free port."""
    torch.cuda.set_device(rank)
    dist.init_process_group(
        "nccl",
        init_method=f"tcp://127.0.0.1:{meeting}",
        rank=rank,
        world_size=num_ranks,
        device_id=torch.device("cuda", rank),
    )
    torch.manual_seed(100 + rank)


def run_rank(rank, num_ranks, meeting, cases, rows):
    join(rank, num_ranks, meeting)
    shardings = SHARDINGS if num_ranks > 1 else {"one GPU": None}
    for name, alpha in cases:
        for sharding, kinds in shardings.items():
            ms = measure(WORKLOADS[name], alpha, num_ranks, kinds)
            torch.cuda.empty_cache()
            if rank == 0:
                rows.append(
                    {
                        "workload": name,
                        "alpha": alpha,
                        "GPUs": num_ranks,
                        "sharding": sharding,
                        "ms": ms,
                    }
                )
                print(rows[-1], flush=True)
    dist.destroy_process_group()


def free_port():
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def main():
    import torchrec

    arguments = parse_arguments()
    cases = [(name, alpha) for name in arguments.workloads for alpha in arguments.alphas]
    rows = mp.Manager().list()
    for num_ranks in arguments.ranks:
        given = (num_ranks, free_port(), cases, rows)
        mp.spawn(run_rank, given, nprocs=num_ranks)
    about = {"torchrec": torchrec.__version__, "torch": torch.__version__}
    about["device"] = torch.cuda.get_device_name(0)
    if arguments.json:
        text = json.dumps({"about": about, "rows": list(rows)}, indent=1)
        Path(arguments.json).write_text(text + "\n")


if __name__ == "__main__":
    main()
