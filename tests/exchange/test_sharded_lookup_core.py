"""Groups of tables spread over ranks, a GPU for each: the same as in one process."""

from types import SimpleNamespace

import gpu_processes
import numpy as np
import pytest
from core_runner import core
from gpu_processes import NUM_RANKS, on_gpus, run_ranks

pytestmark = pytest.mark.gpu
TRANSPORTS = ("nccl", "peer_buffers")
DIMS, ROWS = [8, 4, 3, 128, 1], [1000, 7, 300, 5000, 40]
TABLE_OF_FEATURE = [0, 1, 2, 3, 3, 4, 0]
COMBINERS = ["sum", "mean", "sqrtn", "sum", "mean", "sum", "sum"]
HOTNESS = [3, 2, 5, 12, 1, 4, 40]


def draw_case(seed, max_norms=(0.0,) * 5, comm_dtype="float32"):
    random = np.random.default_rng(seed)
    tables = [
        random.standard_normal((rows, dim)).astype(np.float32) for rows, dim in zip(ROWS, DIMS)
    ]
    return SimpleNamespace(
        tables=tables,
        table_of_feature=TABLE_OF_FEATURE,
        combiners=COMBINERS,
        description="seven features",
        max_norms=list(max_norms),
        comm_dtype=comm_dtype,
    )


def draw_batch(random, num_samples, weighted):
    lengths = [random.integers(0, 2 * hotness, num_samples) for hotness in HOTNESS]
    ids = [
        (ROWS[table] * random.random(count.sum()) ** 3).astype(np.int64)
        for table, count in zip(TABLE_OF_FEATURE, lengths)
    ]
    # Ids that are pruned, and the hottest of rows
    for of_feature in ids:
        of_feature[::7] = -1
        of_feature[1::5] = 0
    weights = [random.uniform(-0.2, 1, i.size).astype(np.float32) for i in ids]
    return SimpleNamespace(lengths=lengths, ids=ids, weights=weights if weighted else None)


def as_rank(batch):
    """The batch as arrays; a batch of no ids has one sample of one pruned id."""
    return SimpleNamespace(
        ids=np.concatenate(batch.ids),
        row_splits=np.concatenate([[0], np.concatenate(batch.lengths).cumsum()]).astype(np.int64),
        weights=None if batch.weights is None else np.concatenate(batch.weights),
        output_shapes=[
            (len(count), DIMS[table]) for count, table in zip(batch.lengths, TABLE_OF_FEATURE)
        ],
    )


def joined(batches):
    """The batches of all ranks as one."""
    join = lambda parts: [np.concatenate(of_feature) for of_feature in zip(*parts)]  # noqa: E731
    weighted = batches[0].weights is not None
    return SimpleNamespace(
        lengths=join([b.lengths for b in batches]),
        ids=join([b.ids for b in batches]),
        weights=join([b.weights for b in batches]) if weighted else None,
    )


def assert_same_bits(ranks, others):
    """Compares lookups and final rows of ranks with those of other ranks."""
    for (looked_up, shards), (other_looked_up, other_shards) in zip(ranks, others):
        for step, other_step in zip(looked_up, other_looked_up):
            for output, other in zip(step, other_step):
                np.testing.assert_array_equal(output, other)
        for shard, other in zip(shards, other_shards):
            np.testing.assert_array_equal(shard, other)


def train(num_ranks, transport, case, batches):
    arrays = [[as_rank(batch) for batch in of_ranks] for of_ranks in batches]
    return run_ranks(num_ranks, gpu_processes.train, transport, case, arrays)


def one_process(case, batches):
    """Looked up in each step, and the tables in the end, by the fused one-rank path on the host."""
    tables = [table.copy() for table in case.tables]
    slots = [[np.full(len(table), 0.1, np.float32)] for table in tables]
    looked_up = []
    for of_ranks in batches:
        batch = as_rank(joined(of_ranks))
        outputs = [np.full(shape, np.nan, np.float32) for shape in batch.output_shapes]
        group = core.Group(
            tables=tables, outputs=outputs, ids=batch.ids, row_splits=batch.row_splits,
            weights=batch.weights, table_of_feature=TABLE_OF_FEATURE, combiners=COMBINERS,
            max_norms=case.max_norms)  # fmt: skip
        group.lookup()
        looked_up.append([output.copy() for output in outputs])
        hyper = gpu_processes.hyper().numpy()
        core.Update(group, rule="rowwise_adagrad", slots=slots, hyper=hyper).run()
    return looked_up, tables


def pairs(ranks, expected, expected_tables):
    """The ranks' lookups and final rows of each table, each beside the value of `one_process`."""
    for step, of_step in enumerate(expected):
        for f, whole in enumerate(of_step):
            yield np.concatenate([looked_up[step][f] for looked_up, _ in ranks]), whole
    for rank, (_, shards) in enumerate(ranks):
        for shard, whole in zip(shards, expected_tables):
            yield shard, whole[rank :: len(ranks)]


@pytest.mark.parametrize("num_ranks", NUM_RANKS)
@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
@pytest.mark.parametrize("max_norm", [0.0, 1.5], ids=["as_they_are", "clipped"])
def test_training_equals_one_process(num_ranks, transport, weighted, max_norm):
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
    ranks = train(num_ranks, transport, case, batches)
    # Then they look up what one process does, and have its rows
    for got, whole in pairs(ranks, expected, expected_tables):
        np.testing.assert_allclose(got, whole, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("num_ranks", [pytest.param(n, marks=on_gpus(n)) for n in (2, 4)])
@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("comm_dtype, precision", [("bfloat16", 2**-8), ("float16", 2**-11)])
@pytest.mark.parametrize("num_samples", [3, 400], ids=["few_ids_a_row", "many"])
def test_rows_and_gradients_travel_in_16_bits(
    num_ranks, transport, comm_dtype, precision, num_samples
):
    # Given tables, and a batch for each rank
    case, random = draw_case(11, comm_dtype=comm_dtype), np.random.default_rng(12)
    batches = [[draw_batch(random, num_samples, False) for _ in range(num_ranks)]]
    ((whole,), whole_tables) = one_process(case, batches)
    # When ranks train on them
    ranks = train(num_ranks, transport, case, batches)
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


def case_of_large_tables(num_tables, dim, num_rows=100_000, combiner="sum", max_norm=0.0):
    """Tables of as many rows, with a feature each."""
    random = np.random.default_rng(13)
    return SimpleNamespace(
        tables=[
            random.standard_normal((num_rows, dim)).astype(np.float32) for _ in range(num_tables)
        ],
        table_of_feature=list(range(num_tables)), combiners=[combiner] * num_tables,
        description="large tables", max_norms=[max_norm] * num_tables,
        comm_dtype="float32")  # fmt: skip


def batch_of_tables(ids_of_tables, dim, num_samples, weights=None):
    """Samples of as many ids each."""
    counts = np.repeat([len(ids) // num_samples for ids in ids_of_tables], num_samples)
    return SimpleNamespace(
        ids=np.concatenate(ids_of_tables),
        row_splits=np.concatenate([[0], counts.cumsum()]),
        weights=weights,
        output_shapes=[(num_samples, dim)] * len(ids_of_tables),
    )


def look_up_in_one_table(num_ranks, transport, ids_of_ranks):
    """The ranks' lookups in a table of 100,000 rows, and the expected values."""
    case = case_of_large_tables(num_tables=1, dim=4)
    (table,) = case.tables
    batches = [batch_of_tables([ids], 4, len(ids)) for ids in ids_of_ranks]
    ranks = run_ranks(num_ranks, gpu_processes.train, transport, case, [batches])
    return [looked_up[0][0] for looked_up, _ in ranks], [table[ids] for ids in ids_of_ranks]


@pytest.mark.parametrize("num_ranks", NUM_RANKS)
@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("ids_of_first, ids_of_others", [(70_000, 70_000), (70_000, 3)])
def test_more_rows_than_come_with_their_counts(num_ranks, transport, ids_of_first, ids_of_others):
    # Given a rank that asks for most rows of a large table, and others that ask for as many, or few
    random = np.random.default_rng(14)
    counts = [ids_of_first] + [ids_of_others] * (num_ranks - 1)
    # When they look them up
    looked_up, expected = look_up_in_one_table(
        num_ranks, transport, [random.permutation(100_000)[:count] for count in counts]
    )
    # Then each has its own
    for got, rows in zip(looked_up, expected):
        np.testing.assert_array_equal(got, rows)


@pytest.mark.parametrize("num_ranks", NUM_RANKS)
@pytest.mark.parametrize("more", [-1, 0, 1])
def test_as_many_rows_as_come_with_their_counts(num_ranks, more):
    # Given ranks that ask the last rank alone for rows: one less than a message has space for, as
    # many, or one more
    space, owner = 65_536 // num_ranks, num_ranks - 1
    ids = owner + num_ranks * np.random.default_rng(15).permutation(100_000 // num_ranks)
    # When they look them up
    looked_up, expected = look_up_in_one_table(num_ranks, "nccl", [ids[: space + more]] * num_ranks)
    # Then each has them
    for got, rows in zip(looked_up, expected):
        np.testing.assert_array_equal(got, rows)


@pytest.mark.parametrize("num_ranks", NUM_RANKS)
def test_both_ways_give_the_same_bits(num_ranks):
    # Given batches for each rank
    case, random = draw_case(5), np.random.default_rng(6)
    batches = [[draw_batch(random, 30, False) for _ in range(num_ranks)] for _ in range(3)]
    # When they are trained on, by sending and by writing into the peers' memory
    sent, written = (train(num_ranks, transport, case, batches) for transport in TRANSPORTS)
    # Then nothing differs
    assert_same_bits(sent, written)


@pytest.mark.parametrize("num_ranks", NUM_RANKS)
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_ranks_look_up_the_bits_of_one_process(num_ranks, transport):
    # Given tables, and a batch for each rank
    case, random = draw_case(7), np.random.default_rng(8)
    batches = [[draw_batch(random, 25, True) for _ in range(num_ranks)]]
    together = [[joined(batches[0])]]
    # When one rank has all, and several have their parts
    ((whole,), _), *_ = train(1, "local", case, together)
    ranks = train(num_ranks, transport, case, batches)
    # Then lookups are the same bits
    for f, expected in enumerate(whole):
        got = np.concatenate([looked_up[0][f] for looked_up, _ in ranks])
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("num_ranks", NUM_RANKS)
@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("no_samples", [True, False])
@pytest.mark.parametrize("max_norm", [0.0, 1.5], ids=["as_they_are", "clipped"])
def test_a_rank_may_have_nothing_to_look_up(num_ranks, transport, no_samples, max_norm):
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
    ranks = train(num_ranks, transport, case, batches)
    # Then that rank looks up zeros, and all have what they should
    assert all(not output.any() for step in ranks[-1][0] for output in step)
    for rank, (_, shards) in enumerate(ranks):
        for shard, whole in zip(shards, expected_tables):
            np.testing.assert_allclose(shard, whole[rank::num_ranks], rtol=1e-5, atol=1e-5)


def case_of_tables(num_tables, num_ids=1):
    """A feature for each of many tables, and a batch in which it has so many ids, a sample each."""
    tables = [
        np.arange(4 * (num_ids + 1), dtype=np.float32).reshape(-1, 4) - t for t in range(num_tables)
    ]
    case = SimpleNamespace(
        tables=tables,
        table_of_feature=list(range(num_tables)),
        combiners=["sum"] * num_tables,
        description=f"{num_tables} tables",
        max_norms=[0.0] * num_tables,
        comm_dtype="float32",
    )
    batch = SimpleNamespace(
        ids=np.arange(num_tables * num_ids, dtype=np.int64) % (num_ids + 1),
        row_splits=np.arange(num_tables * num_ids + 1, dtype=np.int64),
        weights=None,
        output_shapes=[(num_ids, 4)] * num_tables,
    )
    return case, batch


def looked_up_of(case, batch):
    return [table[ids] for table, ids in zip(case.tables, np.split(batch.ids, len(case.tables)))]


@pytest.mark.parametrize("num_ranks", NUM_RANKS)
@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("num_ids", [1, 50], ids=["few_rows", "more_than_come_with_counts"])
def test_more_tables_than_a_message_counts(num_ranks, transport, num_ids):
    # Given 2,500 tables
    case, batch = case_of_tables(2500, num_ids)
    # When each rank looks up rows of each
    ranks = run_ranks(num_ranks, gpu_processes.train, transport, case, [[batch] * num_ranks])
    # Then it has them
    for (looked_up,), _ in ranks:
        np.testing.assert_array_equal(looked_up, looked_up_of(case, batch))


@pytest.mark.parametrize("num_tables", [3, 2500], ids=["fewer", "more"])
@pytest.mark.parametrize("num_ranks", [pytest.param(n, marks=on_gpus(n)) for n in (2, 4)])
def test_ranks_with_different_groups_are_told_so_and_go_on(num_ranks, num_tables):
    # Given ranks of which the last looks up other tables than the rest
    (case, batch), (other, of_other) = case_of_tables(40), case_of_tables(num_tables)
    cases = [*[case] * (num_ranks - 1), other]
    batches = [*[batch] * (num_ranks - 1), of_other]
    # When they look up, and then all the same
    ranks = run_ranks(num_ranks, gpu_processes.look_up_after_another, cases, batches)
    # Then all were told how they differ, and the second lookup is right
    for rank, (told, looked_up) in enumerate(ranks):
        mine, theirs = ("40", num_tables) if rank < num_ranks - 1 else (num_tables, "40")
        assert f"has {theirs} tables where this rank has {mine} tables" in told
        np.testing.assert_array_equal(looked_up, looked_up_of(case, batch))


@pytest.mark.parametrize("num_ranks", [pytest.param(n, marks=on_gpus(n)) for n in (2, 4)])
def test_peer_buffers_grow_with_the_batches(num_ranks):
    # Given batches of different sizes, one rank's larger than the others'
    case, random = draw_case(17), np.random.default_rng(18)
    sizes = [3, 40, 5, 600, 2000, 1]
    batches = [
        [draw_batch(random, size * (1 + (rank == 0)), False) for rank in range(num_ranks)]
        for size in sizes
    ]
    expected, expected_tables = one_process(case, batches)
    # When ranks train on them
    ranks = train(num_ranks, "peer_buffers", case, batches)
    # Then they look up what one process does, and have its rows
    for got, whole in pairs(ranks, expected, expected_tables):
        np.testing.assert_allclose(got, whole, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("num_ranks", [pytest.param(n, marks=on_gpus(n)) for n in (2, 4)])
@pytest.mark.parametrize("comm_dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("of_first", [1, 10], ids=["alike", "a_tenth"])
@pytest.mark.parametrize(
    "dim, combiner, max_norm",
    [(512, "sum", 0.0), (512, "mean", 0.0), (512, "sum", 20.0), (509, "sum", 0.0)],
    ids=["plain", "weighted", "clipped", "odd"])  # fmt: skip
def test_rows_of_many_bytes_come_in_chunks(
    num_ranks, comm_dtype, of_first, dim, combiner, max_norm
):
    # Given batches for each rank of 200 MB of rows, or 100 MB, where one of them may have a tenth
    case = case_of_large_tables(3, dim, num_rows=50_000, combiner=combiner, max_norm=max_norm)
    case.comm_dtype, random = comm_dtype, np.random.default_rng(22)
    shares = [of_first, *[1] * (num_ranks - 1)]

    def draw(share):
        counts = [n // share for n in (50_000, 200, 50_000)]
        weights = random.uniform(-0.2, 1, sum(counts)).astype(np.float32)
        return batch_of_tables(
            [random.permutation(50_000)[:count] for count in counts],
            dim=dim, num_samples=10, weights=weights if combiner == "mean" else None)  # fmt: skip

    batches = [[draw(share) for share in shares] for _ in range(3)]
    # When they are trained on, by sending and by writing into the peers' memory
    sent, written = (
        run_ranks(num_ranks, gpu_processes.train, transport, case, batches)
        for transport in TRANSPORTS
    )
    # Then nothing differs
    assert_same_bits(sent, written)


@pytest.mark.parametrize("num_ranks", [pytest.param(n, marks=on_gpus(n)) for n in (2, 4)])
def test_all_send_what_one_has_no_room_for(num_ranks):
    # Given a batch of few rows, and one whose peer buffer takes 150 MB and more, where the last
    # rank has 64 MB left
    case, random = case_of_large_tables(num_tables=1, dim=512), np.random.default_rng(21)
    batches = [
        [batch_of_tables([random.permutation(100_000)[:count]], 512, 10) for _ in range(num_ranks)]
        for count in (20, 70_000)
    ]
    expected = run_ranks(num_ranks, gpu_processes.train, "nccl", case, batches)
    # When ranks that would write into each other's memory train on them
    ranks = run_ranks(num_ranks, gpu_processes.train_in_little_memory, case, batches)
    # Then all know who lacked memory, and when; and have the same as those that send all
    for *_, lacks in ranks:
        assert lacks[0] == ""
        assert f"rank {num_ranks - 1} has no" in lacks[1]
    assert_same_bits([of_rank[:2] for of_rank in ranks], expected)


@pytest.mark.parametrize("num_ranks", [pytest.param(n, marks=on_gpus(n)) for n in (2, 4)])
def test_who_waits_in_vain_for_gradients_is_told(num_ranks):
    # Given ranks that write into each other's memory, and wait for two seconds
    case, batch = draw_case(19), as_rank(draw_batch(np.random.default_rng(20), 10, False))
    # When the last one looks up, but sends no gradients
    ranks = run_ranks(num_ranks, gpu_processes.lose_a_rank_in_a_step, case, batch)
    # Then the others are told who is missing, soon
    for said, took in ranks[:-1]:
        assert f"waited for rank {num_ranks - 1} longer than 2 s" in said
        assert took < 20
    assert ranks[-1][0] == ""
