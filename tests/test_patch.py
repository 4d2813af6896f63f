"""DeepRec's names on TensorFlow's modules."""

import tensorflow as tf

import group_embedding as ge


def DRAM():
    from tensorflow.core.framework.embedding import config_pb2

    assert config_pb2.CacheStrategy is ge.CacheStrategy
    return config_pb2.StorageType.DRAM


def test_deeprec_script_runs_with_one_line_more():
    # Given the one line
    ge.patch_tensorflow()
    # When a script calls DeepRec's names, in DeepRec's order of arguments
    table = tf.Variable([[1.0], [3.0]])
    ids = tf.SparseTensor([[0, 0], [0, 1]], [0, 1], [1, 2])
    out = tf.nn.group_embedding_lookup_sparse([table], [ids], ["mean"], "mod", None, "lookup")
    with tf.feature_column.group_embedding_column_scope(name="items"):
        pass
    keyed = tf.compat.v1.get_embedding_variable(
        "user", 2, ev_option=tf.EmbeddingVariableOption(filter_option=tf.CounterFilter(3))
    )
    item = tf.feature_column.categorical_column_with_embedding(
        "item",
        tf.int64,
        ev_option=tf.EmbeddingVariableOption(storage_option=tf.StorageOption(storage_type=DRAM())),
    )
    # Then they are this package's
    assert tf.feature_column.embedding_column(item, 2).name == "item_embedding"
    assert isinstance(keyed, ge.EmbeddingVariable)
    assert out[0].numpy().tolist() == [[2.0]]
    assert tf.nn.group_embedding_lookup is ge.group_embedding_lookup
    assert (
        tf.compat.v1.config.experimental.enable_distributed_strategy
        is ge.enable_distributed_strategy
    )
