"""Ids that are routed a step ahead, against ids that are not: on several ranks, in one process."""

import pytest
from ranks.exchange.routed_cases import (
    APIS,
    assert_same,
    assert_trained,
    count_traces_on_rank,
    train,
    train_on_rank,
    types_of_ops_before_on_rank,
)
from support.session.tiers import by_day

import group_embedding as ge


@pytest.mark.parametrize("api", by_day(APIS, ["function"]))
def test_training_is_the_same_to_the_bit(several_ranks, api):
    # Given ranks that train twice, once with ids that go ahead

    for results in several_ranks.run(train_on_rank, api):
        # Then it made no difference, and they did train
        assert_same(results)
        assert_trained(results)


@pytest.mark.slow
def test_rows_on_disk_that_ranks_request_are_prefetched(two_ranks):
    # Given a table by key over two ranks, with a disk below the memory of each
    storage = ge.StorageOption(ge.StorageType.DRAM_SSDHASH, storage_size=[1 << 14])

    for results in two_ranks.run(train_on_rank, "session", storage):
        # When the rows of the next batch are brought, Then nothing differs
        assert_same(results)
        assert_trained(results)


@pytest.mark.parametrize("api", APIS)
def test_one_process_runs_the_same_script(api):
    assert_same(train(api))


def test_a_batch_of_another_size_is_not_traced_anew(two_ranks):
    assert two_ranks.run(count_traces_on_rank) == [1, 1]


def test_the_ids_of_the_next_batch_and_the_dense_part_do_not_wait_for_each_other(two_ranks):
    # Given a step that routes after its forward pass, in a function, which keeps effects in order
    for before in two_ranks.run(types_of_ops_before_on_rank):
        assert "GroupEmbedding>RouteIds" in before["GroupEmbedding>ReadRequests"]
        assert "MatMul" not in before["GroupEmbedding>ReadRequests"]
        assert "GroupEmbedding>GroupLookup" in before["MatMul"]
        assert "GroupEmbedding>RouteIds" not in before["MatMul"]
