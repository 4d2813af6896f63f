"""Tables with a budget in GPU memory: the keys that go are those of host memory."""

import numpy as np
import pytest
from support.cases.core_runner import on_gpu
from support.oracles.budget import zipf_batches
from table.budget_programs import POLICIES
from table.device_tables import DeviceTable, core
from table.steps import located, start_of
from table.storages import DRAM, HBM, HBM_DRAM, HBM_DRAM_SSDHASH

pytestmark = on_gpu
DIM = 3
DEVICES = pytest.mark.parametrize(
    "device", [HBM, HBM_DRAM, HBM_DRAM_SSDHASH], ids=lambda storage: storage.name
)


def content(table):
    """{key: (count, version)}"""
    snapshot = table.snapshot()
    read = snapshot.read(0, snapshot.num_rows)
    return dict(zip(read["keys"].tolist(), zip(read["counts"].tolist(), read["versions"].tolist())))


def contents_with_rows(table):
    """{key: (count, version, values)}"""
    snapshot = table.snapshot()
    read = snapshot.read(0, snapshot.num_rows)
    rows = zip(read["counts"].tolist(), read["versions"].tolist(), read["values"].tolist())
    return dict(zip(read["keys"].tolist(), rows))


def train(table, keys, step):
    with located(table, keys, train=True, step=step) as rows:
        return rows.copy()


def make_tables(device=HBM, options=None, **budget):
    """A table in host memory, and one of the device's storage, of which the first of two memories
    has 5,000 rows."""
    options = {"rows_in_memory": 10_000, **(options or {})}
    return [
        storage.make_table(DIM, budget=core.Budget(**budget), **options)
        for storage in (DRAM, device)
    ]


def counts_of_filter(table):
    """{key without a row: count}, and a Bloom filter's counters."""
    admission = table.snapshot().admission
    keys, counts = admission["keys"].tolist(), admission["counts"].tolist()
    return dict(zip(keys, counts)), admission["counters"]


@pytest.mark.parametrize("evict", POLICIES)
@pytest.mark.parametrize("keep", [0.5, 0.97])
@pytest.mark.parametrize("num_shares", [0, 24])
@pytest.mark.parametrize("size", [3_000, 60_000])
def test_the_same_keys_go_as_in_host_memory(evict, keep, num_shares, size):
    # Given a table in either memory, with space for fewer keys than come
    budget = {"max_keys": 50_000, "keep": keep, "evict": evict, "num_shares": num_shares}
    options = {"keeps_time": evict == "earliest"}
    tables = make_tables(options=options, **budget, **POLICIES[evict])
    host, device = tables
    batches = zipf_batches(seed=8, num_batches=40, size=size, num_keys=300_000, exponent=0.8)
    random = np.random.default_rng(8)

    # When both see the same batches, some of which train in the same step, with scores and times
    for number, batch in enumerate(batches):
        scores = random.normal(size=size).astype(np.float32)
        for table in tables:
            if evict == "earliest":
                table.set_time(1 + number // 2)
            train(table, batch, step=number // 3)
            if evict == "score":
                table.set_scores(batch, scores)
        if number % 8 == 7:
            # Then they have the same keys, and the keys without a place were the same
            assert content(device) == content(host)
    assert device.budget_counts() == host.budget_counts()
    assert device.budget_counts()["evicted"] > 10_000


@pytest.mark.parametrize("evict", POLICIES)
@pytest.mark.parametrize("cache_strategy", ["least_recent", "least_frequent"])
@pytest.mark.parametrize("device", [HBM_DRAM, HBM_DRAM_SSDHASH], ids=lambda storage: storage.name)
def test_the_same_keys_go_where_rows_move_between_tiers(device, evict, cache_strategy):
    # Given a table with a tenth of its rows in GPU memory, which move, and one in host memory
    options = {"keeps_time": evict == "earliest", "slots": ["m"]}
    tables = make_tables(device, {**options, "cache_strategy": cache_strategy},
                         max_keys=50_000, evict=evict, **POLICIES[evict])  # fmt: skip
    batches = zipf_batches(seed=5, num_batches=40, size=6000, num_keys=300_000, exponent=0.8)
    random = np.random.default_rng(5)

    # When both see the same batches, of which the device brings rows ahead
    for step, batch in enumerate(batches):
        values = random.integers(-4, 5, (6000, DIM)).astype(np.float32)
        tables[1].bring(batch)
        for table in tables:
            if evict == "earliest":
                table.set_time(1 + step // 2)
            train(table, batch, step)
            if evict == "score":
                table.set_scores(batch, values[:, 0])
        if step % 8 == 7:
            given = np.unique(batch[:1000])
            for table in tables:
                table.insert({"keys": given, "values": values[: len(given)]})

            # Then they have the same keys, and each its own row
            host, device = (contents_with_rows(table) for table in tables)
            assert device == host
    assert tables[1].budget_counts() == tables[0].budget_counts()
    assert tables[1].budget_counts()["evicted"] > 10_000


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("device", [HBM, HBM_DRAM], ids=lambda storage: storage.name)
@pytest.mark.parametrize("num_shares", [0, 24])
def test_rows_of_16_bits_go_by_their_norms_as_in_host_memory(dtype, device, num_shares):
    # Given a table in either memory that evicts the smallest rows
    host, device = make_tables(
        device, {"dtype": dtype}, max_keys=9000, evict="smallest_norm", num_shares=num_shares
    )
    batches = zipf_batches(seed=2, num_batches=24, size=3000, num_keys=40_000, exponent=0.6)
    random = np.random.default_rng(2)

    # When their rows become any numbers of 16 bits: subnormal ones, infinities and NaN, too
    for step, batch in enumerate(batches):
        keys = np.unique(batch)
        values = random.integers(0, 1 << 16, (len(keys), DIM), np.uint16)
        for table in (host, device):
            train(table, batch, step)
            table.insert({"keys": keys, "values": values})

        # Then they have the same keys, each with its bits
        if step % 8 == 7:
            assert contents_with_rows(device) == contents_with_rows(host)
    assert device.budget_counts() == host.budget_counts()
    assert device.budget_counts()["evicted"] > 10_000


@pytest.mark.parametrize("admission", ["counter", "bloom"])
@DEVICES
@pytest.mark.parametrize("num_shares", [0, 24])
def test_a_filter_counts_as_in_host_memory(admission, device, num_shares):
    # Given tables with a filter, to which more keys come than may be counted, or lie in memory
    options = {"admission": admission, "min_count": 2, "rows_in_memory": 3000}
    if admission == "bloom":
        options.update(num_counters=1 << 20, num_hashes=3, counter_bytes=2)
    host, device = make_tables(
        device, options, max_keys=2000, evict="least_frequent", num_shares=num_shares
    )
    batches = zipf_batches(seed=3, num_batches=60, size=3000, num_keys=60_000, exponent=0.9)

    # When both see the same batches
    for step, batch in enumerate(batches):
        for table in (host, device):
            train(table, batch, step)

        # Then they have the same keys, and have counted the same ones alike
        if step % 4 == 3:
            assert content(device) == content(host)
            assert counts_of_filter(device) == counts_of_filter(host)
    assert device.budget_counts() == host.budget_counts()
    assert device.budget_counts()["evicted"] > 1000


def test_counts_of_keys_that_never_come_again_take_no_memory():
    # Given a table with a budget whose filter admits no key
    table = HBM.make_table(
        DIM, admission="counter", min_count=9, budget=core.Budget(max_keys=10_000)
    )
    # When keys come once each
    sizes = []
    for step in range(200):
        train(table, np.arange(5000 * step, 5000 * step + 5000), step)
        sizes.append(table.memory_bytes)
    # Then its memory stays what it was, and the last keys are counted
    assert sizes[-1] == sizes[20]
    counts, _ = counts_of_filter(table)
    assert set(range(995_000, 1_000_000)) <= set(counts)
    assert len(counts) <= 15_000


@DEVICES
def test_rows_may_be_written_over_the_keys(device):
    # Given two tables with a budget, of which some rows are not in GPU memory
    tables = [make_tables(device, {"rows_in_memory": 3000}, max_keys=4000)[1] for _ in range(2)]

    # When one of them writes the rows that it locates over the keys
    for step, batch in enumerate(zipf_batches(seed=1, num_batches=60, size=2000, num_keys=20_000)):
        train(tables[0], batch, step)
        in_place = core.DeviceArray(np.ascontiguousarray(batch))
        number = tables[1].begin_batch()
        tables[1].table.locate(in_place, in_place, train=True, step=step, batch=number)
        tables[1].end_batch(number)

    # Then it has the same keys
    assert content(tables[1]) == content(tables[0])
    assert tables[1].budget_counts() == tables[0].budget_counts()
    assert tables[1].budget_counts()["evicted"] > 1000


@pytest.mark.parametrize("hands_out", ["keys", "rows"])
def test_keys_that_nobody_takes_in_time_are_missed(hands_out):
    # Given more keys that go than wait to be taken
    _, table = make_tables(max_keys=1000, hands_out=hands_out)
    for step in range(100):
        train(table, np.arange(1000 * step, 1000 * step + 1000), step)
    # When they are taken
    taken = table.take_evicted()
    # Then each is there once, with its row, or is missed
    missed = table.budget_counts()["missed"]
    keys = taken["keys"]
    assert len(set(keys.tolist())) == len(keys) >= 16384
    assert len(keys) + missed == table.budget_counts()["evicted"] == 99_000
    np.testing.assert_array_equal(taken["versions"], keys // 1000)
    if hands_out == "rows":
        np.testing.assert_array_equal(taken["values"], start_of(keys, DIM))


def test_rows_are_the_same_on_every_run_and_those_of_evicted_keys_are_used_again():
    batches = zipf_batches(seed=9, num_batches=30, size=4000, num_keys=50_000)
    runs = []
    for _ in range(2):
        table = HBM.make_table(DIM, budget=core.Budget(max_keys=10_000))
        runs.append([train(table, batch, step) for step, batch in enumerate(batches)])

    for ours, theirs in zip(*runs):
        np.testing.assert_array_equal(ours, theirs)
    assert max(rows.max() for rows in runs[0]) < table.first_row + 10_000


def test_a_row_that_is_used_again_starts_anew():
    table = HBM.make_table(DIM, slots=["m"], budget=core.Budget(max_keys=64, keep=0.5))
    for step in range(40):
        keys = np.arange(16 * step, 16 * step + 16)
        with located(table, keys, train=True, step=step) as rows:
            np.testing.assert_array_equal(table.rows[rows], start_of(keys, DIM))
            assert (table.slot("m")[rows] == 0.5).all()
            table.rows[rows] = -1
            table.slot("m")[rows] = -1


def test_rows_of_keys_that_go_wait_for_other_batches_that_read_them():
    # Given a batch in flight that reads a key's row
    table = HBM.make_table(DIM, budget=core.Budget(max_keys=32, keep=0.5))
    train(table, np.arange(32), step=0)
    batch = table.begin_batch()
    held = table.locate(np.arange(32), batch=batch)

    # When keys go, Then their rows are nobody's as long as it is in flight
    rows = train(table, np.arange(100, 116), step=1)
    assert not set(rows.tolist()) & set(held.tolist())
    np.testing.assert_array_equal(table.rows[held], start_of(np.arange(32), DIM))
    table.end_batch(batch)

    # And are given away afterwards
    for step in range(2, 10):
        rows = train(table, np.arange(100 * step, 100 * step + 16), step=step)
    assert set(rows.tolist()) & set(held.tolist())


def test_followers_of_changes_learn_which_keys_went():
    table = HBM.make_table(DIM, budget=core.Budget(max_keys=1000))
    train(table, np.arange(1000), step=0)
    snapshot = table.snapshot()
    snapshot.keep()
    del snapshot

    train(table, np.arange(1000, 1200), step=1)

    snapshot = table.snapshot(changes_only=True)
    erased = snapshot.erased.tolist()
    del snapshot
    left = content(table)
    assert sorted(erased) == sorted(set(range(1000)) - set(left))
    assert len(erased) == table.budget_counts()["evicted"] == 200


def test_a_snapshot_has_the_rows_of_keys_that_go_while_it_is_read():
    table = HBM.make_table(DIM, budget=core.Budget(max_keys=500, keep=0.4))
    train(table, np.arange(500), step=3)
    snapshot = table.snapshot()

    train(table, np.arange(1000, 1400), step=4)

    read = snapshot.read(0, snapshot.num_rows)
    assert sorted(read["keys"].tolist()) == list(range(500))
    assert set(read["versions"].tolist()) == {3}
    np.testing.assert_array_equal(read["values"], start_of(read["keys"], DIM))
    del snapshot
    assert len(content(table)) == 500


def test_tables_of_one_call_keep_their_own_budgets():
    matrix = np.zeros((1, DIM), np.float32)
    tables = [
        core.DeviceTable(dim=DIM, matrix=matrix, budget=budget)
        for budget in (core.Budget(max_keys=100), None, core.Budget(max_keys=40, keep=0.5))
    ]
    for step in range(20):
        keys = np.arange(30 * step, 30 * step + 30)
        core.locate_rows(
            [(t, core.DeviceArray(keys), core.DeviceArray(np.zeros(30, np.int64))) for t in tables],
            train=True,
            step=step,
        )

    assert [table.num_keys for table in tables] == [100, 600, 40]


def test_tables_of_one_call_have_the_keys_of_host_memory():
    # Given tables of all policies, in both storages, and their likes in host memory
    pairs = [
        make_tables(
            device, {"dtype": dtype, "keeps_time": evict == "earliest"},
            max_keys=1000 + 700 * number, keep=0.8, evict=evict, num_shares=num_shares,
            **POLICIES[evict],
        )
        for number, (evict, device, dtype, num_shares) in enumerate([
            ("least_recent", HBM, "float32", 24),
            ("least_frequent", HBM_DRAM, "float16", 0),
            ("decayed_frequency", HBM, "bfloat16", 0),
            ("smallest_norm", HBM_DRAM, "bfloat16", 24),
            ("score", HBM, "float32", 0),
            ("earliest", HBM_DRAM, "float32", 0),
        ])
    ]  # fmt: skip
    of_tables = [
        zipf_batches(seed=n, num_batches=40, size=500 + 300 * n, num_keys=20_000, exponent=0.7)
        for n in range(len(pairs))
    ]

    # When one call trains all tables of the GPU, each with keys of its own
    for step, batches in enumerate(zip(*of_tables)):
        for table in pairs[-1]:
            table.set_time(1 + step // 3)
        keys = [core.DeviceArray(np.ascontiguousarray(batch)) for batch in batches]
        rows = [core.DeviceArray(np.full(len(batch), -7, np.int64)) for batch in batches]
        core.locate_rows(
            [(device.table, *arrays) for (_, device), *arrays in zip(pairs, keys, rows)],
            train=True, step=step,
        )  # fmt: skip

        # Then each has the keys of its like in host memory, and the same ones are without a place
        for (host, device), batch, located_rows in zip(pairs, batches, rows):
            has_place = train(host, batch, step) >= host.first_row
            np.testing.assert_array_equal(located_rows.numpy() >= device.first_row, has_place)
        for host, device in pairs if step % 8 == 7 else ():
            assert content(device) == content(host)
    for host, device in pairs:
        assert device.budget_counts() == host.budget_counts()
        assert device.budget_counts()["evicted"] > 1000


def test_erased_keys_and_cleared_tables_leave_places():
    host, device = make_tables(max_keys=300, keep=0.8)
    batches = zipf_batches(seed=4, num_batches=60, size=50, num_keys=2000)
    for step, batch in enumerate(batches):
        for table in (host, device):
            if step % 7 == 6:
                table.erase(batch[:20].astype(np.int64))
            if step == 30:
                table.clear()
            train(table, batch, step)
        assert content(device) == content(host)
    assert device.budget_counts()["without_place"] == 0


@pytest.mark.parametrize("num_shares", [0, 24])
def test_given_rows_find_places_as_in_host_memory(num_shares):
    tables = make_tables(max_keys=3000, evict="smallest_norm", num_shares=num_shares)
    random = np.random.default_rng(6)
    for step in range(8):
        keys = random.integers(0, 9000, 2500)
        values = random.integers(-4, 5, (2500, DIM)).astype(np.float32)
        for table in tables:
            table.insert({"keys": keys, "values": values})
            train(table, keys[:100], step)
        assert content(tables[1]) == content(tables[0])
    host, device = (table.budget_counts() for table in tables)
    assert device == host
    assert device["evicted"] > 1000 and device["without_place"] > 1000


@pytest.mark.parametrize(
    "options",
    [
        {"budget": {"max_bytes": 1 << 20}},
        {"budget": {"max_keys": 10, "num_shares": 24}},
    ],
)
def test_a_budget_that_gpu_memory_cannot_keep_is_refused(options):
    options = {"matrix": np.zeros((1, DIM), np.float32), **options}
    budget = core.Budget(**options.pop("budget"))
    with pytest.raises(RuntimeError, match="table 'table': expected"):
        DeviceTable(dim=DIM, budget=budget, **options)
