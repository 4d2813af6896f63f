"""What a table of keys cannot do is refused with a sentence."""

import pytest
import tensorflow as tf

import group_embedding as ge
from group_embedding.ops import locate_rows


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
