"""Reads of rows below the memory of served models, beside bare calls of the same stores.

tier_reads.cc, which is compiled here, asks for keys by Zipf's law and compares, by turns in one
process, medians of the times of a request in milliseconds:

* redis: the Redis tier, pipelined MGETs of 512 keys by hiredis (each row a key of Redis), and two
  tables above the tier: nothing of one is in memory, and a tenth of the other's rows, which is
  warm. A table asks the tier for each key of a request once, in order;
* rocksdb: the RocksDB tier, RocksDB's own MultiGet of all keys of a request, and such tables;
* updates: keys that one thread finds in a table in memory in a second of processor time, while
  another brings deltas of 100,000 draws of keys twice a second, beside the same without.

    python benchmarks/bench_tiers.py stores [--only STORE ...] [--rows 1000000] [--dim 64]
                                            [--zipf 1.05] [--turns 50]
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))  # they have the server

from report import machine  # noqa: E402
from support.servers.redis_server import RedisServer  # noqa: E402

SOURCE = Path(__file__).with_name("tier_reads.cc")
PARTS = ("redis", "rocksdb", "updates")


def add_options(parser):
    parser.add_argument("--only", nargs="*", choices=PARTS, default=list(PARTS), metavar="STORE")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--zipf", type=float, default=1.05)
    parser.add_argument("--turns", type=int, default=50)


def build(folder):
    """Compiles the program into a folder, with the core that was built last; returns its path."""
    if shutil.which("g++") is None or not Path("/usr/include/hiredis/hiredis.h").exists():
        raise SystemExit("expected g++ and hiredis: apt-get install libhiredis-dev")
    package = ROOT / "group_embedding"
    libraries = []
    for stem in ("libgroup_embedding_serving", "libgroup_embedding_core"):
        built = sorted(package.glob(f"{stem}.*.so"), key=lambda p: p.stat().st_mtime)
        if not built:
            raise SystemExit("expected the built libraries: make build")
        libraries.append(str(built[-1]))
    program = Path(folder) / "tier_reads"
    flags = ["-std=c++17", "-O2", f"-march={os.environ.get('GROUP_EMBEDDING_MARCH', 'x86-64-v3')}"]
    files = [str(SOURCE), *libraries, "-o", str(program), f"-Wl,-rpath,{package}"]
    system = ["-lhiredis", "-lpthread", "-ldl"]
    command = ["g++", *flags, f"-I{ROOT / 'cc'}", *files, *system]
    subprocess.run(command, check=True)
    return program


def measure(program, part, where, options):
    numbers = (options.rows, options.dim, options.zipf, options.turns)
    environment = dict(os.environ)
    if found := next(Path(sys.prefix).glob("lib/python3*/site-packages/aimrocks/librocksdb.so"), 0):
        environment.setdefault("GROUP_EMBEDDING_ROCKSDB", str(found))
    command = [str(program), part, str(where), *map(str, numbers)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    for row in rows:
        if "tier" in row:
            row["tier is, times"] = round(row["tier"] / row["bare"], 2)
            row["request, times"] = round(row["nothing in memory"] / row["bare"], 2)
            row["with memory, times"] = round(row["a tenth in memory"] / row["bare"], 2)
    return rows


def run(options):
    rows = []
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        program = build(folder)
        for part in options.only:
            where = folder
            if part == "redis":
                where = stack.enter_context(RedisServer(folder)).address
            rows += measure(program, part, where, options)
    return {**machine(), "rows": options.rows, "dim": options.dim, "zipf": options.zipf}, rows
