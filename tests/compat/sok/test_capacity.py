"""`DynamicVariable(evict_strategy=, max_hbm_for_vectors=)`: tables that evict by themselves."""

import numpy as np
import pytest
import tensorflow as tf
from support.oracles.budget import BudgetedDict, zipf_batches

from group_embedding import exchange, sok
from group_embedding.compat.sok.dynamic_variable import keyed_options, read_config
from group_embedding.variables import KeyedOptions

NO_GPU = not tf.config.list_physical_devices("GPU")
EVICT_FIRST = {"kLru": "least_recent", "kLfu": "least_frequent", "kCustomized": "score"}

pytestmark = pytest.mark.filterwarnings("ignore:.*rows lie in host memory:UserWarning")


def keys_of(table):
    return sok.export(table)[0].numpy().tolist()


def trainer(tables):
    """A function that trains one batch of keys in each of the tables."""
    optimizer = sok.OptimizerWrapper(tf.keras.optimizers.Adagrad(1.0))

    def train(*batches):
        ids = [tf.ragged.constant([list(batch)], tf.int64) for batch in batches]
        with tf.GradientTape() as tape:
            vectors = sok.lookup_sparse(tables, ids, combiners=["sum"] * len(tables))
            loss = tf.add_n([tf.reduce_sum(vector) for vector in vectors])
        optimizer.apply_gradients(zip(tape.gradient(loss, tables), tables))

    return train


def test_the_least_recent_and_the_least_frequent_keys_go():
    # Given tables of several lengths, capacities and strategies, and dicts with the same limits
    options = [(2, "kLru", 40), (3, "kLfu", 60), (1, "kLru", 20)]
    tables = [
        sok.DynamicVariable(dim, "0.5", evict_strategy=strategy, max_capacity=capacity)
        for dim, strategy, capacity in options
    ]
    dicts = [
        BudgetedDict(max_keys=capacity, keep=0.9, evict=EVICT_FIRST[strategy])
        for _, strategy, capacity in options
    ]
    train = trainer(tables)

    # When all train the same batches
    for step, batch in enumerate(zipf_batches(seed=3, num_batches=15, size=16, num_keys=200)):
        train(*[batch] * len(tables))
        for table, oracle in zip(tables, dicts):
            oracle.train(batch.tolist(), step)

            # Then each table has the keys of its dict, and never more than its capacity
            assert keys_of(table) == sorted(oracle.rows)
    for table, oracle in zip(tables, dicts):
        assert int(table.budget_counts().evicted) == len(oracle.evicted) > 10


def test_the_lowest_scores_of_the_user_go():
    tables = [
        sok.DynamicVariable(dim, "1", evict_strategy="kCustomized", max_capacity=10)
        for dim in (1, 4)
    ]
    train = trainer(tables)
    train(range(10), range(10))
    for table, scores in zip(tables, (np.arange(10), -np.arange(10))):
        table.set_scores(np.arange(10), scores)

    train([100], [100])

    assert keys_of(tables[0]) == [1, 2, 3, 4, 5, 6, 7, 8, 9, 100]
    assert keys_of(tables[1]) == [0, 1, 2, 3, 4, 5, 6, 7, 8, 100]


def test_assigned_keys_count_too():
    tables = [
        sok.DynamicVariable(2, evict_strategy="kLru", max_capacity=capacity) for capacity in (4, 6)
    ]
    for keys in ([1, 2, 3], [4], [5]):
        for table in tables:
            sok.assign(table, keys, np.ones([len(keys), 2]))

    assert len(keys_of(tables[0])) <= 4 and {4, 5} <= set(keys_of(tables[0]))
    assert keys_of(tables[1]) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    "strategy, gone", [("kLru", [2]), ("kLfu", [3])], ids=["least recent", "least frequent"]
)
def test_sparse_read_and_evict_has_the_same_order(strategy, gone):
    # Given keys of which 2 was trained often, and 3 lately
    tables = [
        sok.DynamicVariable(dim, "11", evict_strategy=strategy, max_capacity=4) for dim in (1, 2)
    ]
    train = trainer(tables)
    for batch in ([2, 2, 2, 4], [3], [1, 4], [1, 4]):
        train(batch, batch)

    # When a new key is read
    for table in tables:
        rows, keys, values = sok.sparse_read_and_evict(table, [1, 5])

        # Then the lowest by the table's strategy has gone
        assert keys.numpy().tolist() == gone
        assert rows.shape == [2, table.dimension] and values.shape == [1, table.dimension]
        assert 5 not in keys_of(table) and gone[0] not in keys_of(table)


def test_sparse_read_and_evict_knows_no_scores():
    table = sok.DynamicVariable(1, name="mine", evict_strategy="kCustomized", max_capacity=4)

    with pytest.raises(ValueError, match="table 'mine': .*'kCustomized'; .*hand_out='rows'"):
        sok.sparse_read_and_evict(table, [1])


def keep_to_capacity_on_rank():
    sok.init(use_legacy_optimizer=False)
    tables = [
        sok.DynamicVariable(2, "1", evict_strategy=strategy, max_capacity=10, mode=mode)
        for strategy, mode in (("kLru", None), ("kLfu", None), ("kLru", "localized:1"))
    ]
    train = trainer(tables)
    rank = exchange.current().rank
    for first in range(0, 48, 8):
        train(*[range(first + 4 * rank, first + 4 * rank + 4)] * len(tables))
    exchange.current().barrier("trained")
    return [keys_of(table) for table in tables]


def test_the_capacity_is_that_of_each_rank(two_ranks):
    # Given tables over two ranks, and one on rank 1 alone, with 10 keys of a rank at most
    # When 48 keys have come
    of_ranks = two_ranks.run(keep_to_capacity_on_rank)

    # Then each rank that has a table keeps to the limit by itself
    for keys, others in zip(*of_ranks):
        assert max(len(keys), len(others)) <= 10 and not set(keys) & set(others)
    for of_rank in of_ranks:
        assert all(len(keys) >= 8 for keys in of_rank[:2])
    assert of_ranks[0][2] == [] and len(of_ranks[1][2]) >= 8


def test_a_dump_goes_on_in_tables_with_a_capacity(tmp_path):
    # Given what tables with and without a limit have dumped
    def make(**options):
        return [sok.DynamicVariable(dim, "0", name=f"dumped_{dim}", **options) for dim in (1, 2, 3)]

    tables = make(evict_strategy="kLru", max_capacity=20)
    train = trainer(tables)
    for first in range(0, 24, 4):
        train(*[range(first, first + 4)] * len(tables))
    sok.dump(str(tmp_path), tables)
    kept = [keys_of(table) for table in tables]

    # When others of the same and of a smaller limit load it, then the last keys are there
    same = make(evict_strategy="kLru", max_capacity=20)
    sok.load(str(tmp_path), same)
    assert [keys_of(table) for table in same] == kept
    smaller = make(evict_strategy="kLru", max_capacity=8)
    sok.load(str(tmp_path), smaller)
    for table in smaller:
        assert len(keys_of(table)) <= 8 and set(keys_of(table)) <= set(range(16, 24))


def test_without_a_strategy_a_table_grows():
    tables = [sok.DynamicVariable(dim, max_capacity=4) for dim in (1, 2)]
    train = trainer(tables)

    train(range(9), range(9))

    assert [len(keys_of(table)) for table in tables] == [9, 9]


def options_of(var_type, **config):
    return keyed_options("table 'mine'", var_type, 64, read_config("table 'mine'", **config))


@pytest.mark.parametrize("strategy", sorted(EVICT_FIRST))
def test_the_budget_that_a_strategy_stands_for(strategy, monkeypatch):
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: [kind])
    budget = {"budget_of": "rank", "evict": EVICT_FIRST[strategy]}

    found = options_of(None, evict_strategy=strategy, init_capacity=16, max_capacity=4096)

    tiers = {"tiers": ["hbm", "dram"], "tier_bytes": [4096 * 64]}
    assert found == KeyedOptions(max_keys=4096, **budget, **tiers)
    # SOK's limit of a table for which none is given
    found = options_of("hybrid", evict_strategy=strategy)
    assert found == KeyedOptions(max_keys=2**26, **budget, tiers=["hbm", "dram"])


@pytest.mark.parametrize("var_type", [None, "hybrid"])
def test_the_gpu_memory_of_vectors_is_counted_in_gib(var_type, monkeypatch):
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: [kind])
    tiers = ["hbm", "dram"]

    assert options_of(var_type, max_hbm_for_vectors=3) == KeyedOptions(
        tiers=tiers, tier_bytes=[3 << 30]
    )
    found = options_of(var_type, max_hbm_for_vectors=0.5, max_capacity=8, evict_strategy="kLru")
    assert found == KeyedOptions(max_keys=8, budget_of="rank", tiers=tiers, tier_bytes=[1 << 29])
    assert options_of(var_type, max_hbm_for_vectors=0) == KeyedOptions(tiers=["dram"])


@pytest.mark.skipif(not NO_GPU, reason="needs no GPU")
def test_gpu_memory_is_refused_without_a_gpu():
    tables = [sok.DynamicVariable(dim, var_type="hybrid", max_hbm_for_vectors=0) for dim in (1, 2)]
    assert all(table.options.tiers == ("dram",) for table in tables)

    with pytest.raises(ValueError, match="table 'mine': .* no GPU for max_hbm_for_vectors=16"):
        sok.DynamicVariable(1, name="mine", max_hbm_for_vectors=16)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"evict_strategy": "LRU"}, "'kLru', 'kLfu' or 'kCustomized', got 'LRU'"),
        ({"evict_strategy": "kEpochLru"}, "got 'kEpochLru'.*no epochs; use 'kLru'"),
        ({"evict_strategy": "kEpochLfu"}, r"got 'kEpochLfu'.*evict='decayed_frequency'"),
        ({"max_hbm_for_vectors": 1 << 30}, "max_hbm_for_vectors in GiB, 0 to 1024, got 1073741824"),
        ({"max_hbm_for_vectors": "16"}, "max_hbm_for_vectors in GiB, 0 to 1024, got '16'"),
        ({"max_hbm_for_vectors": -1}, "max_hbm_for_vectors in GiB, 0 to 1024, got -1"),
        ({"evict_strategy": "kLru", "var_type": "hbm"}, r"evict_strategy.*tiers=\['hbm'\]"),
        ({"max_hbm_for_vectors": 1, "var_type": "hbm"}, "max_hbm_for_vectors.*leave it out"),
    ],
)
def test_what_no_table_can_do_is_refused(options, message):
    with pytest.raises(ValueError, match="table 'mine': .*" + message):
        sok.DynamicVariable(2, name="mine", **options)


def test_a_strategy_in_a_graph_of_tensorflow_1():
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        tables = [
            sok.DynamicVariable(dim, "1", evict_strategy="kLru", max_capacity=10) for dim in (1, 2)
        ]
        ids = v1.placeholder(tf.int64, [None])
        loss = tf.add_n([tf.reduce_sum(tf.nn.embedding_lookup(table, ids)) for table in tables])
        trained = sok.SGD(1.0).apply_gradients(zip(tf.gradients(loss, tables), tables))
        exported = [sok.export(table)[0] for table in tables]
        session.run(v1.global_variables_initializer())

        for first in range(0, 24, 4):
            session.run(trained, {ids: np.arange(first, first + 4)})

        for keys in session.run(exported):
            assert 4 <= len(keys) <= 10 and set(range(20, 24)) <= set(keys)
