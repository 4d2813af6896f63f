"""Ranks publish one version together: whole, equal to what they trained, or not there."""

import contextlib
import os
import pickle
import shutil
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from support.session.tiers import by_day

import group_embedding as ge
from group_embedding.ranks.sharding.sharded_table import gather_rows
from group_embedding.serving.stores.targets import FileTarget
from group_embedding.serving.versions.deltas import Reader
from group_embedding.testing import launch

KEYED = {"by_hash": "distributed", "on_rank_1": "localized:1"}
BY_ROW = {"rows": "distributed", "rows_on_1": "localized:1", "copies": "replicated"}
SCRIPT = str(Path(__file__).with_name("publish_on_ranks.py"))
NUM_ROWS, DIM, BATCH = 301, 4, 12


class Clicks(tf.Module):
    """Keyed tables, tables by row number in each placement, and dense weights."""

    def __init__(self, trains=True):
        super().__init__()
        start = tf.keras.initializers.RandomNormal(seed=3)
        configs = [
            ge.TableConfig(name, None, DIM, placement=word if trains else None)
            for name, word in KEYED.items()
        ] + [
            ge.TableConfig(
                name, NUM_ROWS, DIM, initializer=start, placement=word if trains else None
            )
            for name, word in BY_ROW.items()
        ]
        self.names = [config.name for config in configs]
        self.layer = ge.layers.GroupEmbedding(
            [ge.FeatureConfig(config.name, config, "sum") for config in configs],
            concat=True,
            name="bags",
        )
        self.weights = tf.Variable(tf.random.stateless_normal([DIM * len(configs), 1], [1, 2]))
        self.layer.build({name: [None, 2] for name in self.names})

    def score(self, ids):
        return self.layer(ids) @ self.weights

    def signature(self):
        given = [tf.TensorSpec([None, 2], tf.int64, name=name) for name in self.names]

        @tf.function(input_signature=given)
        def serve(*ids):
            return {"score": self.score(dict(zip(self.names, ids)))}

        return serve


def build():
    model = Clicks(trains=False)
    return model, model.signature()


def content_of(model):
    """Tables and variables of all ranks, at an instant."""
    tables, dense = {}, [model.weights.numpy()]
    for name, variable in model.layer.tables.items():
        variable = variable if isinstance(variable, tf.Variable) else variable.value
        if name in KEYED:
            found = variable.export(gather=True)
            rows = (row.tobytes() for row in found.values.numpy())
            tables[variable.rows.name] = dict(zip(found.keys.numpy().tolist(), rows))
        else:
            dense.append(gather_rows(variable).numpy())
    return tables, dense


class Trainer:
    def __init__(self):
        ge.enable_distributed_strategy()
        self.rank = ge.exchange.current().rank
        self.model = Clicks()
        keras_optimizer = tf.keras.optimizers.SGD(0.1)
        self.optimizer = ge.DistributedOptimizer(ge.optimizers.wrap(keras_optimizer))
        self.variables = [*self.model.layer.trainable_weights, self.model.weights]

    def step(self, number):
        draw = np.random.default_rng(100 * number + self.rank)
        ids = {
            name: tf.constant(draw.integers(0, NUM_ROWS, [BATCH, 2])) for name in self.model.names
        }
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self.model.score(ids) - 1) ** 2)
        gradients = tape.gradient(loss, self.variables)
        self.optimizer.apply_gradients(zip(gradients, self.variables))

    def erase(self, number):
        keys = np.random.default_rng(number).integers(0, NUM_ROWS, 20)
        for name in KEYED:
            self.model.layer.tables[name].erase(keys)


def publish_versions(target, work_folder=None):
    trainer = Trainer()
    publisher = ge.serving.Publisher(
        trainer.model, target, build=build, base_every=3, work_folder=work_folder
    )
    expected = {}
    for number in range(6):
        trainer.step(number)
        if number > 1:
            trainer.erase(number)
        expected[publisher.publish(number)] = content_of(trainer.model)
    publisher.close()
    return expected


def assert_equal(content, expected):
    tables, dense = expected
    assert content.tables == tables
    published = {(v.shape, v.tobytes()) for v in content.variables.values()}
    for value in dense:
        assert (value.shape, value.tobytes()) in published, value.shape


def test_versions_are_what_all_ranks_trained(two_ranks, tmp_path):
    # Given two ranks with tables in each placement, which train, erase keys and publish
    expected, of_rank_1 = two_ranks.run(publish_versions, str(tmp_path), timeout=240)
    assert list(expected) == list(of_rank_1) == [1, 2, 3, 4, 5, 6]

    # When versions are read: from their base, and one after the other
    reader = Reader(ge.serving.open_target(tmp_path))
    content = None
    for version, trained in expected.items():
        record = reader.record(version)
        content = reader.read(version) if content is None else reader.apply(content, record)

        # Then each is what both ranks trained, to the bit
        assert_equal(content, trained)
        assert_equal(reader.read(version), trained)
    # And the fifth is a base, written from the first and the deltas
    assert [reader.record(version).base for version in expected] == [1, 1, 1, 1, 5, 5]
    erased = [t["num_erased"] for v in (3, 4, 6) for t in reader.verify(reader.record(v))]
    assert sum(erased) > 0

    # And a session follows all of them
    with ge.serving.InferenceSession(tmp_path / "1") as session:
        assert session.info()["tables"]
        for version in range(2, 7):
            assert session.apply(tmp_path / "versions" / f"{version:020d}") == version
        names = list(session.signatures()["serving_default"]["inputs"])
        ids = {name: np.arange(20).reshape(10, 2) for name in names}
        followed = session.predict(ids)["score"]
    with ge.serving.InferenceSession(tmp_path / "5") as session:
        session.apply(tmp_path / "versions" / f"{6:020d}")
        np.testing.assert_array_equal(session.predict(ids)["score"], followed)


def publish_to_service(url, work_folder, environment):
    os.environ.update(environment)
    return publish_versions(url, work_folder=work_folder)


@pytest.mark.parametrize("kind", by_day(["kafka", "redis", "s3"], ["kafka"]))
def test_versions_go_to_a_service(kind, services, two_ranks, tmp_path):
    # Given two ranks that publish to a service, each of which puts its rows into a folder
    url = services(kind)
    (tmp_path / "work").mkdir()
    address = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
    expected, _ = two_ranks.run(
        publish_to_service, url, str(tmp_path / "work"), address, timeout=240
    )

    # When its versions are read, then each is what both ranks trained, to the bit, bases too
    with contextlib.closing(ge.serving.open_target(url)) as target:
        reader = Reader(target)
        assert [reader.record(version).base for version in expected] == [1, 1, 1, 1, 5, 5]
        for version, trained in expected.items():
            assert_equal(reader.read(version), trained)
    # And nothing is left of the folder
    assert os.listdir(tmp_path / "work") == []


def publish_where_others_do_not_look(url, folder):
    trainer = Trainer()
    seen = os.path.isdir
    if trainer.rank == 1:  # as on a machine that does not have the folder
        os.path.isdir = lambda path: "ge-versions-" not in str(path) and seen(path)
    try:
        with pytest.raises(ValueError, match="that all ranks reach.*which rank 1 does not reach"):
            ge.serving.Publisher(trainer.model, url, build=build, work_folder=folder)
    finally:
        os.path.isdir = seen
    with pytest.raises(ValueError, match="expected no work_folder for"):
        ge.serving.Publisher(trainer.model, folder, build=build, work_folder=folder)


def test_a_work_folder_that_a_rank_does_not_reach_is_named(services, two_ranks, tmp_path):
    two_ranks.run(publish_where_others_do_not_look, services("redis"), str(tmp_path))


def publish_with_failures(folder, failing_rank, on_failure):
    """Versions and errors of publishes, of which the second and the third fail on a rank."""
    trainer = Trainer()
    publisher = ge.serving.Publisher(
        trainer.model, folder, build=build, on_failure=on_failure, timeout=20
    )
    works, told, expected = FileTarget.put, [], {}

    def fails(*_):
        raise OSError("disk full")

    for number in range(5):
        trainer.step(number)
        if number in (1, 2) and trainer.rank == failing_rank:
            FileTarget.put = fails
        began = time.monotonic()
        try:
            told.append(publisher.publish())
        except (OSError, ge.serving.TargetError) as error:
            told.append(str(error))
        finally:
            FileTarget.put = works
        assert time.monotonic() - began < 15  # it waited for no time-out
        expected[publisher.version] = content_of(trainer.model)
    publisher.close()
    return told, expected


@pytest.mark.parametrize(
    "failing_rank, on_failure", by_day([(0, "raise"), (1, "raise"), (1, "keep")], [(1, "keep")])
)
def test_all_ranks_fail_together_and_nothing_is_lost(failing_rank, on_failure, two_ranks, tmp_path):
    # Given ranks of which one cannot write twice
    found = two_ranks.run(
        publish_with_failures, str(tmp_path), failing_rank, on_failure, timeout=240
    )

    # Then both raise in time, and no version is there
    (told, expected), (told_1, _) = found
    if on_failure == "raise":
        for of_rank in (told, told_1):
            assert of_rank[0] == 1 and of_rank[3:] == [2, 3]
            assert all("disk full" in text for text in of_rank[1:3])
    else:
        assert told == told_1 == [1, 1, 1, 2, 3]
    # And the next versions have everything
    reader = Reader(ge.serving.open_target(tmp_path))
    for version in (2, 3):
        assert_equal(reader.read(version), expected[version])


def publish_to_what_loses_versions(folder):
    trainer = Trainer()
    publisher = ge.serving.Publisher(trainer.model, folder, build=build)
    trainer.step(0)
    told = [publisher.publish()]
    if trainer.rank == 0:
        shutil.rmtree(Path(folder) / "versions")
    trainer.step(1)
    with pytest.raises(ge.serving.TargetError, match="expected version 1, which it had ackn"):
        publisher.publish()
    told.append(publisher.publish())
    publisher.close()
    return told, content_of(trainer.model)


def test_ranks_go_on_with_a_base_where_a_target_lost_versions(two_ranks, tmp_path):
    # Given ranks whose target loses the version that it had
    # When they publish again, Then both learn it once
    (told, expected), (told_1, _) = two_ranks.run(
        publish_to_what_loses_versions, str(tmp_path), timeout=240
    )
    assert told == told_1 == [1, 2]

    # And the next version is a base with everything
    reader = Reader(ge.serving.open_target(tmp_path))
    assert reader.record(2).base == 2
    assert_equal(reader.read(2), expected)


def publish_at_steps(folder):
    trainer = Trainer()
    publisher = ge.serving.Publisher(trainer.model, folder, build=build, every_seconds=0)
    expected, number = {}, 0
    while publisher.version < 4 and number < 300:
        trainer.step(number)
        expected[number] = content_of(trainer.model)
        publisher.after_step(number)
        number += 1
    publisher.close()
    return publisher.version, expected


def test_ranks_publish_in_the_background(two_ranks, tmp_path):
    (version, expected), (of_rank_1, _) = two_ranks.run(
        publish_at_steps, str(tmp_path), timeout=240
    )
    assert version == of_rank_1 >= 4
    reader = Reader(ge.serving.open_target(tmp_path))
    for number in reader.versions():
        assert_equal(reader.read(number), expected[reader.record(number).step])


def publish_by_wrong_arguments(folder):
    trainer = Trainer()
    with pytest.raises(ValueError, match="expected build=.* as there are 2 ranks, got None"):
        ge.serving.Publisher(trainer.model, folder)
    publisher = ge.serving.Publisher(trainer.model, folder, build=tf.Module)
    with pytest.raises(ValueError if trainer.rank == 0 else RuntimeError, match="with a signature"):
        publisher.publish()
    publisher.close()


def test_wrong_arguments_are_named_on_all_ranks(two_ranks, tmp_path):
    two_ranks.run(publish_by_wrong_arguments, str(tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["folder", "kafka"])
def test_a_killed_rank_leaves_whole_versions(kind, two_ranks, tmp_path, request):
    """A rank is killed while it publishes; the job starts again, and goes on in the same target."""
    two_ranks.close()
    target = str(tmp_path / "target")
    if kind != "folder":
        target = request.getfixturevalue("services")(kind)
    reader = Reader(ge.serving.open_target(target))
    seen = []
    for life, killed in enumerate((1, 0)):
        # Given two ranks that publish after each step
        with open(tmp_path / f"output-{life}", "w") as output:
            job = launch([sys.executable, SCRIPT, str(tmp_path), target, str(life)], 2, output)
        begun = max(seen, default=0)
        wait_for(lambda begun=begun: reader.versions()[-1:] > [begun + 2], job, tmp_path, life)

        # When one of them is killed in the middle
        os.kill(int((tmp_path / f"pid-{life}-{killed}").read_text()), signal.SIGKILL)

        # Then the other one ends, and does not hang; all versions are what the ranks had trained
        assert job.wait(60) != 0
        versions = reader.versions()
        assert set(seen) <= set(versions)
        for version in set(versions) - set(seen):
            content = tmp_path / f"content-{life}-{reader.record(version).step}"
            assert_equal(reader.read(version), pickle.loads(content.read_bytes()))
        seen = versions


def wait_for(condition, job, folder, life):
    end = time.monotonic() + 120
    while not condition():
        output = (folder / f"output-{life}").read_text
        assert job.poll() is None and time.monotonic() < end, output()
        time.sleep(0.02)
