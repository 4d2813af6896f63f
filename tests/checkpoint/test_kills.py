"""A crash at any moment of a save leaves a checkpoint that restores to the last bit."""

import os
import subprocess
import sys
from pathlib import Path

SEED = int(os.environ.get("GROUP_EMBEDDING_TEST_SEED", "20240501"))
NUM_KILLS = 200


def test_the_newest_checkpoint_survives_kills_at_random_moments(tmp_path):
    print("seed", SEED)

    run = subprocess.run(
        [sys.executable, Path(__file__).with_name("kills.py"), tmp_path, str(NUM_KILLS), str(SEED)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        timeout=600,
    )

    # Every child that restored a checkpoint has compared it; what it found wrong would end the run.
    words = run.stdout.split("\n")[0].split()
    assert run.returncode == 0, run.stdout + run.stderr[-2000:]
    assert words[:2] == [str(NUM_KILLS), "kills,"], run.stdout
    assert int(words[2]) > NUM_KILLS / 4  # saves ended, too
