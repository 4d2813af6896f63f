"""Checkpoints of keyed tables, by every method, written by some ranks and restored by others."""

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from support.session.tiers import by_day, values_of_run

import group_embedding as ge
from group_embedding import exchange
from group_embedding.checkpoint import checkpoint_files as files
from group_embedding.layers.layer_tables import lookup_param

v1 = tf.compat.v1
COUNTS = [1, 2, 3, 4]
SAVE_METHODS = ["saver", "objects", "layer", "changes"]
NUM_STEPS = 4
ERASED = np.random.default_rng(7).integers(-(2**63), 2**63 - 1, 40, dtype=np.int64)[:5]


def keys_of(step):
    """This rank's part of [12, 2] keys."""
    rng = np.random.default_rng(step)
    known = np.random.default_rng(7).integers(-(2**63), 2**63 - 1, 40, dtype=np.int64)
    return rng.choice(known, (12, 2))[exchange.current().rank :: exchange.current().num_ranks]


def option(storage=None):
    return ge.EmbeddingVariableOption(
        filter_option=ge.CounterFilter(filter_freq=2),
        storage_option=storage or ge.StorageOption(),
    )


def content(found):
    """{key: (values, freq)} of an export on this rank."""
    return {
        key: (np.round(row, 5).tolist(), freq)
        for key, row, freq in zip(found.keys.tolist(), found.values, found.freqs.tolist())
    }


def host(found):
    return type(found)(*(np.asarray(part) for part in found))


class InGraph:
    """A `ge.Saver` in a graph of TensorFlow 1."""

    def __init__(self, folder):
        self.graph = tf.Graph()
        self.path = f"{folder}/{type(self).__name__}"
        with self.graph.as_default():
            self.table = ge.get_embedding_variable(
                "user", 3, initializer=v1.ones_initializer(), ev_option=option()
            )
            self.home = ge.get_embedding_variable(
                "home", 3, initializer=v1.ones_initializer(), placement="localized:0"
            )
            self.keys = v1.placeholder(tf.int64, [None, 2])
            rows = ge.group_embedding_lookup([self.table, self.home], [self.keys, self.keys])
            loss = tf.reduce_sum(tf.concat(rows, -1) ** 2) * exchange.current().num_ranks
            optimizer = ge.optimizers.wrap(v1.train.AdagradOptimizer(0.1))
            self.train_op = ge.DistributedOptimizer(optimizer).minimize(loss)
            self.found = self.table.export(), self.home.export()
            self.saver = ge.Saver(sharded=True)
            self.initialize = v1.global_variables_initializer()
        self.session = v1.Session(graph=self.graph)
        self.session.run(self.initialize)

    def train(self, step):
        self.session.run(self.train_op, {self.keys: keys_of(step)})

    def save(self):
        with self.graph.as_default():
            return self.saver.save(self.session, self.path)

    def restore(self, path):
        with self.graph.as_default():
            self.saver.restore(self.session, path)

    def content(self):
        table, home = self.session.run(self.found)
        return content(table), content(home)


class Eager:
    """`tf.train.Checkpoint` of a table, its optimizer and a dense variable."""

    def __init__(self, folder, storage=None):
        self.path = f"{folder}/{type(self).__name__}_of_{exchange.current().rank}"
        self.table = ge.get_embedding_variable(
            "user", 3, initializer=tf.ones_initializer(), ev_option=option(storage)
        )
        wrapped = ge.optimizers.wrap(tf.keras.optimizers.Adagrad(0.1))
        self.optimizer = ge.DistributedOptimizer(wrapped)
        self.checkpoint = tf.train.Checkpoint(table=self.table, optimizer=self.optimizer)

    def train(self, step):
        @tf.function
        def train_step():
            with tf.GradientTape() as tape:
                (rows,) = ge.group_embedding_lookup([self.table], [keys_of(step)])
                loss = tf.reduce_sum(rows**2) * exchange.current().num_ranks
            self.optimizer.apply_gradients([(tape.gradient(loss, self.table), self.table)])

        train_step()

    def save(self):
        return self.checkpoint.write(self.path)

    def restore(self, path):
        self.checkpoint.read(path)

    def content(self):
        return (content(host(self.table.export())),)


class Layer:
    """`save_weights` of a Keras layer whose table has keys, to one file that holds all of them."""

    def __init__(self, folder):
        self.path = f"{folder}/of_{exchange.current().rank}.weights.h5"
        config = ge.TableConfig("user", None, 3, initializer="ones")
        layer = ge.layers.GroupEmbedding([ge.FeatureConfig("user", config, combiner="sum")])
        inputs = {"user": tf.keras.Input((2,), dtype="int64", name="user")}
        self.model = tf.keras.Model(inputs, layer(inputs)["user"])
        optimizer = ge.optimizers.wrap(tf.keras.optimizers.SGD(0.1))
        self.model.compile(ge.DistributedOptimizer(optimizer), "mse")
        self.table = lookup_param(layer.tables["user"])

    def train(self, step):
        keys = np.abs(keys_of(step))  # negative ids are padding here
        self.model.train_on_batch({"user": keys}, np.zeros([len(keys), 3], np.float32))

    def save(self):
        self.model.save_weights(self.path)
        return self.path

    def restore(self, path):
        self.model.load_weights(path)

    def content(self):
        return (content(host(self.table.export())),)


class ChangesInGraph(InGraph):
    """Saves changes after a full save: keys that were trained, and keys that were erased."""

    def train(self, step):
        if step == NUM_STEPS - 1:
            super().save()
            with self.graph.as_default():
                self.session.run(self.table.erase(ERASED))
        super().train(step)

    def save(self):
        with self.graph.as_default():
            return ge.checkpoint.save_changes(self.saver, self.session, f"{self.path}_changes")


MODELS = {
    "saver": InGraph,
    "objects": Eager,
    "layer": Layer,
    "changes": ChangesInGraph,
}


def train_and_save(folder):
    """{method: (path, what this rank has)}."""
    results = {}
    for method in SAVE_METHODS:
        model = MODELS[method](folder)
        for step in range(NUM_STEPS):
            model.train(step)
        results[method] = model.save(), model.content()
    return results


def restore_all(paths, folder):
    """{(method, saved by): what this rank has, then and a step later}."""
    results = {}
    for method in SAVE_METHODS:
        for saved_by, path in paths[method].items():
            model = MODELS[method](folder)
            model.train(77)  # what is not in the checkpoint is to be forgotten
            model.restore(path)
            restored = model.content()
            model.train(NUM_STEPS)
            results[method, saved_by] = restored, model.content()
    return results


def on_rank(function_name, *args):
    ge.enable_distributed_strategy()
    return globals()[function_name](*args)


def run(num_ranks, request, function, *args):
    if num_ranks == 1:
        return [function(*args)]
    fixture = {2: "two_ranks", 3: "three_ranks", 4: "four_ranks"}[num_ranks]
    ranks = request.getfixturevalue(fixture)
    return ranks.run(on_rank, function.__name__, *args, timeout=240)


@pytest.fixture(scope="module")
def saved(request, tmp_path_factory):
    """{number of ranks: what each rank did}, made when it is asked for."""

    class Saved(dict):
        def __missing__(self, count):
            folder = str(tmp_path_factory.mktemp(f"by_{count}"))
            self[count] = run(count, request, train_and_save, folder)
            return self[count]

    return Saved()


@pytest.fixture(scope="module")
def saved_counts(request):
    """How many ranks saved what the tests of this run restore."""
    return values_of_run(request, "saved_by")


@pytest.fixture(
    scope="module", params=by_day(COUNTS, (), [1, 2, 4]), ids=lambda count: f"by_{count}_ranks"
)
def restored(request, saved, saved_counts, tmp_path_factory):
    paths = {
        method: {count: saved[count][0][method][0] for count in saved_counts}
        for method in SAVE_METHODS
    }
    return run(request.param, request, restore_all, paths, str(tmp_path_factory.mktemp("again")))


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """{method: the tables of one process}."""
    tables = {}
    for method in SAVE_METHODS:
        model = MODELS[method](str(tmp_path_factory.mktemp("uninterrupted")))
        for step in range(NUM_STEPS + 1):
            model.train(step)
        tables[method] = model.content()
    return tables


def together(contents):
    """The whole tables: joins the ranks' contents, each a tuple with one entry per table."""
    tables = []
    for parts in zip(*contents):
        table = {key: kept for part in parts for key, kept in part.items()}
        assert len(table) == sum(map(len, parts))  # each key is on one rank
        tables.append(table)
    return tables


@pytest.mark.parametrize("method", SAVE_METHODS)
@pytest.mark.parametrize("saved_by", by_day(COUNTS, (), [1, 3, 4]))
def test_any_number_of_ranks_restores_what_any_number_saved(restored, saved, method, saved_by):
    expected = [rank[method][1] for rank in saved[saved_by]]

    actual = [rank[method, saved_by][0] for rank in restored]

    assert together(actual) == together(expected)


@pytest.mark.parametrize("method", SAVE_METHODS)
@pytest.mark.parametrize("saved_by", by_day(COUNTS, (), [1, 3, 4]))
def test_training_goes_on_as_if_it_had_not_ended(restored, uninterrupted, method, saved_by):
    tables = together([rank[method, saved_by][1] for rank in restored])

    for table, whole in zip(tables, uninterrupted[method]):
        assert whole and table.keys() == whole.keys()
        for key, (row, count) in whole.items():
            np.testing.assert_allclose(table[key][0], row, atol=2e-5)
            assert table[key][1] == count


@pytest.mark.parametrize("count", by_day(COUNTS, (), [1, 4]))
def test_a_checkpoint_has_one_file_of_each_rank(saved, count):
    for method in ("saver", "objects"):
        (table,) = [t for t in files.tables(saved[count][0][method][0]) if t["table"] == "user"]
        assert len(table["files"]) == count
        for file in table["files"]:
            assert Path(file["path"]).stat().st_size == file["bytes"]


@pytest.mark.parametrize("count", by_day(COUNTS, (), [1, 4]))
def test_a_checkpoint_of_changes_names_the_full_save_too(saved, count):
    for table in files.tables(saved[count][0]["changes"][0]):
        num_parts = 1 if table["table"] == "home" else count
        kinds = [file["changes_only"] for file in table["files"]]
        assert sorted(kinds) == [False] * num_parts + [True] * num_parts


def on_gpu(folder, path=None):
    """A model whose table is on this rank's GPU: trained and saved, or restored from `path` and
    trained for a step. What it wrote, and has."""
    model = Eager(folder, ge.StorageOption(ge.StorageType.HBM))
    for step in range(NUM_STEPS if path is None else 0):
        model.train(step)
    if path is None:
        return model.save(), model.content()
    model.train(77)
    model.restore(path)
    restored = model.content()
    model.train(NUM_STEPS)
    return restored, model.content()


def save_uint32_keys(folder):
    """The path of a checkpoint that two ranks wrote."""
    ge.enable_distributed_strategy()
    table = ge.get_embedding_variable("typed", 2, key_dtype=tf.uint32)
    keys = tf.constant([1, 2, 2**32 - 1], tf.uint32)
    table.insert(keys, tf.ones([3, 2]))
    rank = ge.exchange.current().rank
    return tf.train.Checkpoint(table=table).write(f"{folder}/typed_of_{rank}")


def test_keys_of_two_ranks_go_into_a_table_of_wider_ones(two_ranks, tmp_path):
    # Given uint32 keys that two ranks saved
    prefix = two_ranks.run(save_uint32_keys, str(tmp_path))[0]
    wide, narrow = (
        ge.get_embedding_variable("typed", 2, key_dtype=dtype) for dtype in (tf.int64, tf.int32)
    )
    # When one process restores them, Then a table of int64 takes all, and one of int32 none
    tf.train.Checkpoint(table=wide).read(prefix).assert_consumed()
    assert wide.export().keys.numpy().tolist() == [1, 2, 2**32 - 1]
    with pytest.raises(tf.errors.InvalidArgumentError, match="of type int32, got uint32"):
        tf.train.Checkpoint(table=narrow).read(prefix)
    assert int(narrow.total_count()) == 0
