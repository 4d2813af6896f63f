"""The op that looks up tables over GPUs, of tables found by key: one rank has what a local lookup
has. (test_keyed_tables_on_gpus.py has several.)"""

import numpy as np
import pytest
import tensorflow as tf
from ranks.exchange.gpu_lookup_cases import RanksOf
from support.cases.core_runner import core, on_gpu

import group_embedding as ge
from group_embedding.ops._nccl import name_nccl
from group_embedding.ops.sharded_group_lookup import NcclRanks

pytestmark = [pytest.mark.gpu, *on_gpu]
EXTREMES = [0, -1, -(2**63), 2**63 - 1]
STORAGES = {
    "HBM": ge.StorageOption(ge.StorageType.HBM),
    "HBM_DRAM": ge.StorageOption(ge.StorageType.HBM_DRAM, storage_size=[1 << 12]),
}


@pytest.fixture(scope="module")
def one_rank():
    name_nccl()
    return RanksOf(NcclRanks(core.nccl_id(), 0, 1, 30.0))


def make_tables(storage, filter_option=None):
    """Two tables of keys, and one of rows."""
    keyed = [
        ge.get_embedding_variable(
            name,
            dim,
            initializer=tf.keras.initializers.RandomUniform(seed=3),
            ev_option=ge.EmbeddingVariableOption(
                filter_option=filter_option, storage_option=STORAGES[storage]
            ),
        )
        for name, dim in (("user", 4), ("item", 16))
    ]
    rows = np.random.default_rng(1).normal(size=(7, 8)).astype(np.float32)
    with tf.device("/GPU:0"):
        return [*keyed, tf.Variable(rows)]


def draw_ids(step):
    """Ids of four features: two of one keyed table, one of another, one of a table found by row
    number."""
    random = np.random.default_rng(step)
    known = np.append(np.random.default_rng(7).integers(-(2**63), 2**63 - 1, 30), EXTREMES)
    lengths = random.integers(0, 5, (4, 12))
    of_keys = [random.choice(known, count) for count in lengths[:3].sum(axis=1)]
    ids = [*of_keys, random.integers(0, 7, lengths[3].sum())]
    return [tf.RaggedTensor.from_row_lengths(*of) for of in zip(ids, lengths)]


def train(look_up, variables, num_steps, max_norm=None, samples=None):
    """Losses of steps of Adam, which moves rows that a gradient of zero reaches."""
    optimizer = ge.optimizers.wrap(tf.keras.optimizers.Adam(0.01))
    user, item, rows = variables

    @tf.function(reduce_retracing=True)
    def step(*ids):
        with tf.GradientTape() as tape:
            outputs = look_up(
                [user, item, user, rows], ids, ["mean", "sum", "sqrtn", "mean"], max_norm=max_norm
            )
            if samples is not None:
                outputs = [tf.gather(output, samples) for output in outputs]
            loss = tf.add_n([tf.reduce_sum(output**2) for output in outputs])
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        return loss

    return [step(*draw_ids(i)).numpy() for i in range(num_steps)]


def content(variables):
    return [[part.numpy() for part in table.export()] for table in variables[:2]] + [
        [variables[2].numpy()]
    ]


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize(
    "filter_option", [None, ge.CounterFilter(filter_freq=4)], ids=["all", "counter"]
)
@pytest.mark.parametrize("max_norm", [None, 0.05], ids=["as_they_are", "clipped"])
@pytest.mark.parametrize("samples", [None, [0, 3, 4]], ids=["all_samples", "some_samples"])
def test_one_rank_trains_as_without_ranks(one_rank, storage, filter_option, max_norm, samples):
    # Given tables that a local lookup has trained
    expected = make_tables(storage, filter_option)
    losses = train(ge.group_embedding_lookup_sparse, expected, 6, max_norm, samples)
    # When one rank of NCCL trains tables that start alike
    actual = make_tables(storage, filter_option)
    losses_of_rank = train(one_rank, actual, 6, max_norm, samples)
    # Then losses, rows, counts and versions are the same
    np.testing.assert_allclose(losses_of_rank, losses, rtol=1e-6)
    for got, whole in zip(content(actual), content(expected)):
        for part, expected_part in zip(got, whole):
            np.testing.assert_allclose(part, expected_part, rtol=1e-5, atol=1e-7)
    assert len(content(actual)[0][0]) > 10


def test_more_keys_than_come_with_their_counts(one_rank):
    # Given a batch of more keys than a first message has space for, each twice
    table = make_tables("HBM")[0]
    keys = np.random.default_rng(8).permutation(np.repeat(np.arange(70_000) * 977 - 2**40, 2))
    ids = tf.RaggedTensor.from_uniform_row_length(keys, 4)
    # When it is looked up to be trained
    with tf.GradientTape() as tape:
        (rows,) = one_rank([table], [ids], ["sum"])
        tape.gradient(rows, table)
    # Then each has a row, and was counted
    np.testing.assert_array_equal(table.export().keys, np.unique(keys))
    assert (table.export().freqs.numpy() == 2).all()
    np.testing.assert_array_equal(
        rows, ge.group_embedding_lookup_sparse([table], [ids], ["sum"])[0]
    )


def test_reading_inserts_nothing(one_rank):
    # Given trained tables
    variables = make_tables("HBM")
    train(one_rank, variables, 2)
    before = content(variables)
    # When keys are looked up, known ones and others, in a function and eagerly
    ids = [tf.RaggedTensor.from_row_lengths([5, -5, 0, 2**40], [4, 0]), *draw_ids(1)[1:]]
    given = ([variables[0], variables[1], variables[0], variables[2]], ids, ["sum"] * 4)
    read = tf.function(lambda: one_rank(*given))
    # Then they read what a local lookup does, and nothing has changed
    for look_up in (read, lambda: one_rank(*given)):
        for got, expected in zip(look_up(), ge.group_embedding_lookup_sparse(*given)):
            np.testing.assert_array_equal(got, expected)
    for got, was in zip(content(variables), before):
        for part, part_before in zip(got, was):
            np.testing.assert_array_equal(part, part_before)


def test_a_session_trains_as_without_ranks(one_rank):
    # Given a graph of TensorFlow 1, in which a step is counted
    v1 = tf.compat.v1

    def run(look_up):
        with tf.Graph().as_default(), v1.Session() as session:
            table = ge.get_embedding_variable(
                "user",
                4,
                initializer=v1.ones_initializer(),
                ev_option=ge.EmbeddingVariableOption(storage_option=STORAGES["HBM"]),
            )
            ids = v1.ragged.placeholder(tf.int64, 1, [])
            loss = tf.reduce_sum(look_up([table], [ids], ["sum"])[0] ** 2)
            optimizer = ge.optimizers.wrap(v1.train.AdagradOptimizer(0.1))
            step = optimizer.minimize(loss, v1.train.get_or_create_global_step())
            found = table.export()
            session.run(v1.global_variables_initializer())
            for keys in ([[1, 2], [1]], [[2], []]):
                session.run(step, {ids: tf.compat.v1.ragged.constant_value(keys, np.int64)})
            return session.run(found)

    expected = run(ge.group_embedding_lookup_sparse)
    # When it is trained with one rank of NCCL
    found = run(one_rank)
    # Then keys, rows, versions and counts are the same
    for part, expected_part in zip(found, expected):
        np.testing.assert_array_equal(part, expected_part)
    assert found.versions.tolist() == [0, 1] and found.freqs.tolist() == [2, 2]
