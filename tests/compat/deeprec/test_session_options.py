"""DeepRec's session options on TensorFlow's messages."""

import logging

import pytest
import tensorflow as tf

from group_embedding.compat.deeprec.session_options import ExecutorPolicy, take_deeprec_options

v1 = tf.compat.v1


@pytest.fixture
def config():
    take_deeprec_options()
    return v1.ConfigProto()


def test_options_of_speed_change_nothing(config, caplog):
    # Given a config, and its bytes
    config.graph_options.optimizer_options.do_common_subexpression_elimination = True
    before = config.SerializeToString()
    # When DeepRec's options are set, one of them twice
    with caplog.at_level(logging.INFO):
        for _ in range(2):
            config.graph_options.optimizer_options.stage_multi_stream = True
        config.executor_policy = ExecutorPolicy.USE_INLINE_EXECUTOR
        config.graph_options.optimizer_options.do_op_fusion = False
    # Then each that is on is named once, and a session runs with the config as it was
    assert caplog.text.count("stage_multi_stream") == 1 and "executor_policy" in caplog.text
    assert "do_op_fusion" not in caplog.text
    assert config.SerializeToString() == before
    with tf.Graph().as_default(), v1.Session(config=config) as session:
        assert session.run(tf.constant(3)) == 3


def test_micro_batches_are_refused(config):
    config.graph_options.optimizer_options.micro_batch_num = 1
    with pytest.raises(ValueError, match="micro_batch_num: expected 0 or 1, got 4"):
        config.graph_options.optimizer_options.micro_batch_num = 4


def test_tensorflows_own_fields_stay(config):
    config.allow_soft_placement = True
    config.graph_options.optimizer_options.global_jit_level = v1.OptimizerOptions.ON_1
    assert config.allow_soft_placement
    with pytest.raises(AttributeError):
        config.do_smart_staged = True
    with pytest.raises(TypeError):
        config.inter_op_parallelism_threads = "two"
