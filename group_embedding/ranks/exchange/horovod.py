"""The exchange over Horovod: Gloo on CPUs, NCCL where Horovod was built with it.

Imported only by `enable_distributed_strategy`, after it has found Horovod.
"""

import threading

import horovod.tensorflow as hvd
import tensorflow as tf
from horovod.common.exceptions import HorovodInternalError
from horovod.tensorflow import elastic

from group_embedding.ops.pending_calls import marked, pending_calls
from group_embedding.ranks.exchange.check_network import check_network
from group_embedding.ranks.exchange.interface import Exchange
from group_embedding.ranks.exchange.liveness import SIGNS_OF_A_LOSS

_SHUTDOWN_SECONDS = 3.0

# What Horovod's TensorFlow ops do not take travels as the same bits of another type.
_SAME_BITS = {tf.bfloat16: tf.uint16, tf.uint32: tf.int32, tf.uint64: tf.int64}

# What the errors of collectives say that failed because a rank had ended.
_SIGNS_OF_A_LOSS = (*SIGNS_OF_A_LOSS, "nccl")


class HorovodExchange(Exchange):
    """The ranks that `horovodrun` launched; one process when it did not launch this one."""

    def __init__(self):
        if not hvd.is_initialized():
            check_network()
        hvd.init()
        self._rank, self._num_ranks = hvd.rank(), hvd.size()
        self._shutdown = None  # the thread in which Horovod ends

    @property
    def rank(self):
        return self._rank

    @property
    def num_ranks(self):
        return self._num_ranks

    @property
    def local_rank(self):
        """The index of this process among those of its host, which share its GPUs."""
        return hvd.local_rank()

    @property
    def ranks_of_host(self):
        """How many processes of this host take part."""
        return hvd.local_size()

    def alltoall(self, tensor, splits, name, what=None):
        tensor, what = tf.convert_to_tensor(tensor), what or name
        if not tf.executing_eagerly() or not tensor.dtype.is_floating:
            return self._alltoall(tensor, splits, name, what)

        @tf.custom_gradient
        def alltoall(tensor):
            """Whose gradient, where it fails, says which call it is of. In graphs its op does."""
            received, received_splits = self._alltoall(tensor, splits, name, what)

            def gradient(of_received, _):
                back = f"{name}_gradient", f"gradients of {what}"
                return self._alltoall(of_received, received_splits, *back)[0]

            return (received, received_splits), gradient

        return alltoall(tensor)

    def _alltoall(self, tensor, splits, name, what):
        splits = _hide(tf.convert_to_tensor(splits))
        # Not by its bits, which would have no gradient.
        carried = tf.cast(tensor, tf.float32) if tensor.dtype == tf.bfloat16 else tensor

        def alltoall(tensors, name):
            return hvd.alltoall(tensors[0], splits, name=name)

        received, received_splits = marked(alltoall, [_as_carried(carried)], name, what)
        with tf.control_dependencies([_read(received_splits)]):
            received = tf.identity(received)
        received.set_shape([None, *tensor.shape[1:]])
        if tensor.dtype == tf.bfloat16:
            received = tf.cast(received, tf.bfloat16)
        return _as(tensor.dtype, received), received_splits

    def average(self, tensors, name):
        def average(group):
            return self._average_of_one_dtype(group, name)

        # Horovod's TensorFlow ops know no bfloat16, and its sum of float16 is one of float16.
        wide = [
            tf.cast(t, tf.float32) if t.dtype in (tf.bfloat16, tf.float16) else t for t in tensors
        ]
        return [tf.cast(w, t.dtype) for w, t in zip(_by_dtype(wide, average), tensors)]

    def _average_of_one_dtype(self, tensors, name):
        def average(group, name):
            return hvd.grouped_allreduce(group, op=hvd.Average, name=name)

        return marked(average, tensors, name, describe_tensors(tensors, name))

    def allgather(self, tensors, name):
        def allgather(group):
            return marked(hvd.grouped_allgather, group, name, name)

        tensors = [tf.convert_to_tensor(tensor) for tensor in tensors]
        carried = [_hide(_as_carried(tensor)) for tensor in tensors]
        return [_as(t.dtype, c) for t, c in zip(tensors, _by_dtype(carried, allgather))]

    def broadcast(self, tensors, name):
        results = []
        for i, tensor in enumerate(map(tf.convert_to_tensor, tensors)):
            flat = _hide(tf.reshape(_as_carried(tensor), [-1]))
            (result,) = marked(
                lambda tensors, name: [hvd.broadcast(tensors[0], 0, name=name)],
                [flat],
                f"{name}_{i}",
                name,
            )
            results.append(_as(tensor.dtype, tf.reshape(result, tf.shape(tensor))))
        return results

    def pending_calls(self):
        return pending_calls()

    def end(self, reason, all_live=False):
        del reason  # Horovod gives its own; the watch prints this one before
        if all_live and self._shutdown is None and pending_calls():  # its own ones
            self._shutdown = threading.Thread(target=hvd.shutdown, daemon=True)
            self._shutdown.start()
        elif self._shutdown is not None:
            self.close()

    def close(self):
        if self._shutdown is not None:  # Horovod's own exit handler must not be beside it
            self._shutdown.join(_SHUTDOWN_SECONDS)

    def barrier(self, name):
        (met,) = self.average([tf.timestamp()], name)
        return _read(met)


def repeat_on_loss(attempt):
    """Returns `attempt()`. If a collective in it failed because a rank had ended, calls it again
    once Horovod has gathered the remaining ranks (under Horovod Elastic)."""

    @elastic.run
    def repeated(state):
        del state
        try:
            return attempt()
        except tf.errors.OpError as error:
            # Horovod's decorator would take the failure of an alltoall for the end of the training.
            if not any(sign in str(error) for sign in _SIGNS_OF_A_LOSS):
                raise
            raise HorovodInternalError(error) from error

    # It holds no state: the checkpoint holds all of it.
    return repeated(elastic.ObjectState(hvd.broadcast_object, hvd.rank))


# TensorFlow takes Horovod's ops for pure functions. While it infers shapes, or optimizes a graph,
# it would compute one of constants, once and for all, and leave one out that nobody reads, or whose
# result is known to be empty, though other ranks wait for it. So constants are hidden, and an op
# with side effects reads the results.


def describe_tensors(tensors, name):
    """Describes a call with tensors of the same shapes on all ranks: its name, and one line per
    tensor."""
    lines = [f"tensor {i}: {t.dtype.name} {t.shape}" for i, t in enumerate(tensors)]
    return "\n".join([name, *lines])


def _hide(tensor):
    """`tensor`, of a first axis that looks as if it depended on the time; no copy."""
    if tf.executing_eagerly():
        return tensor
    none = tf.cast(tf.timestamp() < 0, tf.int32)
    hidden = tensor[: tf.shape(tensor)[0] + none]
    hidden.set_shape([None, *tensor.shape[1:]])
    return hidden


def _read(values):
    total = tf.reduce_sum(values)
    return tf.raw_ops.Assert(condition=total >= 0, data=[total])


def _by_dtype(tensors, collective):
    """Calls `collective` once for each dtype, as its op takes lists of one."""
    results = [None] * len(tensors)
    for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
        places = [i for i, tensor in enumerate(tensors) if tensor.dtype == dtype]
        for place, result in zip(places, collective([tensors[i] for i in places])):
            results[place] = result
    return results


def _as_carried(tensor):
    return _as(_SAME_BITS.get(tensor.dtype, tensor.dtype), tensor)


def _as(dtype, tensor):
    return tensor if tensor.dtype == dtype else tf.bitcast(tensor, dtype)
