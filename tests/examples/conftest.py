"""Small files in the formats that the examples read, and the examples run as a user runs them."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
SHARED_CRITEO = Path(__file__).parents[3] / "shared" / "data" / "criteo_tiny.csv"
sys.path.insert(0, str(EXAMPLES))  # as it is for a script that lies there


@pytest.fixture(scope="session")
def movielens_folder(tmp_path_factory):
    """An ml-100k folder of 4,000 ratings, in which what people like depends on who and what."""
    folder = tmp_path_factory.mktemp("ml-100k")
    rng = np.random.default_rng(7)
    occupations, genres = ("artist", "doctor", "writer"), ("Comedy", "Drama", "War", "Sci-Fi")
    users = ["user_id:token\tage:token\tgender:token\toccupation:token\tzip_code:token"]
    users += [
        f"{u}\t{18 + u % 50}\t{'FM'[u % 2]}\t{occupations[u % 3]}\t{10000 + 731 * u}"
        for u in range(1, 61)
    ]
    items = ["item_id:token\tmovie_title:token_seq\trelease_year:token\tclass:token_seq"]
    items += [
        f"{i}\tThe {'Old' if i % 3 else 'New'} Film {i}\t{1950 + i}\t"
        f"{genres[i % 4]} {genres[i // 5 % 4]}"
        for i in range(1, 41)
    ]
    user, item = rng.integers(1, 61, 4000), rng.integers(1, 41, 4000)
    score = 3.4 + np.sin(item) + 0.7 * np.cos(user) + 0.5 * rng.standard_normal(4000)
    rating, time = (
        np.clip(np.round(score), 1, 5).astype(int),
        880000000 + rng.integers(0, 1e6, 4000),
    )
    ratings = ["user_id:token\titem_id:token\trating:float\ttimestamp:float"]
    ratings += ["\t".join(map(str, row)) for row in zip(user, item, rating, time)]
    for name, lines in (("user", users), ("item", items), ("inter", ratings)):
        (folder / f"ml-100k.{name}").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture(scope="session")
def criteo_file(tmp_path_factory):
    """2,000 rows in Criteo's format: real ones where they are at hand, else made up."""
    if SHARED_CRITEO.exists():
        return SHARED_CRITEO
    rng = np.random.default_rng(7)
    rows = [
        [int(rng.random() < 0.2), *integers, *(f"{c:08x}" if c else "" for c in categoricals)]
        for integers, categoricals in zip(
            rng.integers(-2, 500, (2000, 13)), rng.integers(0, 30, (2000, 26))
        )
    ]
    path = tmp_path_factory.mktemp("criteo") / "rows.csv"
    path.write_text("".join(",".join(map(str, row)) + "\n" for row in rows))
    return path


@pytest.fixture
def run_example(tmp_path):
    """Runs a script of `examples` in `tmp_path`; returns what it printed and its results.json."""

    def run(script, *arguments, launcher=(), check=True, **environment):
        folder = tmp_path / "out"
        command = [*launcher, sys.executable, EXAMPLES / script, "--folder", folder, *arguments]
        done = subprocess.run(
            [str(word) for word in command],
            cwd=tmp_path,
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=300,
        )
        if check:
            assert done.returncode == 0, done.stdout + done.stderr
        results = folder / "results.json"
        return SimpleNamespace(
            code=done.returncode,
            output=done.stdout,
            errors=done.stderr,
            folder=folder,
            results={r["model"]: r for r in json.loads(results.read_text())}
            if results.exists()
            else {},
        )

    return run
