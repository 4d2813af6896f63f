"""`Variable`, `DynamicVariable`, and telling them from other variables."""

import numpy as np
import pytest
import tensorflow as tf

import group_embedding as ge
from group_embedding import exchange, sok
from group_embedding.compat.sok.dynamic_variable import keyed_options, read_config
from group_embedding.variables import KeyedOptions

ROWS = np.arange(15, dtype=np.float32).reshape(5, 3)


def rows_on_rank():
    sok.init(use_legacy_optimizer=False)
    tables = [
        sok.Variable(ROWS),
        sok.Variable(ROWS, mode="localized:1"),
        sok.Variable(shape=[5, 3], initializer=tf.keras.initializers.RandomUniform(seed=3)),
    ]
    split = sok.filter_variables([*tables, tf.Variable([1.0]), sok.DynamicVariable(dimension=3)])
    return [table.numpy() for table in tables], [len(part) for part in split]


def test_ranks_hold_the_rows_that_the_mode_says(two_ranks):
    drawn = tf.keras.initializers.RandomUniform(seed=3)([5, 3]).numpy()

    found = two_ranks.run(rows_on_rank)

    for rank, ((distributed, localized, initialized), split) in enumerate(found):
        np.testing.assert_array_equal(distributed, ROWS[rank::2])
        np.testing.assert_array_equal(localized, ROWS if rank == 1 else ROWS[:0])
        np.testing.assert_array_equal(initialized, drawn[rank::2])
        assert split == [4, 1]


def test_one_process_holds_all_rows_whatever_the_mode_says():
    np.testing.assert_array_equal(sok.Variable(ROWS, mode="localized:1"), ROWS)


def test_tables_are_told_from_other_variables():
    dense = tf.Variable([[0, 1, 2]])
    tables = [
        sok.Variable([[3, 4, 5]]),
        sok.Variable([[6, 7, 8]], mode="localized:0"),
        sok.DynamicVariable(dimension=3, initializer="13"),
        ge.get_embedding_variable("table", 3),
    ]

    found, others = sok.filter_variables([dense, *tables])

    assert all(a is b for a, b in zip(found, tables)) and len(found) == len(tables)
    assert len(others) == 1 and others[0] is dense


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({}, "expected either initial_value, or shape and initializer"),
        ({"initial_value": ROWS, "initializer": "ones"}, "expected either initial_value"),
        ({"shape": [5, 3]}, "expected either initial_value"),
        ({"initial_value": [1.0]}, r"expected shape \[rows, dim\], got \(1,\)"),
        ({"initial_value": ROWS, "shape": [3, 5]}, r"expected shape \[3, 5\]"),
        ({"initial_value": ROWS, "mode": "replicated"}, "expected mode .* got 'replicated'"),
        ({"initial_value": ROWS, "mode": "localized:x"}, "expected mode .* got 'localized:x'"),
    ],
)
def test_a_variable_that_cannot_be_is_refused(arguments, message):
    with pytest.raises(ValueError, match="table 'mine': " + message):
        sok.Variable(**arguments, name="mine")


@pytest.mark.parametrize(
    "initializer, expected",
    [("13", 13), (0.5, 0.5), ("ones", 1), (tf.keras.initializers.Constant(2.0), 2)],
)
def test_a_dynamic_variable_starts_as_its_initializer_says(initializer, expected):
    table = sok.DynamicVariable(dimension=2, initializer=initializer)

    rows = tf.nn.embedding_lookup(table, [5, 2**40])

    np.testing.assert_array_equal(rows, np.full([2, 2], expected))
    assert table.size.numpy().tolist() == [0, 2]


@pytest.mark.parametrize("initializer", [None, "random"])
def test_it_starts_at_random_when_nothing_else_is_said(initializer):
    rows = tf.nn.embedding_lookup(sok.DynamicVariable(8, initializer), [1, 2]).numpy()

    assert np.abs(rows).max() <= 0.05 and np.ptp(rows) > 0.01
    assert (rows[0] != rows[1]).any()


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"dimension": 0}, "embedding_dim from 1 to 4096"),
        ({"dimension": 2, "key_type": tf.float32}, "key_type to be one of int32"),
        ({"dimension": 2, "dtype": tf.int32}, "dtype to be one of float32"),
        ({"dimension": 2, "initializer": "thirteen"}, "initializer to be 'random', a number"),
        ({"dimension": 2, "constraint": abs}, "no constraint"),
        ({"dimension": 2, "mode": "auto"}, "mode to be 'distributed'"),
        ({"dimension": 2, "var_type": "ssd"}, "var_type None, 'hbm' or 'hybrid'"),
        ({"dimension": 2, "max_load_factor": 0.5}, "no max_load_factor, as a table grows"),
        ({"dimension": 2, "max_capacity": 0}, "max_capacity to be a positive int, got 0"),
        ({"dimension": 2, "max_capacity": float("nan")}, "max_capacity to be .*, got nan"),
        ({"dimension": 2, "init_capacity": float("inf")}, "init_capacity to be .*, got inf"),
        ({"dimension": 2, "max_capacity": [3]}, r"max_capacity to be .*, got \[3\]"),
        ({"dimension": 2, "filter_ratio": 1.5}, "filter_ratio above 0, at most 1, got 1.5"),
    ],
)
def test_a_dynamic_variable_that_cannot_be_is_refused(arguments, message):
    with pytest.raises(ValueError, match="table 'mine': .*" + message):
        sok.DynamicVariable(**arguments, name="mine")


def test_the_storage_that_a_var_type_stands_for(monkeypatch):
    # Given a machine with a GPU
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: [kind])
    none = read_config("table")
    capacities = read_config("table", init_capacity=1024, max_capacity=4096)
    hybrid = KeyedOptions(tiers=["hbm", "dram"], tier_bytes=[4096 * 64])

    # When tables of each var_type are made, then each lies where SOK has it
    assert keyed_options("table", "hybrid", 64, capacities) == hybrid
    assert keyed_options("table", None, 64, capacities) == hybrid
    assert keyed_options("table", "hbm", 64, none) == KeyedOptions(tiers=["hbm"])
    assert keyed_options("table", "hbm", 64, capacities) == KeyedOptions(tiers=["hbm"])
    assert keyed_options("table", None, 64, none) == KeyedOptions()


@pytest.mark.skipif(bool(tf.config.list_physical_devices("GPU")), reason="needs no GPU")
@pytest.mark.parametrize("arguments", [{"var_type": "hbm"}, {"max_capacity": 64}])
def test_without_a_gpu_rows_lie_in_host_memory_and_a_warning_says_so(arguments):
    with pytest.warns(UserWarning, match="table 'mine': its rows lie in host memory, as TensorFl"):
        table = sok.DynamicVariable(dimension=2, name="mine", **arguments)

    sok.assign(table, [7], [[1.0, 2.0]])
    assert table.size.numpy().tolist() == [1, 2]
    assert table.backend_type == arguments.get("var_type", "hybrid")


def targets_on_rank():
    sok.init(use_legacy_optimizer=False)
    made = [
        sok.Variable(ROWS),
        sok.Variable(ROWS, mode="localized:1"),
        sok.DynamicVariable(dimension=2),
        sok.DynamicVariable(dimension=2, mode="localized:1"),
    ]
    return [table.target_gpu for table in made]


def test_the_rank_of_a_table_is_its_target_gpu(two_ranks):
    assert two_ranks.run(targets_on_rank) == [[-1, 1, -1, 1]] * 2


def read_localized_on_rank():
    """The rows that a rank reads by itself from each rank's table."""
    sok.init(use_legacy_optimizer=False)
    rank = exchange.current().rank
    tables = [sok.DynamicVariable(2, str(r), mode=f"localized:{r}") for r in range(2)]
    for r, table in enumerate(tables):
        sok.assign(table, [7], [[10.0 + r, 0.0]])
    own = tf.nn.embedding_lookup(tables[rank], [7, 8]).numpy()
    try:
        tf.nn.embedding_lookup(tables[1 - rank], [7])
    except ValueError as error:
        return own, str(error)


def test_a_localized_table_is_read_by_its_rank_alone(two_ranks):
    # Given a table on each rank, when a rank reads its own, and the other's
    for rank, (own, error) in enumerate(two_ranks.run(read_localized_on_rank)):
        # Then it needs no other rank, and the error says how all read a table
        np.testing.assert_array_equal(own, [[10 + rank, 0], [rank, rank]])
        assert f"expected to be read on rank {1 - rank}" in error and "sok.all2all" in error


def test_dynamic_variables_are_saved_in_a_model(tmp_path):
    module = tf.Module()
    module.tables = [sok.DynamicVariable(dimension=dim, name=f"served_{dim}") for dim in (2, 3, 1)]
    rows = [np.arange(table.shape[1]) + 10.0 * table.shape[1] for table in module.tables]
    for table, row in zip(module.tables, rows):
        sok.assign(table, [7], [row])
    module.serve = tf.function(
        lambda ids: [tf.nn.embedding_lookup(table, ids) for table in module.tables],
        [tf.TensorSpec([None], tf.int64)],
    )

    tf.saved_model.save(module, str(tmp_path))

    loaded = tf.saved_model.load(str(tmp_path))
    for served, row in zip(loaded.serve(tf.constant([7], tf.int64)), rows):
        np.testing.assert_array_equal(served, [row])
