"""DeepRec's session options, which TensorFlow's ConfigProto does not have."""

import enum
import functools
import logging

import tensorflow as tf

_log = logging.getLogger(__name__)

# These make DeepRec's own runtime faster, and change no result.
_OF_SPEED = (
    "do_async_embedding",
    "do_op_fusion",
    "do_smart_stage",
    "do_smart_stage_gpu",
    "embedding_layer_device_placement_optimization",
    "executor_policy",
    "stage_multi_stream",
    "stage_subgraph_on_cpu",
)


class ExecutorPolicy(enum.IntEnum):
    """DeepRec's executors. TensorFlow has one, so that a choice changes nothing."""

    USE_NORMAL_EXECUTOR = 0
    USE_COST_MODEL_EXECUTOR = 1
    USE_INLINE_EXECUTOR = 2


@functools.cache
def take_deeprec_options():
    """Lets `tf.compat.v1.ConfigProto` and its OptimizerOptions take DeepRec's options.

    Those that only make DeepRec faster are logged, once each, and change nothing. A
    `micro_batch_num` above 1 is a ValueError, as it would change what a step computes.
    """
    for message in (tf.compat.v1.ConfigProto, tf.compat.v1.OptimizerOptions):
        message.__setattr__ = _taking(message.__setattr__)


def _taking(set_field):
    @functools.wraps(set_field)
    def __setattr__(message, name, value):  # noqa: N807
        if name in message.DESCRIPTOR.fields_by_name:
            set_field(message, name, value)
        elif name in _OF_SPEED:
            if value:
                _say_once(name)
        elif name == "micro_batch_num":
            _check_micro_batch_num(value)
        else:
            set_field(message, name, value)  # TensorFlow's own error

    return __setattr__


@functools.cache
def _say_once(name):
    _log.info("session option %s: changes nothing here; it makes DeepRec's runtime faster", name)


def _check_micro_batch_num(number):
    if number > 1:
        raise ValueError(
            f"micro_batch_num: expected 0 or 1, got {number}: TensorFlow does not split steps into "
            "micro batches; read batches of the size that a step shall have, and leave the option "
            "out (--micro_batch 0)"
        )
