"""The C++ tests of the framework-free core, built and run as they are by `make sanitize`."""

import os
import subprocess
from pathlib import Path

import tensorflow as tf

HERE = Path(__file__).parent


def test_core_in_cc():
    jobs = str(len(os.sched_getaffinity(0)))
    # Apart from the `make test` that may have started this: its job server is not ours.
    env = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}

    done = subprocess.run(
        ["make", "-s", "-j", jobs, "-C", str(HERE), "run", f"TF={tf.__version__}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=env,
    )

    print(done.stdout)
    assert done.returncode == 0, done.stdout[-4000:]
