"""Rows of the next batch that are brought from disk to memory ahead of it."""

import threading
import time
import types

import numpy as np
import pytest
from support.cases.core_runner import on_gpu
from table.device_tables import DeviceTable, bring, core
from table.test_prefetch_rows_core import assert_equal_content, content_of, tiers_of, update

pytestmark = on_gpu


def make_table(rows=None, dim=4, dtype="float32", cache_strategy="least_recent", **options):
    """A table with a slot in GPU memory alone, or one that has so many rows in memory: a fifth of
    them on the GPU, the others on the host; all others are on disk."""
    if rows is not None:
        row_bytes = 40 + dim * (4 + np.dtype(dtype).itemsize)
        disk = core.DiskTier(cache_strategy=cache_strategy)
        device_bytes = (rows // 5 + 1) * row_bytes
        options |= {"max_bytes": rows * row_bytes, "device_bytes": device_bytes, "disk": disk}
    table = DeviceTable(dim=dim, dtype=dtype, distribution="normal", b=1.0, seed=5, **options)
    table.slot("accumulator", initial=0.5)
    return table


def train(table, keys, step, meanwhile=lambda: None, afterwards=lambda: None):
    batch = table.begin_batch()
    rows = table.locate(keys, train=True, step=step)
    meanwhile()
    update(table, rows[rows >= table.first_row], step)
    table.end_batch(batch)
    afterwards()


def filled(table, keys=1000):
    """The table, trained on many keys, so that the first of them are on disk."""
    for begin in range(0, keys, 50):
        train(table, np.arange(begin, begin + 50), begin // 50)
    return table


def on_disk(table, count, keys=1000):
    found = np.flatnonzero(tiers_of(table, np.arange(keys)) == 2)[:count]
    assert len(found) == count
    return found


@pytest.mark.parametrize("cache_strategy", ["least_recent", "least_frequent"])
def test_rows_come_from_disk_and_nothing_is_counted(cache_strategy):
    # Given a table with most of its rows on disk
    table = filled(make_table(200, cache_strategy=cache_strategy))
    below, new = on_disk(table, 150), np.arange(5000, 5010)
    before, content = table.describe(np.arange(1000)), content_of(table)
    # When rows of a batch are brought: of some keys twice, and of some that have none
    table.bring(np.concatenate([below, new, below[:40]]))
    assert table.prefetch_from_disk()
    # Then they are in memory, and nothing else has changed
    after = table.describe(np.arange(1000))
    assert (after["tiers"][below] < 2).all()
    assert (tiers_of(table, new) == -1).all() and table.num_keys == 1000
    for name in ("counts", "versions"):
        np.testing.assert_array_equal(after[name], before[name])
    assert_equal_content(content_of(table), content)
    # And there is nothing left to do
    assert not table.prefetch_from_disk()


def test_rows_of_a_batch_in_flight_stay():
    # Given a batch in flight
    table = filled(make_table(200))
    below, held = on_disk(table, 140), np.arange(960, 1000)
    batch = table.begin_batch()
    rows = table.locate(held, train=True, step=50)
    values = table.rows[rows]
    # When as many rows are brought as there is space for beside its own
    table.bring(below)
    table.end_batch(batch)  # on the host; the device may be at work on it
    assert table.prefetch_from_disk()
    # Then these are where they were, and the others in memory
    np.testing.assert_array_equal(table.find(held), rows)
    np.testing.assert_array_equal(table.rows[rows], values)
    assert (tiers_of(table, below) < 2).all()


def test_rows_that_do_not_fit_stay_on_disk():
    # Given a batch in flight, and one to come that does not fit beside it
    table, whole = filled(make_table(200)), filled(make_table())
    below = on_disk(table, 190)
    batch = table.begin_batch()
    table.locate(np.arange(950, 1000), train=True, step=50)
    whole.locate(np.arange(950, 1000), train=True, step=50)
    # When its rows are brought
    table.bring(below)
    assert table.prefetch_from_disk()
    # Then nothing is lost
    assert (tiers_of(table, below) == 2).all()
    table.end_batch(batch)
    assert_equal_content(content_of(table), content_of(whole))
    # And they come when there is space
    table.bring(below)
    assert table.prefetch_from_disk()
    assert (tiers_of(table, below) < 2).all()


def test_rows_prefetched_leave_again_for_a_batch_that_needs_their_space():
    # Given rows of a next batch that were brought beside a batch in flight
    table = filled(make_table(200))
    below, others = on_disk(table, 300)[::2], on_disk(table, 300)[1::2]
    batch = table.begin_batch()
    table.locate(np.arange(960, 1000))
    table.bring(below)
    assert table.prefetch_from_disk()
    # When another batch is located that fits beside the batch in flight, but not beside both
    rows = table.locate(others)
    # Then it is as if nothing had been brought
    assert len(set(rows.tolist())) == 150 and (rows >= table.first_row).all()
    table.end_batch(batch)
    assert table.num_keys == 1000


@pytest.mark.parametrize("is_training", [True, False])
def test_locating_brings_what_is_left_first(is_training):
    # Given keys whose rows nobody has brought yet
    table = filled(make_table(200))
    below = on_disk(table, 100)
    table.bring(below)
    # When others are located
    table.locate(np.arange(950, 1000), train=is_training)
    # Then the rows are in memory, and no work is left
    assert (tiers_of(table, below) < 2).all()
    assert not table.prefetch_from_disk()


def test_what_comes_between_loses_nothing():
    # Given keys whose rows are about to be brought
    table = filled(make_table(200))
    below = on_disk(table, 120)
    content = content_of(table)
    table.bring(below)
    # When some are erased, some get other values, and a slot is made
    assert table.erase(below[:10]) == 10
    given = np.full((10, 4), 7.0, np.float32)
    table.insert({"keys": below[10:20], "values": given})
    table.slot("momentum", initial=0.25)
    table.prefetch_from_disk()
    # Then all of that holds
    tiers = tiers_of(table, below)
    assert (tiers[:10] == -1).all() and (tiers[10:] >= 0).all()
    now = content_of(table)
    expected = np.array(content["values"])
    expected[below[10:20]] = given
    kept = np.delete(np.arange(1000), below[:10])
    np.testing.assert_array_equal(now["keys"], kept)
    np.testing.assert_array_equal(now["values"], expected[kept])
    # When the table is cleared before rows are brought
    table.bring(below)
    table.clear()
    table.prefetch_from_disk()
    # Then it is empty
    assert table.num_keys == 0


def test_a_snapshot_is_of_its_instant():
    # Given keys whose rows are about to be brought, and a snapshot
    table = filled(make_table(200))
    content, below = content_of(table), on_disk(table, 100)
    table.bring(below)
    snapshot = table.snapshot()
    # When they are to be brought while it is read
    assert not table.prefetch_from_disk()
    table.bring(below)
    assert not table.prefetch_from_disk()
    rows = snapshot.read(0, snapshot.num_rows)
    # Then they stay, and come once it is gone
    assert (tiers_of(table, below) == 2).all()
    np.testing.assert_array_equal(rows["values"][np.argsort(rows["keys"])], content["values"])
    del snapshot
    table.bring(below)
    assert table.prefetch_from_disk()
    assert (tiers_of(table, below) < 2).all()


def test_a_table_without_rows_on_disk_has_nothing_to_prefetch():
    # Given tables with a disk that they do not need, and without one
    tables = [make_table(500), make_table()]
    for table in tables:
        train(table, np.arange(100), 0)
    # When rows are brought
    bring([(table, np.arange(100)) for table in tables])
    # Then there is no work for a thread
    assert not any(table.prefetch_from_disk() for table in tables)


FILTERS = {
    "all": {},
    "counter": {"admission": "counter", "min_count": 2},
    "bloom": {
        "admission": "bloom", "min_count": 2, "num_counters": 1 << 14, "num_hashes": 3,
        "counter_bytes": 2,
    },
}  # fmt: skip
KINDS = [
    {"dim": 4, "dtype": "float32"} | FILTERS["all"],
    {"dim": 3, "dtype": "float16"} | FILTERS["counter"],
    {"dim": 8, "dtype": "float16"} | FILTERS["all"],
    {"dim": 1, "dtype": "float32"} | FILTERS["bloom"],
    {"dim": 33, "dtype": "float32", "cache_strategy": "least_frequent"} | FILTERS["counter"],
]


def test_training_gives_the_same_bits():
    # Given tables of every kind, in three tiers and in GPU memory alone
    rng = np.random.default_rng(8)
    tables = [make_table(1000, **kind) for kind in KINDS]
    wholes = [make_table(**kind) for kind in KINDS]
    batches = [[rng.zipf(1.2, 400) % 6000 for _ in KINDS] for _ in range(40)]
    # When both train, and rows of each next batch are brought: before the update, after the batch,
    # or by the lookup
    num_prefetched = 0
    for step, (keys, next_keys) in enumerate(zip(batches, batches[1:])):
        each = [table.begin_batch() for table in tables]
        rows = [table.locate(k, train=True, step=step) for table, k in zip(tables, keys)]
        bring([*zip(tables, next_keys), (wholes[0], next_keys[0]), (tables[1], next_keys[1])])
        for t, table in enumerate(tables):
            if step % 3 == 0:
                num_prefetched += table.prefetch_from_disk()
            update(table, rows[t][rows[t] >= table.first_row], step)
            table.end_batch(each[t])
            if step % 3 == 1:
                num_prefetched += table.prefetch_from_disk()
        for whole, k in zip(wholes, keys):
            train(whole, k, step)
    # Then no bit differs, and rows did come from disk
    for table, whole in zip(tables, wholes):
        assert (tiers_of(table, np.arange(6000)) == 2).any()
        assert_equal_content(content_of(table), content_of(whole))
    assert num_prefetched > 50


def test_rows_change_places_with_those_of_a_full_disk():
    # Given a disk that has space for few rows more, if for any
    row_bytes = 40 + 4 * 8
    disk = core.DiskTier(max_bytes=100 * (row_bytes + 8))
    table = DeviceTable(dim=4, distribution="normal", b=1.0, seed=5, max_bytes=100 * row_bytes,
                        device_bytes=21 * row_bytes, disk=disk)  # fmt: skip
    table.slot("accumulator", initial=0.5)
    last = 0
    with pytest.raises(RuntimeError, match="is full"):
        for key in range(0, 1000, 10):
            table.locate(np.arange(key, key + 10), train=True)
            last = key + 10
    content = content_of(table)
    below = on_disk(table, 50, last)
    # When rows are brought
    table.bring(below)
    assert table.prefetch_from_disk()
    # Then every row is there
    assert (tiers_of(table, below) < 2).all()
    assert (tiers_of(table, np.arange(last)) >= 0).all()
    assert_equal_content(content_of(table), content)


def tensor(torch, keys):
    return torch.as_tensor(np.ascontiguousarray(keys), device="cuda")


def test_rows_come_while_the_device_is_at_work():
    # Given a stream that is at work on a batch for a second or more
    torch = pytest.importorskip("torch")
    table = filled(make_table(200))
    table.bring(on_disk(table, 50))
    assert table.prefetch_from_disk()  # from now on all memory is there
    below, stream = tensor(torch, on_disk(table, 60)), torch.cuda.Stream()
    held = tensor(torch, np.arange(960, 1000))
    rows = torch.empty_like(held)
    torch.cuda.synchronize()
    batch = table.begin_batch()
    table.table.locate(held, rows, train=True, stream=stream.cuda_stream)
    core.prefetch_rows([(table.table, below)], stream=stream.cuda_stream)
    with torch.cuda.stream(stream):
        torch.cuda._sleep(4_000_000_000)
        done = torch.cuda.Event()
        done.record(stream)
    table.end_batch(batch)
    # When rows are brought
    assert table.prefetch_from_disk()
    # Then it goes on
    assert not done.query()
    assert (tiers_of(table, below.cpu().numpy()) < 2).all()


def test_readers_and_a_trainer_see_whole_rows_while_a_thread_brings_some():
    # Given a table of which a fifth is in memory, a reader and a trainer, a stream each
    torch = pytest.importorskip("torch")
    num_keys, at_once = 20_000, 800
    table = DeviceTable(dim=64, distribution="uniform", b=1.0, seed=3, max_bytes=4000 * 296,
                        device_bytes=1000 * 296, disk=core.DiskTier()).table  # fmt: skip
    located = torch.empty(at_once, dtype=torch.int64, device="cuda")
    expected = torch.empty(num_keys, 64, device="cuda")

    def view():
        return torch.as_tensor(types.SimpleNamespace(__cuda_array_interface__=table.interface()))

    for begin in range(0, num_keys, at_once):
        table.locate(torch.arange(begin, begin + at_once, device="cuda"), located, train=True)
        expected[begin : begin + at_once] = view()[located]
    torch.cuda.synchronize()
    rows, streams = view(), [torch.cuda.Stream(), torch.cuda.Stream()]
    generator = torch.Generator(device="cuda").manual_seed(4)
    batches = [
        torch.randint(0, num_keys, (at_once,), device="cuda", generator=generator)
        for _ in range(100)
    ]
    torch.cuda.synchronize()
    wrong, brought, is_done = [], [], threading.Event()

    def prefetch_all():
        while not is_done.wait(0.0005):
            brought.append(table.prefetch_from_disk())

    def look_up(keys, stream, train, next_keys=None):
        batch = table.begin_batch()
        with torch.cuda.stream(stream):
            at = torch.empty_like(keys)
            table.locate(keys, at, train=train, stream=stream.cuda_stream)
            if next_keys is not None:
                core.prefetch_rows([(table, next_keys)], stream=stream.cuda_stream)
            torch.cuda._sleep(3_000_000)
            wrong.append((rows[at] != expected[keys]).sum())
        table.end_batch(batch)

    # When a thread brings the rows of each next batch
    thread = threading.Thread(target=prefetch_all)
    thread.start()
    for step, (keys, next_keys) in enumerate(zip(batches, batches[1:])):
        look_up(keys, streams[0], True, next_keys)
        if step % 4 == 0:
            look_up(batches[-step - 1], streams[1], False)
        time.sleep(0.003 * (step % 2))  # in which the thread is first, or the next lookup
    is_done.set()
    thread.join()
    torch.cuda.synchronize()
    # Then no row was seen half moved, and none was lost
    assert sum(int(count) for count in wrong) == 0
    assert any(brought) and table.num_keys == num_keys
    for begin in range(0, num_keys, at_once):
        keys = torch.arange(begin, begin + at_once, device="cuda")
        table.locate(keys, located)
        assert bool((rows[located] == expected[keys]).all())
