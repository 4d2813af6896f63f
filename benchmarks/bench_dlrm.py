"""A whole step of a DLRM or a DCNv2, and where its time goes: embeddings, dense layers, the rest.

    python benchmarks/bench_dlrm.py [--model dcnv2] [--batch 65536 ...] [--precision float32 ...]
                                    [--ranks 1 2] [--rows 1000000] [--json FILE] [--plot FILE.png]

With `--ranks` it starts that many processes, for each number given, on as many GPUs, over which the
tables are sharded; the batch is each rank's. (So it is where `horovodrun -np N` launches this.) A
step of several ranks is then shown beside that of one: `scaling` is the time of one rank's step by
theirs. Ranks with a GPU each write rows into each other's memory (peer_memory); `--through nccl`
has NCCL send them, `--through horovod` Horovod's alltoall, to compare. HOROVOD_CYCLE_TIME says how
many milliseconds dense gradients wait at most for Horovod to average them.

With `--precision bfloat16`, or `float16` and a LossScaleOptimizer, layers compute in 16 bits, and
rows and their gradients travel in them; variables, and what is looked up, have 32.

With `--compiled` the step is measured a second time: ids packed by `ge.route_ids`, as a dataset
packs them, and all dense ops one XLA program (`ge.training.make_step`), over ranks two; and so is
the step of the tables alone. Both are measured once more with `--steps-per-call` steps in one
function, one call of which makes them all. `--peer FILE` shows the best step of PyTorch beside it,
from the figures of peers/dlrm_torch.py or, over GPUs, peers/dlrm_torchrec.py on the same machine.

With `--keyed` tables are EmbeddingVariables, in the GPU's memory where there is one (HBM), in place
of variables: the same command without it has the same ids as row numbers. Each id is then a key of
64 bits. All keys of each table are inserted before anything is timed, so that tables are as large
as the variables, and no step makes a row.

26 tables of dim 128 (parts/dlrm_models.py has the layers), Adagrad wrapped by `ge.optimizers.wrap`,
ids and labels in GPU memory as `prefetch_to_device` leaves them. XLA compiles the dense layers; a
DLRM's 27 vectors are filled up to 32 with zeros, without which a GPU's matrix products are slower.
Steps run in a row, as `fit` makes them; of the tables alone, too: lookup, gradient and update,
without a dense layer. On one GPU TensorFlow's profiler then records some of them; kernels of this
library and its sort count as embeddings, all other kernels as dense layers, and what no kernel
covers (idle time, copies) as outside.

To look at a trace: run with --trace FOLDER, then `tensorboard --logdir FOLDER` (Profile, Trace
Viewer); or `nsys profile -t cuda,nvtx python benchmarks/bench_dlrm.py`, in which the stages
(grouping, lookup, update, ...) are NVTX ranges.
"""

import argparse
import functools
import gc
import os
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")

import numpy as np
import report
import tensorflow as tf
from parts.dlrm_models import DIM, MODELS, NUM_DENSE, draw_ids, insert_all, make_tables
from parts.dlrm_pictures import add_peer, add_scaling, plot
from tensorflow_ranks import (
    TRANSPORTS,
    device_name,
    median_ms,
    run_on_ranks,
    start_ranks,
    step_ms,
    transport_of,
    write_of_rank,
)

import group_embedding as ge

PRECISIONS = ("float32", "bfloat16", "float16")
EMBEDDING_KERNELS = ("group_embedding", "cub::")  # this library's, and those of its sort


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", choices=list(MODELS), default="dlrm")
    parser.add_argument("--batch", type=int, nargs="+", default=[65536])
    parser.add_argument("--rows", type=int, default=None, help="of each table, at most")
    parser.add_argument("--ranks", type=int, nargs="+", default=None, help="processes to start")
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
    parser.add_argument("--peer", default=None, help="figures of the peer's --json")
    parser.add_argument("--through", choices=TRANSPORTS, default="peer_memory")
    parser.add_argument("--trace", default=None, help="folder that keeps the profile")
    parser.add_argument("--json", default=None)
    parser.add_argument("--plot", default=None)
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rows is None:
        arguments.rows = MODELS[arguments.model].MOST_ROWS
    return arguments


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
    made, keyed = MODELS[arguments.model], arguments.keyed
    rows_of_tables = made.rows_of_tables(arguments.rows)
    ids = draw_ids(generator, rows_of_tables, made.HOTNESS, batch, keyed)
    dense = tf.constant(generator.standard_normal((batch, NUM_DENSE), np.float32))
    labels = tf.constant(generator.integers(0, 2, (batch, 1)).astype(np.float32))
    model = made(tables, precision)
    cotangent = tf.constant(generator.standard_normal((batch, len(tables) * DIM), np.float32))

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
    if keyed:
        insert_all(model.tables, rows_of_tables)
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
        "model": arguments.model,
        "rows": arguments.rows,
        "keyed": arguments.keyed,
        "precision": precision,
        "ranks": current.num_ranks,
        **times,
        "loss_scale": loss_scale_of(optimizer),
    }
    if current.num_ranks > 1:
        row["through"] = transport_of(arguments.through)
    step = steps.get("step_ms")
    if step is None:
        return row
    row["samples_per_s"] = round(batch * current.num_ranks / row["step_ms"] * 1e3)
    if device_name() and current.num_ranks == 1:
        row |= shares(profile(step, 10, arguments.trace or tempfile.mkdtemp()))
    return row


def measure_all(arguments):
    """The rows of all batches and precisions, as one rank of a job, and what they ran on."""
    start_ranks(arguments.through)
    about = report.machine() | {"tensorflow": tf.__version__}
    if device_name():
        about["device"] = device_name()
    of_tables = MODELS[arguments.model].rows_of_tables(arguments.rows)
    tables, rows = make_tables(of_tables, arguments.keyed), []
    for batch in arguments.batch:
        for precision in arguments.precision:
            rows.append(measure(arguments, tables, batch, precision))
            gc.collect()  # slots
            if ge.exchange.current().rank == 0:
                print(rows[-1], flush=True)
    return about, rows


def measure_jobs(arguments):
    """Starts a job for each number of ranks; returns their rows, with how steps scale."""
    rows = []
    for num_ranks in arguments.ranks:
        ranks = run_on_ranks(num_ranks, [*sys.argv, "--measure"])
        about, of_job = ranks[0]
        rows += of_job
    add_scaling(rows)
    return about, rows


def main():
    arguments = parse_arguments()
    if arguments.ranks and not arguments.measure:
        about, rows = measure_jobs(arguments)
    else:
        about, rows = measure_all(arguments)
    if arguments.measure:
        write_of_rank(arguments.measure, (about, rows))
    if arguments.measure or ge.exchange.current().rank > 0:
        return
    if arguments.peer:
        add_peer(arguments.peer, about, rows)
    print(about)
    report.print_table(rows)
    report.write_results(arguments, about, rows, plot)


if __name__ == "__main__":
    main()
