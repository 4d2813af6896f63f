"""The models of bench_dlrm.py over GPUs of one host, in PyTorch: their tables by TorchRec, their
dense layers by DistributedDataParallel.

    python benchmarks/peers/dlrm_torchrec.py [--model dcnv2] [--ranks 1 2] [--batch 16384 ...]
                                             [--precision bfloat16 ...] [--json FILE]

It needs torch, torchrec and fbgemm_gpu, and no TensorFlow: run it in an environment of its own, on
the machine on which `bench_dlrm.py --ranks 1 2 --peer FILE` runs next, which shows both.

A batch is each rank's. A row has the step op by op, and with `torch.compile` around the dense
layers, for each way of placing tables (`--shardings`): as TorchRec's planner places them, and all
row-wise. Adagrad updates tables in the backward pass, which goes on while DistributedDataParallel
averages gradients. Matrix products may use TF32; in bfloat16 the dense layers run under autocast,
and rows and their gradients travel in it. Milliseconds are those of the slowest rank.
"""

import argparse
import gc
import json
import sys
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from dlrm_torch import DIM, EPSILON, LEARNING_RATE, NUM_DENSE, NUM_FEATURES, PRECISIONS, perceptron
from dlrm_torch import make_dense_layers as make_dlrm_layers
from torchrec_tables import SHARDINGS, draw_ids, free_port, join, make_tables, step_ms
from workloads import WORKLOADS

NUM_CROSSES, CROSS_RANK = 3, 512
TABLES = {"dlrm": WORKLOADS["onehot26"], "dcnv2": WORKLOADS["dcnv2_cap4M"]}


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", choices=list(TABLES), default="dlrm")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--batch", type=int, nargs="+", default=[16384])
    parser.add_argument("--precision", choices=PRECISIONS, nargs="+", default=["bfloat16"])
    parser.add_argument("--shardings", choices=list(SHARDINGS), nargs="+", default=["planner"])
    parser.add_argument("--json", default=None)
    return parser.parse_args()


class CrossLayers(torch.nn.Module):
    """The dense layers of a DCNv2."""

    def __init__(self):
        super().__init__()
        width = (NUM_FEATURES + 1) * DIM
        self.bottom = perceptron([NUM_DENSE, 512, 256, DIM], True)
        self.top = perceptron([width, 1024, 1024, 512, 256, 1], False)
        self.narrow, self.wide = (
            torch.nn.ModuleList(torch.nn.Linear(*sizes, bias=bias) for _ in range(NUM_CROSSES))
            for sizes, bias in [((width, CROSS_RANK), False), ((CROSS_RANK, width), True)]
        )

    def forward(self, dense, looked_up):
        bottom = self.bottom(dense)
        first = torch.cat([bottom, looked_up.to(bottom.dtype)], 1)
        x = first
        for narrow, wide in zip(self.narrow, self.wide):
            x = first * wide(narrow(x)) + x
        return self.top(x).float()


def make_layers(model):
    return make_dlrm_layers() if model == "dlrm" else CrossLayers().to("cuda")


def codecs_of(precision):
    """Codecs of rows and gradients for their way between GPUs; None: they keep float32."""
    from torchrec.distributed import fbgemm_qcomm_codec as codec

    if precision == "float32":
        return None
    bfloat16 = codec.CommType.BF16
    return codec.get_qcomm_codecs_registry(codec.QCommsConfig(bfloat16, bfloat16))


def measure(model, batch, precision, num_ranks, kinds):
    """Milliseconds of a step op by op, and with compiled dense layers."""
    workload = replace(TABLES[model], batch=batch)
    optimizer = torch.optim.Adagrad, {"lr": LEARNING_RATE, "eps": EPSILON}
    tables = make_tables(workload, num_ranks, kinds, optimizer, codecs_of(precision))
    ids = draw_ids(workload, 0)
    dense = torch.randn(batch, NUM_DENSE, device="cuda")
    labels = torch.randint(0, 2, (batch, 1), device="cuda").float()

    def milliseconds(compiled):
        layers = make_layers(model)
        if num_ranks > 1:
            here = [torch.cuda.current_device()]
            layers = torch.nn.parallel.DistributedDataParallel(
                layers, device_ids=here, gradient_as_bucket_view=True
            )
        run = torch.compile(layers) if compiled else layers
        of_layers = torch.optim.Adagrad(layers.parameters(), lr=LEARNING_RATE, foreach=True)

        def step(_):
            of_layers.zero_grad(set_to_none=True)
            with torch.autocast("cuda", torch.bfloat16, enabled=precision == "bfloat16"):
                logits = run(dense, tables(ids).values())
            torch.nn.functional.binary_cross_entropy_with_logits(logits, labels).backward()
            of_layers.step()

        return step_ms(step)

    return {"eager_ms": milliseconds(False), "compile_ms": milliseconds(True)}


def run_rank(rank, num_ranks, meeting, arguments, rows):
    join(rank, num_ranks, meeting)
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.set_float32_matmul_precision("high")
    for batch in arguments.batch:
        for precision in arguments.precision:
            row = {"model": arguments.model, "batch": batch, "precision": precision}
            row["ranks"] = num_ranks
            for sharding in arguments.shardings:
                case = arguments.model, batch, precision, num_ranks, SHARDINGS[sharding]
                times = measure(*case)
                row |= {f"{sharding} {name}": ms for name, ms in times.items()}
                torch.compiler.reset()
                gc.collect()  # tables
                torch.cuda.empty_cache()
            row["best_ms"] = min(ms for name, ms in row.items() if name.endswith("_ms"))
            if rank == 0:
                rows.append(row)
                print(row, flush=True)
    dist.destroy_process_group()


def main():
    import torchrec

    arguments = parse_arguments()
    rows = mp.Manager().list()
    for num_ranks in arguments.ranks:
        mp.spawn(run_rank, (num_ranks, free_port(), arguments, rows), nprocs=num_ranks)
    about = {"torchrec": torchrec.__version__, "torch": torch.__version__}
    about["device"] = torch.cuda.get_device_name(0)
    if arguments.json:
        text = json.dumps({"about": about, "rows": list(rows)}, indent=1)
        Path(arguments.json).write_text(text + "\n")


if __name__ == "__main__":
    main()
