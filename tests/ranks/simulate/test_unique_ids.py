"""The expected number of different ids, against ids that are drawn."""

import numpy as np
import pytest

from group_embedding.ranks.simulate import TracedIds, ZipfIds

SEED = 5


def draw(source, count, random):
    """Ids in [0, rows) by the law that ZipfIds states, `count` of them."""
    u = random.random(count)
    if source.alpha == 1:
        rank = np.exp(u * np.log(source.rows + 1))
    else:
        e = 1 - source.alpha
        rank = (1 + u * ((source.rows + 1) ** e - 1)) ** (1 / e)
    return np.minimum(rank.astype(np.int64), source.rows) - 1


@pytest.mark.parametrize("alpha", [0.0, 0.8, 1.0, 1.05, 1.5])
@pytest.mark.parametrize("rows, count", [(3, 1000), (5_000, 2_000), (300_000, 50_000)])
def test_a_law_expects_what_draws_have(alpha, rows, count):
    # Given ids of a table, drawn
    source = ZipfIds(rows, alpha)
    drawn = draw(source, count, np.random.default_rng(SEED))
    # When they are counted, Then they are as many different ones as expected
    found = len(np.unique(drawn))
    assert source.unique(count) == pytest.approx(found, rel=0.02, abs=1.5)


def test_more_ids_are_more_different_ones_up_to_the_table():
    source = ZipfIds(1_000, 1.05)
    found = [source.unique(count) for count in (1, 100, 10_000, 1e9)]
    assert found == sorted(found) and found[0] == pytest.approx(1, abs=1e-3)
    assert found[-1] == pytest.approx(1_000)


@pytest.mark.parametrize("alpha", [0.0, 1.05])
def test_a_trace_expects_what_its_parts_have_and_goes_on_beyond(alpha):
    # Given a trace of a table's ids
    law, random = ZipfIds(100_000, alpha), np.random.default_rng(SEED)
    trace = draw(law, 40_000, random)
    source = TracedIds.of(trace.reshape(400, 100), rows=100_000)
    # When a part of it, all of it, and four times as many ids are asked for
    part = len(np.unique(random.permutation(trace)[:10_000]))
    # Then these are near what is drawn
    assert source.unique(10_000) == pytest.approx(part, rel=0.03)
    assert source.unique(40_000) == len(np.unique(trace))
    assert source.unique(160_000) == pytest.approx(law.unique(160_000), rel=0.3)
    assert source.unique(1e12) == 100_000


def test_a_trace_of_nothing_is_refused():
    with pytest.raises(ValueError, match="at least 2 ids of each table, got 0"):
        TracedIds.of(np.array([], np.int64), rows=10)


@pytest.mark.parametrize(
    "rows, alpha, message",
    [
        (0, 1.0, "Zipf's law: expected rows to be an int of at least 1, got 0"),
        (10.5, 1.0, "Zipf's law: expected rows to be an int of at least 1, got 10.5"),
        (10, -1, "Zipf's law: expected alpha to be 0 or more, got -1"),
        (10, float("nan"), "Zipf's law: expected alpha to be a finite number, got nan"),
    ],
)
def test_a_law_that_cannot_be_is_refused(rows, alpha, message):
    with pytest.raises(ValueError, match=message):
        ZipfIds(rows, alpha)
