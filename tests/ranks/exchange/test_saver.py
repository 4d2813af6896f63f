"""Checkpoints written by some ranks and restored by others."""

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import group_embedding as ge
from group_embedding import exchange
from group_embedding.distributed import DistributedOptimizer, Saver, enable_distributed_strategy
from group_embedding.ranks.sharding.make_sharded_table import make_table, restore_table

v1 = tf.compat.v1
TABLES = {"emb/user": (11, 4), "emb/tiny": (2, 3)}  # of the second, the third rank has no row
NUM_STEPS = 4


def table_values(name):
    return np.random.default_rng(len(name)).normal(size=TABLES[name]).astype(np.float32)


def build(graph_seed=0):
    """A model in the default graph: (variables by name, train_op). All ranks see the same batch, so
    that every number of ranks trains the same model."""
    tables = {}
    for name, shape in TABLES.items():
        tables[name] = make_table(
            shape,
            v1.constant_initializer(table_values(name) if graph_seed == 0 else 0.0),
            lambda shape, initializer, name=name: v1.get_variable(
                name, shape, tf.float32, initializer
            ),
        )
    scale = v1.get_variable("scale", [], tf.float32, v1.ones_initializer())
    ids = tf.ragged.constant([[0, 1, 1], [], [1]], dtype=tf.int64)
    outputs = ge.group_embedding_lookup_sparse(list(tables.values()), [ids, ids], "mean")
    loss = scale * tf.add_n([tf.reduce_sum(output**2) for output in outputs])
    optimizer = DistributedOptimizer(v1.train.AdagradOptimizer(0.1))
    train_op = optimizer.minimize(loss, v1.train.get_or_create_global_step())
    return train_op


def train_and_save(folder):
    enable_distributed_strategy()
    return train(folder)


def train(folder):
    with tf.Graph().as_default(), v1.Session() as session:
        train_op = build()
        saver = Saver(max_to_keep=2)
        session.run(v1.global_variables_initializer())
        paths = []
        for step in range(NUM_STEPS):
            session.run(train_op)
            path = f"{folder}/model" if step == 0 else f"{folder}/deeper/model"
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            paths.append(saver.save(session, path, global_step=step + 1))
            # Complete on this rank as soon as `save` returns.
            assert tf.train.latest_checkpoint(Path(path).parent) == paths[-1]
        return paths[-1], local_values(session)


def restore_and_train(path):
    enable_distributed_strategy()
    return restore(path)


def restore(path):
    """The values restored, and those one step later."""
    with tf.Graph().as_default(), v1.Session() as session:
        train_op = build(graph_seed=1)
        saver = Saver()
        session.run(v1.global_variables_initializer())
        saver.restore(session, path)
        restored = local_values(session)
        session.run(train_op)
        return restored, local_values(session)


def local_values(session):
    return {v.op.name: session.run(v) for v in v1.global_variables()}


def monitored_on_rank(folder):
    """MonitoredTrainingSession, twice: the second goes on where the first ended."""
    enable_distributed_strategy()
    values = []
    for last_step in (3, 5):
        with tf.Graph().as_default():
            train_op = build()
            hooks = [v1.train.StopAtStepHook(last_step=last_step)]
            with v1.train.MonitoredTrainingSession(
                checkpoint_dir=folder, save_checkpoint_steps=2, hooks=hooks
            ) as session:
                while not session.should_stop():
                    session.run(train_op)
        values.append(tf.train.latest_checkpoint(folder))
    return values


def save_eagerly_on_rank(folder):
    """A Saver outside of graphs, with a dict of variables."""
    enable_distributed_strategy()
    variable = make_table(
        (5, 2),
        lambda shape, dtype=None: tf.reshape(tf.range(10.0), [5, 2]),
        lambda shape, initializer: tf.Variable(initializer(shape)),
    )
    before = variable.numpy().tolist()
    saver = Saver({"table": variable, "half": tf.Variable([0.5], name="half")})
    path = saver.save(None, f"{folder}/eager")
    variable.assign(tf.zeros_like(variable))
    saver.restore(None, path)
    return path, before == variable.numpy().tolist()


def save_objects_on_rank(folder):
    """tf.train.Checkpoint of a sharded table, its slots, and a dense variable."""
    enable_distributed_strategy()
    table, checkpoint = train_eagerly(0.5)
    rank = exchange.current().rank
    path = checkpoint.write(f"{folder}/objects" if rank == 0 else f"{folder}/rank_{rank}")
    expected = table.numpy()
    table.assign(tf.zeros_like(table))
    checkpoint.read(path).assert_consumed()
    return path, expected, table.numpy()


def train_eagerly(learning_rate):
    table = make_table(
        (5, 2),
        lambda shape, dtype=None: tf.reshape(tf.range(10.0), [5, 2]),
        lambda shape, initializer: tf.Variable(initializer(shape)),
    )
    optimizer = DistributedOptimizer(tf.keras.optimizers.Adagrad(learning_rate))
    optimizer.build([table])
    with tf.GradientTape() as tape:
        (output,) = ge.group_embedding_lookup_sparse([table], [tf.ragged.constant([[1, 4]])], "sum")
        loss = tf.reduce_sum(output)
    optimizer.apply_gradients([(tape.gradient(loss, table), table)])
    return table, tf.train.Checkpoint(table=table, optimizer=optimizer, step=tf.Variable(3))


def restore_table_on_rank(path):
    """`ckpt_to_load_from`: a table that starts from a checkpoint, in a graph and eagerly."""
    enable_distributed_strategy()
    name = "emb/user"
    eager = make_table(
        TABLES[name],
        lambda shape, dtype=None: tf.zeros(shape),
        lambda shape, initializer: tf.Variable(initializer(shape)),
    )
    restore_table(eager, path, name)
    with tf.Graph().as_default(), v1.Session() as session:
        variable = make_table(
            TABLES[name],
            v1.zeros_initializer(),
            lambda shape, initializer: v1.get_variable("x", shape, tf.float32, initializer),
        )
        restore_table(variable, path, name)
        session.run(v1.global_variables_initializer())
        in_graph = session.run(variable)
    try:
        restore_table(eager, path, "emb/tiny")
    except ValueError as error:
        return eager.numpy(), in_graph, str(error)


def restore_table_from_memory():
    """Restores from a checkpoint in TensorFlow's in-memory file system, of which each rank has a
    copy."""
    enable_distributed_strategy()
    name = "emb/user"
    tf.raw_ops.SaveV2(
        prefix="ram://started/model",
        tensor_names=[name],
        shape_and_slices=[""],
        tensors=[table_values(name)],
    )
    table = make_table(
        TABLES[name],
        lambda shape, dtype=None: tf.zeros(shape),
        lambda shape, initializer: tf.Variable(initializer(shape)),
    )
    restore_table(table, "ram://started/model", name)
    return table.numpy()


def rows_of(values, rank, num_ranks):
    """The rows that one rank holds of a model of one process."""
    return {
        name: value[rank::num_ranks] if name.startswith("emb/") else value
        for name, value in values.items()
    }


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory, two_ranks, three_ranks):
    """{number of ranks: (path, values on each rank)}."""
    saved = {}
    for num_ranks, ranks in {1: None, 2: two_ranks, 3: three_ranks}.items():
        folder = str(tmp_path_factory.mktemp(f"{num_ranks}_ranks"))
        results = ranks.run(train_and_save, folder) if ranks else [train(folder)]
        saved[num_ranks] = results[0][0], [values for _, values in results]
    return saved


@pytest.fixture(scope="module")
def whole(checkpoints):
    """The model as one process trained it."""
    return checkpoints[1][1][0]


@pytest.mark.parametrize("num_ranks", [2, 3])
def test_stock_tensorflow_reads_the_checkpoint_as_that_of_one_process(
    checkpoints, whole, num_ranks
):
    reader = tf.train.load_checkpoint(checkpoints[num_ranks][0])
    one_process = tf.train.load_checkpoint(checkpoints[1][0])

    assert reader.get_variable_to_shape_map() == one_process.get_variable_to_shape_map()
    for name, value in whole.items():
        np.testing.assert_allclose(reader.get_tensor(name), value, rtol=1e-6)


@pytest.mark.covering(1)
@pytest.mark.parametrize("saved_by", [1, 2, 3])
@pytest.mark.parametrize("restored_by", [1, 2, 3])
def test_any_number_of_ranks_restores_it_and_goes_on(
    checkpoints, two_ranks, three_ranks, whole, saved_by, restored_by
):
    path, _ = checkpoints[saved_by]
    ranks = {1: None, 2: two_ranks, 3: three_ranks}[restored_by]
    results = ranks.run(restore_and_train, path) if ranks else [restore(path)]

    expected = restore(checkpoints[1][0])  # in one process
    for rank, (restored, one_step_later) in enumerate(results):
        for actual, value in zip((restored, one_step_later), expected):
            mine = rows_of(value, rank, restored_by)
            assert actual.keys() == mine.keys()
            for name in mine:
                np.testing.assert_allclose(actual[name], mine[name], rtol=1e-5, atol=1e-6)
    for name, value in whole.items():
        np.testing.assert_array_equal(expected[0][name], value)


@pytest.mark.parametrize("num_ranks", [1, 2, 3])
def test_old_checkpoints_and_temporary_files_are_removed(checkpoints, num_ranks):
    folder = Path(checkpoints[num_ranks][0]).parent
    steps = {path.name.partition(".")[0] for path in folder.glob("model-*")}

    assert steps == {f"model-{NUM_STEPS - 1}", f"model-{NUM_STEPS}"}
    assert not list(folder.glob("*_temp*"))
    assert len(list(folder.glob("*.meta"))) == 2


def test_a_monitored_session_finds_the_saver_by_itself(two_ranks, tmp_path, whole):
    for paths in two_ranks.run(monitored_on_rank, str(tmp_path)):
        assert paths == [str(tmp_path / "model.ckpt-3"), str(tmp_path / "model.ckpt-5")]
    reader = tf.train.load_checkpoint(str(tmp_path))
    assert reader.get_tensor("emb/user").shape == TABLES["emb/user"]
    assert reader.get_tensor("global_step") == 5


def test_a_table_starts_from_a_checkpoint(two_ranks, checkpoints, whole):
    results = two_ranks.run(restore_table_on_rank, checkpoints[3][0])
    for rank, (eager, in_graph, message) in enumerate(results):
        np.testing.assert_allclose(eager, whole["emb/user"][rank::2], rtol=1e-6)
        np.testing.assert_allclose(in_graph, whole["emb/user"][rank::2], rtol=1e-6)
        assert "expected a tensor 'emb/tiny' of shape (11, 4)" in message


def test_a_table_starts_from_a_checkpoint_in_memory(two_ranks):
    # Given a checkpoint on `ram://`
    # When a table that is spread over ranks starts from it
    results = two_ranks.run(restore_table_from_memory)
    # Then each rank has its rows
    for rank, rows in enumerate(results):
        np.testing.assert_array_equal(rows, table_values("emb/user")[rank::2])


def test_outside_of_graphs(two_ranks, tmp_path):
    results = two_ranks.run(save_eagerly_on_rank, str(tmp_path))

    assert [same for _, same in results] == [True, True]
    reader = tf.train.load_checkpoint(results[0][0])
    assert reader.get_tensor("table").tolist() == np.arange(10.0).reshape(5, 2).tolist()
    assert reader.get_tensor("half").tolist() == [0.5]


def test_an_object_based_checkpoint_holds_whole_tables(two_ranks, tmp_path):
    results = two_ranks.run(save_objects_on_rank, str(tmp_path))

    for rank, (_, before, after) in enumerate(results):
        np.testing.assert_array_equal(before, after)
        moved = 0 if rank == 0 else 0.5 / 1.1**0.5  # Adagrad: 0.5 * g / sqrt(0.1 + g^2), g = 1
        np.testing.assert_allclose(before[0], [2 * rank - moved, 2 * rank + 1 - moved], rtol=1e-5)
    # In one process, whose own table has gone another way:
    table, checkpoint = train_eagerly(0.1)
    checkpoint.read(results[0][0]).assert_consumed()
    np.testing.assert_array_equal(table.numpy()[0::2], results[0][1])
    np.testing.assert_array_equal(table.numpy()[1::2], results[1][1])


def test_with_one_process_it_is_a_stock_saver(tmp_path):
    with tf.Graph().as_default(), v1.Session() as session:
        variable = v1.get_variable("v", [2], initializer=v1.ones_initializer())
        session.run(variable.initializer)

        path = Saver().save(session, str(tmp_path / "model"))

    assert tf.train.load_variable(path, "v").tolist() == [1, 1]
