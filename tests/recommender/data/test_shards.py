"""The rows of ranks: none twice, none lost, as many batches on every rank."""

import hypothesis
import pytest
from hypothesis import strategies as st

from group_embedding.recommender.data.shards import share_of


@hypothesis.given(st.data())
def test_shares_cover_all_rows_in_as_many_batches(data):
    # Given rows, ranks and batches of any sizes that fit
    num_ranks = data.draw(st.integers(1, 9), "ranks")
    size = data.draw(st.integers(2, 12), "batch size")
    drop = data.draw(st.booleans(), "drop remainder")
    num_rows = data.draw(st.integers(num_ranks * (size if drop else 1), 500), "rows")

    # When they are shared
    shares = [share_of(num_rows, rank, num_ranks, size, drop) for rank in range(num_ranks)]
    sizes = [[share.size_of(i) for i in range(share.num_batches)] for share in shares]

    # Then the ranges follow each other, every rank has as many batches, and no batch is empty
    assert [share.begin for share in shares] == [0, *(share.end for share in shares[:-1])]
    assert shares[-1].end == num_rows
    assert len({len(of_rank) for of_rank in sizes}) == 1
    for share, of_rank in zip(shares, sizes):
        assert all(1 <= batch <= size for batch in of_rank)
        if drop:
            assert set(of_rank) == {size}
        else:
            assert sum(of_rank) == share.end - share.begin
            assert of_rank[:-2] == [size] * len(of_rank[:-2])
            assert all(batch >= size - 1 for batch in of_rank[:-1])


def test_one_row_more_on_one_rank_makes_no_batch_empty():
    # Given 5 rows for 2 ranks in batches of 2: the second rank has 3 of them
    shares = [share_of(5, rank, 2, 2, False) for rank in range(2)]

    # When their batches are laid out
    sizes = [[share.size_of(i) for i in range(share.num_batches)] for share in shares]

    # Then the first rank has two batches as well
    assert sizes == [[1, 1], [2, 1]]


@pytest.mark.parametrize(
    "num_rows, size, drop, words",
    [
        (2, 4, False, "expected 3 rows or more"),
        (11, 4, True, "12 rows or more"),
        (4, 1, False, "1"),
    ],
)
def test_too_few_rows_are_refused(num_rows, size, drop, words):
    with pytest.raises(ValueError, match=words):
        share_of(num_rows, 0, 3, size, drop)
