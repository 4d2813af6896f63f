"""A whole DLRM step on a GPU, and where its time goes: embeddings, dense layers, everything else.

    python benchmarks/bench_dlrm.py [--batch 65536 ...] [--precision float32 ...]
                                    [--rows 1000000] [--json FILE] [--plot FILE.png]

Launched by `horovodrun -np N`, on N GPUs, over which the tables are sharded; the batch is then each
rank's. Ranks with a GPU each write rows into each other's memory (peer_memory); `--through nccl`
has NCCL send them, `--through horovod` Horovod's alltoall, to compare.

With `--precision bfloat16`, or `float16` and a LossScaleOptimizer, layers compute in 16 bits, and
rows and their gradients travel in them; variables, and what is looked up, have 32.

With `--compiled` the step is measured a second time: ids packed by `ge.route_ids`, as a dataset
packs them, and all dense ops one XLA program (`ge.training.make_step`); and so is the step of the
tables alone. Both are measured once more with `--steps-per-call` steps in one function, one call of
which makes them all. `--peer FILE` shows the best step of PyTorch and FBGEMM beside it, from the
figures of peers/dlrm_torch.py on the same machine.

With `--keyed` tables are EmbeddingVariables, in the GPU's memory where there is one (HBM), in place
of variables: the same command without it has the same ids as row numbers. Each id is then a key of
64 bits. All `--rows` keys of each table are inserted before anything is timed, so that tables are
as large as the variables, and no step makes a row.

26 features of one id each, dim 128, bottom MLP 13-512-256-128, dot interaction, top MLP
1024-1024-512-256-1, Adagrad wrapped by `ge.optimizers.wrap`, ids and labels in GPU memory as
`prefetch_to_device` leaves them. XLA compiles the dense layers; the 27 vectors that interact are
filled up to 32 with zeros, without which a GPU's matrix products are slower. Steps run in a row, as
`fit` makes them; of the tables alone, too: lookup, gradient and update, without a dense layer. On
one GPU TensorFlow's profiler then records some of them; kernels of this library and its sort count
as embeddings, all other kernels as dense layers, and what no kernel covers (idle time, copies) as
outside.

To look at a trace: run with --trace FOLDER, then `tensorboard --logdir FOLDER` (Profile, Trace
Viewer); or `nsys profile -t cuda,nvtx python benchmarks/bench_dlrm.py`, in which the stages
(grouping, lookup, update, ...) are NVTX ranges.
"""

import argparse
import functools
import gc
import os
import tempfile
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")

import numpy as np
import report
import tensorflow as tf
from parts.dlrm_pictures import add_peer, plot
from tensorflow_ranks import (
    TRANSPORTS,
    device_name,
    make_spread_table,
    median_ms,
    start_ranks,
    step_ms,
    transport_of,
)

import group_embedding as ge

NUM_FEATURES, NUM_DENSE, DIM = 26, 13, 128
NUM_VECTORS = 32  # that interact: of the features, of the dense inputs, and of zeros
PRECISIONS = ("float32", "bfloat16", "float16")
EMBEDDING_KERNELS = ("group_embedding", "cub::")  # this library's, and those of its sort


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--batch", type=int, nargs="+", default=[65536])
    parser.add_argument("--rows", type=int, default=1_000_000, help="of each table")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--keyed", action="store_true", help="tables whose rows are found by key")
    parser.add_argument(
        "--precision", choices=PRECISIONS, nargs="+", default=["float32"], help="of the layers"
    )
    parser.add_argument(
        "--compiled",
        nargs="?",
        const="beside",
        choices=["beside", "only"],
        help="the step as ge.training.make_step compiles it, on packed ids: beside the plain one, "
        "or only",
    )
    parser.add_argument(
        "--steps-per-call", type=int, default=10, help="compiled steps in one function"
    )
    parser.add_argument("--peer", default=None, help="figures of peers/dlrm_torch.py --json")
    parser.add_argument("--through", choices=TRANSPORTS, default="peer_memory")
    parser.add_argument("--trace", default=None, help="folder that keeps the profile")
    parser.add_argument("--json", default=None)
    parser.add_argument("--plot", default=None)
    return parser.parse_args()


class Dlrm(tf.Module):
    """Tables and layers as plain variables, so that the step has nothing but the model in it.

    Variables have 32 bits. What layers are given, and their kernels, are cast to `precision`."""

    def __init__(self, tables, precision):
        super().__init__()
        self.tables, self.precision = tables, precision
        self.bottom = _mlp([NUM_DENSE, 512, 256, DIM])
        self.top = _mlp([NUM_VECTORS**2 + DIM, 1024, 1024, 512, 256, 1])
        self._compute_bottom = tf.function(self._bottom_of, jit_compile=True)
        self._compute_top = tf.function(self._top_of, jit_compile=True)

    @property
    def variables_(self):
        return self.tables + [v for layer in self.bottom + self.top for v in layer]

    def embed(self, ids):
        return ge.group_embedding_lookup_sparse(self.tables, ids, "sum", concat=True)

    def route(self, ids):
        return ge.route_ids(self.tables, ids, "sum")

    def __call__(self, dense, ids):
        return self._compute_top(self._compute_bottom(dense), self.embed(ids))

    def uncompiled(self, dense, ids):
        """Computes the logits as `__call__` does, for a step that is compiled as a whole."""
        return self._top_of(self._bottom_of(dense), self.embed(ids))

    def _bottom_of(self, dense):
        return _run(self.bottom, tf.cast(dense, self.precision), last=tf.nn.relu)

    def _top_of(self, bottom, looked_up):
        vectors = tf.concat([bottom, tf.cast(looked_up, self.precision)], 1)
        vectors = tf.pad(vectors, [[0, 0], [0, NUM_VECTORS * DIM - vectors.shape[1]]])
        vectors = tf.reshape(vectors, [-1, NUM_VECTORS, DIM])
        dots = tf.matmul(vectors, vectors, transpose_b=True)
        flat = tf.reshape(dots, [-1, NUM_VECTORS**2])
        logits = _run(self.top, tf.concat([bottom, flat], 1), last=tf.identity)
        return tf.cast(logits, tf.float32)


def make_tables(arguments):
    names = [f"table_{t}" for t in range(NUM_FEATURES)]
    if arguments.keyed:
        return [_keyed_table(name) for name in names]
    return [make_spread_table(arguments.rows, DIM, name) for name in names]


def _keyed_table(name):
    on_gpu = bool(tf.config.list_physical_devices("GPU"))
    storage = ge.StorageOption(ge.StorageType.HBM if on_gpu else ge.StorageType.DRAM)
    return ge.get_embedding_variable(
        name,
        DIM,
        initializer=tf.random_uniform_initializer(-0.01, 0.01),
        ev_option=ge.EmbeddingVariableOption(storage_option=storage),
    )


def keys_of(ids):
    """A key for each id, anywhere in 64 bits, and no two the same."""
    return (ids.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)).view(np.int64)


def insert_all(tables, rows):
    """Gives the keys of that many ids rows in each table; over ranks, on each key's owner."""
    values = np.random.default_rng(0).uniform(-0.01, 0.01, (1 << 16, DIM)).astype(np.float32)
    for table in tables:
        for begin in range(0, rows, len(values)):
            keys = keys_of(np.arange(begin, min(begin + len(values), rows)))
            table.insert(keys, values[: len(keys)])


def _mlp(sizes):
    return [
        (
            tf.Variable(tf.random.normal([inputs, outputs], stddev=(2 / inputs) ** 0.5)),
            tf.Variable(tf.zeros([outputs])),
        )
        for inputs, outputs in zip(sizes, sizes[1:])
    ]


def _run(layers, x, last):
    for i, (kernel, bias) in enumerate(layers):
        x = tf.nn.bias_add(tf.matmul(x, tf.cast(kernel, x.dtype)), tf.cast(bias, x.dtype))
        x = tf.nn.relu(x) if i < len(layers) - 1 else last(x)
    return x


def make_optimizer(precision):
    optimizer = ge.optimizers.wrap(tf.keras.optimizers.Adagrad(0.01))
    optimizer = ge.DistributedOptimizer(optimizer)
    if precision == "float16":
        return tf.keras.mixed_precision.LossScaleOptimizer(optimizer)
    return optimizer


def loss_scale_of(optimizer):
    """The number that losses are multiplied by; None if they are not. It starts at 32,768 and falls
    with each step that is skipped because gradients overflow: such a step is too short."""
    scale = getattr(optimizer, "dynamic_scale", getattr(optimizer, "loss_scale", None))
    return None if scale is None else float(scale)


def make_steps(arguments, tables, batch, precision, optimizer):
    """Training steps over one batch, by the names of their figures: of the model, of its tables
    alone; and both of them compiled, on packed ids. Those that take several steps a call are in a
    dict of their own."""
    generator = np.random.default_rng(ge.exchange.current().rank)
    rows = np.stack([np.arange(batch), np.zeros(batch)], 1).astype(np.int64)
    drawn = [generator.integers(0, arguments.rows, batch) for _ in range(NUM_FEATURES)]
    ids = [
        tf.SparseTensor(
            tf.identity(tf.constant(rows)),
            tf.identity(tf.constant(keys_of(of_table) if arguments.keyed else of_table)),
            tf.constant([batch, 1], tf.int64),
        )
        for of_table in drawn
    ]
    dense = tf.constant(generator.standard_normal((batch, NUM_DENSE), np.float32))
    labels = tf.constant(generator.integers(0, 2, (batch, 1)).astype(np.float32))
    model = Dlrm(tables, precision)
    cotangent = tf.constant(generator.standard_normal((batch, NUM_FEATURES * DIM), np.float32))

    def loss_of(logits):
        return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels, logits))

    of_tables = make_optimizer("float32")
    steps = {}
    if arguments.compiled != "only":
        steps = {
            "step_ms": _training(optimizer, lambda: loss_of(model(dense, ids)), model.variables_),
            "tables_step_ms": _training(
                of_tables, lambda: model.embed(ids), model.tables, cotangent
            ),
        }
    if arguments.compiled:
        packed, make_step = model.route(ids), ge.training.make_step
        steps["compiled_step_ms"] = _training(
            optimizer,
            lambda: loss_of(model.uncompiled(dense, packed)),
            model.variables_,
            function=make_step,
        )
        steps["compiled_tables_step_ms"] = _training(
            of_tables, lambda: model.embed(packed), model.tables, cotangent, function=make_step
        )
    if arguments.keyed:
        insert_all(model.tables, arguments.rows)
    in_a_row = {
        name.replace("compiled_", "several_"): _in_a_row(step, arguments.steps_per_call)
        for name, step in steps.items()
        if name.startswith("compiled_")
    }
    return steps, in_a_row


def _in_a_row(step, count):
    """A function that takes several steps a call; returns what the last one does."""

    @functools.partial(tf.function, autograph=False)
    def steps():
        return [step() for _ in range(count)][-1]

    return steps


def _training(optimizer, loss_of, variables, cotangent=None, function=None):
    optimizer.build(variables)
    scale = getattr(optimizer, "get_scaled_loss", getattr(optimizer, "scale_loss", tf.identity))
    unscale = getattr(optimizer, "get_unscaled_gradients", list)  # Keras 3 does when it applies

    @(function or functools.partial(tf.function, autograph=False))
    def step():
        with tf.GradientTape() as tape:
            loss = loss_of()
            scaled = scale(loss)
        gradients = unscale(tape.gradient(scaled, variables, cotangent))
        optimizer.apply_gradients(zip(gradients, variables))
        return tf.reshape(loss, [-1])[0]

    return step


def profile(step, count, folder):
    """GPU events of `count` steps, as (begin, end, name) in milliseconds."""
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    tf.profiler.experimental.start(folder)
    step_ms(step, count)
    tf.profiler.experimental.stop()
    newest = max(Path(folder).glob("plugins/profile/*/*.xplane.pb"), key=os.path.getmtime)
    space = xplane_pb2.XSpace()
    space.ParseFromString(newest.read_bytes())
    return [
        (begin, begin + event.duration_ps / 1e9, plane.event_metadata[event.metadata_id].name)
        for plane in space.planes
        if "/device:GPU" in plane.name
        for line in plane.lines
        if line.name.startswith("Stream")
        for event in line.events
        for begin in [line.timestamp_ns / 1e6 + event.offset_ps / 1e9]
    ]


def covered_ms(events):
    """Length of the union of intervals."""
    total, until = 0.0, -np.inf
    for begin, end, _ in sorted(events):
        total += max(0.0, end - max(begin, until))
        until = max(until, end)
    return total


def shares(events):
    """Divides the time from the first event to the last into embeddings, dense layers and
    outside."""
    kernels = [e for e in events if not e[2].startswith(("Memcpy", "Memset"))]
    embedding = [e for e in kernels if any(name in e[2] for name in EMBEDDING_KERNELS)]
    whole = max(e[1] for e in events) - min(e[0] for e in events)
    in_embedding, in_kernels = covered_ms(embedding), covered_ms(kernels)
    return {
        "embedding_share": round(in_embedding / whole, 4),
        "dense_share": round((in_kernels - in_embedding) / whole, 4),
        "outside_share": round(1 - in_kernels / whole, 4),
    }


def measure(arguments, tables, batch, precision):
    """The row of one model, over all ranks."""
    current = ge.exchange.current()
    current.comm_dtype = None if precision == "float32" else tf.as_dtype(precision)
    optimizer = make_optimizer(precision)
    steps, in_a_row = make_steps(arguments, tables, batch, precision, optimizer)
    times = {name: median_ms(step, arguments.steps) for name, step in steps.items()}
    for name, several in in_a_row.items():
        times[name] = round(median_ms(several, arguments.steps) / arguments.steps_per_call, 4)
    row = {
        "batch": batch,
        "rows": arguments.rows,
        "keyed": arguments.keyed,
        "precision": precision,
        **times,
        "loss_scale": loss_scale_of(optimizer),
    }
    if current.num_ranks > 1:
        row |= {"ranks": current.num_ranks, "through": transport_of(arguments.through)}
    step = steps.get("step_ms")
    if step is None:
        return row
    row["samples_per_s"] = round(batch * current.num_ranks / row["step_ms"] * 1e3)
    if device_name() and current.num_ranks == 1:
        row |= shares(profile(step, 10, arguments.trace or tempfile.mkdtemp()))
    return row


def main():
    arguments = parse_arguments()
    start_ranks(arguments.through)
    about = report.machine() | {"tensorflow": tf.__version__}
    if device_name():
        about["device"] = device_name()
    tables, rows = make_tables(arguments), []
    for batch in arguments.batch:
        for precision in arguments.precision:
            rows.append(measure(arguments, tables, batch, precision))
            gc.collect()  # slots
            if ge.exchange.current().rank == 0:
                print(rows[-1], flush=True)
    if ge.exchange.current().rank > 0:
        return
    if arguments.peer:
        add_peer(arguments.peer, about, rows)
    print(about)
    report.print_table(rows)
    report.write_results(arguments, about, rows, plot)


if __name__ == "__main__":
    main()
