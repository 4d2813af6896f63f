"""Tables in several tiers and on several devices: what only they have. See also conftest.py."""

import gc

import numpy as np
import pytest
import tensorflow as tf
from variables import storages

import group_embedding as ge
from group_embedding.ops import _library
from group_embedding.variables import EmbeddingVariable

DIM, KEYS, PER_STEP = 64, 30_000, 2048
MEMORY = 4 << 20  # of the first tier, which holds fewer than KEYS rows
TYPES = ge.StorageType


@pytest.fixture
def train_steps():
    """Trains a table by Adagrad on keys of which few are common, and says what became of it."""

    def train(table, steps):
        optimizer = ge.optimizers.wrap(tf.keras.optimizers.Adagrad(0.1))
        targets = tf.constant(np.random.default_rng(2).normal(size=[PER_STEP, DIM]), tf.float32)

        @tf.function
        def step(keys):
            with tf.GradientTape() as tape:
                (rows,) = ge.group_embedding_lookup([table], [keys])
                loss = tf.reduce_sum((rows - targets) ** 2)
            optimizer.apply_gradients([(tape.gradient(loss, table), table)])
            return loss

        generator = np.random.default_rng(1)
        losses = []
        for i in range(steps):
            table.step = i
            common = generator.zipf(1.2, PER_STEP // 2) % KEYS
            keys = np.concatenate([common, generator.integers(0, KEYS, PER_STEP // 2)])
            losses.append(float(step(tf.constant(keys * 0x9E3779B97F4A7C1 - 2**61))))
        return losses, table.export()

    return train


TIERED = [
    pytest.param(TYPES.DRAM_SSDHASH, [MEMORY], id="DRAM_SSDHASH"),
    pytest.param(TYPES.HBM_DRAM, [MEMORY], id="HBM_DRAM", marks=pytest.mark.gpu),
    pytest.param(
        TYPES.HBM_DRAM_SSDHASH, [MEMORY // 2] * 2, id="HBM_DRAM_SSDHASH", marks=pytest.mark.gpu
    ),
]


@pytest.mark.parametrize("strategy", ge.CacheStrategy)
@pytest.mark.parametrize("kind, sizes", TIERED)
def test_table_larger_than_its_first_tier(make_table, train_steps, kind, sizes, strategy):
    # Given what a table in memory becomes
    expected_losses, expected = train_steps(make_table(DIM, name="in_memory"), 30)
    # When one is trained that has more rows than its first tier
    option = ge.StorageOption(kind, storage_size=sizes, cache_strategy=strategy)
    table = make_table(DIM, storage_option=option)
    losses, actual = train_steps(table, 30)
    # Then it becomes the same, and its rows are in all tiers
    tolerance = 0 if kind == TYPES.DRAM_SSDHASH else 1e-5  # a GPU adds in another order
    np.testing.assert_allclose(losses, expected_losses, rtol=tolerance)
    np.testing.assert_array_equal(actual.keys, expected.keys)
    np.testing.assert_array_equal(actual.freqs, expected.freqs)
    np.testing.assert_array_equal(actual.versions, expected.versions)
    np.testing.assert_allclose(actual.values, expected.values, rtol=tolerance, atol=tolerance)
    assert len(actual.keys) > 20_000 and int(table.total_count()) == len(actual.keys)
    tiers = np.asarray(table.lookup_tier(actual.keys))
    assert set(tiers) == set(range(3 if kind == TYPES.HBM_DRAM_SSDHASH else 2))
    # And the keys that are used most are in the first
    if strategy == ge.CacheStrategy.LFU:
        assert (tiers[np.argsort(actual.freqs)[-20:]] == 0).all()


def test_rows_on_disk(make_table, train_steps):
    # Given a table of which many rows are on disk
    option = ge.StorageOption(TYPES.DRAM_SSDHASH, storage_size=[MEMORY])
    table = make_table(DIM, storage_option=option)
    _, content = train_steps(table, 15)
    tiers = np.asarray(table.lookup_tier(content.keys))
    below = np.asarray(content.keys)[tiers == 1][:5]
    # When what is kept of some of these is asked, and they are erased and inserted
    counts = np.asarray(content.freqs)[tiers == 1][:5]
    np.testing.assert_array_equal(table.get_frequency(below), counts)
    assert int(table.erase(below[:3])) == 3
    table.insert(below[3:], np.full([2, DIM], 7.0))
    # Then the table has changed as any other
    assert int(table.total_count()) == len(content.keys) - 3
    np.testing.assert_array_equal(table.get_frequency(below), [0, 0, 0, *counts[3:]])
    (rows,) = ge.group_embedding_lookup([table], [tf.constant(below)])
    np.testing.assert_array_equal(rows, np.repeat([[1.0], [7.0]], [3, 2], axis=0) * np.ones(DIM))


def test_gradient_holds_its_rows(make_table, train, read):
    # Given the gradient of some keys, not yet applied
    option = ge.StorageOption(TYPES.DRAM_SSDHASH, storage_size=[1 << 14])
    table = make_table(storage_option=option)
    with tf.GradientTape() as tape:
        (rows,) = ge.group_embedding_lookup([table], [tf.range(100, dtype=tf.int64)])
        loss = tf.reduce_sum(rows)
    gradient = tape.gradient(loss, table)
    del tape, rows
    # When many other keys are trained, and then the gradient is applied
    for first in range(1000, 2000, 100):
        train(table, np.arange(first, first + 100))
    optimizer = ge.optimizers.wrap(tf.keras.optimizers.SGD(1.0))
    optimizer.apply_gradients([(gradient, table)])
    # Then every key has made one step
    np.testing.assert_array_equal(read(table, range(50)), np.zeros([50, 2]))
    np.testing.assert_array_equal(table.export().values, np.zeros([1100, 2]))


@pytest.mark.parametrize("option", [*storages.WITH_DISK, *storages.ON_GPU])
def test_checkpoint(make_table, train_steps, option, tmp_path):
    # Given a table that is trained, saved and trained on
    table = make_table(DIM, storage_option=option)
    _, saved = train_steps(table, 10)
    path = tf.train.Checkpoint(table=table).save(str(tmp_path / "model"))
    train_steps(table, 2)
    # When it is restored
    tf.train.Checkpoint(table=table).restore(path)
    # Then it is as it was
    for actual, expected in zip(table.export(), saved):
        np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("option", storages.WITH_DISK)
def test_checkpoint_of_an_initialized_graph(make_table, option, tmp_path):
    # Given a graph of TensorFlow 1 with three tables, initialized, filled and saved
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        tables = [make_table(dim, name=f"table_{dim}", storage_option=option) for dim in (2, 3, 4)]
        keys = np.arange(5)
        inserts = [
            table.insert(keys, np.full([5, table.shape[1]], table.shape[1])) for table in tables
        ]
        changes = [table.insert(keys, np.zeros([5, table.shape[1]])) for table in tables]
        exports = [table.export().values for table in tables]
        saver = tf.compat.v1.train.Saver()
        initializer = tf.compat.v1.global_variables_initializer()
        session.run(initializer)
        session.run(inserts)
        path = saver.save(session, str(tmp_path / "model"))
        session.run(changes)
        # When it is restored, at once and after another run of the initializer
        for prepare in ([], [initializer]):
            session.run(prepare)
            saver.restore(session, path)
            # Then each table is as it was saved
            for dim, values in zip((2, 3, 4), session.run(exports)):
                np.testing.assert_array_equal(values, np.full([5, dim], dim))


def test_storage_path(make_table, tmp_path):
    # Given a folder for the rows of tables
    option = ge.StorageOption(TYPES.DRAM_SSDHASH, str(tmp_path / "rows"), storage_size=[1 << 20])
    # When two tables of one name and one of another are made
    names = ["user", "user", "shop/item"]
    ev_option = ge.EmbeddingVariableOption(storage_option=option)
    tables = [
        EmbeddingVariable(name, 2, initializer=tf.ones_initializer(), ev_option=ev_option)
        for name in names
    ]
    # Then each has a folder of its own there, which goes with it
    folders = sorted(path.name.partition(".")[0] for path in (tmp_path / "rows").iterdir())
    assert folders == ["shop%2Fitem", "user", "user"]
    del tables
    gc.collect()
    gc.collect()  # of handles, which the first one lets go
    assert not list((tmp_path / "rows").iterdir())


@pytest.mark.gpu
@pytest.mark.parametrize("option", storages.ON_GPU)
def test_placeholder_is_on_the_gpu(make_table, option):
    table = make_table(storage_option=option)
    assert "GPU:0" in table.device and "GPU:0" in table.table_handle.device


@pytest.mark.gpu
def test_tables_on_both_devices_in_one_call(make_table):
    # Given tables and variables on the CPU and on the GPU, all of the same rows
    values = np.random.default_rng(3).normal(size=[20, 4])
    in_dram, in_hbm = (
        make_table(4, name=name, storage_option=option)
        for name, option in (("in_dram", storages.DRAM), ("in_hbm", storages.HBM))
    )
    tables = [in_dram, in_hbm]
    for device in ("CPU:0", "GPU:0"):
        with tf.device(device):
            tables.append(tf.Variable(values, dtype=tf.float32))
    for table in tables[:2]:
        table.insert(np.arange(20), values)
    optimizer = ge.optimizers.wrap(tf.compat.v1.train.AdagradOptimizer(0.1))
    ids = tf.ragged.constant([[3, 4, 3], [], [19]], dtype=tf.int64)

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            output = ge.group_embedding_lookup_sparse(tables, [ids] * 4, "mean", concat=True)
            loss = tf.reduce_sum(output**2)
        optimizer.apply_gradients(zip(tape.gradient(loss, tables), tables))
        return output

    # When they are trained in one call
    for _ in range(3):
        parts = tf.split(step(), 4, axis=-1)
    # Then all become the same
    for part in parts[1:]:
        np.testing.assert_allclose(part, parts[0], rtol=1e-6)
    for table in tables[:2]:
        np.testing.assert_allclose(table.export().values, tables[3], rtol=1e-6)


@pytest.mark.gpu
def test_tables_on_both_devices_in_a_session(make_table):
    # Given a graph of TensorFlow 1 with a table in each memory, and a variable without a device
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        params = [
            make_table(name="in_dram", storage_option=storages.DRAM),
            make_table(name="in_hbm", storage_option=storages.HBM),
            tf.compat.v1.get_variable("plain", initializer=np.ones([9, 2], np.float32)),
        ]
        ids = tf.constant([1, 2, 2], tf.int64)
        outputs = ge.group_embedding_lookup(params, [ids] * 3)
        loss = tf.add_n([tf.reduce_sum(output) for output in outputs])
        train = ge.optimizers.wrap(tf.compat.v1.train.AdagradOptimizer(1.0)).minimize(loss)
        session.run(tf.compat.v1.global_variables_initializer())
        # When it is trained and read
        session.run(train)
        actual = session.run(outputs)
        # Then all rows have made the same step
        np.testing.assert_allclose(actual[0], actual[2], rtol=1e-6)
        np.testing.assert_allclose(actual[1], actual[2], rtol=1e-6)
        assert session.run([table.total_count() for table in params[:2]]) == [2, 2]


@pytest.mark.gpu
def test_ids_on_the_gpu(make_table, train, read):
    # Given a table, and keys that a GPU has made
    table = make_table(storage_option=storages.HBM)
    with tf.device("GPU:0"):
        keys = tf.range(100, dtype=tf.int64) * 3
    # When they are trained
    train(table, keys)
    # Then they have rows
    np.testing.assert_array_equal(read(table, [0, 297, 1]), [[0, 0], [0, 0], [1, 1]])
    assert int(table.total_count()) == 100


@pytest.mark.parametrize(
    "option, message",
    [
        (ge.StorageOption(storage_size=[1, 1]), "expected storage_size of one tier, as .*DRAM has"),
        (
            ge.StorageOption(TYPES.DRAM_SSDHASH, storage_size=[1, 1, 1]),
            "expected storage_size of at most 2 tiers, as .*DRAM_SSDHASH has, got \\[1, 1, 1\\]",
        ),
        (
            ge.StorageOption(cache_strategy=ge.CacheStrategy.LRU),
            "expected no cache_strategy, as storage_type DRAM has one tier",
        ),
        (ge.StorageOption(storage_path="/tmp"), "expected no storage_path, as .*DRAM has no disk"),
    ],
)
def test_refused_options(make_table, option, message):
    with pytest.raises(ValueError, match=f"table 'user': .*{message}"):
        make_table(storage_option=option)


@pytest.mark.parametrize(
    "gpus, cuda, message",
    [
        ([], "13.0", "needs a GPU, and TensorFlow sees none; use DRAM, or DRAM_SSDHASH"),
        (["GPU:0"], None, "needs a group_embedding that was built with CUDA.*or use DRAM"),
    ],
)
def test_no_gpu(make_table, monkeypatch, gpus, cuda, message):
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: gpus)
    monkeypatch.setattr(_library, "build_record", lambda version: {"cuda": cuda})
    for kind in (TYPES.HBM, TYPES.HBM_DRAM, TYPES.HBM_DRAM_SSDHASH):
        with pytest.raises(ValueError, match=f"table 'user': storage_type {kind.name} {message}"):
            make_table(storage_option=ge.StorageOption(kind))
