"""Rows that are fetched ahead of the lookup, against rows that are not: the same bits."""

import pytest
from ranks.exchange.routed_cases import APIS, assert_same, assert_trained, train_with_rows_on_rank
from support.session.tiers import by_day


@pytest.mark.parametrize("api", by_day(APIS, ["function"]))
def test_training_is_the_same_to_the_bit(several_ranks, api):
    for results in several_ranks.run(train_with_rows_on_rank, api):
        assert_same(results)
        assert_trained(results)
