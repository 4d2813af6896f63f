"""An InferenceSession above a tier that is slow or fails: see also server/test_tier_failures.py."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from support.cases.shop_models import Versions, export
from support.servers.slow_rocksdb import SlowRocksdb

from group_embedding.serving import InferenceSession

# A process of its own loads the slow RocksDB.
PROGRAM = """
import json, os, sys, time
import numpy as np
from group_embedding.serving import InferenceSession

path, tiers = sys.argv[1:]

def be(mood):
    with open(os.environ["SLOW_ROCKSDB"], "w") as file:
        file.write(mood)

def ask(session, mood, key, **options):
    be(mood)
    start = time.monotonic()
    try:
        answer = session.predict({"key": np.array([key])}, **options)["rows"].tolist()
    except Exception as error:
        answer = [type(error).__name__, str(error)]
    be("well")
    return answer, time.monotonic() - start

found = {}
with InferenceSession(path, tiers=tiers) as session:
    found["well"] = ask(session, "well", 1)
    found["fail"] = ask(session, "fail", 2)
    found["slow"] = ask(session, "sleep 0.6", 3)
    found["own"] = ask(session, "sleep 0.6", 4, timeout=0.05)
    found["again"] = ask(session, "well", 2)
    found["info"] = session.info()["tables"]
print(json.dumps(found))
"""


def test_errors_of_a_session(tmp_path):
    # Given a session above a tier that a program makes slow or failing
    path = export(Versions(), tmp_path / "1")
    tier = SlowRocksdb(tmp_path)
    tiers = f"memory=1,rocksdb={tmp_path / 'rows'},timeout=200ms"
    # When it asks for rows
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, path, tiers],
        env=os.environ | tier.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    # Then each failure is an error by name, in time, and the rows are right before and after
    assert set(found["well"][0][0]) == set(found["again"][0][0]) == {1.0}
    assert found["fail"][0][0] == "UnavailableError" and "table 'first'" in found["fail"][0][1]
    for name, deadline, seconds in (("slow", "200 ms", 0.5), ("own", "50 ms", 0.3)):
        (error, sentence), took = found[name]
        assert error == "DeadlineExceededError" and took < seconds
        assert "table 'first', tier rocksdb=" in sentence and deadline in sentence
    (first,) = (table for table in found["info"] if table["name"] == "first")
    assert (first["failures"], first["timeouts"], first["defaulted"]) == (1, 2, 0)
    assert sum(first["reads"]) >= 3 and first["read_seconds"] > 0


@pytest.mark.parametrize("timeout", [-1, float("nan"), float("inf")])
def test_timeouts_that_are_none(tmp_path, timeout):
    model = tf.Module()
    model.rows = tf.Variable(tf.zeros([4, 2]))
    model.serve = tf.function(
        lambda key: {"rows": tf.gather(model.rows, key)},
        input_signature=[tf.TensorSpec([None], tf.int64, name="key")],
    )
    with InferenceSession(export(model, tmp_path / "1")) as session:
        with pytest.raises(ValueError, match="timeout: expected seconds"):
            session.predict({"key": np.array([1])}, timeout=timeout)
        assert session.predict({"key": np.array([1])}, timeout=5)["rows"].tolist() == [[0, 0]]
