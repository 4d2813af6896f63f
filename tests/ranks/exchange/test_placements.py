"""Tables in every placement, in what ways they are asked for, against one process."""

import numpy as np
import pytest
import tensorflow as tf

import group_embedding as ge
from group_embedding import exchange
from group_embedding.ranks.sharding.make_sharded_table import make_table
from group_embedding.ranks.sharding.sharded_table import gather_rows

v1 = tf.compat.v1
fc = tf.feature_column
WORDS = [
    *("distributed", "distributed:sums", "localized:1", "localized:1:sums"),
    *("columns", "columns:sums", "replicated", "auto"),
]
NUM_ROWS, DIM, BATCH_SIZE, NUM_STEPS = 3000, 12, 12, 5


def ids_of(step):
    """This rank's part of [12, 2] ids, of which some come again."""
    rng = np.random.default_rng(step)
    ids = rng.choice(rng.integers(0, NUM_ROWS, 20), (BATCH_SIZE, 2))
    rank, num_ranks = exchange.current().rank, exchange.current().num_ranks
    return ids[rank * BATCH_SIZE // num_ranks : (rank + 1) * BATCH_SIZE // num_ranks]


def train_layer():
    """A layer with a table in each placement; what each table is in the end, as a whole."""
    tables = [
        ge.TableConfig(
            word.replace(":", "_"),
            NUM_ROWS,
            DIM,
            initializer=tf.keras.initializers.RandomNormal(seed=3),
            placement=word,
        )
        for word in WORDS
    ]
    layer = ge.layers.GroupEmbedding(
        [ge.FeatureConfig(table.name, table, "sum") for table in tables], concat=True, name="bags"
    )
    inputs = {t.name: tf.keras.Input((2,), dtype="int64", name=t.name) for t in tables}
    model = tf.keras.Model(inputs, layer(inputs))
    optimizer = ge.optimizers.wrap(tf.keras.optimizers.Adagrad(0.1))
    model.compile(ge.DistributedOptimizer(optimizer), "mse")
    for step in range(NUM_STEPS):
        ids = ids_of(step)
        labels = np.ones([len(ids), DIM * len(WORDS)], np.float32)
        model.train_on_batch({table.name: ids for table in tables}, labels)
    held = {name: tuple(variable.shape) for name, variable in layer.tables.items()}
    whole = {n: gather_rows(_variable(v)).numpy() for n, v in layer.tables.items()}
    return held, whole


def _variable(weight):
    return weight if isinstance(weight, tf.Variable) else weight.value


def train_columns(folder):
    """Columns of a scope, two placed by themselves, saved by a Saver: the checkpoint's path."""
    with tf.Graph().as_default(), v1.Session() as session:
        ids = v1.placeholder(tf.int64, [None, 2])
        placement = {"b_embedding": "localized:1", "c_embedding": "columns"}
        with ge.group_embedding_column_scope(placement=placement):
            columns = [
                fc.embedding_column(
                    fc.categorical_column_with_identity(name, NUM_ROWS),
                    DIM,
                    initializer=v1.truncated_normal_initializer(seed=4),
                )
                for name in ("a", "b", "c")
            ]
        inputs = v1.feature_column.input_layer({"a": ids, "b": ids, "c": ids}, columns)
        loss = tf.reduce_mean(inputs**2)
        optimizer = ge.optimizers.wrap(v1.train.AdagradOptimizer(0.1))
        train_op = ge.DistributedOptimizer(optimizer).minimize(loss)
        saver = ge.Saver()
        session.run(v1.global_variables_initializer())
        for step in range(NUM_STEPS):
            session.run(train_op, {ids: ids_of(step)})
        path = saver.save(session, f"{folder}/columns")
        before = session.run(v1.global_variables())
        session.run(v1.global_variables_initializer())
        saver.restore(session, path)
        for value, restored in zip(before, session.run(v1.global_variables())):
            np.testing.assert_array_equal(restored, value)
        return path


def train_on_rank(folder):
    ge.enable_distributed_strategy()
    return train_layer(), train_columns(folder)


@pytest.fixture(scope="module")
def one_process(tmp_path_factory):
    return train_layer(), train_columns(str(tmp_path_factory.mktemp("one")))


@pytest.fixture(scope="module")
def ranks(several_ranks, tmp_path_factory):
    return several_ranks.run(train_on_rank, str(tmp_path_factory.mktemp("ranks")))


def test_rows_are_where_the_placement_says(ranks):
    for rank, ((held, _), _) in enumerate(ranks):
        mine = len(range(rank, NUM_ROWS, len(ranks)))
        assert held["distributed"] == (mine, DIM)
        assert held["localized_1"] == (NUM_ROWS if rank == 1 else 0, DIM)
        assert held["columns"] == held["columns_sums"] == (NUM_ROWS, DIM // len(ranks))
        assert held["replicated"] == (NUM_ROWS, DIM)


@pytest.mark.parametrize("word", WORDS)
def test_a_table_trains_as_in_one_process_wherever_it_is(ranks, one_process, word):
    (_, expected), _ = one_process
    for (_, whole), _ in ranks:
        name = word.replace(":", "_")
        np.testing.assert_allclose(whole[name], expected[name], rtol=1e-5, atol=1e-6)


def test_a_checkpoint_is_that_of_one_process_wherever_tables_were(ranks, one_process):
    expected = tf.train.load_checkpoint(one_process[1])
    actual = tf.train.load_checkpoint(ranks[0][1])

    assert actual.get_variable_to_shape_map() == expected.get_variable_to_shape_map()
    for name in expected.get_variable_to_shape_map():
        value = expected.get_tensor(name)
        np.testing.assert_allclose(actual.get_tensor(name), value, rtol=1e-5, atol=1e-6)


def test_a_scope_refuses_a_placement_of_no_table():
    with ge.group_embedding_column_scope(placement={"c_embedding": "distributed"}):
        column = fc.embedding_column(fc.categorical_column_with_identity("a", 3), 2)

    with tf.Graph().as_default(), pytest.raises(ValueError, match=r"of \['a_embedding'\], got one"):
        v1.feature_column.input_layer({"a": [[1]]}, [column])


def look_up_on_rank(dtype, comm_dtype):
    """Rows and gradients that travel in another type than the table's."""
    ge.enable_distributed_strategy()
    exchange.current().comm_dtype = comm_dtype
    try:
        whole = in_float32(tf.cast(np.random.default_rng(1).normal(size=(9, 4)), dtype))
        table = make_table(
            (9, 4),
            lambda shape, dtype: tf.constant(whole, dtype),
            lambda shape, initializer: tf.Variable(initializer(shape, dtype)),
        )
        with tf.GradientTape() as tape:
            (rows,) = ge.group_embedding_lookup([table], [tf.range(9)])
            loss = tf.reduce_sum(rows * tf.constant(whole, dtype))
        goes_by_host = "GPU" not in table.device
        gradient = tf.convert_to_tensor(tape.gradient(loss, table))
        return goes_by_host, whole, in_float32(rows), in_float32(gradient)
    finally:
        exchange.current().comm_dtype = None


@pytest.mark.parametrize(
    "dtype, comm_dtype, precision",
    [
        (tf.float32, tf.float16, 1e-6),
        (tf.float32, tf.bfloat16, 1e-6),
        (tf.float16, tf.bfloat16, 2**-10),
        (tf.bfloat16, tf.float32, 2**-7),
    ],
)
def test_rows_and_gradients_travel_in_the_dtype_asked_for(
    several_ranks, dtype, comm_dtype, precision
):
    ranks = several_ranks.run(look_up_on_rank, dtype, comm_dtype)

    for rank, (goes_by_host, whole, rows, gradient) in enumerate(ranks):
        travels = (np.arange(len(whole)) % len(ranks) != rank) | goes_by_host
        rounded = in_float32(tf.cast(whole, comm_dtype))
        np.testing.assert_array_equal(rows, np.where(travels[:, None], rounded, whole))
        # Every rank sends the same to the owner, divided by their number.
        sent = in_float32(tf.cast(whole / len(ranks), comm_dtype))
        own = sent if goes_by_host else whole / len(ranks)  # on a GPU that is as it is
        added = own + (len(ranks) - 1) * sent
        np.testing.assert_allclose(gradient, added[rank :: len(ranks)], rtol=10 * precision)


def in_float32(tensor):
    return tf.cast(tensor, tf.float32).numpy()


def disagree_on_rank(kind):
    """Each rank's error, when rank 1 makes another lookup than the others."""
    ge.enable_distributed_strategy()
    differs = exchange.current().rank == 1
    dims = {"dim": 8 if differs else 4}
    table = make_table(
        (10, dims.get(kind, 4)),
        lambda shape, dtype=None: tf.zeros(shape),
        lambda shape, initializer: tf.Variable(initializer(shape), name="clicks"),
    )
    tables = [table, table] if kind == "count" and differs else [table]
    combiner = "sum" if kind == "combiner" and differs else "mean"
    ids = [tf.ragged.constant([[1, 2]])] * len(tables)
    try:
        max_norm = 2.0 if kind == "max_norm" and differs else None
        ge.group_embedding_lookup_sparse(tables, ids, combiner, max_norm=max_norm)
    except tf.errors.InvalidArgumentError as error:
        return error.message
    return "no error"


@pytest.mark.parametrize("kind", ["dim", "count", "combiner", "max_norm"])
def test_ranks_that_disagree_are_told_in_what(several_ranks, kind):
    expected = {
        "dim": "table 'clicks': 10 rows of 8 float32",
        "count": "feature 'sp_ids[1]': mean of table 'clicks'",
        "combiner": "feature 'sp_ids[0]': sum of table 'clicks'",
        "max_norm": "float32, distributed",
    }

    for message in several_ranks.run(disagree_on_rank, kind):
        assert "the ranks disagree: " in message
        assert expected[kind] in message


def test_words_that_are_none_are_refused():
    with pytest.raises(ValueError, match="expected placement to be 'distributed'"):
        ge.enable_distributed_strategy(placement="everywhere")
    with pytest.raises(ValueError, match="expected comm_dtype to be None or one of float32"):
        ge.enable_distributed_strategy(comm_dtype=tf.int8)
    with pytest.raises(ValueError, match="table 'user': expected placement to be"):
        ge.TableConfig("user", 10, 4, placement="here")
