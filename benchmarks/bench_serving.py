#!/usr/bin/env python3
"""ge-serve under load: how long answers take, how many there are, what updates cost.

A client in C++ (parts/serving_load.cc) sends TensorFlow Serving's requests over gRPC from one
thread, on the cores that the server has too; its processor time is in the tables. Ratios are of one
run, by turns, and figures the medians of the turns. Parts, of which --only chooses some:

* single: a sample a request, 26 features x 5 ids: keyed tables, tables by row number, and stock
  lookups in the same server; 1 and 8 requests in flight;
* joined: a sample a request, 26 keyed features x 5 ids; a server that joins requests that wait, and
  one that computes each by itself; 1, 8 and 32 requests in flight;
* sparse: 26 features x 5 ids as SparseTensors, 100 samples a request: keyed tables, tables by row
  number, and stock lookups in the same server; 2 requests in flight;
* many: 300 features x 5 ids, 100 samples a request: grouped lookups, the stock model in the same
  server, and Python gRPC servers of both;
* open: 26 keyed tables, 100 samples a request, at half of the rate at which the server has no time
  left. Requests come evenly or by chance (Poisson), whether or not others were answered, and wait
  from the time at which they were due;
* updates: the same load while --changed rows and the dense weights change each second, beside the
  same load without; and a stock model's, whose next version is loaded meanwhile;
* publish: from the call of Publisher.publish until its version is acknowledged, and served, for
  each of --targets;
* start: from the start of the process until it answers, with a table of --start-rows rows;
* int8: AUC on MovieLens of rows in int8 beside float32, and the time of lookups out of cache.

    python benchmarks/bench_serving.py [--only PART ...] [--rows 1000000] [--seconds 5] [--turns 5]
                                       [--targets file kafka redis s3] [--publishes 100]
                                       [--json FILE] [--plot FILE.png]
"""

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from parts import serving_int8, serving_publish, serving_updates
from parts.serving_client import Client, medians_of
from parts.serving_pictures import plot
from report import machine, print_table, write_results
from serving_models import Features, write_requests

from group_embedding.serving.server import ServerProcess

IN_FLIGHT, MANY_IN_FLIGHT = 8, 32
DRAWN = ("histogram", "over time", "commits")  # of a row: not in the table
PYTHON_SERVER = Path(__file__).with_name("peers") / "python_server.py"


def parse_arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="*", choices=PARTS, default=list(PARTS), metavar="PART")
    parser.add_argument("--features", type=int, default=26, help="but for many, which has --many")
    parser.add_argument("--many", type=int, default=300)
    parser.add_argument("--table-rows", type=int, default=10_000, help="of single and many")
    parser.add_argument("--rows", type=int, default=1_000_000, help="of each of the other tables")
    parser.add_argument("--dim", type=int, default=16)
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--changed", type=int, default=100_000, help="rows of a delta")
    parser.add_argument("--targets", nargs="+", choices=serving_publish.TARGETS, default=["file"])
    parser.add_argument("--publishes", type=int, default=100, help="to each target")
    parser.add_argument("--start-rows", type=int, default=10_000_000)
    parser.add_argument("--seconds", type=float, default=5, help="of a turn")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--data", help="a folder with ml-100k.inter; it is fetched otherwise")
    parser.add_argument("--folder", type=Path, help="for models and versions")
    parser.add_argument("--client", type=Path, help="the compiled parts/serving_load.cc")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path)
    return parser.parse_args()


def say(text):
    print(f"  {text}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def python_servers(paths):
    """[(port, process id)] of Python servers of models, a server each."""
    with contextlib.ExitStack() as stack:
        started = []
        for path in paths:
            command = [sys.executable, str(PYTHON_SERVER), str(path)]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            started.append(stack.enter_context(process))
            stack.callback(process.terminate)
        yield [(int(process.stdout.readline()), process.pid) for process in started]


def by_turns(options, client, cases, in_flight):
    """{name: Answers of each turn} of cases {name: (port, process id, requests)}."""
    turns = {name: [] for name in cases}
    for turn in range(options.turns + 1):
        for name, (port, pid, requests) in cases.items():
            how = ("--in-flight", in_flight, "--connections", in_flight)
            answers = client.run(pid, port, requests, options.seconds, *how)
            if turn > 0:  # the first warms up
                turns[name].append(answers)
                say(f"{name}, {in_flight} in flight: {answers.per_second:.0f} requests/s")
    return turns


def rows_of(turns, about):
    """A row of the table for each case, with ratios to the first."""
    first = next(iter(turns.values()))
    rows = []
    for name, runs in turns.items():
        summary = medians_of(runs)
        pairs = list(zip(first, runs))
        times = statistics.median(a.per_second / b.per_second for a, b in pairs)
        cpu = statistics.median(b.server_ms / a.server_ms for a, b in pairs)
        row = {**about, "model": name, **summary, "times": round(times, 2)}
        row["CPU times"] = round(cpu, 2)
        rows.append(row | {"histogram": runs[-1].histogram()})
    return rows


def export(options, folder, name, model, way, batch):
    """Exports a model, and requests for it; returns the path of the requests."""
    say(f"exports {name}")
    model.export(folder / name / "1", way)
    write_requests(folder / f"{name}.requests", model.requests(name, batch, 16))
    return folder / f"{name}.requests"


def run_single(options, client, folder):
    sizes = options.features, 5, options.table_rows, options.dim
    keyed, plain = Features(*sizes, keyed=True), Features(*sizes, keyed=False)
    ways = {
        "keyed": (keyed, "grouped"),
        "by row number": (plain, "grouped"),
        "stock gathers": (plain, "stock gathers"),
        "stock sparse": (plain, "stock sparse"),
    }
    requests = {
        name: export(options, folder, name.replace(" ", "_"), model, way, 1)
        for name, (model, way) in ways.items()
    }
    served = {path.stem: folder / path.stem for path in requests.values()}
    with ServerProcess(served, start_seconds=600) as server:
        cases = {name: (server.grpc_port, server.pid, path) for name, path in requests.items()}
        for in_flight in (1, IN_FLIGHT):
            about = {"part": "single", "in flight": in_flight}
            yield from rows_of(by_turns(options, client, cases, in_flight), about)


def run_sparse(options, client, folder):
    sizes = options.features, 5, options.table_rows, options.dim
    keyed, plain = (Features(*sizes, keyed=keyed, sparse=True) for keyed in (True, False))
    ways = {
        "keyed": (keyed, "grouped"),
        "by row number": (plain, "grouped"),
        "stock gathers": (plain, "stock gathers"),
        "stock sparse": (plain, "stock sparse"),
    }
    requests = {
        name: export(options, folder, name.replace(" ", "_"), model, way, options.batch)
        for name, (model, way) in ways.items()
    }
    served = {path.stem: folder / path.stem for path in requests.values()}
    with ServerProcess(served, start_seconds=600) as server:
        cases = {name: (server.grpc_port, server.pid, path) for name, path in requests.items()}
        yield from rows_of(by_turns(options, client, cases, 2), {"part": "sparse", "in flight": 2})


def run_joined(options, client, folder):
    model = Features(options.features, 5, options.table_rows, options.dim, keyed=True)
    path = export(options, folder, "joined", model, "grouped", 1)
    served = {"joined": folder / "joined"}
    with (
        ServerProcess(served, start_seconds=600) as one_by_one,
        ServerProcess(served, "--enable_batching", start_seconds=600) as joining,
    ):
        servers = {"one by one": one_by_one, "joined": joining}
        cases = {name: (one.grpc_port, one.pid, path) for name, one in servers.items()}
        for in_flight in (1, IN_FLIGHT, MANY_IN_FLIGHT):
            about = {"part": "joined", "in flight": in_flight}
            yield from rows_of(by_turns(options, client, cases, in_flight), about)


def run_many(options, client, folder):
    model = Features(options.many, 5, options.table_rows, options.dim, keyed=False)
    ways = {"grouped": "grouped", "stock gathers": "stock gathers", "stock sparse": "stock sparse"}
    requests = {
        name: export(options, folder, name.replace(" ", "_"), model, way, options.batch)
        for name, way in ways.items()
    }
    served = {path.stem: folder / path.stem for path in requests.values()}
    in_python = ("grouped", "stock gathers")
    paths = [folder / requests[name].stem / "1" for name in in_python]
    with ServerProcess(served, start_seconds=600) as server, python_servers(paths) as peers:
        cases = {name: (server.grpc_port, server.pid, path) for name, path in requests.items()}
        for name, peer in zip(in_python, peers):
            cases[f"Python, {name}"] = (*peer, requests[name])
        about = {"part": "many", "in flight": IN_FLIGHT}
        yield from rows_of(by_turns(options, client, cases, IN_FLIGHT), about)


def run_open(options, client, folder):
    model = Features(options.features, 1, options.rows, options.dim, keyed=True)
    path = export(options, folder, "open", model, "grouped", options.batch)
    del model
    with ServerProcess({"open": folder / "open"}, start_seconds=600) as server:
        most = serving_updates.saturation(options, client, server, path)
        say(f"open: {most:.0f} requests/s at saturation")
        for arrivals, more in (("even", ["--even"]), ("Poisson", [])):
            how = ["--rate", most / 2, "--connections", IN_FLIGHT, *more]
            runs = [
                client.run(server.pid, server.grpc_port, path, options.seconds, *how)
                for _ in range(options.turns)
            ]
            row = {"part": "open", "arrivals": arrivals, **medians_of(runs)}
            row["p99 / p50"] = round(row["p99 ms"] / row["p50 ms"], 2)
            yield row | {"of saturation": 0.5, "histogram": runs[-1].histogram()}


PARTS = {
    "single": run_single,
    "sparse": run_sparse,
    "joined": run_joined,
    "many": run_many,
    "open": run_open,
    "updates": serving_updates.run_updates,
    "publish": serving_publish.run_publish,
    "start": serving_updates.run_start,
    "int8": serving_int8.run_int8,
}


def main():
    options = parse_arguments()
    rows = []
    with tempfile.TemporaryDirectory(dir=options.folder) as scratch:
        client = Client(scratch, options.client)
        for part in options.only:
            folder = Path(scratch) / part
            folder.mkdir()
            of_part = list(PARTS[part](options, client, folder))
            print_table([{k: v for k, v in r.items() if k not in DRAWN} for r in of_part])
            rows += of_part
    about = machine() | {"rows": options.rows, "dim": options.dim, "batch": options.batch}
    write_results(options, about, rows, plot)


if __name__ == "__main__":
    main()
