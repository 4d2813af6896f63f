"""Groups of tables spread over ranks, a GPU for each: the same as in one process."""

import itertools

import numpy as np
import pytest
from ranks.exchange import gpu_processes
from ranks.exchange.gpu_processes import (
    NUM_RANKS,
    RANKS_OF_GPUS,
    RANKS_OF_THREADS,
    on_gpus,
    run_ranks,
)
from ranks.exchange.sharded_lookup_cases import (
    DIMS,
    HOTNESS,
    TABLE_OF_FEATURE,
    TRANSPORTS,
    as_rank,
    assert_same_bits,
    bytes_of_parts,
    draw_batch,
    draw_case,
    joined,
    one_process,
    pairs,
    train,
)

pytestmark = pytest.mark.gpu

RANKS = [*RANKS_OF_THREADS, *RANKS_OF_GPUS]


@pytest.mark.parametrize("num_ranks, how", RANKS)
@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
@pytest.mark.parametrize("max_norm", [0.0, 1.5], ids=["as_they_are", "clipped"])
def test_training_equals_one_process(num_ranks, how, weighted, max_norm):
    # Given batches of different sizes for each rank
    case, random = (
        draw_case(3, max_norms=[max_norm, 0, 1, 4 * max_norm, max_norm]),
        np.random.default_rng(4),
    )
    batches = [
        [draw_batch(random, 20 + 13 * rank, weighted) for rank in range(num_ranks)]
        for _ in range(5)
    ]
    expected, expected_tables = one_process(case, batches)
    # When each rank trains on its own
    ranks = train(num_ranks, how, case, batches)
    # Then they look up what one process does, and have its rows
    for got, whole in pairs(ranks, expected, expected_tables):
        np.testing.assert_allclose(got, whole, rtol=1e-5, atol=1e-5)


def asked_rows(batch, num_ranks):
    """[num_ranks, tables] how many rows of each rank a batch asks for."""
    asked = np.zeros([num_ranks, len(DIMS)], int)
    for table in range(len(DIMS)):
        of_table = [ids for ids, t in zip(batch.ids, TABLE_OF_FEATURE) if t == table]
        rows = np.unique(np.concatenate(of_table))
        asked[:, table] = np.bincount(rows[rows >= 0] % num_ranks, minlength=num_ranks)
    return asked


@pytest.mark.parametrize("num_ranks, how", RANKS)
@pytest.mark.parametrize("num_samples", [3, 200], ids=["few_ids", "many"])
def test_bytes_are_counted_for_each_rank_that_gets_them(num_ranks, how, num_samples):
    # Given batches of different sizes for each rank
    case, random = draw_case(13), np.random.default_rng(14)
    batches = [
        [draw_batch(random, num_samples + 7 * rank, False) for rank in range(num_ranks)]
        for _ in range(3)
    ]
    # When they are trained on
    arrays = [[as_rank(batch) for batch in of_ranks] for of_ranks in batches]
    sent = gpu_processes.run(num_ranks, how, gpu_processes.count_sent, case, arrays)
    # Then a rank sends another the ids and gradients that this one owns, and the rows that it owns
    expected = np.zeros([num_ranks, num_ranks], int)
    for step, of_ranks in enumerate(batches):
        asked = np.array([asked_rows(batch, num_ranks) for batch in of_ranks])
        for source, target in itertools.permutations(range(num_ranks), 2):
            expected[source, target] += (
                8 * asked[source, target].sum()
                + bytes_of_parts(asked[source, target], DIMS)
                + bytes_of_parts(asked[target, source], DIMS)
            )
        np.testing.assert_array_equal([of_rank[step] for of_rank in sent], expected)


@pytest.mark.parametrize("num_ranks, how", [ranks for ranks in RANKS if ranks.values[0] > 1])
@pytest.mark.parametrize("comm_dtype, precision", [("bfloat16", 2**-8), ("float16", 2**-11)])
@pytest.mark.parametrize("num_samples", [3, 400], ids=["few_ids_a_row", "many"])
def test_rows_and_gradients_travel_in_16_bits(num_ranks, how, comm_dtype, precision, num_samples):
    # Given tables, and a batch for each rank
    case, random = draw_case(11, comm_dtype=comm_dtype), np.random.default_rng(12)
    batches = [[draw_batch(random, num_samples, False) for _ in range(num_ranks)]]
    ((whole,), whole_tables) = one_process(case, batches)
    # When ranks train on them
    ranks = train(num_ranks, how, case, batches)
    # Then they look up, and keep, what they would, within what 16 bits are precise to
    differences = []
    for f, expected in enumerate(whole):
        got = np.concatenate([looked_up[0][f] for looked_up, _ in ranks])
        ids_of_sample = 2 * HOTNESS[f]
        np.testing.assert_allclose(got, expected, atol=5 * ids_of_sample * precision)
        differences.append(np.abs(got - expected).max())
    assert max(differences) > precision / 8  # they did not travel in float32
    for rank, (_, shards) in enumerate(ranks):
        for shard, table in zip(shards, whole_tables):
            np.testing.assert_allclose(shard, table[rank::num_ranks], atol=8 * precision)


@pytest.mark.parametrize("num_ranks", NUM_RANKS)
def test_both_ways_give_the_same_bits(num_ranks):
    # Given batches for each rank
    case, random = draw_case(5), np.random.default_rng(6)
    batches = [[draw_batch(random, 30, False) for _ in range(num_ranks)] for _ in range(3)]
    # When they are trained on, by sending and by writing into the peers' memory
    sent, written = (train(num_ranks, transport, case, batches) for transport in TRANSPORTS)
    # Then nothing differs
    assert_same_bits(sent, written)


@pytest.mark.parametrize("num_ranks, how", RANKS)
def test_ranks_look_up_the_bits_of_one_process(num_ranks, how):
    # Given tables, and a batch for each rank
    case, random = draw_case(7), np.random.default_rng(8)
    batches = [[draw_batch(random, 25, True) for _ in range(num_ranks)]]
    together = [[joined(batches[0])]]
    # When one rank has all, and several have their parts
    ((whole,), _), *_ = train(1, "local", case, together)
    ranks = train(num_ranks, how, case, batches)
    # Then lookups are the same bits
    for f, expected in enumerate(whole):
        got = np.concatenate([looked_up[0][f] for looked_up, _ in ranks])
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("num_ranks, how", RANKS)
@pytest.mark.parametrize("no_samples", [True, False])
@pytest.mark.parametrize("max_norm", [0.0, 1.5], ids=["as_they_are", "clipped"])
def test_a_rank_may_have_nothing_to_look_up(num_ranks, how, no_samples, max_norm):
    # Given a last rank without samples, or whose ids are all pruned
    case, random = draw_case(9, max_norms=[max_norm] * 5), np.random.default_rng(10)
    batches = [[draw_batch(random, 10, False) for _ in range(num_ranks)] for _ in range(2)]
    for of_ranks in batches:
        if no_samples:
            of_ranks[-1] = draw_batch(random, 0, False)
        for ids in of_ranks[-1].ids:
            ids[:] = -1
    expected, expected_tables = one_process(case, batches)
    # When ranks train
    ranks = train(num_ranks, how, case, batches)
    # Then that rank looks up zeros, and all have what they should
    assert all(not output.any() for step in ranks[-1][0] for output in step)
    for rank, (_, shards) in enumerate(ranks):
        for shard, whole in zip(shards, expected_tables):
            np.testing.assert_allclose(shard, whole[rank::num_ranks], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("num_ranks", [pytest.param(n, marks=on_gpus(n)) for n in (2, 4)])
def test_who_waits_in_vain_for_gradients_is_told(num_ranks):
    # Given ranks that write into each other's memory, and wait for two seconds
    case, batch = draw_case(19), as_rank(draw_batch(np.random.default_rng(20), 10, False))
    # When the last one looks up, but sends no gradients
    ranks = run_ranks(num_ranks, gpu_processes.lose_a_rank_in_a_step, case, batch)
    # Then the errors of the others name the missing rank, soon
    for said, took in ranks[:-1]:
        assert f"waited for rank {num_ranks - 1} longer than 2 s" in said
        assert took < 20
    assert ranks[-1][0] == ""
