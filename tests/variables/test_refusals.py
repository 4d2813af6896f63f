"""Calls that a keyed table does not support raise an error that says so."""

import pytest
import tensorflow as tf

import group_embedding as ge
from group_embedding.ops import _library, locate_rows


def loop(table, keys):
    def body(i, total):
        return i + 1, total + tf.reduce_sum(ge.group_embedding_lookup([table], [keys[i]])[0])

    return tf.while_loop(lambda i, _: i < 2, body, (0, 0.0))[1]


def map_over(table, keys):
    def of_sample(sample):
        return tf.reduce_sum(ge.group_embedding_lookup([table], [sample])[0])

    return tf.reduce_sum(tf.map_fn(of_sample, keys, fn_output_signature=tf.float32))


@pytest.mark.parametrize("look_up", [loop, map_over])
def test_gradients_of_lookups_in_a_loop_of_a_graph(look_up, make_table):
    table = make_table()
    optimizer = ge.optimizers.wrap(tf.keras.optimizers.SGD(1.0))
    keys = tf.constant([[1, 2], [2, 3]], tf.int64)

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = look_up(table, keys)
        optimizer.apply_gradients([(tape.gradient(loss, table), table)])

    with pytest.raises(TypeError, match="table 'user': expected a gradient of rows.*while_loop"):
        step()
    assert table.total_count() == 0
    assert tf.function(look_up)(table, keys) == 8  # which reads


def test_a_table_in_the_scope_of_a_strategy(make_table):
    strategy = tf.distribute.MirroredStrategy(["/cpu:0"])
    message = "table 'user': expected to be made outside .* got MirroredStrategy"

    with strategy.scope(), pytest.raises(ValueError, match=message):
        make_table()


@pytest.mark.parametrize(
    "changed, message",
    [
        ({"steps": [1, 2]}, "steps"),
        ({"table_of_feature": [1]}, "table_of_feature"),
        ({"learning": []}, "learning"),
        ({"sizes": [3, 1]}, "batch|sizes"),
    ],
)
def test_a_call_of_the_op_that_does_not_fit(changed, message, make_table, monkeypatch):
    table, library, calls = make_table(), locate_rows.library(), []

    class Recorder:
        @staticmethod
        def locate_rows(**arguments):
            calls.append(arguments)
            return library.locate_rows(**arguments)

    monkeypatch.setattr(locate_rows, "library", lambda: Recorder)
    ge.group_embedding_lookup([table], [tf.constant([[1, 2]], tf.int64)])

    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        library.locate_rows(**{**calls[0], **changed})
    assert table.total_count() == 0


@pytest.mark.parametrize(
    "attributes, message",
    [
        ({"dim": 2**31 - 1}, "'user', dim: expected 1 to 4096, got 2147483647"),
        ({"min_count": -1}, "'user', times that a key .*got -1"),
        ({"counter_bytes": 0}, "'user', bytes of a counter of the Bloom filter.*got 0"),
        ({"counter_bytes": 16}, "'user', bytes of a counter of the Bloom filter.*got 16"),
        ({"num_counters": 0}, "'user', counters of the Bloom filter.*got 0"),
        ({"num_counters": -1}, "'user', counters of the Bloom filter.*got -1"),
        ({"num_hashes": 1000}, "'user', hashes of the Bloom filter.*got 1000"),
        ({"max_bytes": -1}, "max_bytes.*expected 0 to 2\\^60, got -1"),
        ({"storage": "dram_ssdhash", "lower_max_bytes": -1}, "lower_max_bytes.*got -1"),
        ({"storage": "dram_ssdhash", "lowest_max_bytes": 2**62}, "lowest_max_bytes.*got 46116"),
    ],
    ids=str,
)
def test_attributes_that_no_table_can_have(attributes, message, make_table):
    # Given a table, and attributes such as a damaged SavedModel may have
    table = make_table()
    bloom = {"admission": "bloom", "min_count": 3, "num_counters": 64, "num_hashes": 4}
    attributes = {"dim": 2, "distribution": "constant", **bloom, **attributes}
    matrix = tf.zeros([0, attributes["dim"]])
    # When it is initialized with them, Then that is an error, and the table stays as it was
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        _library.library().initialize_embedding_table(
            table=table.table_handle, matrix=matrix, **attributes
        )
    assert int(table.total_count()) == 0
