"""Groups of tables spread over ranks, a GPU for each: many rows, wide rows, many tables."""

from types import SimpleNamespace

import numpy as np
import pytest
from ranks.exchange import gpu_processes
from ranks.exchange.gpu_processes import NUM_RANKS, on_gpus, run_ranks
from ranks.exchange.sharded_lookup_cases import (
    TRANSPORTS,
    assert_same_bits,
    draw_batch,
    draw_case,
    one_process,
    pairs,
    train,
)

pytestmark = pytest.mark.gpu


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
    # Then the error of each said how they differ, and the second lookup is right
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
