"""Every benchmark runs, at a size at which its figures mean nothing, and writes what it says."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from hosts.bed import why_not as bed_of_hosts_is_missing
from support.session.tiers import by_day

ROOT = Path(__file__).resolve().parents[1]
HAS_HOROVOD = importlib.util.find_spec("horovod") is not None
COMMANDS = [
    "bench_config_memory --gigabytes 0.01 --gibibytes 4 --steps 3",
    "bench_data --rows 4000 --batch 64 --seconds 0.05 --turns 1",
    "bench_dlrm --batch 64 --rows 100 --steps 10 --compiled",
    "bench_dlrm --batch 64 --rows 100 --steps 10 --keyed",
    "bench_dlrm --model dcnv2 --batch 4 --rows 100 --steps 10",
    "bench_dlrm --batch 8 16 --rows 100 --steps 10 --precision bfloat16 float16",
    "bench_fbgemm cpu --repeats 1 --shapes 2x8x5x4x50 3x4x1x8x20",
    "bench_fbgemm train --cpu --workloads onehot26 --alphas 0 --rules sgd adam",
    "bench_kernel --cpu --workloads onehot26 --alphas 0",
    "bench_lookup --features 2 --batch 8 --rows 50 --seconds 0.05",
    "bench_ranks overlap --ranks 2 --samples 64 --rows 1000 --alphas 0 1.05",
    "bench_save upload memory://bench --rows 2000 --batch 64 --saves 1",
    "bench_save waits --rows 2000 --batch 64 --steps 2 --saves 1 --only evicts",
    f"bench_step checkouts {ROOT} --keys 300 --batch 50 --dim 4 --turns 2 --steps 2",
    "bench_step dense_update --batch 32 --rows 100 --steps 2 --turns 1 --optimizers adam",
    "bench_step first_call --features 2 3",
    "bench_step tables --tables 2 3 --steps 2 --turns 1",
    "bench_table budget --keys 1000 --batch 100 --dim 4 --steps 20 --stream 3000",
    "bench_table cpu --keys 3000 --dims 4 --batch 1000 --grow 5000",
    "bench_table find --keys 4000 --batch 1000 --threads 2 --turns 2",
    "bench_table growth --keys 4000 --batch 1000 --dim 4 --calls 3 --pause 1",
    "bench_table plan --dims 4 --optimizers adagrad --keys 300",
    "bench_table update --dims 9 --rows 100 --few-rows 10 --batch 50 --turns 2",
]
if HAS_HOROVOD:
    COMMANDS.append(
        "bench_ranks cpus --ranks 2 --batch 64 --rows 100 --steps 2 --dense 1 --wait 1 --ahead"
    )
    COMMANDS.append("bench_ranks hot --shares 0.5 --steps 1 --rounds 1")
if bed_of_hosts_is_missing() is None:
    COMMANDS.append("bench_ranks hosts --delays 1 --steps 2")
    COMMANDS.append("bench_ranks ahead --alphas 0 --rates 0 --steps-per-call 1 --rounds 1")
    COMMANDS.append("bench_ranks sums --ids 5 --alphas 0 --rates 0 --rounds 1")
    COMMANDS.append("bench_ranks two_levels --hosts aabb --rates 0 --table-rows 2000 --rounds 1")
if importlib.util.find_spec("redis"):
    COMMANDS.append(
        "bench_serving --only publish --targets redis --rows 2000 --changed 90 --publishes 2"
    )
BY_DAY = [COMMANDS[6], COMMANDS[9]]


def test_there_are_twelve_programs_and_pages_quote_each_part():
    # Given the programs, the parts of those that have some, and pages with commands
    programs = sorted((ROOT / "benchmarks").glob("bench_*.py"))
    commands = [
        f"python benchmarks/{program.name}{' ' * bool(part)}{part}"
        for program in programs
        for part in parts_of(program) or [""]
    ]
    folders = (ROOT / "docs", ROOT / "benchmarks" / "log")
    pages = [*ROOT.glob("*.md"), *(page for folder in folders for page in folder.rglob("*.md"))]
    text = "".join(page.read_text() for page in pages)

    # When the commands are looked for
    found = re.findall(r"python benchmarks/bench_\w+\.py(?: [a-z]\w*)?", text)

    # Then each is on a page, and no page has another one
    assert len(programs) <= 12
    assert sorted(set(found)) == sorted(commands)


def parts_of(program):
    """The names of a program's parts; none: it has no parts."""
    call = r"run_part\(\s*\"\w+\",\s*\(([^)]*)\),\s*__doc__,?\s*\)"
    match = re.search(call, program.read_text())
    return re.findall(r'"(\w+)"', match[1]) if match else []


@pytest.mark.parametrize("text", by_day(COMMANDS, BY_DAY, COMMANDS))
def test_benchmark_runs(text, tmp_path):
    # Given a benchmark, when it runs as in the README but small
    path, picture = tmp_path / "figures.json", tmp_path / "figures.png"
    name, *options = text.split()
    script = ROOT / "benchmarks" / f"{name}.py"
    part = ROOT / "benchmarks" / "parts" / f"{name.removeprefix('bench_')}_{options[0]}.py"
    code = (part if part.exists() else script).read_text()
    draws = "def plot(" in code or '"--plot"' in code
    command = [sys.executable, script, *options, "--json", path]
    command += ["--plot", picture] if draws else []
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=os.environ)
    # Then it prints a table, writes its figures with what they were measured on, and draws them
    assert done.returncode == 0, done.stderr[-3000:]
    assert not draws or picture.read_bytes().startswith(b"\x89PNG")
    figures = json.loads(path.read_text())
    assert figures["about"]["date"] and figures["rows"]
    headings = list(figures["rows"][0])
    assert any(line.split()[:1] == headings[0].split()[:1] for line in done.stdout.splitlines())


@pytest.mark.slow
def test_auc_with_small_slots_is_measured(tmp_path):
    # Given a few clicks
    rows = [[n % 2, *range(13), *(f"{n * k % 9:08x}" for k in range(26))] for n in range(100)]
    clicks, path = tmp_path / "clicks.csv", tmp_path / "figures.json"
    clicks.write_text("".join(",".join(map(str, row)) + "\n" for row in rows))
    # When a model is trained on them with slots of both types
    command = [sys.executable, ROOT / "benchmarks" / "bench_table.py", "slots", "--data", clicks]
    command += ["--optimizers", "adam", "--seeds", "1", "--steps", "2", "--json", path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    # Then each has its AUC and its bytes
    assert done.returncode == 0, done.stderr[-3000:]
    (row,) = json.loads(path.read_text())["rows"]
    assert row["AUC, float32"] == pytest.approx(row["AUC, bfloat16"], abs=0.1)
    assert row["bfloat16"] < 0.8 * row["bytes of tables, float32"]


@pytest.mark.soak
def test_serving_is_measured(tmp_path):
    # Given the server, what the client is built with, and a few ratings
    if not (ROOT / "group_embedding" / "ge-serve").exists():
        pytest.skip("ge-serve is not built: make serving")
    if not Path("/usr/include/nghttp2/nghttp2.h").exists():
        pytest.skip("libnghttp2 is missing: apt-get install libnghttp2-dev")
    ratings = [f"{n % 7}\t{n % 11}\t{1 + n % 5}\t{n}" for n in range(600)]
    (tmp_path / "ml-100k.inter").write_text("\n".join(["user\titem\trating\ttime", *ratings]))
    # When every part is measured, at a size at which its figures mean nothing
    sizes = "--features 3 --many 4 --table-rows 50 --rows 200 --batch 4 --changed 60"
    turns = "--start-rows 1000 --seconds 0.1 --turns 1"
    paths = ["--data", tmp_path, "--json", tmp_path / "all.json", "--plot", tmp_path / "all.png"]
    command = [sys.executable, ROOT / "benchmarks" / "bench_serving.py", *sizes.split()]
    done = subprocess.run([*command, *turns.split(), *paths], capture_output=True, text=True)
    # Then each has its figures, and a picture
    assert done.returncode == 0, done.stderr[-3000:]
    rows = json.loads((tmp_path / "all.json").read_text())["rows"]
    parts = [
        "single",
        "sparse",
        "joined",
        "many",
        "open",
        "updates",
        "memory while updating",
        "publish",
        "start",
    ]
    assert list(dict.fromkeys(row["part"] for row in rows)) == [*parts, "int8"]
    assert all(row["requests/s"] > 0 for row in rows if row["part"] in parts[:6])
    published = next(row for row in rows if row["part"] == "publish")
    assert 0 < published["acknowledged s"] <= published["served s"]
    assert (tmp_path / "all.png").read_bytes().startswith(b"\x89PNG")


def test_a_dlrm_is_shown_beside_its_peer(tmp_path, monkeypatch):
    # Given rows of two batches on one rank and on two, and a peer's figures of some of them
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import bench_dlrm

    row = {"model": "dlrm", "precision": "float32"}
    times = {1: {"step_ms": 3.0, "compiled_step_ms": 1.0}, 2: {"compiled_step_ms": 1.25}}
    rows = [
        {"batch": batch, "ranks": ranks, **row, **times[ranks]}
        for ranks in (1, 2)
        for batch in (64, 128)
    ]
    peers = [
        {"batch": 128, "precision": "float32", "best_ms": 2.0},
        {"batch": 128, "ranks": 2, "best_ms": 4.0, **row},
        {"batch": 64, "ranks": 2, "best_ms": 5.0, **row, "model": "dcnv2"},
    ]
    (tmp_path / "peer.json").write_text(json.dumps({"about": {"torch": "2"}, "rows": peers}))
    about = {"cpu": "a CPU", "date": "2026-01-01"}

    # When they are joined and drawn
    bench_dlrm.add_scaling(rows)
    bench_dlrm.add_peer(tmp_path / "peer.json", about, rows)
    bench_dlrm.plot(tmp_path / "both.png", about, rows)

    # Then the peer's best stands beside the same model, batch and ranks
    assert [row["peer_ms"] for row in rows] == [None, 2.0, None, 4.0]
    assert about["peer"] == {"torch": "2"}
    assert (tmp_path / "both.png").read_bytes().startswith(b"\x89PNG")
    # And two ranks' steps beside one's
    assert [row.get("compiled_scaling") for row in rows] == [None, None, 0.8, 0.8]


@pytest.mark.soak
@pytest.mark.skipif(not HAS_HOROVOD, reason="Horovod is not installed")
def test_tables_over_ranks_are_timed(tmp_path):
    # Given the DLRM, with tables found by key
    command = [sys.executable, str(ROOT / "benchmarks" / "bench_dlrm.py"), "--keyed"]
    options = f"--batch 64 --rows 100 --steps 10 --json {tmp_path}/figures.json".split()
    options += ["--precision", "float32", "bfloat16"]
    # When one rank and two run it
    command += [*options, "--ranks", "1", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    # Then the figures are of both
    assert done.returncode == 0, done.stderr[-3000:]
    rows = json.loads((tmp_path / "figures.json").read_text())["rows"]
    assert [row["ranks"] for row in rows] == [1, 1, 2, 2]
    assert [row["precision"] for row in rows] == ["float32", "bfloat16"] * 2
    for row in rows:
        assert row["keyed"] and row["step_ms"] > 0 and row["tables_step_ms"] > 0
        assert ("scaling" in row) == (row["ranks"] == 2)


class OneCase:
    """Replaces processes with a GPU each; transports through peer memory fail on two ranks."""

    def __init__(self, num_ranks):
        self.num_ranks = num_ranks

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def run(self, function, folder, transport, workload, alpha, seconds):
        if transport == "peer_memory" and self.num_ranks == 2:
            raise RuntimeError("rank 1: no such peer")
        kernels = {"ncclDevKernel_SendRecv": 0.5, "ServeRowsKernel": 0.25}
        times = {"forward": 1.0, "step": 2.0 * self.num_ranks, "bytes": 10**6, "kernels": kernels}
        return [{**times, "bare": 0.5} for _ in range(self.num_ranks)]


def test_what_was_measured_over_gpus_outlives_a_case_that_fails(monkeypatch):
    # Given GPUs, of which two cannot reach each other's memory
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    bench = importlib.import_module("parts.ranks_gpus")
    monkeypatch.setattr(bench, "Ranks", OneCase)
    said = "\t Link 0: 26.562 GB/s\n\t Link 1: 13.438 GB/s\n"
    monkeypatch.setattr(bench.subprocess, "run", lambda *_, **__: SimpleNamespace(stdout=said))
    workloads = [(bench.WORKLOADS["onehot26"], 0.0)]
    given = []
    # When they are measured
    with pytest.raises(RuntimeError, match="no such peer"):
        for rows_so_far in bench.measure_all("folder", [1, 2], workloads, bench.TRANSPORTS, None):
            given.append(rows_so_far)
    # Then what was measured before has been given, beside one GPU
    rows = given[-1]
    assert [(row["transport"], row["GPUs"]) for row in rows] == [
        *((transport, 1) for transport in bench.TRANSPORTS),
        ("nccl", 2),
        ("nccl, bfloat16", 2),
    ]
    assert [row["of one GPU"] for row in rows[-2:]] == ["50%", "50%"]
    assert rows[-1]["of bare"] == "100%"
    # And beside what the links of a GPU can carry, 40 GB/s
    assert rows[-1]["GB/s"] == 2.0 and rows[-1]["of the link"] == "5%"
