"""The parts of bench_serving.py in which versions change, or a server starts."""

import os
import shutil
import statistics
import threading
import time
from pathlib import Path

import numpy as np
from parts.serving_client import medians_of
from serving_models import Features, write_requests

from group_embedding.serving import Publisher
from group_embedding.serving.server import ServerProcess

IN_FLIGHT = 8
POLL_SECONDS = 0.1
SWAPS = 2  # versions of the stock model that come in a run


def saturation(options, client, server, requests):
    """Requests/s with so many in flight that the server always has one; the first run warms up."""
    how = ("--in-flight", IN_FLIGHT, "--connections", IN_FLIGHT)
    for _ in range(2):
        answers = client.run(server.pid, server.grpc_port, requests, options.seconds, *how)
    return answers.per_second


def change(model, count, random):
    """Trains a model as between two versions: rows of all tables, and the dense weights."""
    of_table = count // len(model.tables)
    for table in model.tables:
        keys = random.choice(model.rows, of_table, replace=False)
        table.insert(keys, random.standard_normal([of_table, model.dim], np.float32))
    for weights in (model.hidden, model.last):
        weights.assign(weights + 0.001)


def publish_ahead(options, folder, count):
    """A target with a base, and deltas behind it that are not there yet: their paths."""
    model = Features(options.features, 1, options.rows, options.dim, keyed=True)
    random = np.random.default_rng(3)
    target, later = folder / "target", folder / "later"
    later.mkdir()
    signature = model.signature("grouped")
    with Publisher(model, target, signatures=signature, base_every=None) as publisher:
        publisher.publish()
        for _ in range(count):
            change(model, options.changed, random)
            publisher.publish()
    write_requests(folder / "requests", model.requests("updated", options.batch, 16))
    deltas = sorted((target / "versions").iterdir())[1:]
    return target, [delta.rename(later / delta.name) for delta in deltas]


class Releases(threading.Thread):
    """Moves folders to where the server looks for versions, one after the other.

    Args:
        moves: (from, to) of each, which are in one file system.
        seconds: Between two.
    """

    def __init__(self, moves, seconds):
        super().__init__()
        self._moves, self._seconds = moves, seconds
        self.times = []

    def run(self):
        begin = time.monotonic()
        for number, (there, here) in enumerate(self._moves):
            time.sleep(max(0, begin + (number + 0.5) * self._seconds - time.monotonic()))
            there.rename(here)
            self.times.append(time.monotonic())


def run_updates(options, client, folder):
    seconds = max(1, round(options.seconds))
    target, deltas = publish_ahead(options, folder, seconds * options.turns)
    bytes_of_delta = sum(f.stat().st_size for f in deltas[0].iterdir())
    arguments = ("--poll-seconds", str(POLL_SECONDS))
    sources = {"updated": target}
    server = ServerProcess({"updated": target}, *arguments, sources=sources, start_seconds=600)
    with server:
        most = saturation(options, client, server, folder / "requests")
        before = memory(server.pid, "VmRSS")
        Path(f"/proc/{server.pid}/clear_refs").write_text("5")  # the peak begins anew

        def moves_of(turn):
            mine = deltas[turn * seconds : (turn + 1) * seconds]
            return [(delta, target / "versions" / delta.name) for delta in mine]

        row = both(options, client, server, folder / "requests", most / 2, moves_of, 1.0)
        peak = memory(server.pid, "VmHWM")
        yield {"part": "updates", "model": "deltas", **row}
    yield {"part": "updates", "model": "stock, whole versions", **swaps(options, client, folder)}
    yield {
        "part": "memory while updating",
        "MB before": round(before / 1e6, 1),
        "MB at most": round(peak / 1e6, 1),
        "MB of a delta": round(bytes_of_delta / 1e6, 1),
        "less a delta, times": round((peak - bytes_of_delta) / before, 3),
    }


def swaps(options, client, folder):
    """The row of a stock model whose versions are loaded as wholes."""
    model = Features(options.features, 1, options.rows, options.dim, keyed=False)
    stock, later = folder / "stock", folder / "stock_later"
    model.export(stock / "1", "stock gathers")
    write_requests(folder / "stock_requests", model.requests("stock", options.batch, 16))
    count = SWAPS * options.turns
    folders = [later / str(number + 2) for number in range(count)]
    for one in folders:
        shutil.copytree(stock / "1", one, copy_function=os.link)
    del model
    arguments = ("--poll-seconds", str(POLL_SECONDS))
    with ServerProcess({"stock": stock}, *arguments, start_seconds=600) as server:
        most = saturation(options, client, server, folder / "stock_requests")

        def moves_of(turn):
            return [(one, stock / one.name) for one in folders[turn * SWAPS : (turn + 1) * SWAPS]]

        between = max(1, round(options.seconds)) / SWAPS
        requests = folder / "stock_requests"
        return both(options, client, server, requests, most / 2, moves_of, between)


def both(options, client, server, requests, rate, moves_of, between):
    """A row: the same load without and with new versions, by turns."""
    how = ("--rate", rate, "--connections", IN_FLIGHT)
    seconds = max(1, round(options.seconds))
    runs = {"still": [], "changing": []}
    for turn in range(options.turns):
        for name, found in runs.items():
            releases = Releases(moves_of(turn) if name == "changing" else [], between)
            run = client.start(server.grpc_port, requests, seconds, *how).watch(server.pid)
            releases.start()
            found.append(run.finish(server.pid))
            releases.join()
    still, changing = medians_of(runs["still"]), medians_of(runs["changing"])
    versions = len(np.unique(np.concatenate([run.versions for run in runs["changing"]])))
    pairs = list(zip(runs["still"], runs["changing"]))
    p99 = statistics.median(percentile(b) / percentile(a) for a, b in pairs)
    longest = statistics.median(b.ms.max() / a.ms.max() for a, b in pairs)
    last = runs["changing"][-1]
    return {
        "requests/s": round(rate, 1),
        "versions": versions,
        "p99 ms still": still["p99 ms"],
        "p99 ms": changing["p99 ms"],
        "p99 times": round(p99, 2),
        "longest ms still": still["longest ms"],
        "longest ms": changing["longest ms"],
        "longest times": round(longest, 2),
        "over time": over_time(last),
        "commits": [round(t - last.due.min(), 3) for t in releases.times],
    }


def percentile(answers):
    return float(np.percentile(answers.ms, 99))


def over_time(answers, window=0.25):
    """[seconds since the first request, p99 of the requests due in a window]."""
    at = answers.due - answers.due.min()
    windows = (at / window).astype(int)
    return [
        [round((w + 0.5) * window, 3), round(float(np.percentile(answers.ms[windows == w], 99)), 3)]
        for w in np.unique(windows)
    ]


def memory(pid, field):
    """Bytes of a process, from /proc: VmRSS, now; VmHWM, the most."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(field))


def run_start(options, client, folder):
    del client
    model = Features(1, 1, options.start_rows, options.dim, keyed=True)
    model.export(folder / "start" / "1")
    of_rows = options.start_rows * options.dim * 4
    del model
    seconds, bytes_used = [], []
    for _ in range(options.turns):
        begin = time.monotonic()
        with ServerProcess({"start": folder / "start"}, start_seconds=600) as server:
            seconds.append(time.monotonic() - begin)
            bytes_used.append(memory(server.pid, "VmRSS"))
    size = sum(f.stat().st_size for f in (folder / "start").rglob("*") if f.is_file())
    yield {
        "part": "start",
        "table rows": options.start_rows,
        "MB of files": round(size / 1e6, 1),
        "MB of values": round(of_rows / 1e6, 1),
        "MB of the process": round(statistics.median(bytes_used) / 1e6, 1),
        "ready s": round(statistics.median(seconds), 2),
        "longest s": round(max(seconds), 2),
    }
