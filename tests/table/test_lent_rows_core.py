"""Rows that tables in GPU memory lend to keys without a place in their budget."""

import numpy as np
import pytest
from support.cases.core_runner import on_gpu
from support.oracles.budget import zipf_batches
from table.budget_programs import POLICIES
from table.steps import located
from table.storages import DRAM
from table.test_device_budget_core import (
    DEVICES,
    DIM,
    content,
    contents_with_rows,
    make_tables,
    train,
)

pytestmark = on_gpu
OF_KEYS = {  # initial values of each key's own, none of which is a row of a matrix
    "constant": {"a": 0.75},
    "uniform": {"a": 1, "b": 2, "seed": 5},
    "normal": {"a": 3, "b": 0.5, "seed": 6},
    "truncated_normal": {"a": 3, "b": 0.5, "seed": 7},
}


def options_of(distribution, **options):
    return {"distribution": distribution, **OF_KEYS.get(distribution, {}), **options}


def first_values(distribution, keys, **options):
    """The rows that keys start as, in host memory without a budget."""
    table = DRAM.make_table(DIM, **options_of(distribution, **options))
    rows = table.locate(keys, train=True)
    return table.rows[rows]


def assert_one_row_of_each_key(keys, rows):
    """Each key has a row in all of its places, and no other key has that row."""
    _, firsts, which = np.unique(keys, return_index=True, return_inverse=True)
    np.testing.assert_array_equal(rows, rows[firsts][which])
    assert len(set(rows.tolist())) == len(firsts)


@DEVICES
@pytest.mark.parametrize("distribution", OF_KEYS)
@pytest.mark.parametrize("num_shares", [0, 24])
def test_keys_without_a_place_read_what_they_start_as(device, distribution, num_shares):
    # Given tables without a matrix, and batches of which some have more new keys than places
    options = options_of(distribution, slots=["m"])
    host, device = make_tables(device, options, max_keys=1000, num_shares=num_shares)
    random = np.random.default_rng(12)
    batches = [random.integers(0, 9000, size) for size in [300, 4000, 50, 3000] * 3]

    # When both train them
    for step, batch in enumerate(batches):
        read = []
        for table in (host, device):
            with located(table, batch, train=True, step=step) as rows:
                assert (rows >= table.first_row).all()
                assert_one_row_of_each_key(batch, rows)
                read.append([table.rows[rows], table.slot("m")[rows]])
                table.rows[rows] = read[-1][0] + 1
                table.slot("m")[rows] = 1.5

        # Then keys read the same, and what those without a place trained is lost
        np.testing.assert_array_equal(read[1], read[0])
        assert content(device) == content(host)
    assert device.budget_counts() == host.budget_counts()
    assert device.budget_counts()["without_place"] > 5000


@pytest.mark.parametrize("evict", POLICIES)
def test_lent_rows_are_of_no_key_whatever_goes_first(evict):
    # Given tables without a matrix whose slots say when a key came
    options = options_of("uniform", keeps_time=evict == "earliest")
    tables = make_tables(options=options, max_keys=500, evict=evict, **POLICIES[evict])
    host, device = tables
    random = np.random.default_rng(13)

    # When each batch has new keys without a place, some of which come several times
    for step in range(20):
        batch = random.integers(0, 3000, 1500)
        for table in tables:
            if evict == "earliest":
                table.set_time(1 + step // 2)
            train(table, batch, step)
            if evict == "score":
                table.set_scores(batch, (batch % 7).astype(np.float32))

        # Then the tables have the same keys with the same counts
        assert content(device) == content(host)
    assert device.budget_counts() == host.budget_counts()
    assert device.budget_counts()["without_place"] > 1000


@DEVICES
def test_lent_rows_are_lent_again(device):
    # Given a table with 100 places
    _, table = make_tables(device, options_of("normal"), max_keys=100)
    first_values_of = first_values("normal", np.arange(60 * 400))

    # When each of 60 batches has 400 new keys, which write their rows
    for step in range(60):
        keys = np.arange(400) + 400 * step
        with located(table, keys, train=True, step=step) as rows:
            # Then each key has a row of its own that starts anew, of a few that are there
            assert_one_row_of_each_key(keys, rows)
            assert rows.min() >= table.first_row
            assert rows.max() < table.first_row + 100 + 400
            np.testing.assert_array_equal(table.rows[rows], first_values_of[keys])
            table.rows[rows] = -9
        assert table.num_keys == 100


def test_lent_rows_are_held_for_each_batch_in_flight():
    # Given a full table and a batch in flight with lent rows
    _, table = make_tables(options=options_of("uniform"), max_keys=10)
    values = first_values("uniform", np.arange(2000))
    train(table, np.arange(1000, 1100), step=0)
    first, keys = table.begin_batch(), np.arange(40)
    held = table.locate(keys, train=True, step=1, batch=first)
    table.rows[held] = -9

    # When others come while it is in flight
    for step in range(2, 8):
        others = np.arange(15) + 100 * step
        with located(table, others, train=True, step=step) as rows:
            # Then they have none of its rows, whose values stay
            assert not set(rows.tolist()) & set(held.tolist())
            np.testing.assert_array_equal(table.rows[rows], values[others])
        assert (table.rows[held] == -9).all()
    table.end_batch(first)

    # And afterwards the rows are lent again
    for step in range(8, 60):
        others = np.arange(30) + 30 * step
        with located(table, others, train=True, step=step) as rows:
            assert_one_row_of_each_key(others, rows)
            np.testing.assert_array_equal(table.rows[rows], values[others])
            table.rows[rows] = -9
    assert table.num_keys == 10


def test_a_batch_holds_the_rows_that_were_lent_to_it_before():
    # Given a table that has lent many rows, and a batch that locates keys twice
    _, table = make_tables(options=options_of("uniform"), max_keys=4)
    train(table, np.arange(1000, 1100), step=0)
    batch = table.begin_batch()

    # When both calls have keys without a place
    calls = [
        table.locate(np.arange(20) + first, train=True, step=1, batch=batch) for first in (0, 50)
    ]

    # Then each key has a row of its own
    rows = np.concatenate(calls)
    keys = np.concatenate([np.arange(20), np.arange(50, 70)])
    assert_one_row_of_each_key(keys, rows)
    np.testing.assert_array_equal(table.rows[rows], first_values("uniform", keys))
    table.end_batch(batch)


@DEVICES
def test_snapshots_and_followers_know_no_key_without_a_place(device):
    # Given tables with a snapshot of their first keys
    host, device = make_tables(device, options_of("uniform"), max_keys=100)
    for table in (host, device):
        train(table, np.arange(80), step=0)
        snapshot = table.snapshot()
        snapshot.keep()
        del snapshot
    before = contents_with_rows(device)
    snapshot = device.snapshot()

    # When keys without a place are trained while another one is read
    keys = np.arange(1000, 1300)
    for table in (host, device):
        with located(table, keys, train=True, step=1) as rows:
            table.before_write(rows[rows >= table.first_row])
            table.rows[rows] = 7

    # Then it has the first keys, and those after it have those that found a place
    read = snapshot.read(0, snapshot.num_rows)
    rows = zip(read["counts"].tolist(), read["versions"].tolist(), read["values"].tolist())
    assert dict(zip(read["keys"].tolist(), rows)) == before
    del snapshot
    assert contents_with_rows(device) == contents_with_rows(host)
    changed = []
    for table in (host, device):
        snapshot = table.snapshot(changes_only=True)
        changed.append(sorted(snapshot.read(0, snapshot.num_rows)["keys"].tolist()))
        del snapshot
    assert changed[1] == changed[0]
    assert len(changed[0]) == 100


def test_keys_without_a_place_have_no_row_that_can_be_found():
    # Given a batch in flight of more keys than there are places
    _, table = make_tables(options=options_of("normal"), max_keys=50)
    keys = np.arange(200)
    with located(table, keys, train=True, step=0) as rows:
        # When the table is asked for them
        found = table.find(keys)
        read = table.locate(keys)

        # Then it has those with a place alone
        has_row = found >= 0
        assert has_row.sum() == table.num_keys == 50
        np.testing.assert_array_equal(found[has_row], rows[has_row])
        assert (read[~has_row] < table.first_row).all()


def test_given_rows_and_cleared_tables_beside_lent_rows():
    # Given tables without a matrix that have lent rows
    host, device = make_tables(options=options_of("uniform"), max_keys=300)
    random = np.random.default_rng(14)
    for step in range(12):
        batch = random.integers(0, 4000, 900)
        for table in (host, device):
            train(table, batch, step)

            # When rows are given, keys erased, and all cleared
            given = np.unique(batch)[:200]
            table.insert({"keys": given, "values": np.full((len(given), DIM), step, np.float32)})
            table.erase(batch[:50].astype(np.int64))
            if step == 6:
                table.clear()

        # Then they have the same keys and rows
        assert contents_with_rows(device) == contents_with_rows(host)
    assert device.budget_counts() == host.budget_counts()


@pytest.mark.parametrize("admission", ["counter", "bloom"])
@pytest.mark.parametrize("distribution", ["constant", "uniform"])
def test_a_filter_beside_values_of_their_own_lends_no_rows(admission, distribution):
    # Given tables with a filter and without a matrix
    options = options_of(distribution, admission=admission, min_count=2, no_row_value=-4)
    if admission == "bloom":
        options.update(num_counters=1 << 20, num_hashes=3, counter_bytes=2)
    host, device = make_tables(options=options, max_keys=50)
    batches = zipf_batches(seed=3, num_batches=20, size=3000, num_keys=20_000, exponent=0.9)

    # When both see the same batches, Then keys read the same
    for step, batch in enumerate(batches):
        read = []
        for table in (host, device):
            with located(table, batch, train=True, step=step) as rows:
                read.append(table.rows[rows])
        np.testing.assert_array_equal(read[1], read[0])
        assert content(device) == content(host)
    assert (read[1] == -4).any()
    assert device.budget_counts()["without_place"] > 100
