"""The host's work for many features grows as their number does. Counted are calls of functions, as
their number is the same on every run, on any machine."""

import sys

import pytest
import tensorflow as tf

import group_embedding as ge

FEW, MANY = 40, 160
# A square within it, such as a comparison of each table with all others, is well above.
LARGEST_GROWTH = 1.05 * MANY / FEW


def calls_of(function):
    """The functions that `function` calls, (file, name) each time."""
    calls = []

    def note(frame, event, argument):
        del argument
        if event in ("call", "c_call"):
            calls.append((frame.f_code.co_filename, frame.f_code.co_name))

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(before)
    return calls


def ids_of(count):
    return {f"f{i}": tf.ragged.constant([[1, 2], [3]]) for i in range(count)}


def layer_of(count, num_rows=10):
    return ge.layers.GroupEmbedding(
        [ge.FeatureConfig(f"f{i}", ge.TableConfig(f"t{i}", num_rows, 2)) for i in range(count)],
        concat=True,
    )


def make_and_read_weights(count):
    layer = layer_of(count)

    def run():
        layer.build()
        for _ in range(4):
            assert len(layer.trainable_variables) == count

    return run


def train_eagerly(count, num_rows=10):
    layer, ids = layer_of(count, num_rows), ids_of(count)
    layer.build()
    variables = layer.trainable_variables
    optimizer = ge.optimizers.wrap(tf.keras.optimizers.Adagrad(0.1))
    optimizer.build(variables)

    def run():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer(ids))
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))

    return run


def train_by_key(count):
    return train_eagerly(count, num_rows=None)


def trace(count):
    step = tf.function(train_eagerly(count))
    return step.get_concrete_function


def trace_lookups(count):
    tables, ids = [tf.Variable(tf.zeros([10, 2])) for _ in range(count)], [*ids_of(count).values()]

    @tf.function
    def look_up():
        return ge.group_embedding_lookup_sparse(tables, ids, "sum")

    return look_up.get_concrete_function


@pytest.mark.parametrize(
    "make", [make_and_read_weights, train_eagerly, train_by_key, trace, trace_lookups]
)
def test_work_grows_as_the_number_of_features(make):
    make(3)()  # what is done once in a process
    few, many = (len(calls_of(make(count))) for count in (FEW, MANY))
    assert many < LARGEST_GROWTH * few


@pytest.mark.parametrize("way", ["lookup", "dense lookup", "route"])
def test_lookups_are_not_converted_by_autograph(way):
    # Given a function of a user that looks up
    table, ids = tf.Variable(tf.zeros([10, 2])), tf.ragged.constant([[1, 2], [3]])

    @tf.function
    def look_up():
        if way == "lookup":
            return ge.group_embedding_lookup_sparse([table], [ids], "sum")
        if way == "dense lookup":
            return ge.group_embedding_lookup([table], [ids.values])
        return ge.route_ids([table], [ids], "sum").batches

    # When it is traced
    calls = calls_of(look_up.get_concrete_function)
    # Then it alone has been rewritten
    converted = {name for file, name in calls if "__autograph_generated_file" in file}
    assert {name for name in converted if name.startswith("tf__")} == {"tf__look_up"}
