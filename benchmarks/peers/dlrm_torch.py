"""The DLRM of bench_dlrm.py in PyTorch with FBGEMM's table-batched embedding, on one GPU.

    python benchmarks/peers/dlrm_torch.py [--batch 65536 ...] [--precision float32 ...]
                                          [--rows 1000000] [--json FILE]

It needs torch and fbgemm_gpu, and no TensorFlow: run it in an environment of its own, on the
machine on which bench_dlrm.py runs next, which shows both with `--peer FILE`.

A row has the step of PyTorch called op by op, with `torch.compile` around the dense layers, and as
one CUDA graph of the whole step: tables, dense layers, update. Matrix products may use TF32, as
TensorFlow's may. In bfloat16 the dense layers run under autocast; tables and what is looked up have
32 bits.
"""

import argparse
import json
import platform
import statistics
import time
from pathlib import Path

import fbgemm

NUM_FEATURES, NUM_DENSE, DIM = 26, 13, 128
NUM_VECTORS = 32  # that interact: of the features, of the dense inputs, and of zeros
LEARNING_RATE, EPSILON, INITIAL_SUM = 0.01, 1e-7, 0.1
PRECISIONS = ("float32", "bfloat16")


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--batch", type=int, nargs="+", default=[65536])
    parser.add_argument("--rows", type=int, default=1_000_000, help="of each table")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--precision", choices=PRECISIONS, nargs="+", default=["float32"])
    parser.add_argument("--json", default=None)
    return parser.parse_args()


def make_tables(rows):
    tables = fbgemm.make_tables([(rows, DIM)] * NUM_FEATURES, "adagrad", "DEVICE", eps=EPSILON)
    tables.init_embedding_weights_uniform(-0.01, 0.01)
    return tables


def perceptron(sizes, ends_in_relu):
    import torch

    layers = []
    for i, (inputs, outputs) in enumerate(zip(sizes, sizes[1:])):
        layers.append(torch.nn.Linear(inputs, outputs))
        if ends_in_relu or i < len(sizes) - 2:
            layers.append(torch.nn.ReLU())
    return torch.nn.Sequential(*layers)


def make_dense_layers():
    import torch

    class DenseLayers(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.bottom = perceptron([NUM_DENSE, 512, 256, DIM], True)
            self.top = perceptron([NUM_VECTORS**2 + DIM, 1024, 1024, 512, 256, 1], False)

        def forward(self, dense, looked_up):
            bottom = self.bottom(dense)
            vectors = torch.cat([bottom, looked_up.to(bottom.dtype)], 1)
            vectors = torch.nn.functional.pad(vectors, (0, NUM_VECTORS * DIM - vectors.shape[1]))
            vectors = vectors.view(-1, NUM_VECTORS, DIM)
            dots = torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1)
            return self.top(torch.cat([bottom, dots], 1)).float()

    return DenseLayers().to("cuda")


def median_ms(step, steps):
    import torch

    for _ in range(10):
        step()
    torch.cuda.synchronize()
    times = []
    for _ in range(5):
        begin = time.perf_counter()
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - begin) / steps * 1e3)
    return round(statistics.median(times), 3)


def adagrad(parameters, sums):
    """Adagrad's update in a few launches for all parameters: a CUDA graph takes no optimizer."""
    import torch

    with torch.no_grad():
        gradients = [parameter.grad for parameter in parameters]
        torch._foreach_addcmul_(sums, gradients, gradients, 1.0)
        roots = torch._foreach_sqrt(sums)
        torch._foreach_add_(roots, EPSILON)
        torch._foreach_addcdiv_(parameters, gradients, roots, -LEARNING_RATE)


def capture(step):
    """The step as one CUDA graph."""
    import torch

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def measure(tables, rows, batch, precision, steps):
    """The row of one model."""
    import torch

    generator = torch.Generator(device="cuda").manual_seed(0)
    count = NUM_FEATURES * batch
    ids = torch.randint(0, rows, (count,), device="cuda", generator=generator)
    offsets = torch.arange(count + 1, device="cuda")
    dense = torch.randn(batch, NUM_DENSE, device="cuda", generator=generator)
    labels = torch.randint(0, 2, (batch, 1), device="cuda", generator=generator).float()
    model = make_dense_layers()
    compiled = torch.compile(model)
    parameters = list(model.parameters())
    optimizer = torch.optim.Adagrad(parameters, lr=LEARNING_RATE, foreach=True)
    sums = [torch.full_like(parameter, INITIAL_SUM) for parameter in parameters]

    def backward(layers):
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16, enabled=precision == "bfloat16"):
            logits = layers(dense, tables(ids, offsets))
            torch.nn.functional.binary_cross_entropy_with_logits(logits, labels).backward()

    def with_optimizer(layers):
        backward(layers)
        optimizer.step()

    def with_foreach():
        backward(compiled)
        adagrad(parameters, sums)

    row = {
        "batch": batch,
        "rows": rows,
        "precision": precision,
        "eager_ms": median_ms(lambda: with_optimizer(model), steps),
        "compile_ms": median_ms(lambda: with_optimizer(compiled), steps),
        "graph_ms": median_ms(capture(with_foreach), steps),
    }
    row["best_ms"] = min(row["eager_ms"], row["compile_ms"], row["graph_ms"])
    return row


def main():
    import torch

    arguments = parse_arguments()
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.set_float32_matmul_precision("high")
    tables, rows = make_tables(arguments.rows), []
    for batch in arguments.batch:
        for precision in arguments.precision:
            rows.append(measure(tables, arguments.rows, batch, precision, arguments.steps))
            print(json.dumps(rows[-1]), flush=True)
    about = {
        "date": time.strftime("%Y-%m-%d"),
        "device": torch.cuda.get_device_name(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
    if arguments.json:
        Path(arguments.json).write_text(json.dumps({"about": about, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
