"""Functions that train tables: they capture one handle for all tables, and one for all slots."""

import functools
import gc
import os
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

import group_embedding as ge
from group_embedding.ops import variable_handles
from group_embedding.ops._library import library

ROWS, DIMS = 9, (2, 3, 2, 4)


def make_tables(seed, trainable=(True, True, True, True)):
    rng = np.random.default_rng(seed)
    return [
        tf.Variable(rng.normal(size=(ROWS, dim)).astype("float32"), trainable=t, name=f"table_{i}")
        for i, (dim, t) in enumerate(zip(DIMS, trainable))
    ]


def make_ids(seed):
    rng = np.random.default_rng(seed)
    splits = [0, 2, 2, 6]
    return [tf.RaggedTensor.from_row_splits(rng.integers(0, ROWS, 6), splits) for _ in DIMS]


def make_optimizer(tables):
    optimizer = ge.optimizers.wrap(tf.keras.optimizers.Adagrad(0.1))
    optimizer.build(tables)
    return optimizer


def look_up(tables, ids):
    vectors = ge.group_embedding_lookup_sparse(tables, ids, "sum")
    return sum(tf.reduce_sum(v * v * (1.0 + i)) for i, v in enumerate(vectors))


def train(tables, ids, optimizer, trained=None):
    trained = tables if trained is None else trained
    with tf.GradientTape() as tape:
        loss = look_up(tables, ids)
    optimizer.apply_gradients(zip(tape.gradient(loss, trained), trained))
    return loss


def captured_handles(function):
    """The numbers of handles that a traced function captures: of one variable, and of packs."""
    shapes = [t.shape.rank for t in function.captured_inputs if t.dtype == tf.resource]
    return shapes.count(0), shapes.count(1)


def assert_equal_to_eager(step, seed=5, calls=3):
    """`step(tables, ids, optimizer)` gives the same results and leaves the same tables and slots in
    eager code, and in functions that capture the tables, or are given them. Returns the first."""
    results, functions = [], []
    for way in ("eager", "captured", "given"):
        tables, ids = make_tables(seed), make_ids(seed)
        optimizer = make_optimizer(tables)
        call = functools.partial(step, tables, ids, optimizer)
        if way == "captured":
            call = tf.function(functools.partial(lambda call: call(), call))
            functions.append(call.get_concrete_function())
        if way == "given":
            given = tf.function(
                lambda tables, optimizer=optimizer, ids=ids: step(tables, ids, optimizer)
            )
            call = functools.partial(given, tables)
        made = [tf.nest.map_structure(lambda t: t.numpy(), call()) for _ in range(calls)]
        variables = optimizer.variables
        slots = variables() if callable(variables) else variables
        results.append([made, [t.numpy() for t in tables], [np.asarray(s) for s in slots[1:]]])
    for others in results[1:]:
        tf.nest.map_structure(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), results[0], others
        )
    return functions[0]


def test_a_training_function_captures_one_handle_for_tables_and_one_for_slots():
    # Given a step of four tables
    # When it runs in a function, then it does what it does in eager code
    function = assert_equal_to_eager(train)

    # And captures a handle for all tables and one for all slots, beside the optimizer's numbers
    of_one, of_packs = captured_handles(function)
    assert of_packs == 2
    assert of_one <= 2


def test_what_a_step_does_to_a_single_table_keeps_its_place():
    # Given a step that writes and reads single tables and slots between lookup and update
    def step(tables, ids, optimizer):
        tables[0].assign_add(tf.ones([ROWS, DIMS[0]]))
        with tf.GradientTape() as tape:
            loss = look_up(tables, ids)
        before = tables[1].read_value()
        tables[2].scatter_nd_update([[1]], tf.zeros([1, DIMS[2]]))
        optimizer.apply_gradients(zip(tape.gradient(loss, tables), tables))
        after = tables[1].read_value()
        tables[1].assign(tables[1] * 0.5)
        again = look_up(tables, ids)
        return loss, before, after, again

    # When it runs in a function, then reads and writes happen as they stand
    function = assert_equal_to_eager(step)

    # And only the tables that it touches have a handle of their own
    of_one, of_packs = captured_handles(function)
    assert of_packs >= 2
    assert of_one <= 2 + len(DIMS)  # `again` is not differentiated


@pytest.mark.parametrize("inside", ["function", "branch", "loop"])
def test_order_holds_around_functions_branches_and_loops(inside):
    # Given a step in an inner function, a branch or a loop, and reads and writes around it
    def step(tables, ids, optimizer):
        def body():
            total = tf.reduce_sum(tables[0])
            return total + train(tables, ids, optimizer)

        tables[0].assign(tables[0] * 2.0)
        if inside == "function":
            loss = tf.function(body)()
        elif inside == "branch":
            loss = tf.cond(tf.reduce_sum(tables[3]) < 1e9, body, lambda: 0.0)
        else:
            _, loss = tf.while_loop(
                lambda i, _: i < 3, lambda i, _: (i + 1, body()), [0, 0.0], parallel_iterations=1
            )
        after = tables[0].read_value()
        tables[0].assign(after - 1.0)
        return loss, after

    # When it runs in a function, then all happens in order
    assert_equal_to_eager(step)


def test_two_updates_of_overlapping_tables_are_ordered():
    # Given a step that trains three tables, then three of which two are the same
    def step(tables, ids, optimizer):
        first = train(tables[:3], ids[:3], optimizer)
        second = train(tables[1:], ids[1:], optimizer)
        return first, second

    # When it runs in a function, then the second lookup reads what the first update wrote
    assert_equal_to_eager(step)


def test_frozen_tables_are_read_with_their_group():
    # Given a step that trains two of four tables
    def step(tables, ids, optimizer):
        return train(tables, ids, optimizer, trained=tables[1:3])

    # When it runs in a function, then the others stay as they are, and none has its own handle
    function = assert_equal_to_eager(step)
    assert captured_handles(function)[0] <= 2


def test_a_function_that_only_looks_up_is_differentiated_from_outside():
    # Given a function of a lookup
    tables, ids = make_tables(1), make_ids(1)
    function = tf.function(lambda: look_up(tables, ids))

    # When a tape outside differentiates it
    with tf.GradientTape() as tape:
        loss = function()
    found = tape.gradient(loss, tables)

    # Then the gradients are those of eager code
    with tf.GradientTape() as tape:
        loss = look_up(tables, ids)
    for got, expected in zip(found, tape.gradient(loss, tables)):
        np.testing.assert_allclose(tf.convert_to_tensor(got), tf.convert_to_tensor(expected))


def test_the_gradient_of_a_branch_is_that_of_its_lookup():
    # Given a lookup in a branch of a function, which differentiates it and updates the tables
    def step(tables, ids, optimizer):
        with tf.GradientTape() as tape:
            total = tf.reduce_sum(tables[0])
            loss = tf.cond(
                total < 1e9, lambda: look_up(tables, ids), lambda: look_up(tables, ids[::-1])
            )
        gradients = tape.gradient(loss, tables)
        optimizer.apply_gradients(zip(gradients, tables))
        return loss

    # When it runs in a function, then tables change as in eager code
    assert_equal_to_eager(step)


def test_a_training_function_is_exported_and_trains_elsewhere(tmp_path):
    # Given a module with a function that trains, called before
    tables, ids = make_tables(2), make_ids(2)
    module = tf.Module()
    module.tables, module.optimizer = tables, make_optimizer(tables)
    module.step = tf.function(lambda: train(tables, ids, module.optimizer))
    module.step()

    # When it is saved, and loaded
    tf.saved_model.save(module, str(tmp_path))
    loaded = tf.saved_model.load(str(tmp_path))

    # Then the loaded function goes on as the first one does
    np.testing.assert_allclose(loaded.step(), module.step(), rtol=1e-6)
    np.testing.assert_allclose(loaded.step(), module.step(), rtol=1e-6)


def test_functions_see_tables_that_a_checkpoint_restored(tmp_path):
    # Given a checkpoint of tables and slots, and a function that has trained since
    tables, ids = make_tables(3), make_ids(3)
    optimizer = make_optimizer(tables)
    step = tf.function(lambda: train(tables, ids, optimizer))
    checkpoint = tf.train.Checkpoint(tables=tables, optimizer=optimizer)
    path = checkpoint.write(str(tmp_path / "model"))
    first = [step().numpy() for _ in range(3)]

    # When it is restored, then the function repeats its losses
    checkpoint.read(path).assert_consumed()
    np.testing.assert_allclose([step().numpy() for _ in range(3)], first, rtol=1e-6)


def test_tables_go_with_their_pack(tmp_path):
    # Given tables, which have folders of their own as long as they live, and a pack of them
    tables = [
        ge.keyed_table(
            f"on_disk_{i}", 4, tiers=["dram", "disk"], tier_bytes=[1 << 16], disk_folder=tmp_path
        )
        for i in range(2)
    ]
    handles = [table.table_handle for table in tables]
    pack = variable_handles._known_pack(handles)
    assert variable_handles._known_pack(handles) is pack
    # When nobody has the tables any more, Then the pack keeps them
    del tables, handles
    gc.collect()
    assert len(os.listdir(tmp_path)) == 2
    # And when nobody has the pack, Then they are gone
    del pack
    gc.collect()
    assert os.listdir(tmp_path) == []


# Trains three tables, packed by a function that lives until the program ends.
PROGRAM_WITH_A_PACK = """
import os, sys
import tensorflow as tf
import group_embedding as ge

options = {"tiers": ["dram", "disk"], "tier_bytes": [1 << 16], "disk_folder": sys.argv[1]}
tables = [ge.keyed_table(f"on_disk_{i}", 4, **options) for i in range(3)]
optimizer = ge.optimizers.wrap(tf.keras.optimizers.Adagrad(0.1))

@tf.function
def step(ids):
    with tf.GradientTape() as tape:
        loss = tf.add_n([tf.reduce_sum(rows**2) for rows in ge.lookup(tables, [ids] * 3)])
    optimizer.apply_gradients(zip(tape.gradient(loss, tables), tables))

step(tf.range(9, dtype=tf.int64))
print(len(os.listdir(sys.argv[1])))
"""


def test_tables_with_a_pack_go_when_their_program_ends(tmp_path):
    # Given a program with three tables, which have folders of their own, and a pack of them
    command = [sys.executable, "-c", PROGRAM_WITH_A_PACK, str(tmp_path)]

    # When the program ends
    run = subprocess.run(command, capture_output=True, text=True, check=True)

    # Then it had the folders, and they are gone
    assert run.stdout.split() == ["3"]
    assert os.listdir(tmp_path) == []


def test_packed_handles_of_another_number_are_refused():
    # Given one handle of three tables, and an op that has two
    handles = [tf.Variable(tf.ones([4, 2])).handle for _ in range(3)]
    packed = library().pack_handles(handles=handles)
    sizes = tf.zeros([3, 2], tf.int64)
    attrs = {"dims": [2, 2], "max_norms": [0.0, 0.0], "table_names": ["a", "b"]}

    # When it is called, then the error says what it expects
    with pytest.raises(tf.errors.InvalidArgumentError, match="tables: expected one for each"):
        library().group_lookup(
            tables=[packed],
            batch=tf.zeros([0]),
            sizes=sizes,
            keyed_tables=[],
            keyed=[],
            dtype=tf.float32,
            **attrs,
            num_outputs=2,
            table_of_feature=[0, 1],
            combiners=["sum", "sum"],
            feature_names=["a", "b"],
            concat=False,
            weighted=False,
            prune_negative=True,
            invalid_ids="raise",
        )


def test_handles_that_are_no_scalars_are_refused():
    # Given the handle of handles
    handle = tf.Variable(tf.ones([4, 2])).handle
    packed = library().pack_handles(handles=[handle, handle])

    # When it is packed again, then the error names its shape
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"expected scalars, got shape \[1\]"):
        library().pack_handles(handles=[handle, packed])
