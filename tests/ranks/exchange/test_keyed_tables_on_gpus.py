"""Tables found by key in the memory of GPUs, a GPU for each rank."""

import numpy as np
import pytest
from ranks.exchange import routed_cases as ahead
from ranks.exchange import test_budgets as budgets
from ranks.exchange import test_collective_strategy as strategy
from ranks.exchange import test_keyed_checkpoints as checkpoints
from ranks.exchange import test_keyed_tables as keyed
from ranks.exchange import test_statistics as statistics
from ranks.exchange.gpu_processes import on_gpus
from ranks.exchange.test_collective_strategy import one_process as one_job  # noqa: F401
from ranks.exchange.test_keyed_checkpoints import uninterrupted  # noqa: F401
from ranks.exchange.test_keyed_tables import one_process  # noqa: F401

import group_embedding as ge

HBM = ge.StorageOption(ge.StorageType.HBM)
BY_HOST = {
    "GroupEmbedding>RouteIds",
    "GroupEmbedding>PackRows",
    "GroupEmbedding>LocateRows",
}  # ops of keys that NCCL does not carry

with_gpus = pytest.mark.parametrize(
    "ranks",
    [
        pytest.param("two_ranks", marks=[pytest.mark.gpu, *on_gpus(2)]),
        pytest.param("four_ranks", marks=[pytest.mark.gpu, *on_gpus(4)]),
    ],
)


@with_gpus
def test_tables_on_gpus_have_what_one_process_has(ranks, one_process, request):  # noqa: F811
    # Given what one process trains in its memory
    # When ranks with a GPU each train tables on these
    of_ranks = request.getfixturevalue(ranks).run(keyed.train_on_gpu_on_rank, timeout=120)
    # Then keys, rows, versions and counts are the same, each key on one rank
    assert all("GPU" in device for _, devices in of_ranks for device in devices)
    for storage, name in of_ranks[0][0]:
        parts = [results[storage, name] for results, _ in of_ranks]
        together = {key: kept for part in parts for key, kept in part.items()}
        assert len(together) == sum(map(len, parts))
        assert together.keys() == one_process[name].keys()
        for key, (values, version, count) in one_process[name].items():
            np.testing.assert_allclose(together[key][0], values, atol=2e-5)
            assert together[key][1:] == (version, count)


@with_gpus
def test_tables_on_gpus_are_restored_on_gpus_and_in_memory(ranks, request, uninterrupted, tmp_path):  # noqa: F811
    # Given a table that the GPUs of ranks have trained and saved
    ranks = request.getfixturevalue(ranks)
    saved = ranks.run(checkpoints.on_rank, "on_gpu", str(tmp_path), timeout=120)
    (path, _), *_ = saved
    (whole,) = checkpoints.together([has for _, has in saved])
    # When these ranks restore it, and one process without a GPU does
    again = ranks.run(checkpoints.on_rank, "on_gpu", str(tmp_path), path, timeout=120)
    alone = checkpoints.Eager(str(tmp_path))
    alone.restore(path)
    # Then all is there, and training goes on as if it had not ended
    assert checkpoints.together([has for has, _ in again]) == [whole] == list(alone.content())
    (later,) = checkpoints.together([has for _, has in again])
    (expected,) = uninterrupted["objects"]
    assert later.keys() == expected.keys()
    for key, (row, count) in expected.items():
        np.testing.assert_allclose(later[key][0], row, atol=2e-5)
        assert later[key][1] == count


@with_gpus
def test_each_gpu_counts_what_it_sends(ranks, request):
    # Given tables in GPU memory
    # When ranks with a GPU each train them
    of_ranks = request.getfixturevalue(ranks).run(statistics.train_on_rank, ("hbm",), timeout=120)
    # Then the statistics of each rank have the bytes that its GPU sent to each other one
    for rank, (before, found, text) in enumerate(of_ranks):
        sent, former = found.exchange.gpu_sent_bytes, before.exchange.gpu_sent_bytes
        assert len(sent) == len(of_ranks) and sent[rank] == 0
        for other in set(range(len(of_ranks))) - {rank}:
            assert sent[other] - former[other] > statistics.least_sent(len(of_ranks))
            size = (
                f'_gpu_sent_bytes_total{{to_rank="{other}",to_host="{found.exchange.hosts[other]}"'
            )
            assert f'{size},rank="{rank}"}} {sent[other]}' in text


@with_gpus
def test_tables_on_gpus_keep_a_budget_of_all_ranks(ranks, request):
    # Given a budget of all ranks
    # When ranks with a GPU each train tables in GPU memory
    of_ranks = request.getfixturevalue(ranks).run(budgets.train_on_rank, ("hbm",), timeout=120)
    # Then the keys that are left are those of one rank
    budgets.assert_ranks_keep_what_one_rank_keeps(of_ranks)


@with_gpus
def test_many_new_rows_come_to_ranks(ranks, request):
    # Given batches of more rows than come at a time, of keys that are new, or were there
    # When ranks look them up
    of_ranks = request.getfixturevalue(ranks).run(keyed.look_up_many_on_rank, HBM, timeout=120)
    # Then each has the rows that one process has of its keys
    for rank, of_rank in enumerate(of_ranks):
        for step, expected in zip(of_rank, keyed.look_up_many(rank)):
            for got, of_table in zip(step, expected):
                np.testing.assert_allclose(got, of_table, rtol=1e-5, atol=1e-5)


@with_gpus
def test_rows_that_no_gradient_reaches_stay_as_they_are(ranks, request):
    # Given what one process trains of rows and keys, of several types
    rows, keys = keyed.train_mixed()
    # When ranks do, whose keys are on GPUs
    of_ranks = request.getfixturevalue(ranks).run(keyed.train_mixed_on_rank, HBM)
    # Then they have the same
    keyed.check_mixed(of_ranks, rows, keys)


@with_gpus
def test_a_step_has_one_op_each_way_and_one_update(ranks, request):
    # Given a table on a GPU
    # When a step is traced
    ops = request.getfixturevalue(ranks).run(keyed.ops_of_a_step_on_rank, HBM)
    # Then one op looks up, one sends gradients, one updates, and no rows go through the host
    for of_rank in ops:
        assert of_rank.count("GroupEmbedding>ShardedGroupLookup") == 1
        assert of_rank.count("GroupEmbedding>SendGroupGradients") == 1
        assert of_rank.count("GroupEmbedding>GroupUpdate") == 1
        assert not BY_HOST & {*of_rank}


@with_gpus
def test_a_saved_model_of_tables_on_gpus_serves_all_rows_in_one_process(
    ranks,
    one_job,  # noqa: F811
    request,
    tmp_path,
):
    # Given what a job of one process exports, whose keys are in its memory
    # When ranks with a GPU each are that job, with the keys on these
    given = (strategy.train_on_rank, str(tmp_path), HBM)
    of_ranks = request.getfixturevalue(ranks).run(*given, timeout=240)
    # Then NCCL carried keys and rows, and this process serves from one SavedModel what it serves
    # from the other, of keys of all ranks and of keys without a row
    for of_rank in of_ranks:
        assert "GroupEmbedding>ShardedGroupLookup" in of_rank["session"]["ops of a step"]
        assert not BY_HOST & of_rank["session"]["ops of a step"]
    for way in one_job:
        strategy.check_exports(of_ranks, one_job, way)


@with_gpus
@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
@pytest.mark.parametrize("api", ahead.APIS)
def test_keys_that_go_ahead_train_the_same_to_the_bit(ranks, api, weighted, request):
    # Given a call of tables of which one has its keys on GPUs
    # When ranks train it twice, once with ids that go ahead
    of_ranks = request.getfixturevalue(ranks).run(ahead.train_on_rank, api, HBM, weighted)
    # Then it made no difference, and they did train, keys too
    for results in of_ranks:
        ahead.assert_same(results)
        ahead.assert_trained(results)
    assert any(results[True]["keyed"][0].size for results in of_ranks)


@with_gpus
@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
def test_keys_that_go_ahead_are_exchanged_in_the_step_unless_ids_have_weights(
    ranks, weighted, request
):
    # Given a step that takes routed ids and routes the next, of keys on GPUs and of rows
    # When it is traced
    ops = request.getfixturevalue(ranks).run(ahead.types_of_ops_on_rank, HBM, weighted)
    # Then its lookup exchanges keys and rows itself; with weights the keys alone go by the host
    for of_rank in ops:
        assert "GroupEmbedding>ShardedGroupLookup" in of_rank
        assert bool(BY_HOST & of_rank) == weighted
