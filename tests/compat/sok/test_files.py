"""`dump` and `load`, over different numbers of ranks."""

import numpy as np
import pytest
import tensorflow as tf
from support.session.tiers import by_day

from group_embedding import exchange, sok

KEYS = np.array([5, -3, 2**40, 12, 77])


def make():
    """Four tables of which one stays empty, and their optimizer."""
    sok.init(use_legacy_optimizer=False)
    spread = tf.keras.initializers.RandomUniform(seed=3)
    last = exchange.current().num_ranks - 1
    tables = [
        sok.Variable(shape=[7, 2], initializer=spread, name="scope/rows"),
        sok.Variable(np.ones([5, 3], np.float32), mode=f"localized:{last}", name="on_one_rank"),
        sok.DynamicVariable(dimension=2, initializer=spread, name="scope/keys"),
        sok.DynamicVariable(dimension=4, name="empty"),
    ]
    return tables, sok.OptimizerWrapper(tf.keras.optimizers.Adagrad(0.1))


def train(tables, optimizer, step):
    """Every rank takes its part of the same batch."""
    rank, num_ranks = exchange.current().rank, exchange.current().num_ranks
    rng = np.random.default_rng(step)
    batch = [rng.integers(0, 5, [12, 2]), rng.integers(0, 5, [12, 2]), rng.choice(KEYS, [12, 2])]
    ids = [tf.RaggedTensor.from_tensor(part[rank::num_ranks]) for part in batch]
    with tf.GradientTape() as tape:
        outputs = sok.lookup_sparse(tables[:3], ids, combiners="sum")
        loss = tf.add_n([tf.reduce_sum(output**2) for output in outputs])
    gradients = tape.gradient(loss, tables[:3]) + [None]
    # In the order in which they are loaded: the optimizer keeps to its first list.
    optimizer.apply_gradients(zip(gradients, tables))


def content(tables):
    """{table: {key or row: values}} of this rank."""
    parts = [sok.export(table) for table in tables]
    return [dict(zip(i.numpy().tolist(), np.round(v.numpy(), 5).tolist())) for i, v in parts]


def dump_on_rank(folder):
    tables, optimizer = make()
    train(tables, optimizer, step=0)
    sok.dump(folder, tables, optimizer)
    dumped = content(tables)
    train(tables, optimizer, step=1)
    return dumped, content(tables)


def load_on_rank(folder):
    tables, optimizer = make()
    sok.assign(tables[2], [1000], [[9.0, 9.0]])  # which the dump does not have
    sok.load(folder, tables, optimizer)
    loaded = content(tables)
    train(tables, optimizer, step=1)
    return loaded, content(tables)


def together(of_ranks):
    """[before, after] of what all ranks have."""
    return [
        [{k: v for rank in tables for k, v in rank.items()} for tables in zip(*moment)]
        for moment in zip(*of_ranks)
    ]


@pytest.fixture(scope="module")
def ranks(request):
    def run(num_ranks, function, *args):
        if num_ranks == 1:
            return [function(*args)]
        name = {2: "two_ranks", 3: "three_ranks"}[num_ranks]
        return request.getfixturevalue(name).run(function, *args)

    return run


@pytest.mark.parametrize("dumped_by, loaded_by", by_day([(1, 2), (2, 1), (2, 3), (2, 2)], [(2, 3)]))
def test_tables_and_optimizer_go_on_as_they_were(ranks, tmp_path, dumped_by, loaded_by):
    expected = together(ranks(dumped_by, dump_on_rank, str(tmp_path)))

    found = together(ranks(loaded_by, load_on_rank, str(tmp_path)))

    for moment, of_moment in zip(found, expected):
        for table, of_table in zip(moment, of_moment):
            assert table.keys() == of_table.keys()
            for key, row in of_table.items():
                np.testing.assert_allclose(table[key], row, rtol=1e-4, atol=1e-5)
    assert expected[0][2].keys() == set(KEYS.tolist()) and not expected[0][3]


STOCK = {
    "v1": lambda: tf.compat.v1.train.MomentumOptimizer(0.1, 0.9),
    "keras": lambda: tf.keras.optimizers.Adagrad(0.1),
}
if hasattr(tf.keras.optimizers.legacy.Optimizer, "apply_gradients"):  # of Keras 2
    STOCK["legacy"] = lambda: tf.keras.optimizers.legacy.Adam(0.1)


def train_stock_on_rank(kind, folder):
    """Rows of this rank after three steps, of which the last is taken twice: as dumped after two
    steps, then set to zeros and loaded, in this optimizer and in a new one."""
    sok.init(use_legacy_optimizer=False)
    rank = exchange.current().rank

    def make():
        tables = [
            sok.Variable(np.ones([6, 2], np.float32), name="spread"),
            sok.Variable(np.ones([5, 3], np.float32), name="on_last", mode="localized:1"),
            sok.Variable(np.ones([4, 1], np.float32), name="on_first", mode="localized:0"),
        ]
        return tables, STOCK[kind]()

    def step(tables, optimizer, number):
        ids = tf.RaggedTensor.from_tensor(tf.constant([[(rank + number) % 4], [3]], tf.int64))
        with tf.GradientTape() as tape:
            vectors = sok.lookup_sparse(tables, [ids] * 3, combiners="sum")
            loss = tf.add_n([tf.reduce_sum(v**2) for v in vectors]) * (1.0 + number)
        optimizer.apply_gradients(zip(tape.gradient(loss, tables), tables))
        return [table.numpy() for table in tables]

    tables, optimizer = make()
    for number in range(2):
        step(tables, optimizer, number)
    sok.dump(folder, tables, optimizer)
    expected = step(tables, optimizer, 2)
    for table in tables:
        table.assign(tf.zeros_like(table))
    sok.load(folder, tables, optimizer)
    again = step(tables, optimizer, 2)
    exchange.current().barrier("before_new")
    tables, optimizer = make()
    sok.load(folder, tables, [optimizer])
    return expected, again, step(tables, optimizer, 2)


@pytest.mark.parametrize("kind", STOCK)
def test_an_optimizer_that_is_not_wrapped_goes_on_on_each_rank(two_ranks, tmp_path, kind):
    # Given tables on all ranks, on the first and on the last, which a stock optimizer trains
    # When each rank dumps and loads them, then it goes on with its own slots
    for expected, again, anew in two_ranks.run(train_stock_on_rank, kind, str(tmp_path)):
        for rows, of_again, of_anew in zip(expected, again, anew):
            np.testing.assert_allclose(of_again, rows, rtol=1e-6)
            np.testing.assert_allclose(of_anew, rows, rtol=1e-6)


def test_several_optimizers_are_refused(tmp_path):
    table = sok.Variable([[1.0]], name="one")

    with pytest.raises(ValueError, match="dump: expected one optimizer, got 2"):
        sok.dump(str(tmp_path), table, [sok.SGD(), sok.SGD()])


def test_some_of_the_dumped_tables_can_be_loaded(tmp_path):
    rows, other = sok.Variable([[1.0]], name="some/rows"), sok.Variable([[2.0]], name="other")
    sok.dump(tmp_path / "new" / "folder", [rows, other])
    rows.assign([[0.0]])

    sok.load(tmp_path / "new" / "folder", rows)

    assert rows.numpy() == 1


def test_a_dump_may_lie_on_any_file_system_of_tensorflow():
    # Given tables with keys, and with rows, that are dumped into memory
    folder = "ram://dumped/tables"
    keyed = sok.DynamicVariable(dimension=2, initializer="0.5", name="in_memory_keyed")
    rows = sok.Variable([[1.0], [2.0]], name="in_memory_rows")
    sok.assign(keyed, tf.constant([7], tf.int64), tf.constant([[3.0, 4.0]]))
    sok.dump(folder, [keyed, rows])
    assert tf.io.gfile.exists(f"{folder}/tables.index")
    # When they have changed, and are loaded
    sok.assign(keyed, tf.constant([7, 8], tf.int64), tf.zeros([2, 2]))
    rows.assign(tf.zeros([2, 1]))
    sok.load(folder, [keyed, rows])
    # Then they are as they were
    assert rows.numpy().tolist() == [[1.0], [2.0]]
    keys, values = sok.export(keyed)
    assert (keys.numpy().tolist(), values.numpy().tolist()) == ([7], [[3.0, 4.0]])


def test_a_dump_replaces_the_one_before(tmp_path):
    table = sok.DynamicVariable(dimension=1, name="again")
    sok.assign(table, [1], [[1.0]])
    sok.dump(str(tmp_path), table)
    sok.assign(table, [1, 2], [[3.0], [4.0]])

    sok.dump(str(tmp_path), table)

    sok.assign(table, [1, 2, 5], np.zeros([3, 1]))
    sok.load(str(tmp_path), table)
    assert content([table]) == [{1: [3.0], 2: [4.0]}]


@pytest.mark.parametrize(
    "load, error, message",
    [
        (lambda: sok.Variable([[1.0]], name="absent"), ValueError, "'absent': expected it among"),
        (
            lambda: sok.Variable([[1.0]] * 3, name="rows"),
            ValueError,
            "3 rows of dim 1 .* got 2 row",
        ),
        (lambda: sok.DynamicVariable(1, name="rows"), ValueError, "expected keys with rows of dim"),
        (lambda: tf.Variable([[1.0]]), TypeError, "expected tables of sok.Variable"),
        (lambda: [sok.Variable([[1.0]], name="a") for _ in "ab"], ValueError, "got two 'a'"),
    ],
)
def test_what_the_dump_does_not_have_is_refused(tmp_path, load, error, message):
    sok.dump(str(tmp_path), sok.Variable([[1.0], [2.0]], name="rows"))

    with pytest.raises(error, match=message):
        sok.load(str(tmp_path), load())


def test_a_dump_that_is_not_there_is_refused(tmp_path):
    table = sok.Variable([[1.0]], name="kept")

    with pytest.raises(FileNotFoundError, match="expected a dump"):
        sok.load(str(tmp_path), table)
    sok.dump(str(tmp_path), table)
    with pytest.raises(ValueError, match="expected the state of an optimizer"):
        sok.load(str(tmp_path), table, sok.SGD())


def test_graphs_are_sent_to_the_saver(tmp_path):
    with tf.Graph().as_default():
        table = sok.DynamicVariable(dimension=1, name="in_graph")

        with pytest.raises(ValueError, match="ge.Saver"):
            sok.dump(str(tmp_path), table)
