"""python -m group_embedding.simulate: the time of a step of tables over many ranks, and its parts.

    python -m group_embedding.simulate --model dcnv2 --alpha 1.05 --ranks 1 2 8 64 512 4096 \\
        --ranks-of-host 8 --samples 16384 --placement rows two_levels columns owner_sums best

Speeds of a GPU, of a core and of the links within a host are those of recorded runs; those of the
links between hosts are the arguments. Every rank has a batch of --samples. Hosts without GPUs, on
which each rank has two cores, and a link of 1 Gbit/s of 5 ms one way, over which a step waits three
ways:

    python -m group_embedding.simulate --machine cpu --cores 2 --ranks 2 --ranks-of-host 1 \\
        --samples 1024 --link-gb-s 0.125 --round-trip-ms 10 --round-trips 1.5
"""

import argparse
import sys

from group_embedding.ranks.simulate import picture
from group_embedding.ranks.simulate.machines import CPU, MACHINES, Network, cpu_of
from group_embedding.ranks.simulate.models import read_tables, tables_of_model, with_trace
from group_embedding.ranks.simulate.step_time import (
    PLACEMENTS,
    TRANSPORTS,
    Job,
    check_placement,
    step_time,
)


def main(arguments=None):
    options = _parser().parse_args(arguments)
    try:
        tables = _tables(options)
        found = {
            (placement, ranks): _step(tables, options, placement, ranks)
            for placement in options.placement
            for ranks in options.ranks
        }
        _print(found)
        if options.plot:
            picture.draw(found, options.plot, _title(options))
    except (OSError, ValueError) as error:
        raise SystemExit(f"group_embedding: {error}") from None
    return 0


def _parser():
    parser = argparse.ArgumentParser(
        prog="python -m group_embedding.simulate",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    model = parser.add_mutually_exclusive_group()
    model.add_argument("--model", default="dcnv2", help="dcnv2 or dlrm")
    model.add_argument("--tables", help="a JSON file with a list of {name, rows, dim, ids, alpha}")
    parser.add_argument("--trace", help="an .npz file with ids of tables, by name")
    parser.add_argument("--alpha", type=float, default=1.05, help="of Zipf's law; 0: uniform")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 8, 64, 512, 4096])
    parser.add_argument("--ranks-of-host", type=int, default=8)
    parser.add_argument("--samples", type=int, default=16384, help="of a rank")
    parser.add_argument(
        "--placement", nargs="+", default=["rows"], help=f"{', '.join(PLACEMENTS)} or best"
    )
    parser.add_argument("--machine", choices=[CPU.name, *sorted(MACHINES)], default="h100")
    parser.add_argument("--cores", type=int, default=1, help="of a rank, with --machine cpu")
    parser.add_argument("--through", choices=TRANSPORTS, default=TRANSPORTS[0])
    parser.add_argument("--wire-bytes", type=int, default=4, help="of a number on its way")
    parser.add_argument("--link-gb-s", type=float, default=50.0, help="of a rank, between hosts")
    parser.add_argument("--round-trip-ms", type=float, default=0.02, help="between hosts")
    parser.add_argument("--round-trips", type=float, default=3.0, help="that a step waits for")
    parser.add_argument("--message-us", type=float, default=1.0, help="of a message to a peer")
    parser.add_argument("--dense-ms", type=float, default=0.0, help="the rest of the model")
    parser.add_argument("--program-ms", type=float, default=0.0, help="issuing a step")
    parser.add_argument("--plot", help="picture to write")
    return parser


def _tables(options):
    if options.cores < 1:
        raise ValueError(f"--cores: expected at least 1, got {options.cores}")
    for placement in options.placement:
        check_placement(placement)
    if options.tables:
        tables = read_tables(options.tables, options.alpha)
    else:
        tables = tables_of_model(options.model, options.alpha)
    return with_trace(tables, options.trace) if options.trace else tables


def _step(tables, options, placement, ranks):
    job = Job(
        ranks,
        options.ranks_of_host,
        options.samples,
        wire_bytes=options.wire_bytes,
        through=options.through,
    )
    network = Network(
        gb_s=options.link_gb_s,
        round_trip_ms=options.round_trip_ms,
        round_trips=options.round_trips,
        message_us=options.message_us,
    )
    is_cpu = options.machine == CPU.name
    machine = cpu_of(options.cores) if is_cpu else MACHINES[options.machine]
    return step_time(tables, job, machine, network, placement, options.dense_ms, options.program_ms)


def _print(found):
    steps = list(found.values())
    names = [name for name in steps[0].parts if any(step.parts[name] for step in steps)]
    header = ["placement", "ranks", "step ms", *names, "limit"]
    lines = [header] + [
        [placement, f"{ranks:,}", f"{step.total:.3f}"]
        + [f"{step.parts[name]:.3f}" for name in names]
        + [step.limit]
        for (placement, ranks), step in found.items()
    ]
    widths = [max(map(len, column)) for column in zip(*lines)]
    for line in lines:
        print("  ".join(cell.rjust(width) for cell, width in zip(line, widths)))


def _title(options):
    model = options.tables or options.model
    return f"{model}, alpha {options.alpha:g}, {options.samples:,} samples a rank"


if __name__ == "__main__":
    sys.exit(main())
