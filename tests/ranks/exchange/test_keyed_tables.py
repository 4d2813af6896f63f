"""Tables found by key on several ranks, against one process with the whole batch."""

import os

import numpy as np
import pytest
import tensorflow as tf

import group_embedding as ge
from group_embedding import exchange
from group_embedding.ranks.sharding.make_sharded_table import make_table

v1 = tf.compat.v1
NUM_STEPS = 6
KEY_DTYPES = ["int32", "int64", "uint32", "uint64"]
FILTERS = {
    "none": None,
    "counter": ge.CounterFilter(filter_freq=5),
    "bloom": ge.CBFFilter(filter_freq=5, max_element_size=1000, false_positive_probability=0.001),
}


def keys_of(step, dtype="int64"):
    """[12, 3] of few keys, the least and the greatest of the type among them."""
    rng = np.random.default_rng(step)
    limits = np.iinfo(dtype)
    known = np.random.default_rng(7).integers(limits.min, limits.max, 15, dtype, endpoint=True)
    return rng.choice(np.append(known, np.array([limits.min, limits.max], dtype)), (12, 3))


def my_samples(samples):
    """Uneven: of several ranks the last one has none."""
    rank, num_ranks = exchange.current().rank, exchange.current().num_ranks
    cuts = [0, len(samples)] if num_ranks == 1 else [0, 9, *[12] * (num_ranks - 1)]
    return samples[cuts[rank] : cuts[rank + 1]]


def my_scale():
    """The factor of a sum over this rank's samples with which the mean over the ranks is the sum
    over all samples."""
    return float(exchange.current().num_ranks)


def table(name, key_dtype="int64", filter_option=None, storage_option=None, **kwargs):
    return ge.get_embedding_variable(
        name,
        3,
        key_dtype=tf.as_dtype(key_dtype),
        initializer=tf.keras.initializers.RandomUniform(seed=3),
        ev_option=ge.EmbeddingVariableOption(
            filter_option=filter_option, storage_option=storage_option or ge.StorageOption()
        ),
        **kwargs,
    )


def train(variable, key_dtype="int64", weights=None, steps=NUM_STEPS):
    optimizer = ge.DistributedOptimizer(ge.optimizers.wrap(tf.keras.optimizers.SGD(0.1)))
    variable.step = tf.Variable(0, dtype=tf.int64)

    @tf.function(reduce_retracing=True)
    def step_function(keys):
        ids = tf.RaggedTensor.from_tensor(keys)
        given = None if weights is None else [tf.RaggedTensor.from_tensor(weights(keys))]
        with tf.GradientTape() as tape:
            outputs = ge.group_embedding_lookup_sparse([variable], [ids], "mean", sp_weights=given)
            loss = tf.reduce_sum(outputs[0] ** 2) * my_scale()
        optimizer.apply_gradients([(tape.gradient(loss, variable), variable)])

    for step in range(steps):
        variable.step.assign(step)
        step_function(tf.constant(my_samples(keys_of(step, key_dtype))))


def content(variable, gather=False):
    found = variable.export(gather=gather)
    values = [np.round(row, 5).tolist() for row in found.values.numpy()]
    counts = zip(values, found.versions.numpy().tolist(), found.freqs.numpy().tolist())
    return dict(zip(found.keys.numpy().tolist(), counts))


def train_kinds():
    """{kind: what this rank has}."""
    results = {}
    for key_dtype in KEY_DTYPES:
        variable = table(f"of_{key_dtype}", key_dtype)
        train(variable, key_dtype)
        results[key_dtype] = content(variable)
    for name, filter_option in FILTERS.items():
        variable = table(f"with_{name}", filter_option=filter_option)
        train(variable)
        results[name] = content(variable)
        options = {"filter_option": filter_option, "placement": "distributed:sums"}
        variable = table(f"sums_with_{name}", **options)
        train(variable)
        results[f"sums, {name}"] = content(variable)
    weighted = table("weighted")
    train(weighted, weights=lambda keys: tf.where(keys > 0, 1.5, -1.0))
    results["left out by weight"] = content(weighted)
    home = exchange.current().num_ranks - 1
    on_one_rank = table("on_one_rank", placement=f"localized:{home}")
    train(on_one_rank)
    results["on one rank"] = content(on_one_rank)
    return results


def train_on_rank():
    ge.enable_distributed_strategy()
    return train_kinds()


@pytest.fixture(scope="module")
def one_process():
    return train_kinds()


@pytest.fixture(scope="module")
def ranks(several_ranks):
    return several_ranks.run(train_on_rank)


KINDS = [*KEY_DTYPES, *FILTERS, *(f"sums, {name}" for name in FILTERS)]


@pytest.mark.parametrize("kind", [*KINDS, "left out by weight", "on one rank"])
def test_keys_values_versions_and_counts_are_those_of_one_process(ranks, one_process, kind):
    together = {}
    for rank in ranks:
        assert not together.keys() & rank[kind].keys()
        together.update(rank[kind])

    assert together.keys() == one_process[kind].keys()
    for key, (values, version, count) in one_process[kind].items():
        np.testing.assert_allclose(together[key][0], values, atol=2e-5)
        assert together[key][1:] == (version, count)


def test_keys_are_on_all_ranks_or_where_they_were_placed(ranks):
    assert all(rank["int64"] for rank in ranks)
    assert [bool(rank["on one rank"]) for rank in ranks] == [False] * (len(ranks) - 1) + [True]


def ask_on_rank():
    """The methods of a table that all ranks have trained."""
    ge.enable_distributed_strategy()
    variable = table("asked")
    train(variable)
    keys = np.unique(keys_of(0))
    before = int(variable.total_count())
    # Evaluation: of keys that nobody has trained, in a function and eagerly.
    new = tf.constant([[5, -5], [6, -6]], tf.int64)
    read = tf.function(lambda: ge.group_embedding_lookup([variable], [new])[0])
    np.testing.assert_array_equal(read(), ge.group_embedding_lookup([variable], [new])[0])
    asked = {
        "unchanged": int(variable.total_count()) == before,
        "count": int(variable.total_count(gather=True)),
        "part": before,
        "freqs": variable.get_frequency(keys, gather=True).numpy().tolist(),
        "versions": variable.get_version(keys, gather=True).numpy().tolist(),
        "tiers": variable.lookup_tier(keys, gather=True).numpy().tolist(),
        "whole": content(variable, gather=True),
    }
    variable.insert([1, 2, 3, 1], [[1.0] * 3, [2.0] * 3, [3.0] * 3, [4.0] * 3], freqs=[7, 8, 9, 7])
    erased = int(variable.erase(keys))
    whole = content(variable, gather=True)
    asked["changed"] = {key: whole[key] for key in (1, 2, 3)}
    asked["erased"] = erased, not set(keys.tolist()) & whole.keys()
    asked["errors"] = []
    for bad in ({"values": [[1.0] * 3]}, {"values": [[1.0] * 3] * 2, "freqs": [1]}):
        try:
            variable.insert([1, 2], **bad)
        except tf.errors.InvalidArgumentError as error:
            asked["errors"].append(error.message)
    return asked


def test_each_rank_tells_of_its_keys_or_of_all(several_ranks, one_process):
    expected = one_process["int64"]
    keys = np.unique(keys_of(0)).tolist()

    ranks = several_ranks.run(ask_on_rank)

    assert sum(asked["part"] for asked in ranks) == len(expected)
    assert sum(asked["erased"][0] for asked in ranks) == len(keys)
    for asked in ranks:
        assert asked["unchanged"]
        assert asked["count"] == len(expected)
        assert asked["freqs"] == [expected[key][2] for key in keys]
        assert asked["versions"] == [expected[key][1] for key in keys]
        assert asked["tiers"] == [0] * len(keys)
        assert list(asked["whole"]) == sorted(expected)
        assert asked["changed"] == {
            1: ([4.0] * 3, -1, 7),
            2: ([2.0] * 3, -1, 8),
            3: ([3.0] * 3, -1, 9),
        }
        assert asked["erased"][1]
        first, second = asked["errors"]
        assert "table 'asked': expected as many values as keys" in first
        assert "table 'asked': expected as many freqs as keys" in second


def train_on_disk_on_rank(folder):
    """A table whose ranks share a disk."""
    ge.enable_distributed_strategy()
    return train_on_disk(folder)


def train_on_disk(folder):
    kind = ge.StorageType.DRAM_SSDHASH
    option = ge.StorageOption(kind, storage_path=folder, storage_size=[2 << 20])
    variable = table("on_disk", storage_option=option)
    train(variable)
    return content(variable), os.listdir(folder)


def test_ranks_that_share_a_disk_have_folders_of_their_own(two_ranks, one_process, tmp_path):
    ranks = two_ranks.run(train_on_disk_on_rank, str(tmp_path))

    together = {key: kept for rank, _ in ranks for key, kept in rank.items()}
    assert together.keys() == one_process["int64"].keys()
    folders = {folder for _, seen in ranks for folder in seen}
    assert len(folders) == 2 and all(folder.startswith("on_disk.rows-") for folder in folders)


def train_on_gpu_on_rank():
    """{(storage, filter): what this rank has}, and where its tables are."""
    ge.enable_distributed_strategy()
    storages = {
        "HBM": ge.StorageOption(ge.StorageType.HBM),
        "HBM_DRAM": ge.StorageOption(ge.StorageType.HBM_DRAM, storage_size=[1 << 10]),
        "HBM_DRAM_SSDHASH": ge.StorageOption(
            ge.StorageType.HBM_DRAM_SSDHASH, storage_size=[1 << 20, 1 << 20]
        ),
    }
    results, devices = {}, set()
    for storage, storage_option in storages.items():
        for name, filter_option in FILTERS.items():
            variable = table(
                f"{storage}_{name}", filter_option=filter_option, storage_option=storage_option
            )
            train(variable)
            results[storage, name] = content(variable)
            devices.add(variable.device)
        weighted = table(f"{storage}_weighted", storage_option=storage_option)
        train(weighted, weights=lambda keys: tf.where(keys > 0, 1.5, -1.0))
        results[storage, "left out by weight"] = content(weighted)
    return results, devices


MANY, WIDE = 40_000, 256
ALONG = np.random.default_rng(9).normal(size=WIDE).astype(np.float32)


def many_keys(step, rank):
    """Keys for two tables, of which a third are new in every step."""
    keys = np.random.default_rng(31 + rank).permutation(4 * MANY)[step * MANY // 3 :][:MANY]
    return [keys * 7, -1 - keys]


def look_up_many(rank, storage_option=None):
    """[step][table]: of rows that are new, and that were there, one number each."""
    tables = [
        ge.get_embedding_variable(
            name,
            WIDE,
            initializer=tf.keras.initializers.RandomUniform(seed=3),
            ev_option=ge.EmbeddingVariableOption(
                storage_option=storage_option or ge.StorageOption()
            ),
        )
        for name in ("many", "others")
    ]

    @tf.function(reduce_retracing=True)
    def look_up(*keys):
        ids = [tf.RaggedTensor.from_tensor(of_table[:, None]) for of_table in keys]
        with tf.GradientTape() as tape:
            rows = ge.group_embedding_lookup_sparse(tables, ids, "sum")
            numbers = [tf.linalg.matvec(of_table, ALONG) for of_table in rows]
            loss = tf.add_n([tf.reduce_sum(of_table) for of_table in numbers])
        return numbers, tape.gradient(loss, tables)  # what is differentiated inserts keys

    return [[n.numpy() for n in look_up(*many_keys(step, rank))[0]] for step in range(3)]


def look_up_many_on_rank(storage_option):
    ge.enable_distributed_strategy()
    return look_up_many(exchange.current().rank, storage_option)


def train_mixed_on_rank(storage_option=None):
    """One lookup of tables of several dtypes and dims, keyed and not; one of two features of a
    table is not in the loss: Adam moves none of its rows."""
    ge.enable_distributed_strategy()
    return train_mixed(storage_option)


def train_mixed(storage_option=None):
    rank, num_ranks = exchange.current().rank, exchange.current().num_ranks
    whole = np.random.default_rng(1).normal(size=(10, 4)).astype(np.float32)
    plain = {
        dtype: make_table(
            (10, 4),
            lambda shape, dtype: tf.cast(whole, dtype),
            lambda shape, initializer, dtype=dtype: tf.Variable(initializer(shape, dtype)),
        )
        for dtype in (tf.float32, tf.bfloat16)
    }
    keyed = table("mixed", storage_option=storage_option)
    optimizer = ge.DistributedOptimizer(ge.optimizers.wrap(tf.keras.optimizers.Adam(0.01)))
    variables = [plain[tf.float32], keyed]

    @tf.function
    def step(ids):
        with tf.GradientTape() as tape:
            first, keys, _, half = ge.group_embedding_lookup(
                [variables[0], keyed, variables[0], plain[tf.bfloat16]],
                [ids, ids * 1000 - 3000, ids + 5, ids],
            )
            loss = (tf.reduce_sum(first**2) + tf.reduce_sum(keys)) * my_scale()
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        return half

    for _ in range(3):
        mine = tf.constant([0, 1, 2, 3, 4, 1][rank::num_ranks], tf.int64)
        half = step(mine)
        np.testing.assert_array_equal(half, tf.gather(tf.cast(whole, tf.bfloat16), mine))
    return plain[tf.float32].numpy(), content(keyed)


def test_rows_that_no_gradient_reaches_stay_as_they_are(several_ranks):
    rows, keys = train_mixed()

    ranks = several_ranks.run(train_mixed_on_rank)

    check_mixed(ranks, rows, keys)


def check_mixed(ranks, rows, keys):
    """Checks that the ranks have the rows and keys of one process."""
    for rank, (my_rows, _) in enumerate(ranks):
        np.testing.assert_allclose(my_rows, rows[rank :: len(ranks)], atol=1e-5)
    together = {key: kept for _, my_keys in ranks for key, kept in my_keys.items()}
    assert together.keys() == keys.keys()
    for key, (values, _, count) in keys.items():
        np.testing.assert_allclose(together[key][0], values, atol=2e-5)
        assert together[key][2] == count


def ops_of_a_step_on_rank(storage_option):
    """The ops of a training step of one table."""
    ge.enable_distributed_strategy()
    variable = table("traced", storage_option=storage_option)
    optimizer = ge.optimizers.wrap(tf.keras.optimizers.SGD(0.1))

    @tf.function
    def step(keys):
        with tf.GradientTape() as tape:
            (vectors,) = ge.group_embedding_lookup([variable], [keys])
            loss = tf.reduce_sum(vectors)
        optimizer.apply_gradients([(tape.gradient(loss, variable), variable)])

    graph = step.get_concrete_function(tf.TensorSpec([None], tf.int64)).graph
    return [operation.type for operation in graph.get_operations()]


def train_estimator_on_rank(folder):
    """A column with keys under input_layer in a graph, with a v1 optimizer."""
    ge.enable_distributed_strategy()
    return train_column(folder)


def train_column(_):
    with tf.Graph().as_default(), v1.Session() as session:
        keys = v1.placeholder(tf.int64, [None, 3])
        user = ge.categorical_column_with_embedding("user", tf.int64)
        column = tf.feature_column.embedding_column(
            user, 3, initializer=v1.random_uniform_initializer(seed=3)
        )
        inputs = v1.feature_column.input_layer({"user": keys}, [column])
        loss = tf.reduce_sum(inputs**2) * my_scale()
        optimizer = ge.optimizers.wrap(v1.train.AdagradOptimizer(0.1))
        train_op = ge.DistributedOptimizer(optimizer).minimize(loss)
        variable = next(v for v in v1.global_variables() if isinstance(v, ge.EmbeddingVariable))
        found = variable.export()
        session.run(v1.global_variables_initializer())
        for step in range(NUM_STEPS):
            session.run(train_op, {keys: my_samples(keys_of(step))})
        found = session.run(found)
        return dict(zip(found.keys.tolist(), found.values)), [
            op.type for op in tf.compat.v1.get_default_graph().get_operations()
        ].count("GroupEmbedding>GroupUpdate")


def test_a_column_with_keys_trains_as_in_one_process(several_ranks):
    expected, num_updates = train_column(None)

    ranks = several_ranks.run(train_estimator_on_rank, None)

    together = {key: row for rows, _ in ranks for key, row in rows.items()}
    assert together.keys() == expected.keys()
    for key, row in expected.items():
        np.testing.assert_allclose(together[key], row, atol=1e-5)
    assert [count for _, count in ranks] == [num_updates] * len(ranks) == [1] * len(ranks)
