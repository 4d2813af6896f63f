"""Scripts as people have them for DeepRec, each in a process of its own."""

import pytest
import tensorflow as tf2

v1 = tf2.compat.v1

SCRIPT = """
{imports}
from tensorflow.core.framework.embedding import config_pb2
from tensorflow.python.distribute.group_embedding_collective_strategy import CollectiveStrategy
from tensorflow.python.ops import kv_variable_ops, variable_scope, variables
from tensorflow.contrib.layers.python.layers import feature_column
from tensorflow.contrib.rnn.python.ops.core_rnn_cell import _Linear

tf.logging.set_verbosity(tf.logging.INFO)
tf.app.flags.DEFINE_integer("steps", 3, "how many")


def main(_):
    tf.set_random_seed(1)
    storage = tf.StorageOption(storage_type=config_pb2.StorageType.DRAM)
    option = variables.EmbeddingVariableOption(storage_option=storage)
    user = tf.get_embedding_variable("user", 4, ev_option=option, initializer=tf.ones_initializer())
    item = variable_scope.get_embedding_variable("item", 4, initializer=tf.ones_initializer())
    assert isinstance(item, kv_variable_ops.EmbeddingVariable)
    ids = tf.placeholder(tf.int64, [None])
    rows = tf.concat([tf.nn.embedding_lookup(table, ids) for table in (user, item)], 1)
    out = tf.layers.dense(rows, 1, kernel_initializer=tf.ones_initializer(), name="top")
    loss = tf.reduce_sum(tf.square(out))
    step = tf.train.get_or_create_global_step()
    with CollectiveStrategy().scope():
        train = tf.train.AdagradOptimizer(0.1).minimize(loss, global_step=step)
    hooks = [tf.train.StopAtStepHook(tf.app.flags.FLAGS.steps)]
    exported = user.export()
    with tf.train.MonitoredTrainingSession(hooks=hooks) as session:
        session.run(tf.get_collection(tf.GraphKeys.EV_INIT_VAR_OPS), {{ids: [0]}})
        while not session.should_stop():
            value, keys, _ = session.run([loss, exported.keys, train], {{ids: [7, 2**40]}})
    print("loss", value, "keys", keys.tolist())


if __name__ == "__main__":
    tf.app.run()
"""


def test_script_runs_with_its_import_changed(run_script):
    pytest.importorskip("horovod")
    # Given a script for DeepRec
    imports = "import group_embedding.deeprec as tf"
    # When it runs with that import in the place of TensorFlow's
    printed = run_script(SCRIPT.format(imports=imports))
    # Then both tables are trained
    assert "keys [7, 1099511627776]" in printed


@pytest.mark.slow
def test_script_runs_with_tensorflow_patched(run_script):
    pytest.importorskip("horovod")
    # Given a script for DeepRec whose import stays, and lines that patch TensorFlow
    imports = (
        "import tensorflow as tf\nimport group_embedding as ge\nge.patch_tensorflow()\n"
        "tf.compat.v1.disable_v2_behavior()"
    )
    # When it runs
    printed = run_script(SCRIPT.format(imports=imports))
    # Then it trains as with the import changed
    assert printed == run_script(SCRIPT.format(imports="import group_embedding.deeprec as tf"))


def test_patched_tensorflow_stays_version_2(run_script):
    # Given TensorFlow 2, patched twice
    # When a script uses both versions' names, and wraps an optimizer by hand
    printed = run_script("""
import tensorflow as tf
import group_embedding as ge

ge.patch_tensorflow()
ge.patch_tensorflow()
from tensorflow.core.framework.embedding import config_pb2

table = tf.Variable([[1.0], [3.0]])
ids = tf.SparseTensor([[0, 0], [0, 1]], [0, 1], [1, 2])
out = tf.nn.group_embedding_lookup_sparse([table], [ids], ["mean"], "mod", None, "lookup")
assert out[0].numpy().tolist() == [[2.0]]
option = tf.EmbeddingVariableOption(
    filter_option=tf.CounterFilter(3),
    storage_option=tf.StorageOption(storage_type=config_pb2.StorageType.DRAM),
)
assert isinstance(tf.compat.v1.get_embedding_variable("user", 2, ev_option=option),
                  ge.EmbeddingVariable)
item = tf.feature_column.categorical_column_with_embedding("item", tf.int64)
assert tf.feature_column.embedding_column(item, 2).name == "item_embedding"
assert config_pb2.CacheStrategy is ge.CacheStrategy
assert tf.compat.v1.nn.group_embedding_lookup is ge.group_embedding_lookup
assert tf.placeholder is tf.compat.v1.placeholder
assert tf.concat([[1], [2]], 0).numpy().tolist() == [1, 2]
assert tf.train.Checkpoint is not tf.compat.v1.train.Checkpoint

other = ge.get_embedding_variable("other", 2, initializer=tf.ones_initializer())
optimizer = ge.optimizers.wrap(tf.compat.v1.train.GradientDescentOptimizer(1.0))
with tf.GradientTape() as tape:
    loss = tf.reduce_sum(ge.group_embedding_lookup([other], [tf.constant([5], tf.int64)])[0])
optimizer.apply_gradients([(tape.gradient(loss, other), other)])
print(other.export().values.numpy().tolist())
""")
    # Then each means what it did, and the table is trained once
    assert printed.strip() == "[[0.0, 0.0]]"


def test_estimators_are_there_or_the_error_says_what_to_use(tf):
    # When a script asks for Estimators, which TensorFlow has up to 2.15
    if hasattr(v1, "estimator"):
        assert tf.estimator.Estimator is v1.estimator.Estimator
    else:
        # Then a later one says so
        with pytest.raises(AttributeError, match=r"no Estimators.*MonitoredTrainingSession"):
            tf.estimator  # noqa: B018
        assert not hasattr(tf, "estimator")
    with pytest.raises(AttributeError, match="no_such_name"):
        tf.no_such_name  # noqa: B018
