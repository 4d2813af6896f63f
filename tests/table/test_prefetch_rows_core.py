"""Rows of the next batch that are brought from host memory to GPU memory ahead of it."""

import types

import numpy as np
import pytest
from support.cases.core_runner import on_gpu
from table.device_tables import DeviceTable, bring, core

pytestmark = on_gpu
STRATEGIES = ["least_recent", "least_frequent"]


def make_table(dim=4, rows_on_device=0, dtype="float32", **options):
    """A table in GPU memory alone, or one that has so many rows there, and a slot of float32."""
    if rows_on_device:
        row_bytes = 40 + dim * (4 + np.dtype(dtype).itemsize)
        options["device_bytes"] = (rows_on_device + 1) * row_bytes
    table = DeviceTable(dim=dim, dtype=dtype, distribution="normal", b=1.0, seed=5, **options)
    table.slot("accumulator", initial=0.5)
    return table


def update(table, rows, step):
    """Something like Adagrad, whose result depends on values, slots and order."""
    rows = np.unique(rows)
    table.before_write(rows)
    values, slots = table.rows[rows], table.slot("accumulator")[rows]
    stored = values.dtype  # rows of 16 bits are seen as numbers of no sign
    if stored == np.uint16:
        values = values.view(np.float16).astype(np.float32)
    gradient = np.sin(values * (1 + step % 7))
    slots += gradient**2
    table.slot("accumulator")[rows] = slots
    values = values - 0.1 * gradient / np.sqrt(slots)
    table.rows[rows] = values if stored != np.uint16 else values.astype(np.float16).view(stored)


def train(table, keys, step, next_keys=()):
    """A step that brings the rows of the next keys between its lookup and its update."""
    batch = table.begin_batch()
    rows = table.locate(keys, train=True, step=step)
    if len(next_keys):
        table.bring(next_keys)
    update(table, rows, step)
    table.end_batch(batch)


def content_of(table):
    snapshot = table.snapshot()
    rows = snapshot.read(0, snapshot.num_rows)
    slot = rows.pop("slots")[0]
    order = np.argsort(rows["keys"])
    return {name: of[order] for name, of in (rows | {"slot": slot}).items()}


def assert_equal_content(actual, expected):
    for name, values in expected.items():
        np.testing.assert_array_equal(actual[name], values, err_msg=name)


def tiers_of(table, keys):
    return table.describe(np.asarray(keys))["tiers"]


@pytest.mark.parametrize("cache_strategy", STRATEGIES)
@pytest.mark.parametrize(
    "dtype, dim", [("float32", 1), ("float32", 4), ("float32", 33), ("float16", 3), ("float16", 8)]
)
def test_training_on_rows_prefetched_gives_the_same_bits(dtype, dim, cache_strategy):
    # Given a table of which a twentieth lies in GPU memory, and one that is there as a whole
    rng = np.random.default_rng(dim)
    options = {"dim": dim, "dtype": dtype, "cache_strategy": cache_strategy}
    table, whole = make_table(rows_on_device=1000, **options), make_table(dim=dim, dtype=dtype)
    for some in (table, whole):
        train(some, np.arange(20_000), 0)
    batches = [rng.zipf(1.2, 700) % 22_000 for _ in range(30)]  # some keys have no row yet

    # When both train on the same keys, and the first brings the rows of each next batch
    shares = []
    for step, (keys, next_keys) in enumerate(zip(batches, batches[1:]), start=1):
        train(table, keys, step, next_keys)
        train(whole, keys, step)
        tiers = tiers_of(table, np.setdiff1d(next_keys, keys))
        shares.append((tiers == 0).sum() / max((tiers >= 0).sum(), 1))

    # Then all that the next batch names and this one does not was in GPU memory, and no bit differs
    assert min(shares) == 1
    assert_equal_content(content_of(table), content_of(whole))


def test_rows_of_a_batch_in_flight_stay_where_they_are():
    # Given a batch in flight with rows in both memories
    table = make_table(rows_on_device=64)
    train(table, np.arange(256), 0)
    batch = table.begin_batch()
    held = np.arange(0, 256, 2)
    rows = table.locate(held, train=True, step=1)
    # When the next batch names all keys
    table.bring(np.arange(256))
    # Then its rows have the numbers that it knows, until it ends
    np.testing.assert_array_equal(table.find(held), rows)
    table.end_batch(batch)
    # And its keys in host memory are brought for a batch after the next
    train(table, [0], 2)
    lower = held[tiers_of(table, held) == 1][:32]
    table.bring(lower)
    assert len(lower) == 32 and (tiers_of(table, lower) == 0).all()


def test_the_rows_that_leave_are_cold_and_not_of_the_next_batch():
    # Given 512 rows in GPU memory, of which 128 are looked up often
    table = make_table(rows_on_device=512)
    train(table, np.arange(4096), 0)
    hot = np.flatnonzero(tiers_of(table, np.arange(4096)) == 0)[::4]
    for step in range(1, 9):
        train(table, hot, step)
    # When 300 others are brought, with 40 cold ones that are there
    there = np.flatnonzero(tiers_of(table, np.arange(4096)) == 0)
    cold = np.setdiff1d(there, hot)[:40]
    others = np.setdiff1d(np.arange(4096), there)[:300]
    table.bring(np.concatenate([others, cold, others]))
    # Then all these are in GPU memory, and the hot ones still are
    for keys in (others, cold, hot):
        assert (tiers_of(table, keys) == 0).all()


def test_as_many_rows_are_prefetched_as_gpu_memory_has():
    # Given a batch of more rows than GPU memory has
    table, whole = make_table(rows_on_device=100), make_table()
    for some in (table, whole):
        train(some, np.arange(5000), 0)
    # When it is brought, and trained
    for step in range(1, 6):
        table.bring(np.arange(1000, 4000))
        for some in (table, whole):
            train(some, np.arange(1000, 4000), step)
    # Then GPU memory is full of its rows, and nothing is lost
    tiers = tiers_of(table, np.arange(5000))
    assert (tiers == 0).sum() == 100
    assert (tiers[1000:4000] == 0).sum() == 100
    assert_equal_content(content_of(table), content_of(whole))


def test_tables_of_every_kind_are_prefetched_in_one_call():
    # Given tables of several sizes and dims, more than a launch takes, two of them in one memory
    dims, on_device = [1, 2, 3, 4, 8, 64, 5, 6], [50, 80, 0, 700, 1, 90, 0, 2000]
    tables = [make_table(dim=d, rows_on_device=n) for d, n in zip(dims, on_device)]
    wholes = [make_table(dim=d) for d in dims]
    rng = np.random.default_rng(7)
    for some in (*tables, *wholes):
        train(some, np.arange(1500), 0)
    # When the rows of all are brought at once, of some twice, of one none
    for step in range(1, 6):
        keys = [rng.integers(0, 1700, n) for n in (1, 40, 300, 5, 2, 0, 17, 500)]
        bring([*zip(tables, keys), (tables[1], keys[1]), (tables[3], keys[2])])
        for some, of_table in zip((*tables, *wholes), keys * 2):
            train(some, of_table, step)
    # Then each table is what it would be without
    for table, whole in zip(tables, wholes):
        assert_equal_content(content_of(table), content_of(whole))


def test_nothing_is_brought_while_a_snapshot_is_read():
    # Given a snapshot that is not read yet
    table = make_table(rows_on_device=100)
    train(table, np.arange(1000), 0)
    expected = content_of(table)
    snapshot = table.snapshot()
    tiers = tiers_of(table, np.arange(1000))
    # When rows are to be brought
    table.bring(np.arange(500, 600))
    # Then they stay, and the snapshot is of its instant
    np.testing.assert_array_equal(tiers_of(table, np.arange(1000)), tiers)
    rows = snapshot.read(0, snapshot.num_rows)
    np.testing.assert_array_equal(rows["values"][np.argsort(rows["keys"])], expected["values"])
    del snapshot
    table.bring(np.arange(500, 560))
    assert (tiers_of(table, np.arange(500, 560)) == 0).all()


def test_readers_on_another_stream_see_whole_rows_while_they_are_brought():
    # Given a reader and a trainer, a stream each
    torch = pytest.importorskip("torch")
    table = core.DeviceTable(dim=64, distribution="uniform", b=1.0, seed=3, device_bytes=2000 * 296)
    keys = torch.arange(20_000, device="cuda")
    rows, read = torch.empty_like(keys), torch.empty_like(keys)
    table.locate(keys, rows, train=True)
    torch.cuda.synchronize()
    view = torch.as_tensor(types.SimpleNamespace(__cuda_array_interface__=table.interface()))
    expected = view[rows].clone()
    trainer, reader = torch.cuda.Stream(), torch.cuda.Stream()
    generator = torch.Generator(device="cuda").manual_seed(4)
    batches = [
        torch.randint(0, 20_000, (1500,), device="cuda", generator=generator) for _ in range(60)
    ]
    located = torch.empty_like(batches[0])
    torch.cuda.synchronize()
    # When one brings the rows of each next batch, and the other reads all rows
    wrong = []
    for batch_keys, next_keys in zip(batches, batches[1:]):
        batch = table.begin_batch()
        table.locate(batch_keys, located, train=True, stream=trainer.cuda_stream)
        core.prefetch_rows([(table, next_keys)], stream=trainer.cuda_stream)
        with torch.cuda.stream(trainer):
            wrong.append((view[located] != expected[batch_keys]).sum())
        table.end_batch(batch)
        batch = table.begin_batch()
        table.locate(keys, read, stream=reader.cuda_stream)
        with torch.cuda.stream(reader):
            wrong.append((view[read] != expected).sum())
        table.end_batch(batch)
    torch.cuda.synchronize()
    # Then no row was seen half moved, and none was lost
    assert sum(int(count) for count in wrong) == 0
    assert len(set(table.find(np.arange(20_000)).tolist())) == 20_000
