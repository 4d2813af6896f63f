"""The exchange among ranks of one host: Horovod's, but for what goes from CPU to CPU in each step,
which goes through memory that they share."""

import json
import warnings
from pathlib import Path

import tensorflow as tf

from group_embedding.ops.host_exchange import HostExchange
from group_embedding.ops.pending_calls import pending_calls
from group_embedding.ranks.exchange.gather_strings import gather_text
from group_embedding.ranks.exchange.horovod import HorovodExchange, describe_tensors

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")  # the same for all processes of a host


class HostMemoryExchange(HorovodExchange):
    """An exchange through memory that the ranks of a host share. Made by `join_host`.

    Args:
        has_gpus: whether ranks see GPUs. If so, only tensors that an explicit `tf.device` puts on
            the CPU are exchanged through host memory; Horovod exchanges all others. All ranks must
            choose alike.
    """

    def __init__(self, memory, has_gpus):
        super().__init__()
        self._memory, self._has_gpus = memory, has_gpus

    def alltoall(self, tensor, splits, name, what=None):
        tensor = tf.convert_to_tensor(tensor)
        if self._has_gpus and not _is_on_cpu(tensor):
            return super().alltoall(tensor, splits, name, what)
        return self._memory.alltoall(tensor, splits, name, what)

    def exchange_rows(self, rows, sent, received, dims, wire, name, what):
        del dims  # `rows` have them
        scale = 1 / self.gradient_divisor
        return self._memory.exchange_rows(rows, sent, received, wire, scale, name, what)

    def looks_up(self, tables):
        return all(table.device_type == "CPU" for table in tables)

    def look_up_rows(self, group, batch, sent, received, wire, name, what):
        scale = 1 / self.gradient_divisor
        return self._memory.look_up_rows(group, batch, sent, received, wire, scale, name, what)

    def allgather_gradients(self, tensors, name):
        if self._has_gpus:
            return super().allgather_gradients(tensors, name)
        return [
            self._tell_all(
                t, f"{name}_{i}", f"{name}, tensor {i} of {len(tensors)}: {t.dtype.name}"
            )
            for i, t in enumerate(tensors)
        ]

    def _average_of_one_dtype(self, tensors, name):
        if self._has_gpus:
            return super()._average_of_one_dtype(tensors, name)
        flat = tf.concat([tf.reshape(tensor, [-1]) for tensor in tensors], 0)
        mean = self._average_vector(flat, name, describe_tensors(tensors, name))
        means = tf.split(mean, [tf.size(t) for t in tensors])
        return [tf.reshape(mean, tf.shape(t)) for mean, t in zip(means, tensors)]

    def _average_vector(self, vector, name, what):
        """Each rank averages a part of it, and sends that to all."""
        size = tf.size(vector)
        part = -(-size // self.num_ranks)
        splits = tf.fill([self.num_ranks], part)
        padded = tf.pad(vector, [[0, part * self.num_ranks - size]])
        mine, _ = self.alltoall(padded, splits, f"{name}_parts", what)
        mean = tf.reduce_sum(tf.reshape(mine, [self.num_ranks, part]), 0) / self.num_ranks
        return self._tell_all(mean, f"{name}_means", what)[:size]

    def _tell_all(self, tensor, name, what):
        """Returns the tensors of all ranks, in the order of ranks."""
        copies = tf.concat([tensor] * self.num_ranks, 0)
        splits = tf.fill([self.num_ranks], tf.shape(tensor)[0])
        return self.alltoall(copies, splits, name, what)[0]

    def pending_calls(self):
        return pending_calls(self._memory.number)

    def end(self, reason, all_live=False):
        self._memory.end(reason)
        super().end(reason, all_live)

    def close(self):
        self._memory.close()
        super().close()


def join_host(horovod):
    """Returns a HostMemoryExchange if all ranks are on one host and share its memory, else the
    HorovodExchange itself. A collective call."""
    memory, why = _attempt(HostExchange, horovod.rank, horovod.num_ranks)
    has_gpus = bool(tf.config.get_visible_devices("GPU"))
    address = memory.address if memory else ""
    mine = {"kind": [_BOOT_ID.read_text(), has_gpus], "address": address}
    of_ranks = [json.loads(text) for text in gather_text(horovod, json.dumps(mine), "host_memory")]
    are_alike = all(rank["kind"] == mine["kind"] for rank in of_ranks)
    addresses = [rank["address"] for rank in of_ranks]
    if are_alike and all(addresses):
        _, why = _attempt(memory.join, addresses)
    reasons = gather_text(horovod, why, "host_memory_joined")
    if are_alike and not any(reasons):
        return HostMemoryExchange(memory, has_gpus)
    if memory:
        memory.close()
    if are_alike and horovod.rank == 0:
        _warn(reasons)
    return horovod


def _attempt(function, *args):
    """Its result, and why there is none."""
    try:
        return function(*args), ""
    except OSError as error:
        return None, str(error)


def _warn(reasons):
    rank, why = next((rank, why) for rank, why in enumerate(reasons) if why)
    warnings.warn(
        "the ranks of this host share no memory, and use Horovod's alltoall, which is slower: "
        f"rank {rank}: {why}",
        stacklevel=4,  # the caller of enable_distributed_strategy
    )


def _is_on_cpu(tensor):
    return tf.DeviceSpec.from_string(tensor.device or "").device_type == "CPU"
