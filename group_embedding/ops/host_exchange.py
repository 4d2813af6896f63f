"""One rank's end of an exchange of messages between the memory of hosts, and its ops."""

import ctypes

import tensorflow as tf
from tensorflow.python.framework import auto_control_deps, auto_control_deps_utils

from group_embedding.ops import autodiff
from group_embedding.ops._library import library, native
from group_embedding.ops.group_lookup import gradients_of_inputs
from group_embedding.ops.pack_rows import as_slices

for _name in ("HostLookUpRows", "HostRowsAhead"):
    auto_control_deps_utils.register_read_only_resource_op(f"GroupEmbedding>{_name}")
tf.no_gradient("GroupEmbedding>HostRowsAhead")

# A tf.function would run stateful ops one after the other. Calls are matched by name, and need no
# order but that of their tensors, so lookups and averages wait for the network side by side.
auto_control_deps.MUST_RUN_ORDER_INSENSITIVE_STATEFUL_OPS |= {
    f"GroupEmbedding>{name}"
    for name in (
        "HostAlltoall",
        "HostAllgather",
        "HostExchangeRows",
        "HostRowsAhead",
        "RouteIds",
        "ReadRequests",
    )
}

_TEXT_BYTES = 1024  # of an address or an error


class HostExchange:
    """The ranks make it together. Each gives its `address` to the others of its host, maps theirs,
    and joins.

    Args:
        rank, num_ranks: of the exchange.
        numbers: of its ranks in the job, for messages, if it is of some of these; None: it is of
            all.

    Raises:
        OSError: this host shares no memory; says why.
    """

    def __init__(self, rank, num_ranks, numbers=None):
        self._num_ranks = num_ranks
        text = ctypes.create_string_buffer(_TEXT_BYTES)
        in_job = (ctypes.c_int32 * num_ranks)(*(numbers or range(num_ranks)))
        arguments = rank, num_ranks, in_job, text, _TEXT_BYTES
        self._number = native().GroupEmbeddingOpenHostExchange(*arguments)
        if self._number < 0:
            raise OSError(text.value.decode())
        self.address = text.value.decode()

    def map(self, rank, address):
        """Maps the memory of another rank of this host, given its address.

        Raises:
            OSError: the memory is out of reach; says why.
        """
        text = ctypes.create_string_buffer(_TEXT_BYTES)
        arguments = self._number, rank, address.encode(), text, _TEXT_BYTES
        if not native().GroupEmbeddingMapHostExchange(*arguments):
            raise OSError(text.value.decode())

    def join(self, sockets):
        """Begins.

        Args:
            sockets: {rank: socket} of the ranks that messages reach by the network: the exchange
                takes the sockets over. The memory of all others has been mapped.

        Raises:
            OSError: a rank has neither a socket nor mapped memory.
        """
        text = ctypes.create_string_buffer(_TEXT_BYTES)
        numbers = [sockets[n].detach() if n in sockets else -1 for n in range(self._num_ranks)]
        array = (ctypes.c_int32 * self._num_ranks)(*numbers)
        if not native().GroupEmbeddingJoinHostExchange(self._number, array, text, _TEXT_BYTES):
            raise OSError(text.value.decode())

    def end(self, reason):
        """Calls under way and to come raise an error that gives this reason; those of other ranks
        that wait for this one raise, too. From any thread."""
        native().GroupEmbeddingEndHostExchange(self._number, reason.encode())

    def use(self):
        """(bytes sent to each rank, seconds that calls waited for other ranks)"""
        sent, waited = (ctypes.c_int64 * self._num_ranks)(), ctypes.c_double()
        native().GroupEmbeddingHostExchangeUse(self._number, sent, ctypes.byref(waited))
        return tuple(sent), waited.value

    def wait_until_received(self, seconds):
        """Waits until other hosts have received all that was sent, for so many seconds at most:
        connections end with the process."""
        native().GroupEmbeddingWaitUntilReceived(self._number, seconds)

    def close(self):
        """Ends the exchange, and frees its memory and connections."""
        native().GroupEmbeddingCloseHostExchange(self._number)

    @property
    def number(self):
        """By which ops know it in this process."""
        return self._number

    def alltoall(self, tensor, splits, name, what):
        """See `exchange.Exchange.alltoall`."""
        with tf.device("/CPU:0"):
            return library().host_alltoall(
                tensor=tensor,
                splits=splits,
                exchange=self._number,
                description=what or name,
                name=name,
            )

    def allgather(self, tensor, name, what):
        """See `exchange.Exchange.allgather`, of one tensor."""
        with tf.device("/CPU:0"):
            return library().host_allgather(
                tensor=tensor, exchange=self._number, description=what, name=name
            )

    def exchange_rows(self, rows, sent, received, wire, gradient_scale, name, what):
        """See `exchange.Exchange.exchange_rows`. Gradients are multiplied by `gradient_scale`."""
        with tf.device("/CPU:0"):
            matrices, _ = library().host_exchange_rows(
                rows=rows,
                indices=[],
                sent=sent,
                received=received,
                out_dtypes=[tf.float32] * len(rows),
                wire=wire,
                gradient_scale=gradient_scale,
                exchange=self._number,
                description=what,
                name=name,
            )
        return matrices

    def look_up_rows(self, group, batch, sent, received, wire, gradient_scale, ahead, name, what):
        """See `exchange.Exchange.look_up_rows`. Gradients are multiplied by `gradient_scale`."""
        with tf.device("/CPU:0"):
            return library().host_look_up_rows(
                **self._rows_of(group, batch, sent, received, wire),
                ahead=ahead,
                out_dtypes=[tf.float32] * len(group.tables),
                gradient_scale=gradient_scale,
                description=what,
                name=name,
            )

    def rows_ahead(self, group, batch, sent, received, wire, name, what):
        """See `exchange.Exchange.rows_ahead`."""
        with tf.device("/CPU:0"):
            return library().host_rows_ahead(
                **self._rows_of(group, batch, sent, received, wire), description=what, name=name
            )

    def _rows_of(self, group, batch, sent, received, wire):
        tables = group.tables
        return {
            "tables": [table.tensor() for table in tables],
            "batch": batch.buffer,
            "sizes": batch.sizes,
            "keyed_tables": [tables[t].keyed.table_handle for t in group.keyed],
            "sent": sent,
            "received": received,
            "wire": wire,
            **group.attrs(),
            "keyed": group.keyed,
            "exchange": self._number,
        }


@tf.RegisterGradient("GroupEmbedding>HostAlltoall")
def _host_alltoall_grad(op, received_grad, _):
    with tf.device("/CPU:0"):
        grad, _ = library().host_alltoall(
            tensor=received_grad,
            splits=op.outputs[1],
            exchange=op.get_attr("exchange"),
            description=_of_gradients(op),
        )
    return [grad, None]


@tf.RegisterGradient("GroupEmbedding>HostExchangeRows")
def _host_exchange_rows_grad(op, *grads):
    rows = op.inputs[: len(grads)]
    slices = _send_back(op, grads, op.get_attr("dtypes"), [matrix.shape[1] for matrix in rows])
    shapes = [tf.shape(matrix, out_type=tf.int64) for matrix in rows]
    found = [tf.IndexedSlices(s.values, s.indices, shape) for s, shape in zip(slices, shapes)]
    return [*found, None, None]


@tf.RegisterGradient("GroupEmbedding>HostLookUpRows")
def _host_look_up_rows_grad(op, *grads):
    dims = op.get_attr("dims")
    num_after = op.get_attr("num_ahead") + 2  # ahead, sent, received
    keyed_tables = op.inputs[len(dims) + 2 : -num_after]
    slices = _send_back(op, grads, [op.get_attr("dtype")] * len(dims), dims)
    return [*gradients_of_inputs(op, slices, keyed_tables), *[None] * num_after]


def _send_back(op, grads, dtypes, dims):
    """The gradients of what an op sent, of each table's rows those that a gradient has reached on
    the rank that asked for them."""
    reached = set(autodiff.differentiated(grads))
    sent, received = op.inputs[-2:]
    with tf.device("/CPU:0"):
        slices = [as_slices(g, t in reached, dims[t]) for t, g in enumerate(grads)]
        values, indices = library().host_exchange_rows(
            rows=[one.values for one in slices],
            indices=[one.indices for one in slices],
            sent=received,
            received=sent,
            out_dtypes=dtypes,
            wire=op.get_attr("wire"),
            scale=op.get_attr("gradient_scale"),
            exchange=op.get_attr("exchange"),
            description=_of_gradients(op),
        )
    return [tf.IndexedSlices(v, i) for v, i in zip(values, indices)]


def _of_gradients(op):
    return f"gradients of {op.get_attr('description').decode()}"
