"""The exchange among ranks by messages of this library: through memory that the ranks of a host
share, and over TCP between hosts. Horovod launches the ranks, and reduces tensors on GPUs."""

import json
import os
import socket
import warnings
from pathlib import Path

import tensorflow as tf

from group_embedding.ops.host_exchange import HostExchange
from group_embedding.ops.pending_calls import pending_calls
from group_embedding.ranks.exchange.gather_strings import gather_text
from group_embedding.ranks.exchange.horovod import HorovodExchange, describe_tensors
from group_embedding.ranks.exchange.interface import ExchangeUse
from group_embedding.ranks.exchange.liveness.connections import Connector
from group_embedding.ranks.exchange.liveness.identity import network_of_host
from group_embedding.ranks.exchange.liveness.lines import make_token
from group_embedding.ranks.exchange.liveness.own_address import listening_address
from group_embedding.ranks.exchange.within_host import ExchangeWithinHost, proxies_of

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")  # the same for all processes of a host
_MARGIN_SECONDS = 30  # by which TCP waits longer than the watch, which gives the name of a rank


class MessageExchange(HorovodExchange):
    """An exchange by messages from host memory to host memory. Made by `join_by_messages`.

    Args:
        has_gpus: whether ranks see GPUs. If so, only tensors that an explicit `tf.device` puts on
            the CPU travel by messages; Horovod exchanges all others. All ranks must choose alike.
        timeout: seconds for which the end of this process waits until other hosts have received
            its last messages.
        hosts: the host of each rank.
        within_host: see `Exchange`.
    """

    def __init__(self, messages, has_gpus, timeout, hosts, within_host):
        super().__init__()
        self._messages, self._has_gpus, self._timeout = messages, has_gpus, timeout
        self._hosts, self.within_host = tuple(hosts), within_host
        self._has_ended = False

    def alltoall(self, tensor, splits, name, what=None):
        tensor = tf.convert_to_tensor(tensor)
        if self._has_gpus and not _is_on_cpu(tensor):
            return super().alltoall(tensor, splits, name, what)
        return self._messages.alltoall(tensor, splits, name, what)

    def exchange_rows(self, rows, sent, received, dims, wire, name, what):
        del dims  # `rows` have them
        scale = 1 / self.gradient_divisor
        return self._messages.exchange_rows(rows, sent, received, wire, scale, name, what)

    def looks_up(self, tables):
        return all(table.device_type == "CPU" for table in tables)

    def look_up_rows(self, group, batch, sent, received, wire, ahead, name, what):
        rows = group, batch, sent, received, wire
        return self._messages.look_up_rows(*rows, 1 / self.gradient_divisor, ahead, name, what)

    def rows_ahead(self, group, batch, sent, received, wire, name, what):
        return self._messages.rows_ahead(group, batch, sent, received, wire, name, what)

    def allgather(self, tensors, name):
        if self._has_gpus:
            return super().allgather(tensors, name)
        tensors = [tf.convert_to_tensor(tensor) for tensor in tensors]
        return [
            self._messages.allgather(
                tensor,
                f"{name}_{i}",
                f"{name}, tensor {i} of {len(tensors)}: {tensor.dtype.name}",
            )
            for i, tensor in enumerate(tensors)
        ]

    def broadcast(self, tensors, name):
        if self._has_gpus:
            return super().broadcast(tensors, name)
        tensors = [tf.convert_to_tensor(tensor) for tensor in tensors]
        flat = [tf.reshape(tensor, [-1]) for tensor in tensors]
        sent = flat if self.rank == 0 else [tensor[:0] for tensor in flat]
        values = self.allgather(sent, name)
        return [tf.reshape(value, tf.shape(tensor)) for value, tensor in zip(values, tensors)]

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
        return self._messages.allgather(mean, f"{name}_means", what)[:size]

    def use(self):
        sent, waited = self._messages.use()
        if self.within_host:
            of_host, waited_there = self.within_host.use(self.num_ranks)
            sent, waited = map(sum, zip(sent, of_host)), waited + waited_there
        of_gpu = self.nccl_ranks.sent_bytes() if self.nccl_ranks else (0,) * self.num_ranks
        return ExchangeUse(self._hosts, tuple(sent), of_gpu, waited)

    def pending_calls(self):
        calls = pending_calls(self._messages.number)
        return calls + (self.within_host.pending_calls() if self.within_host else [])

    def end(self, reason, all_live=False):
        self._has_ended = True
        self._messages.end(reason)
        if self.within_host:
            self.within_host.end(reason)
        super().end(reason, all_live)

    def leave(self, reason):
        was_whole = not self._has_ended
        super().leave(reason)
        if was_whole:
            self._messages.wait_until_received(self._timeout)

    def close(self):
        self.leave("disable_distributed_strategy was called here")
        self._messages.close()
        if self.within_host:
            self.within_host.close()
        super().close()


def join_by_messages(horovod, timeout):
    """Returns a MessageExchange among the ranks of a HorovodExchange, or that exchange itself where
    a rank has no memory for messages, or some ranks have GPUs and others do not. A collective call.

    Args:
        timeout: seconds that connections between hosts may take.

    Raises:
        ConnectionError: hosts do not reach each other.
    """
    messages, why_not = _attempt(HostExchange, horovod.rank, horovod.num_ranks)
    has_gpus = bool(tf.config.get_visible_devices("GPU"))
    this = {
        "host": [socket.gethostname(), network_of_host()],
        "machine": _BOOT_ID.read_text(),
        "has_gpus": has_gpus,
        "memory": messages.address if messages else "",
        "why_not": why_not,
        "token": make_token(),
    }
    ranks = [json.loads(text) for text in gather_text(horovod, json.dumps(this), "messages")]
    without = next((n for n, rank in enumerate(ranks) if not rank["memory"]), None)
    if without is not None or any(rank["has_gpus"] != has_gpus for rank in ranks):
        if messages:
            messages.close()
        if without is not None and horovod.rank == 0:
            _warn(f"rank {without}: {ranks[without]['why_not']}; Horovod's alltoall carries rows")
        return horovod
    machines, of_host = _by_machine(ranks), None
    neighbours = next(of_machine for of_machine in machines if horovod.rank in of_machine)
    try:
        if 1 < len(machines) < len(ranks):
            index = neighbours.index(horovod.rank)
            of_host = HostExchange(index, len(neighbours), neighbours)
        apart, others = _join(messages, horovod, this, ranks, neighbours, of_host, timeout)
        within_host = of_host and _join_within_host(of_host, neighbours, machines, others)
    except OSError:
        for one in filter(None, (messages, of_host)):
            one.close()
        raise
    if apart:
        _warn(apart)
    hosts = [rank["host"][0] for rank in ranks]
    return MessageExchange(messages, has_gpus, timeout, hosts, within_host)


def _by_machine(ranks):
    """The ranks of each machine."""
    machines = {}
    for n, rank in enumerate(ranks):
        machines.setdefault(rank["machine"], []).append(n)
    return list(machines.values())


def _join_within_host(of_host, neighbours, machines, others):
    """Maps the memory of the ranks of this host. Returns an ExchangeWithinHost, or None, on all
    ranks alike: on some host ranks share no memory.

    Args:
        of_host: the HostExchange of this rank among its neighbours.
        neighbours: the ranks of this host, this one too.
        machines: the ranks of each host.
        others: what each rank said in `_join`.
    """
    if any(other["apart"] for other in others):
        of_host.close()
        return None
    for index, n in enumerate(neighbours):
        if others[n]["of_host"] != of_host.address:
            of_host.map(index, others[n]["of_host"])
    of_host.join({})
    return ExchangeWithinHost(of_host, neighbours, proxies_of(neighbours, machines))


def _join(messages, horovod, this, ranks, neighbours, of_host, timeout):
    """Maps memory and makes connections to all other ranks.

    Returns:
        Why a rank of this host is reached by a connection; empty: none is. And what each rank said
        of its address and its memory.
    """
    rank = horovod.rank
    neighbours = [n for n in neighbours if n != rank]
    failures = {n: _attempt(messages.map, n, ranks[n]["memory"])[1] for n in neighbours}
    apart = {n: why for n, why in failures.items() if why}
    listener, why_not = _attempt(_listen, [other["host"] for other in ranks])
    address = listener.getsockname() if listener else None
    listens = {
        "address": address,
        "why_not": why_not,
        "apart": list(apart),
        "of_host": of_host.address if of_host else "",
    }
    others = [
        json.loads(text) for text in gather_text(horovod, json.dumps(listens), "messages_listen")
    ]
    for other in others:
        if other["why_not"]:
            raise ConnectionError(other["why_not"])
    addresses = {
        n: tuple(other["address"])
        for n, other in enumerate(others)
        if n != rank and (n not in neighbours or n in apart or rank in other["apart"])
    }
    who = f"rank {rank} (process {os.getpid()} of {this['host'][0]})"
    sockets = Connector(rank, who, ranks[0]["token"], timeout).connect(listener, addresses)
    for one in sockets.values():
        _prepare(one, timeout)
    messages.join(sockets)
    # Containers with names of their own are hosts, also on one machine.
    same_name = [n for n in apart if ranks[n]["host"][0] == this["host"][0]]
    warning = "".join(
        f"rank {rank} reaches rank {n} by the network: {apart[n]}" for n in same_name[:1]
    )
    return warning, others


def _listen(hosts):
    return socket.create_server((listening_address(hosts), 0), backlog=len(hosts))


def _prepare(connection, timeout):
    """A message leaves at once, and bytes that are never acknowledged end the connection."""
    milliseconds = int(1000 * (timeout + _MARGIN_SECONDS))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)


def _attempt(function, *args):
    """Its result, and why there is none."""
    try:
        return function(*args), ""
    except OSError as error:
        return None, str(error)


def _warn(why):
    warnings.warn(
        f"ranks of one host share no memory, which is slower: {why}",
        stacklevel=5,  # the caller of enable_distributed_strategy
    )


def _is_on_cpu(tensor):
    return tf.DeviceSpec.from_string(tensor.device or "").device_type == "CPU"
