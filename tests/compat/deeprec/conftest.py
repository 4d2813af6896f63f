"""`tf` is what `import group_embedding.deeprec as tf` gives a script, in a graph of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import tensorflow as tf2

v1 = tf2.compat.v1
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="session")
def _deeprec():
    import group_embedding.deeprec as deeprec  # turns TensorFlow 2 off, so not when tests are found

    _back_to_version_2()
    return deeprec


@pytest.fixture
def tf(_deeprec):
    v1.disable_v2_behavior()
    with tf2.Graph().as_default():
        yield _deeprec
    _back_to_version_2()


def _back_to_version_2():
    v1.reset_default_graph()  # eager execution can not be enabled once there is one
    v1.enable_v2_behavior()


@pytest.fixture
def run_script(tmp_path):
    """A function that runs a script in a process of its own, and returns what it prints."""

    def run(text):
        script = tmp_path / "script.py"
        script.write_text(text)
        found = subprocess.run(
            [sys.executable, script],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "2"},
        )
        assert found.returncode == 0, found.stderr
        return found.stdout

    return run
