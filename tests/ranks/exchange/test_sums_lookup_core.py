"""Tables whose owners combine rows, a GPU for each rank: the same as in one process."""

import itertools

import numpy as np
import pytest
from ranks.exchange import gpu_processes
from ranks.exchange.gpu_processes import (
    BY_COLUMNS,
    BY_ROWS,
    RANKS_OF_GPUS,
    RANKS_OF_THREADS,
    on_gpus,
    part_of_rank,
)
from ranks.exchange.sharded_lookup_cases import (
    DIMS,
    HOTNESS,
    as_rank,
    assert_same_bits,
    bytes_of_parts,
    draw_batch,
    draw_case,
    one_process,
)

pytestmark = pytest.mark.gpu

# The owners of tables of dims 8, 4, 3, 128 and 1, whose features have combiners sum, mean, sqrtn,
# sum and mean, and sum.
OWNERS = {
    "whole": [0, 1, 2, 3, 4],
    "rows": [BY_ROWS] * 5,
    "columns": [BY_COLUMNS, BY_COLUMNS, 1, BY_COLUMNS, 0],
    "all_kinds": [BY_COLUMNS, BY_ROWS, 1, BY_COLUMNS, BY_ROWS],
}
RANKS = [*RANKS_OF_THREADS, *RANKS_OF_GPUS]
SEVERAL = [ranks for ranks in RANKS if ranks.values[0] > 1]


def draw_owned(seed, owners, num_ranks, **options):
    case = draw_case(seed, **options)
    divides = [dim % num_ranks == 0 for dim in DIMS]
    case.owners = [
        1 if owner == BY_COLUMNS and not is_divided else owner
        for owner, is_divided in zip(OWNERS[owners], divides)
    ]
    return case


def train(num_ranks, how, case, batches):
    arrays = [[as_rank(batch) for batch in of_ranks] for of_ranks in batches]
    return gpu_processes.run(num_ranks, how, gpu_processes.train_by_sums, case, arrays)


def parts(case, ranks, tables):
    """The ranks' final parts of each table, each beside that of the whole one."""
    for rank, (_, of_rank) in enumerate(ranks):
        for part, table, owner in zip(of_rank, tables, case.owners):
            expected = part_of_rank(table, owner, rank, len(ranks))
            if expected.size:
                yield part, expected


def lookups(ranks, steps):
    """The outputs of all ranks for each feature, each beside that of one process."""
    for step, whole in enumerate(steps):
        for f, expected in enumerate(whole):
            yield np.concatenate([looked_up[step][f] for looked_up, _ in ranks]), expected


@pytest.mark.parametrize("num_ranks, how", RANKS)
@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
@pytest.mark.parametrize("owners", OWNERS)
def test_training_equals_one_process(num_ranks, how, weighted, owners):
    # Given batches of different sizes for each rank
    case, random = draw_owned(3, owners, num_ranks), np.random.default_rng(4)
    batches = [
        [draw_batch(random, 20 + 13 * rank, weighted) for rank in range(num_ranks)]
        for _ in range(5)
    ]
    expected, expected_tables = one_process(case, batches, rule="adagrad")
    # When each rank trains on its own
    ranks = train(num_ranks, how, case, batches)
    # Then they look up what one process does, and have its rows
    for got, whole in (*lookups(ranks, expected), *parts(case, ranks, expected_tables)):
        np.testing.assert_allclose(got, whole, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("num_ranks", [pytest.param(n, marks=on_gpus(n)) for n in (2, 4)])
@pytest.mark.parametrize("owners", OWNERS)
@pytest.mark.parametrize("comm_dtype", ["float32", "bfloat16"])
def test_both_ways_give_the_same_bits(num_ranks, owners, comm_dtype):
    # Given batches for each rank
    case = draw_owned(5, owners, num_ranks, comm_dtype=comm_dtype)
    random = np.random.default_rng(6)
    batches = [[draw_batch(random, 30, True) for _ in range(num_ranks)] for _ in range(3)]
    # When they are trained on, by sending and by writing into the peers' memory
    sent, written = (train(num_ranks, how, case, batches) for how in ("nccl", "peer_buffers"))
    # Then nothing differs
    assert_same_bits(sent, written)


@pytest.mark.parametrize("num_ranks, how", SEVERAL)
@pytest.mark.parametrize("owners", OWNERS)
@pytest.mark.parametrize("comm_dtype, precision", [("bfloat16", 2**-8), ("float16", 2**-11)])
def test_sums_and_gradients_travel_in_16_bits(num_ranks, how, owners, comm_dtype, precision):
    # Given tables, and a batch for each rank
    case = draw_owned(11, owners, num_ranks, comm_dtype=comm_dtype)
    random = np.random.default_rng(12)
    batches = [[draw_batch(random, 40, False) for _ in range(num_ranks)]]
    ((whole,), whole_tables) = one_process(case, batches, rule="adagrad")
    # When ranks train on them
    ranks = train(num_ranks, how, case, batches)
    # Then they look up, and keep, what they would, within what 16 bits are precise to
    differences = []
    for (got, expected), hotness in zip(lookups(ranks, [whole]), HOTNESS):
        np.testing.assert_allclose(got, expected, atol=10 * hotness * precision)
        differences.append(np.abs(got - expected).max())
    assert max(differences) > precision / 8  # they did not travel in float32
    for part, expected in parts(case, ranks, whole_tables):
        np.testing.assert_allclose(part, expected, atol=8 * precision)


@pytest.mark.parametrize("num_ranks, how", RANKS)
@pytest.mark.parametrize("owners", OWNERS)
@pytest.mark.parametrize("no_samples", [True, False])
def test_a_rank_may_have_nothing_to_look_up(num_ranks, how, owners, no_samples):
    # Given a last rank without samples, or whose ids are all pruned
    case, random = draw_owned(9, owners, num_ranks), np.random.default_rng(10)
    batches = [[draw_batch(random, 10, False) for _ in range(num_ranks)] for _ in range(2)]
    for of_ranks in batches:
        if no_samples:
            of_ranks[-1] = draw_batch(random, 0, False)
        for ids in of_ranks[-1].ids:
            ids[:] = -1
    expected, expected_tables = one_process(case, batches, rule="adagrad")
    # When ranks train
    ranks = train(num_ranks, how, case, batches)
    # Then that rank looks up zeros, and all have what they should
    assert all(not output.any() for step in ranks[-1][0] for output in step)
    for got, whole in (*lookups(ranks, expected), *parts(case, ranks, expected_tables)):
        np.testing.assert_allclose(got, whole, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("num_ranks, how", RANKS)
@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
def test_bytes_are_counted_for_each_rank_that_gets_them(num_ranks, how, weighted):
    # Given batches of different sizes for each rank, and tables that are each on one rank
    case, random = draw_owned(15, "whole", num_ranks), np.random.default_rng(16)
    batches = [[draw_batch(random, 20 + 7 * n, weighted) for n in range(num_ranks)]] * 3
    # When they are trained on
    arrays = [[as_rank(batch) for batch in of_ranks] for of_ranks in batches]
    sent = gpu_processes.run(num_ranks, how, gpu_processes.count_sent_by_sums, case, arrays)
    # Then a rank sends each other one its batch, the sums of its tables, and gradients of others'
    expected = np.zeros([num_ranks, num_ranks], int)
    for source, target in itertools.permutations(range(num_ranks), 2):
        batch = arrays[0][source]
        id_bytes = 12 if weighted else 8
        expected[source, target] = 8 * len(batch.row_splits) + id_bytes * len(batch.ids)
        for owner, requester in ((source, target), (target, source)):
            shapes = arrays[0][requester].output_shapes
            of_owner = [
                shape
                for shape, table in zip(shapes, case.table_of_feature)
                if case.owners[table] % num_ranks == owner
            ]
            expected[source, target] += bytes_of_parts(*zip(*of_owner))
    for step in range(3):
        np.testing.assert_array_equal([of_rank[step] for of_rank in sent], (step + 1) * expected)


@pytest.mark.parametrize("num_ranks, how", SEVERAL)
def test_a_bad_id_of_one_rank_is_an_error_on_all(num_ranks, how):
    # Given a first rank with an id outside of its table, in the fourth feature
    case, random = draw_owned(13, "all_kinds", num_ranks), np.random.default_rng(14)
    bad, good = draw_batch(random, 20, False), draw_batch(random, 20, False)
    bad.ids[3][5] = 5000
    # When all look up, and then ids that are all good
    ranks = gpu_processes.run(
        num_ranks, how, gpu_processes.bad_ids_by_sums, case, as_rank(bad), as_rank(good)
    )
    # Then errors on all name the rank and the feature, and the second lookup is right
    for told, looked_up in ranks:
        (said,) = told
        assert "rank 0" in said and "feature '3'" in said and "5000" in said, said
        np.testing.assert_array_equal(looked_up[0], ranks[0][1][0])
