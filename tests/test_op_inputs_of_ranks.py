"""Messages and rows of other ranks that native ops refuse; test_op_inputs.py has batches."""

import numpy as np
import pytest
import tensorflow as tf
from support.cases.op_calls import (  # noqa: F401
    HUGE,
    INT32_MAX,
    Refused,
    on_the_cpu,
    pack,
    read_requests,
    route,
    unpack,
)

from group_embedding.ops._library import library


@pytest.mark.parametrize(
    "counts",
    [[[-2, 1]], [[2, -1]], [[HUGE, 1]], [[3, 1], [-1, 0]], [[2**63 - 1, 1], [3, 0]], [2, 1], [[2]]],
    ids=str,
)
def test_counts_of_rows(counts):
    with pytest.raises(Refused, match="counts"):
        pack(counts)
    with pytest.raises(Refused, match="counts"):
        pack(counts, indices=[[0, 1], [0]])
    with pytest.raises(Refused, match="counts|packed"):
        unpack(counts, [3, 2])


@pytest.mark.parametrize("dims", [[0, 2], [-1, 2], [INT32_MAX, 2], [3], []], ids=str)
def test_dims_of_rows(dims):
    with pytest.raises(Refused):
        unpack([[1, 1]], dims)
    with pytest.raises(Refused):
        pack([[2, 1]], rows=((2, 0), (1, 2)))


def test_ids_of_impossible_tables_and_ranks():
    for attrs in (
        {"num_ranks": HUGE},
        {"num_ranks": 2**31},
        {"num_rows": [2**63 - 1, 4]},
        {"num_rows": [-2, 4]},
        {"placement_ranks": [2, 0]},
        {"placement_ranks": [0]},
        {"placements": []},
        {"combiners": ["sum"]},
        {"table_of_feature": [0, 2]},
        {"table_of_feature": []},
    ):
        with pytest.raises(Refused):
            route(**attrs)
    with pytest.raises(Refused):
        library().key_owners(keys=tf.constant([1], tf.int64), num_ranks=HUGE)


def test_messages_of_other_ranks():
    messages, splits = route(num_ranks=1)[:2]
    length = int(splits[0])
    for wrong in ([-4, length + 4], [length + 1], [-1], [2**31 - 1], [[length]], length):
        with pytest.raises(Refused):
            read_requests(messages, tf.constant(wrong, tf.int32))
    for position in range(length):
        for word in (-1, HUGE, 2**63 - 1, -(2**63)):
            changed = tf.tensor_scatter_nd_update(messages, [[position]], [word])
            if position in (2, 3, 4):  # where a fault is, of which there is none
                continue
            try:
                read_requests(changed, splits)
            except Refused:
                continue
            assert position in (1, *range(9, length)), position  # of ids anything is read
    for attrs in ({"group_of_table": [0, 1]}, {"table_of_feature": [0, 2]}, {"table_names": []}):
        with pytest.raises(Refused):
            read_requests(messages, splits, **attrs)


def test_proxies_that_are_none():
    for attrs in (
        {"proxies": [0, 1]},
        {"proxies": [0, 2], "ranks_of_host": 2},
        {"proxies": [0, -1], "ranks_of_host": 2},
        {"proxies": [0], "ranks_of_host": 2},
        {"proxies": [0, 0], "ranks_of_host": 1, "tables_with_sums": [1]},
        {"proxies": [0, 0], "ranks_of_host": 1, "placements": ["mod", "columns"]},
    ):
        with pytest.raises(Refused, match="proxies"):
            route(**attrs)


@pytest.mark.parametrize(
    "of_host",
    [
        [[1]],
        [[1, 1, 1], []],
        [[1, 1, 1, 1, 0], []],
        [[1, 1, 1, 1, 2**33], []],
        [[], [1, 0, 0, 7]],
        [[], [6, 0, 0, 7, 1]],
        [[], [-1, 0, 0, 7, 1]],
        [[], [], []],
    ],
    ids=str,
)
def test_requests_of_a_host_that_are_none(of_host):
    with pytest.raises(Refused, match="of_host"):
        route(of_host=[tf.constant(words, tf.int64) for words in of_host])


def test_a_fault_of_a_rank_that_is_not_of_the_host():
    # Given a message of the only rank of a host, that rank HUGE has a fault
    messages, splits = route(num_ranks=1)[:2]
    words = tf.tensor_scatter_nd_update(messages, [[0], [4]], [1, HUGE])
    # When its proxy reads it
    *_, fault = read_requests(words, splits, ranks_of_host=[7])
    # Then the fault goes on as it is; and a proxy of two ranks wants two messages
    np.testing.assert_array_equal(fault, [1, -1, -1, 0, HUGE])
    with pytest.raises(Refused, match="ranks_of_host"):
        read_requests(words, splits, ranks_of_host=[7, 8])


@pytest.mark.parametrize("tables", [[2], [-1], [INT32_MAX]], ids=str)
def test_tables_with_sums_that_are_none(tables):
    messages, splits = route(num_ranks=1)[:2]
    with pytest.raises(Refused, match="tables_with_sums"):
        route(tables_with_sums=tables)
    with pytest.raises(Refused, match="tables_with_sums"):
        read_requests(messages, splits, tables_with_sums=tables)


def test_a_group_of_rows_and_sums():
    messages, splits = route(num_ranks=1, tables_with_sums=[1])[:2]
    with pytest.raises(Refused, match="group_of_table: expected tables with sums in groups"):
        read_requests(messages, splits, tables_with_sums=[1])


def test_messages_of_rows_read_as_sums_and_the_other_way_round():
    for sent, read in (([], [0, 1]), ([0, 1], [])):
        messages, splits = route(num_ranks=1, tables_with_sums=sent)[:2]
        with pytest.raises(Refused, match="no message of this lookup"):
            read_requests(messages, splits, tables_with_sums=read)


@pytest.mark.parametrize("shape", [[3, 2], [4], [4, 0], [0, 5000], [4, 2, 1]], ids=str)
def test_parts_of_rows_that_two_ranks_did_not_send(shape):
    with pytest.raises(Refused, match="parts|rank"):
        library().join_columns(parts=[tf.ones(shape)], num_ranks=2)


@pytest.mark.parametrize(
    "indices, num_rows, message",
    [
        ([0], [4], "one per row"),
        ([0, 4], [4], "0 <= index < 4, got 4"),
        ([-1, 0], [4], "got -1"),
        ([0, 1], [4, 4], "num_rows: expected one per table"),
        ([0, 1], [-2], "num_rows: expected a number of rows"),
        ([0, 1], [2**63 - 1], "num_rows: expected a number of rows"),
    ],
    ids=str,
)
def test_indices_of_split_rows(indices, num_rows, message):
    with pytest.raises(Refused, match=message):
        split_columns(tf.ones([2, 6]), indices, num_rows)


def test_columns_that_ranks_do_not_divide():
    for rows in (tf.ones([2, 5]), tf.ones([2, 0])):
        with pytest.raises(Refused, match="rows: expected a dim that 2 ranks divide"):
            split_columns(rows, [0, 1], [4])
    with pytest.raises(Refused, match="num_ranks: expected no more than columns"):
        library().join_columns(parts=[tf.ones([0, 1])], num_ranks=HUGE)


def split_columns(rows, indices, num_rows):
    return library().split_columns(
        rows=[rows],
        indices=[tf.constant(indices, tf.int64)],
        num_rows=tf.constant(num_rows, tf.int64),
        num_ranks=2,
    )


def test_columns_of_keys():
    with pytest.raises(Refused, match="placements: expected 'hash' or 'one_rank' for keys"):
        route(num_rows=[-1, 4], placements=["columns", "mod"])
