"""Placement: which rank stores a row, and what it calls it."""

import numpy as np
import pytest
import tensorflow as tf

from group_embedding.placement import Placement


@pytest.mark.parametrize("num_rows", [0, 1, 2, 7, 12])
@pytest.mark.parametrize("num_ranks", [1, 2, 3, 5])
@pytest.mark.parametrize("spread", ["mod", "one_rank"])
def test_rows_of_all_ranks_are_the_table(spread, num_ranks, num_rows):
    # Given a table of which every row has its number as its value
    placement = Placement(spread, rank=num_ranks - 1)
    whole = np.arange(num_rows)
    for rank in range(num_ranks):
        # When a rank takes its rows
        rows = whole[placement.rows_of(rank, num_ranks)]
        # Then they are as many as it has, it owns each, and calls it by its place among them
        assert len(rows) == placement.num_local_rows(num_rows, rank, num_ranks)
        assert (placement.owner_of(rows, num_ranks) == rank).all()
        np.testing.assert_array_equal(placement.local_row(rows, num_ranks), np.arange(len(rows)))
    # And no row is without an owner
    counts = [placement.num_local_rows(num_rows, rank, num_ranks) for rank in range(num_ranks)]
    assert sum(counts) == num_rows


def test_rows_may_be_a_tensor():
    # Given rows of a table on rank 1, and of one that is spread
    rows = tf.constant([0, 5], tf.int64)
    # When their owners are asked for, Then they are tensors of the same dtype
    assert Placement("one_rank", 1).owner_of(rows, 3).numpy().tolist() == [1, 1]
    assert Placement("mod").owner_of(rows, 3).numpy().tolist() == [0, 2]
    assert Placement("mod").local_row(rows, 3).dtype == tf.int64


@pytest.mark.parametrize(
    "call",
    [
        lambda placement: placement.owner_of(np.array([7, 2**40]), 2),
        lambda placement: placement.local_row(np.array([7]), 2),
        lambda placement: placement.rows_of(0, 2),
        lambda placement: placement.num_local_rows(10, 0, 2),
    ],
    ids=["owner_of", "local_row", "rows_of", "num_local_rows"],
)
def test_keys_have_no_numbers_of_rows(call, request):
    # Given a table whose keys are spread by their hash
    placement = Placement("hash")
    # When what only rows have is asked for, Then the error says who knows the owner
    method = request.node.callspec.id
    with pytest.raises(ValueError, match=rf"\('hash'\).{method}: .*ge.owner_of\(table, keys\)"):
        call(placement)


def test_an_unknown_spread_is_refused():
    with pytest.raises(ValueError, match="one of 'mod', 'hash', .* got 'modulo'"):
        Placement("modulo")
