"""The contract of every implementation of the exchange."""

import time

import numpy as np
import pytest
import tensorflow as tf

from group_embedding import exchange
from group_embedding.distributed import enable_distributed_strategy
from group_embedding.ranks.exchange.local import LocalExchange
from group_embedding.ranks.sharding.make_sharded_table import make_table
from group_embedding.ranks.sharding.sharded_table import sharded_table

DTYPES = [tf.float32, tf.float16, tf.bfloat16, tf.int32, tf.int64, tf.uint32, tf.uint64, tf.uint8]


def conform(current):
    """The suite; raises where `current` does not keep the contract of `Exchange`."""
    for function, dtypes in ((lambda f: f, DTYPES), (tf.function, [tf.float32, tf.bfloat16])):
        check_alltoall(current, function, dtypes)
        check_reductions(current, function)
        check_barrier(current, function)
    check_gradient(current)
    check_session(current)


def check_alltoall(current, function, dtypes):
    rank, num_ranks = current.rank, current.num_ranks
    # Given: rank r sends r + 1 rows to itself, and as many as the receiver's number to the others.
    splits = [rank + 1 if to == rank else to for to in range(num_ranks)]
    rows = [[10 * rank + to, to] for to in range(num_ranks) for _ in range(splits[to])]
    expected = [
        [10 * origin + rank, rank]
        for origin in range(num_ranks)
        for _ in range(rank + 1 if origin == rank else rank)
    ]
    for dtype in dtypes:

        def exchange_rows(dtype=dtype):
            sent = tf.reshape(tf.cast(tf.constant(rows, tf.int32), dtype), [-1, 2])
            return current.alltoall(sent, tf.constant(splits, tf.int32), "rows")

        received, received_splits = function(exchange_rows)()
        assert received.dtype == dtype
        np.testing.assert_array_equal(tf.cast(received, tf.int32), np.reshape(expected, [-1, 2]))
        assert received_splits.numpy().tolist() == [
            rank + 1 if origin == rank else rank for origin in range(num_ranks)
        ]

    # Given: nobody sends anything.
    def exchange_nothing():
        return current.alltoall(tf.zeros([0, 3]), tf.zeros([num_ranks], tf.int32), "nothing")

    received, _ = function(exchange_nothing)()
    assert received.shape == (0, 3)


def check_reductions(current, function):
    rank, num_ranks = current.rank, current.num_ranks

    def reduce():
        tensors = [tf.fill([2], float(rank)), tf.cast([rank], tf.float16), tf.cast(rank, tf.double)]
        uneven = [tf.fill([rank, 2], rank), tf.fill([1], tf.cast(rank, tf.bfloat16))]
        return (
            current.average(tensors, "average"),
            current.allgather(uneven, "gather"),
            current.allgather_gradients(uneven, "gather_gradients"),
            current.broadcast([tf.constant([rank + 1]), tf.constant(rank == 0)], "broadcast"),
        )

    average, *both_gathered, broadcast = function(reduce)()
    mean = (num_ranks - 1) / 2
    assert [value.numpy().tolist() for value in average] == [[mean, mean], [mean], mean]
    assert [value.dtype for value in average] == [tf.float32, tf.float16, tf.double]
    for gathered in both_gathered:
        assert gathered[0][:, 0].numpy().tolist() == [r for r in range(num_ranks) for _ in range(r)]
        assert tf.cast(gathered[1], tf.int32).numpy().tolist() == list(range(num_ranks))
    assert [value.numpy().tolist() for value in broadcast] == [[1], True]
    assert current.average([], "nothing") == current.allgather([], "nothing") == []


def check_barrier(current, function):
    @function
    def meet():
        current.barrier("meet")
        return tf.timestamp()

    meet()  # traced
    time.sleep(0.2 * current.rank)
    arrived = time.time()
    left = float(meet())

    latest = current.allgather([tf.constant([arrived], tf.double)], "arrived")[0].numpy().max()
    assert left >= latest


def check_gradient(current):
    """The gradient of an alltoall goes the way back."""
    rank, num_ranks = current.rank, current.num_ranks
    sent = tf.Variable(tf.ones([num_ranks, 1]))

    @tf.function
    def gradient():
        with tf.GradientTape() as tape:
            received, _ = current.alltoall(sent, tf.ones([num_ranks], tf.int32), "sent")
            loss = tf.reduce_sum(received) * (rank + 1)
        return tape.gradient(loss, sent)

    assert gradient().numpy()[:, 0].tolist() == [to + 1 for to in range(num_ranks)]


def check_session(current):
    """In a graph nothing is computed ahead of time, nor left out where its result is known."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        waited = current.barrier("waited")
        with tf.control_dependencies([waited]):
            done = tf.constant(1)
        # All but the first send it a row, and receive nothing.
        num_sent = 0 if current.rank == 0 else 1
        splits = tf.constant([num_sent, *[0] * (current.num_ranks - 1)], tf.int32)
        received, _ = current.alltoall(tf.ones([num_sent, 2]), splits, "to_the_first")
        received = tf.ensure_shape(received, [None if current.rank == 0 else 0, 2])
        # A constant on some ranks only; the static shape of the range depends on it.
        mine = tf.constant([current.rank])
        if current.rank == 0:
            mine *= tf.cast(tf.timestamp() > 0, tf.int32)
        (gathered,) = current.allgather([mine], "gathered")
        counted = tf.range(tf.reduce_max(gathered) + 1)
        num_received = current.num_ranks - 1 if current.rank == 0 else 0
        for _ in range(3):
            assert session.run(done) == 1
            assert session.run(counted).tolist() == list(range(current.num_ranks))
            assert session.run(received).shape == (num_received, 2)


def conform_on_rank():
    enable_distributed_strategy()
    conform(exchange.current())
    return type(exchange.current()).__name__


def conform_beside_gpus_on_rank():
    """If ranks see GPUs, only tensors on the CPU travel by messages."""
    from unittest import mock

    from group_embedding.ranks.exchange.horovod import HorovodExchange
    from group_embedding.ranks.exchange.message_exchange import join_by_messages

    enable_distributed_strategy()
    with mock.patch.object(tf.config, "get_visible_devices", return_value=["a GPU"]):
        current = join_by_messages(HorovodExchange(), timeout=30)
    conform(current)
    with tf.Graph().as_default() as graph:
        for device in ("/CPU:0", "/GPU:0"):
            with tf.device(device):
                current.alltoall(tf.zeros([0]), tf.zeros([current.num_ranks], tf.int32), "sent")
    current.close()
    types = [op.type for op in graph.get_operations()]
    return [types.count(name) for name in ("GroupEmbedding>HostAlltoall", "HorovodAlltoall")]


def share_no_memory_on_rank():
    """The last rank cannot reach the others' memory."""
    import warnings
    from unittest import mock

    from group_embedding.ranks.exchange.horovod import HorovodExchange
    from group_embedding.ranks.exchange.message_exchange import HostExchange, join_by_messages

    enable_distributed_strategy()
    horovod = HorovodExchange()
    is_last = horovod.rank == horovod.num_ranks - 1
    maps = mock.Mock(side_effect=OSError("/proc/12/fd/3: Permission denied"))
    refused = mock.patch.object(HostExchange, "map", maps if is_last else HostExchange.map)
    with warnings.catch_warnings(record=True) as warned, refused:
        joined = join_by_messages(horovod, timeout=30)
    conform(joined)
    joined.close()
    return type(joined).__name__, [str(warning.message) for warning in warned]


def have_no_memory_on_rank():
    """The last rank can make no memory for messages."""
    import warnings
    from unittest import mock

    from group_embedding.ranks.exchange import message_exchange
    from group_embedding.ranks.exchange.horovod import HorovodExchange

    enable_distributed_strategy()
    horovod = HorovodExchange()
    makes = message_exchange.HostExchange
    if horovod.rank == horovod.num_ranks - 1:
        makes = mock.Mock(side_effect=OSError("no memory to share"))
    replaced = mock.patch.object(message_exchange, "HostExchange", makes)
    with warnings.catch_warnings(record=True) as warned, replaced:
        joined = message_exchange.join_by_messages(horovod, timeout=30)
    return joined is horovod, [str(warning.message) for warning in warned]


def gather_much_on_rank():
    """More than a message carries at once, of which ranks have different numbers of rows."""
    enable_distributed_strategy()
    current = exchange.current()
    num_rows = 7 + 2_500_000 * current.rank  # of 64 bytes
    rows = tf.reshape(tf.range(16 * num_rows), [num_rows, 16]) + current.rank
    (all_rows,) = current.allgather([rows], "much")
    begin, found = 0, []
    for rank in range(current.num_ranks):
        end = begin + 7 + 2_500_000 * rank
        of_rank = tf.reshape(tf.range(16 * (end - begin)), [-1, 16]) + rank
        found.append(bool(tf.reduce_all(all_rows[begin:end] == of_rank)))
        begin = end
    return found, all_rows.shape[0] == begin


def refuse_on_rank():
    """Errors of calls that cannot be; and of one in a graph that outlived its exchange."""
    from group_embedding.ranks.exchange.horovod import HorovodExchange
    from group_embedding.ranks.exchange.message_exchange import join_by_messages

    enable_distributed_strategy()
    current = join_by_messages(HorovodExchange(), timeout=30)
    ones, errors = tf.ones([current.num_ranks], tf.int32), []

    def call(tensor, splits):
        try:
            current.alltoall(tensor, splits, "refused")
        except tf.errors.OpError as error:
            errors.append(error.message)

    with tf.device("/CPU:0"):  # what is on GPUs does not go through memory
        call(tf.zeros([5]), 7 * ones)
        call(tf.zeros([5]), 7 * ones[1:])
        call(tf.zeros([current.num_ranks, 1 + current.rank]), ones)
        current.end("rank 7 died")
        call(tf.zeros([0]), 0 * ones)
        current.close()
        call(tf.zeros([0]), 0 * ones)
    return errors


def horovod_conforms_on_rank():
    from group_embedding.ranks.exchange.horovod import HorovodExchange

    enable_distributed_strategy()
    current = HorovodExchange()
    conform(current)
    return current.rank, current.num_ranks


def test_one_process_conforms():
    current = LocalExchange()

    conform(current)

    assert (current.rank, current.num_ranks) == (0, 1)


def test_memory_of_one_host_conforms(several_ranks):
    expected = ["MessageExchange"] * several_ranks.num_ranks

    assert several_ranks.run(conform_on_rank) == expected


@pytest.mark.slow
def test_memory_beside_gpus_conforms(several_ranks):
    assert several_ranks.run(conform_beside_gpus_on_rank) == [[1, 1]] * several_ranks.num_ranks


def test_ranks_that_share_no_memory_say_so_and_are_connected(one_host, several_ranks):
    *others, (last, warned) = several_ranks.run(share_no_memory_on_rank)

    assert last == "MessageExchange" and others == [(last, [])] * len(others)
    reason = f"rank {len(others)} reaches rank 0 by the network: /proc/12/fd/3: Permission denied"
    assert len(warned) == 1 and reason in warned[0]


@pytest.mark.slow
def test_ranks_without_memory_for_messages_use_horovod(several_ranks):
    (first, warned), *others = several_ranks.run(have_no_memory_on_rank)

    assert first and all(other == (True, []) for other in others)
    assert len(warned) == 1 and "no memory to share; Horovod's alltoall carries rows" in warned[0]


@pytest.mark.slow
def test_what_is_more_than_a_message_is_gathered_in_pieces(two_ranks):
    assert two_ranks.run(gather_much_on_rank) == [([True, True], True)] * 2


def test_calls_that_cannot_be_are_refused(several_ranks):
    for errors in several_ranks.run(refuse_on_rank):
        assert "sum is the tensor's first axis, 5, got" in errors[0]
        assert "expected a tensor of at least one axis and a split for each of" in errors[1]
        assert "rows in" in errors[2] and "do all ranks run the same model?" in errors[2]
        assert "the exchange has ended: rank 7 died" in errors[3]
        assert "expected a graph built after the last enable_distributed_strategy" in errors[4]


def test_horovod_conforms(several_ranks):
    ranks = several_ranks.run(horovod_conforms_on_rank)

    assert ranks == [(rank, len(ranks)) for rank in range(len(ranks))]


def test_unsharded_is_one_process_inside(two_ranks):
    assert two_ranks.run(count_ranks) == [[2, 1, 2]] * 2


def count_ranks():
    enable_distributed_strategy()
    counts = [exchange.current().num_ranks]
    with exchange.unsharded():
        counts.append(exchange.current().num_ranks)
        table = make_table(
            (3, 1), tf.zeros, lambda shape, initializer: tf.Variable(initializer(shape))
        )
        assert table.shape == (3, 1)
        assert sharded_table(table) is None
    return [*counts, exchange.current().num_ranks]


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 5])
@pytest.mark.parametrize("num_rows", [0, 1, 2, 3, 7, 11])
def test_ranges_and_local_rows_cover_a_table(num_rows, num_ranks):
    from group_embedding.placement import Placement
    from group_embedding.ranks.distributed.row_ranges import range_of_rank

    ranges = [range_of_rank(num_rows, rank, num_ranks) for rank in range(num_ranks)]

    assert [row for begin, end in ranges for row in range(begin, end)] == list(range(num_rows))
    for rank in range(num_ranks):
        local_rows = Placement("mod").num_local_rows(num_rows, rank, num_ranks)
        assert local_rows == len(range(rank, num_rows, num_ranks))
