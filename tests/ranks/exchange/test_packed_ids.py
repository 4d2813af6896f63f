"""Ids that a dataset packs, against ids that nobody packed: on two ranks, in one process."""

import pytest
from ranks.exchange.routed_cases import assert_same, train_on_datasets, train_on_datasets_on_rank
from support.session.tiers import by_day


def assert_packed_ids_train_alike(plain, packed):
    for results in packed:
        assert_same({False: plain, True: results})
        assert results["traces"] <= 2  # a function whose first call makes slots is traced twice


@pytest.mark.parametrize("weighted", by_day([False, True], [True]))
def test_ids_that_a_dataset_packs_train_alike(two_ranks, weighted):
    # Given ranks whose datasets run ahead, each at its own pace

    for plain, packed in two_ranks.run(train_on_datasets_on_rank, weighted):
        # When steps look the packed ids up, or route them a step ahead, Then nothing differs
        assert_packed_ids_train_alike(plain, packed)


def test_ids_that_a_dataset_packs_train_alike_in_one_process():
    assert_packed_ids_train_alike(*train_on_datasets())
