"""What every storage of tables found by key must do, against a Python dict.

Test modules of tests/table import the tests of this suite, and put the tables of their storage in
the place of `core`."""

import threading

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

core = pytest.importorskip("group_embedding._core")

MIN, MAX = -(2**63), 2**63 - 1
EXTREMES = np.array([0, 1, -1, MIN, MAX, MIN + 1, MAX - 1], np.int64)


def make_table(dim=4, **options):
    matrix = np.arange(8 * dim, dtype=np.float32).reshape(8, dim)
    return core.HostTable(dim=dim, matrix=matrix, **options), matrix


def start_of(matrix, keys):
    return matrix[np.asarray(keys).astype(np.uint64) % len(matrix)]


def test_a_key_keeps_the_row_that_its_first_training_made():
    table, matrix = make_table()
    first = table.locate(EXTREMES, train=True, step=3)

    again = table.locate(EXTREMES[::-1])

    np.testing.assert_array_equal(again[::-1], first)
    assert len(set(first.tolist())) == len(EXTREMES)
    np.testing.assert_array_equal(table.rows[first], start_of(matrix, EXTREMES))


def test_reading_gives_no_row():
    table, matrix = make_table()

    rows = table.locate(EXTREMES)

    assert table.num_keys == 0
    assert (rows < table.first_row).all()
    np.testing.assert_array_equal(table.rows[rows], start_of(matrix, EXTREMES))
    np.testing.assert_array_equal(table.find(EXTREMES), -1)


def test_repeated_keys_of_a_batch_share_a_row_and_are_counted_each():
    table, _ = make_table()

    rows = table.locate([5, 7, 5, 5], train=True, step=9)

    assert rows[0] == rows[2] == rows[3] != rows[1]
    info = table.info(rows[:2])
    assert info["keys"].tolist() == [5, 7]
    assert info["counts"].tolist() == [3, 1]
    assert info["versions"].tolist() == [9, 9]


@pytest.mark.parametrize("threads", [1, 2, 8])
def test_a_table_grows_by_doublings_and_loses_nothing(threads):
    print("seed 1")
    rng = np.random.default_rng(1)
    table = core.HostTable(dim=2, distribution="uniform", b=1.0, num_threads=threads)
    keys = rng.integers(MIN, MAX, 200_000, np.int64)
    for part in np.array_split(keys, 7):
        table.locate(part, train=True)

    rows = table.find(keys)

    assert table.num_keys == len(set(keys.tolist()))
    np.testing.assert_array_equal(table.info(rows)["keys"], keys)
    assert 0.3 < table.load_factor < 0.75


@pytest.mark.parametrize(
    "distribution, a, b, mean, deviation",
    [
        ("constant", 0.25, 0.0, 0.25, 0.0),
        ("uniform", -1.0, 3.0, 1.0, 4 / 12**0.5),
        ("normal", 1.0, 2.0, 1.0, 2.0),
        ("truncated_normal", 1.0, 2.0, 1.0, 2.0 * 0.87962566),
    ],
)
def test_first_values_depend_on_the_key_alone(distribution, a, b, mean, deviation):
    keys = np.arange(50_000)
    shuffled = np.random.default_rng(2).permutation(keys)
    tables = [
        core.HostTable(dim=4, distribution=distribution, a=a, b=b, seed=7, num_threads=n)
        for n in (1, 4)
    ]

    values = [
        table.rows[table.locate(keys)]
        for table, order in zip(tables, (keys, shuffled))
        if table.locate(order, train=True) is not None
    ]

    np.testing.assert_array_equal(values[0], values[1])
    assert abs(values[0].mean() - mean) < 0.02
    assert abs(values[0].std() - deviation) < 0.02
    if distribution == "truncated_normal":
        assert np.abs(values[0] - a).max() <= 2 * b + 1e-6


@pytest.mark.parametrize("admission", ["counter", "bloom"])
def test_a_filter_admits_keys_once_they_were_seen_often_enough(admission):
    table, matrix = make_table(
        admission=admission, min_count=3, num_counters=4096, num_hashes=4, counter_bytes=2,
        no_row_value=-5.0,
    )  # fmt: skip

    seen = [table.locate([8, 9, 8], train=True)[0] for _ in range(2)]

    assert seen[0] < table.first_row <= seen[1]
    np.testing.assert_array_equal(table.rows[seen[0]], np.full(4, -5.0))
    np.testing.assert_array_equal(table.rows[seen[1]], start_of(matrix, [8])[0])
    assert table.info([seen[1]])["counts"].tolist() == [4]
    assert table.find([9]).tolist() == [-1]
    assert table.locate([9], train=True)[0] >= table.first_row


def test_a_reused_row_inherits_nothing():
    table, matrix = make_table(max_bytes=0)
    slot = table.slot("accumulator", initial=0.5)
    row = table.locate([1], train=True, step=5)[0]
    table.rows[row] = 77.0
    table.slot("accumulator", initial=0.5)[row] = 99.0
    assert slot.shape == (table.first_row, 4)
    assert table.erase([1, 2]) == 1

    reused = table.locate([2], train=True, step=6)[0]

    assert reused == row
    np.testing.assert_array_equal(table.rows[row], start_of(matrix, [2])[0])
    np.testing.assert_array_equal(table.slot("accumulator")[row], 0.5)
    assert table.info([row])["counts"].tolist() == [1]


def test_rows_of_a_batch_in_flight_are_not_given_away():
    table, _ = make_table()
    batch = table.begin_batch()
    row = table.locate([1], train=True)[0]
    table.erase([1])

    during = table.locate([2], train=True)[0]
    table.end_batch(batch)
    after = table.locate([3], train=True)[0]

    assert during != row
    assert after == row


def test_evictions():
    table, _ = make_table()
    table.locate([1, 2, 3], train=True, step=1)
    table.locate([2], train=True, step=5)
    table.rows[table.find([2])[0]] = 1.0
    table.rows[table.find([3])[0]] = 0.1

    small = table.evict_small(0.1)
    old = table.evict_old(3, 5)

    assert (small, old) == (1, 1)
    assert (table.find([1, 2, 3]) >= 0).tolist() == [False, True, False]


def test_a_full_table_says_so_and_stays_usable():
    row_bytes = 4 * 4 + 32
    table, _ = make_table(name="user", max_bytes=10 * row_bytes)
    rows = table.locate(np.arange(10), train=True)

    with pytest.raises(RuntimeError, match="table 'user' is full at 10 rows.*storage_size"):
        table.locate(np.arange(20), train=True)

    assert table.num_keys == 10
    np.testing.assert_array_equal(table.locate(np.arange(10), train=True), rows)
    table.erase([3])
    assert table.locate([11], train=True)[0] == rows[3]


def rows_of(table, changes_only=False, before_reading=lambda: None):
    """{key: (values, count)} of a snapshot, and the keys erased."""
    snapshot = table.snapshot(changes_only)
    before_reading()
    found = {}
    for begin in range(0, snapshot.num_rows, 100):
        part = snapshot.read(begin, begin + 100)
        for key, count, values in zip(part["keys"], part["counts"], part["values"]):
            assert key not in found
            found[int(key)] = (values.tolist(), int(count))
    snapshot.keep()
    return found, snapshot.erased.tolist()


def test_a_snapshot_is_of_one_instant():
    table, matrix = make_table()
    keys = np.arange(1000)
    table.locate(keys, train=True)
    table.erase([999])

    def go_on():
        rows = table.locate(keys[:500], train=True)
        table.before_write(rows)
        table.rows[rows] = -1.0
        table.erase(keys[500:600])
        table.locate(keys + 2000, train=True)

    found, _ = rows_of(table, before_reading=go_on)

    expected = {int(k): (start_of(matrix, [k])[0].tolist(), 1) for k in keys[:999]}
    assert found == expected


def test_what_a_snapshot_says_was_counted_is_of_its_instant():
    table, _ = make_table(admission="counter", min_count=3)
    table.locate([1, 2, 2, 3, 3, 3, 7], train=True)
    snapshot = table.snapshot()
    table.locate([1, 1, 2, 4], train=True)
    table.erase([3, 4, 7])
    table.locate([3, 4, 5, 5], train=True)

    counted = snapshot.admission

    assert dict(zip(counted["keys"].tolist(), counted["counts"].tolist())) == {1: 1, 2: 2, 7: 1}
    del snapshot
    counted = table.snapshot().admission
    assert dict(zip(counted["keys"].tolist(), counted["counts"].tolist())) == {3: 1, 4: 1, 5: 2}


def test_a_snapshot_has_the_counters_of_a_bloom_filter_at_its_instant():
    options = {"admission": "bloom", "min_count": 100, "num_counters": 5001, "num_hashes": 3}
    table, same = (make_table(**options, counter_bytes=2)[0] for _ in range(2))
    for each in (table, same):
        each.locate(np.arange(500), train=True)
    expected = same.snapshot().admission["counters"]
    snapshot = table.snapshot()
    table.locate(np.arange(300, 900), train=True)

    counted = snapshot.admission["counters"]

    assert counted == expected
    del snapshot
    assert table.snapshot().admission["counters"] != expected


def test_a_restart_while_a_snapshot_waits_leaves_it_its_bloom_filter():
    options = {"admission": "bloom", "min_count": 100, "num_counters": 5001, "num_hashes": 3}
    table, _ = make_table(**options)
    table.locate(np.arange(500), train=True)
    expected = table.snapshot().admission["counters"]
    snapshot = table.snapshot()

    table.clear()

    assert snapshot.admission["counters"] == expected


@pytest.mark.parametrize(
    "options",
    [
        {"admission": "counter"},
        {"admission": "bloom", "num_counters": 5001, "num_hashes": 3, "counter_bytes": 1},
    ],
    ids=["counter", "bloom"],
)
def test_what_a_filter_counted_is_described_without_a_row(options):
    table, _ = make_table(min_count=3, **options)
    table.locate([1, 2, 2, 3, 3, 3], train=True)

    for _ in range(2):  # the first has changed nothing
        described = table.describe([1, 2, 3, 9])

        assert described["counts"].tolist() == [1, 2, 3, -1]
        assert described["tiers"].tolist() == [-1, -1, 0, -1]
        assert table.num_keys == 1


def test_a_snapshot_of_changes_has_what_changed_since_the_last_full_one():
    table, _ = make_table()
    table.locate(np.arange(100), train=True)
    in_flight = table.begin_batch()
    table.locate([50], train=True)
    rows_of(table)
    table.end_batch(in_flight)
    table.begin_batch()
    table.locate([3, 200], train=True)
    table.erase([4])

    changed, erased = rows_of(table, changes_only=True)
    again, _ = rows_of(table, changes_only=True)

    assert set(changed) == {3, 50, 200} == set(again)
    assert erased == [4]


def test_readers_and_trainers_of_many_threads_agree():
    print("seed 3")
    table = core.HostTable(dim=1, distribution="normal", b=1.0, seed=1)
    expected = core.HostTable(dim=1, distribution="normal", b=1.0, seed=1)
    batches = [np.random.default_rng([3, t]).integers(0, 5000, 20_000) for t in range(4)]

    def train(batch):
        for part in np.array_split(batch, 20):
            table.locate(part, train=True)
            table.locate(part)

    threads = [threading.Thread(target=train, args=(batch,)) for batch in batches]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    keys, counts = np.unique(np.concatenate(batches), return_counts=True)
    expected.locate(keys, train=True)
    assert table.num_keys == len(keys)
    np.testing.assert_array_equal(table.info(table.find(keys))["counts"], counts)
    np.testing.assert_array_equal(table.rows[table.find(keys)], expected.rows[expected.find(keys)])


KEYS = st.sampled_from([*range(12), *EXTREMES.tolist()])
BATCHES = st.lists(KEYS, min_size=1, max_size=20)


class TableIsADict(RuleBasedStateMachine):
    """Any order of operations leaves what the same order leaves in a dict."""

    @initialize(min_count=st.integers(1, 3))
    def make(self, min_count):
        admission = "all" if min_count == 1 else "counter"
        self.min_count, self.step = min_count, 0
        self.table, self.matrix = make_table(dim=2, admission=admission, min_count=min_count)
        self.table.slot("m", initial=0.5)
        self.dict, self.seen = {}, {}  # key -> [values, m, count, version]; key -> count

    @rule(batch=BATCHES)
    def train(self, batch):
        self.step += 1
        for key in batch:
            self.seen[key] = self.seen.get(key, 0) + (key not in self.dict)
        for key in set(batch):
            if key not in self.dict and self.seen[key] >= self.min_count:
                values = start_of(self.matrix, [key])[0].tolist()
                self.dict[key] = [values, [0.5, 0.5], self.seen.pop(key) - batch.count(key), 0]
        rows = self.table.locate(batch, train=True, step=self.step)
        for key, row in zip(batch, rows):
            assert (row >= self.table.first_row) == (key in self.dict)
            if key not in self.dict:
                continue
            self.dict[key][2] += 1
            self.dict[key][3] = self.step

    @rule(batch=BATCHES, value=st.integers(-9, 9))
    def update(self, batch, value):
        for key, row in zip(batch, self.table.find(batch)):
            if key in self.dict:
                self.table.rows[row] = value
                self.table.slot("m")[row] = -value
                self.dict[key][:2] = [[value] * 2, [-value] * 2]

    @rule(batch=BATCHES)
    def read(self, batch):
        values = self.table.rows[self.table.locate(batch)]
        for key, row in zip(batch, values):
            filtered = np.zeros(2) if self.min_count > 1 else start_of(self.matrix, [key])[0]
            assert row.tolist() == list(self.dict[key][0] if key in self.dict else filtered)

    @rule(batch=BATCHES)
    def erase(self, batch):
        expected = {key for key in batch if self.dict.pop(key, None)}
        for key in batch:
            self.seen.pop(key, None)
        assert self.table.erase(batch) == len(expected)

    @rule(steps_to_live=st.integers(0, 4))
    def evict(self, steps_to_live):
        old = {k for k, of in self.dict.items() if self.step - of[3] > steps_to_live}
        self.dict = {k: of for k, of in self.dict.items() if k not in old}
        assert self.table.evict_old(steps_to_live, self.step) == len(old)

    @rule()
    def clear(self):
        self.table.clear()
        self.dict, self.seen = {}, {}

    @rule()
    def save_and_restore(self):
        snapshot = self.table.snapshot()
        rows = snapshot.read(0, snapshot.num_rows)
        admission = snapshot.admission
        del snapshot
        self.table.clear()
        assert self.table.num_keys == 0
        self.table.insert(rows)
        self.table.set_admission(admission)

    @precondition(lambda self: self.min_count == 1)
    @rule(start=st.integers(0, 10**6))
    def grow(self, start):
        self.step += 1
        keys = np.arange(start, start + 3000) * 7919 + 2**40
        self.table.locate(keys, train=True, step=self.step)
        assert self.table.erase(keys) == len(keys)

    @invariant()
    def equals_the_dict(self):
        keys = list(self.dict)
        assert self.table.num_keys == len(keys)
        rows = self.table.find(keys)
        assert (rows >= self.table.first_row).all()
        info = self.table.info(rows)
        found = zip(
            self.table.rows[rows].tolist(), self.table.slot("m")[rows].tolist(),
            info["counts"].tolist(), info["versions"].tolist(),
        )  # fmt: skip
        assert dict(zip(keys, map(list, found))) == self.dict
