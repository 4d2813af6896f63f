"""Tables found by key in the memory of GPUs, a GPU for each rank."""

import numpy as np
import pytest
from exchange import test_keyed_checkpoints as checkpoints
from exchange import test_keyed_tables as keyed
from exchange.test_keyed_checkpoints import uninterrupted  # noqa: F401
from exchange.test_keyed_tables import one_process  # noqa: F401
from gpu_processes import on_gpus

import group_embedding as ge

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
def test_rows_that_no_gradient_reaches_stay_as_they_are(ranks, request):
    # Given what one process trains of rows and keys, of several types
    rows, keys = keyed.train_mixed()
    # When ranks do, whose keys are on GPUs
    option = ge.StorageOption(ge.StorageType.HBM)
    of_ranks = request.getfixturevalue(ranks).run(keyed.train_mixed_on_rank, option)
    # Then they have the same
    keyed.check_mixed(of_ranks, rows, keys)


@with_gpus
def test_a_step_has_one_op_each_way_and_one_update(ranks, request):
    # Given a table on a GPU
    option = ge.StorageOption(ge.StorageType.HBM)
    # When a step is traced
    ops = request.getfixturevalue(ranks).run(keyed.ops_of_a_step_on_rank, option)
    # Then one op looks up, one sends gradients, one updates, and no rows go through the host
    for of_rank in ops:
        assert of_rank.count("ShardedGroupLookup") == 1
        assert of_rank.count("SendGroupGradients") == 1
        assert of_rank.count("GroupUpdate") == 1
        assert not {"RouteIds", "PackRows", "LocateRows"} & {*of_rank}
