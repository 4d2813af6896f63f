"""Tables of no, one and ten rows, and one that every request misses, in every tier: right, while
deltas arrive and threads ask."""

import threading

import numpy as np
import pytest
import tensorflow as tf
from support.cases.shop_models import version_folder
from support.servers.server_clients import wait_for

import group_embedding as ge
from group_embedding.serving import InferenceSession, Publisher

SIZES = {"none": 0, "one": 1, "ten": 10, "missed": 50}
ASKED = np.arange(12)  # none of "missed", whose keys begin at 1000
VERSIONS = 5


class Small(tf.Module):
    """Row k of version v is k + 100 v in all tables, where the key has a row; else -1."""

    def __init__(self):
        super().__init__()
        option = ge.EmbeddingVariableOption(
            init_option=ge.InitializerOption(initializer=tf.keras.initializers.Constant(-1.0))
        )
        self.tables = {
            name: ge.get_embedding_variable(f"small_{name}", 2, ev_option=option) for name in SIZES
        }
        self.version = tf.Variable(0, dtype=tf.int64)

    def keys(self, name):
        return np.arange(SIZES[name]) + (1000 if name == "missed" else 0)

    def set(self, version):
        """Also gives the empty table a row in odd versions, and takes it away in even ones."""
        for name, table in self.tables.items():
            keys = self.keys(name)
            if name == "none":
                table.erase(np.array([0]))
                keys = np.arange(version % 2)
            if len(keys):
                values = np.repeat(keys[:, None] + 100 * version, 2, 1)
                table.insert(keys, values.astype(np.float32))
        self.version.assign(version)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64, name="key")])
    def serve(self, key):
        found = ge.group_embedding_lookup([*self.tables.values()], [key] * len(SIZES))
        return dict(zip(self.tables, found)) | {"version": self.version[None]}


def expected(name, version):
    rows = np.full([len(ASKED), 2], -1.0)
    size = {"none": version % 2, "missed": 0}.get(name, SIZES[name])
    rows[:size] = ASKED[:size, None] + 100 * version
    return rows


def assert_right(answer):
    (version,) = answer["version"]
    for name in SIZES:
        np.testing.assert_array_equal(answer[name], expected(name, version), err_msg=name)


@pytest.fixture(params=["memory", "rocksdb"])
def tiers(request, tmp_path):
    """`tiers` of a session for a size and more options; None: all in memory."""
    if request.param == "memory":
        return lambda size, options: None
    return lambda size, options: f"memory={size},{request.param}={tmp_path / 'rows'}{options}"


@pytest.mark.covering(1)
@pytest.mark.parametrize("options", ["", ",insert=background,timeout=20s", ",insert=off"])
@pytest.mark.parametrize("size", ["1", "1GB"])  # one row of each table, and more than all
def test_small_tables(tiers, size, options, tmp_path):
    if tiers(size, options) is None and (size, options) != ("1", ""):
        pytest.skip("all rows are in memory in any case")
    # Given a published model, and threads that ask for the same keys again and again
    model, target, wrong, stop = Small(), tmp_path / "target", [], threading.Event()
    model.set(1)
    with Publisher(model, target, signatures=model.serve) as publisher:
        publisher.publish(step=1)
        with InferenceSession(target / "1", tiers=tiers(size, options)) as session:
            seen = set()

            def ask():
                while not stop.is_set():
                    answer = session.predict({"key": ASKED})
                    seen.add(answer.version)
                    try:
                        assert_right(answer)
                    except AssertionError as error:
                        wrong.append(str(error))

            threads = [threading.Thread(target=ask) for _ in range(3)]
            for thread in threads:
                thread.start()
            # When versions change all rows
            for version in range(2, VERSIONS + 1):
                model.set(version)
                publisher.publish(step=version)
                session.apply(version_folder(target, version))
                assert_right(session.predict({"key": ASKED}))
            wait_for(lambda: VERSIONS in seen or wrong)
            stop.set()
            for thread in threads:
                thread.join()
            # Then each answer was that of one version
            assert not wrong, wrong[0]
            tables = {table["name"]: table for table in session.info()["tables"]}
    if tiers(size, options) is not None:
        assert tables["small_missed"]["in_memory"] == tables["small_missed"]["below"] == 0
        assert tables["small_missed"]["absent"] > 0
