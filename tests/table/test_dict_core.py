"""Tables found by key, in every storage, against a Python dict."""

import copy
import dataclasses
import tempfile

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from table import storages
from table.steps import (
    AT_ONCE,
    EXTREMES,
    batches_of,
    core,
    counted_of,
    located,
    read,
    restore,
    start_of,
)

DIM = 2
ROWS_IN_MEMORY = 12  # where there is a disk: of a third of the keys
ALL_KEYS = sorted({*range(30), *EXTREMES.tolist()})
KEYS = st.sampled_from(ALL_KEYS)
BATCHES = st.lists(KEYS, min_size=1, max_size=AT_ONCE)
NUMBERS = st.integers(-9, 9)
EVICTIONS = st.one_of(
    st.builds(lambda steps: {"steps_to_live": steps}, st.integers(0, 6)),
    st.builds(lambda weight: {"l2_weight": weight}, st.sampled_from([0.5, 10.0, 100.0])),
)
# What goes on while a snapshot is read: a batch, and what is written to its rows; None: it is read.
STEPS_BESIDE = st.lists(st.tuples(BATCHES, st.none() | NUMBERS), max_size=4)
ADMISSIONS = {
    "all": {},
    "counter": {"admission": "counter"},
    "bloom": {
        "admission": "bloom", "num_counters": 4096, "num_hashes": 4, "counter_bytes": 2,
    },
}  # fmt: skip


@dataclasses.dataclass
class Row:
    values: list
    slot: list
    count: int
    version: int


class TableIsADict(RuleBasedStateMachine):
    """Any order of operations leaves what the same order leaves in a dict."""

    def __init__(self, storage):
        super().__init__()
        self.storage = storage
        self.folder = tempfile.TemporaryDirectory()

    def teardown(self):
        self.folder.cleanup()

    @initialize(
        admission=st.sampled_from(sorted(ADMISSIONS)),
        min_count=st.integers(2, 3),
        cache_strategy=st.sampled_from(["least_recent", "least_frequent"]),
    )
    def make(self, admission, min_count, cache_strategy):
        self.admission, self.step, self.next_new_key = admission, 0, 2**40
        self.min_count = 1 if admission == "all" else min_count
        self.options = {"cache_strategy": cache_strategy, **ADMISSIONS[admission]}
        if admission != "all":
            self.options["min_count"] = min_count
        self.table = self.new_table()
        self.dict = {}  # key -> Row
        self.seen = {}  # key -> how often it was seen without a row
        self.saved = None  # since a full save: dict, seen and the files

    def new_table(self):
        return self.storage.make_table(
            DIM, slots=["m"], rows_in_memory=ROWS_IN_MEMORY, **self.options
        )

    def forget(self, keys):
        """Counts that are the keys' own; a Bloom filter has none."""
        if self.admission != "bloom":
            for key in keys:
                self.seen.pop(key, None)

    def trained(self, batch):
        """The effect of training on the dict."""
        self.step += 1
        for key in batch:
            if key not in self.dict:
                self.seen[key] = self.seen.get(key, 0) + 1
        for key in set(batch):
            times = batch.count(key)
            if key in self.dict:
                self.dict[key].count += times
            elif self.seen[key] >= self.min_count:
                self.dict[key] = Row(start_of(key, DIM).tolist(), [0.5] * DIM, self.seen[key], 0)
                self.forget([key])
        for key in set(batch) & self.dict.keys():
            self.dict[key].version = self.step

    @rule(batch=BATCHES)
    def look_up_to_train(self, batch):
        self.trained(batch)
        with located(self.table, batch, train=True, step=self.step) as rows:
            for key, row, values in zip(batch, rows, self.table.rows[rows]):
                assert (row >= self.table.first_row) == (key in self.dict)
                assert values.tolist() == self.values_of(key)

    @rule(batch=BATCHES, number=NUMBERS)
    def update(self, batch, number):
        self.trained(batch)
        with located(self.table, batch, train=True, step=self.step) as rows:
            rows = rows[rows >= self.table.first_row]
            self.table.before_write(rows)
            self.table.rows[rows] = number
            self.table.slot("m")[rows] = -number
        for key in set(batch) & self.dict.keys():
            self.dict[key].values, self.dict[key].slot = [number] * DIM, [-number] * DIM

    @rule(batch=BATCHES)
    def look_up_to_read(self, batch):
        for key, values in zip(batch, read(self.table, batch)):
            assert values.tolist() == self.values_of(key)

    def values_of(self, key):
        if key in self.dict:
            return self.dict[key].values
        return start_of(key, DIM).tolist() if self.admission == "all" else [0] * DIM

    @rule(keys=st.lists(KEYS, min_size=1, max_size=20), number=NUMBERS)
    def insert(self, keys, number):
        values = np.arange(len(keys) * DIM, dtype=np.float32).reshape(-1, DIM) + number
        counts = np.arange(len(keys)) % 5
        self.table.insert({"keys": keys, "values": values, "counts": counts})
        self.forget(keys)
        for key, of, count in zip(keys, values.tolist(), counts.tolist()):
            self.dict[key] = Row(of, [0.5] * DIM, count, -1)

    @rule(batch=BATCHES)
    def erase(self, batch):
        expected = {key for key in batch if self.dict.pop(key, None)}
        self.forget(batch)
        assert self.table.erase(batch) == len(expected)

    def evicted(self, steps_to_live=None, l2_weight=None):
        """The effect of an eviction on the dict. Returns the evicted keys."""
        if steps_to_live is not None:
            before = self.step - steps_to_live
            goes = [key for key, row in self.dict.items() if 0 <= row.version < before]
        else:
            weights = {k: np.square(row.values).sum() / 2 for k, row in self.dict.items()}
            goes = [key for key, weight in weights.items() if weight < l2_weight]
        for key in goes:
            del self.dict[key]
        return goes

    @rule(eviction=EVICTIONS)
    def evict(self, eviction):
        expected = self.evicted(**eviction)
        if "l2_weight" in eviction:
            assert self.table.evict_small(**eviction) == len(expected)
        else:
            assert self.table.evict_old(**eviction, step=self.step) == len(expected)

    @rule(
        eviction=st.none() | EVICTIONS,
        held=BATCHES,
        number=NUMBERS,
        steps=STEPS_BESIDE,
        rows_at_once=st.sampled_from([1, 7, 100]),
        is_counted=st.booleans(),
        is_read=st.booleans(),
    )
    def snapshot_beside_training(
        self, eviction, held, number, steps, rows_at_once, is_counted, is_read
    ):
        """A snapshot has what was there, less what is evicted at that instant, whatever comes
        before its rows are read: batches that train and read, and one located before, which is
        written then; or it is not read to the end."""
        self.trained(held)
        with located(self.table, held, train=True, step=self.step) as held_rows:
            goes = self.evicted(**eviction) if eviction else []
            expected = copy.deepcopy(self.dict)
            snapshot = self.table.snapshot(evict=eviction, step=self.step)
            assert not is_counted or self.table.num_keys == len(expected)
            found = self.rows_of(snapshot, 0, rows_at_once)
            self.write_held(held, held_rows, number, goes)
        for batch, number in steps:
            if number is None:
                self.look_up_to_read(batch)
            else:
                self.update(batch, number)
        if is_read:
            for begin in range(rows_at_once, snapshot.num_rows, rows_at_once):
                found += self.rows_of(snapshot, begin, begin + rows_at_once)

            assert len(found) == len(expected)
            assert dict(found) == expected
            assert self.storage.on_device or sorted(snapshot.evicted) == sorted(goes)

    def write_held(self, batch, rows, number, gone):
        """Writes rows that were located before some of their keys have gone."""
        rows = rows[rows >= self.table.first_row]
        self.table.before_write(rows)
        self.table.rows[rows] = number
        for key in set(batch) & self.dict.keys() - set(gone):
            self.dict[key].values = [number] * DIM

    @rule()
    def clear(self):
        self.table.clear()
        self.dict, self.seen = {}, {}

    @precondition(lambda self: self.admission != "bloom")  # which would count others too high
    @rule()
    def grow(self):
        """Many new keys come, three of them to stay: index and memory grow, or run over to disk."""
        num_keys, at_once = (240, ROWS_IN_MEMORY) if self.storage.has_disk else (3000, 3000)
        keys = self.next_new_key + 7919 * np.arange(num_keys)
        self.next_new_key += 7919 * num_keys
        self.step += 1
        for batch in batches_of(keys, at_once):
            with located(self.table, np.tile(batch, self.min_count), train=True, step=self.step):
                pass

        described = self.table.describe(keys)
        assert (described["counts"] == self.min_count).all()
        assert (described["versions"] == self.step).all()
        stays = np.arange(num_keys) % (num_keys // 3) == 7
        for key in keys[stays].tolist():
            self.dict[key] = Row(
                start_of(key, DIM).tolist(), [0.5] * DIM, self.min_count, self.step
            )
        assert self.table.erase(keys[~stays]) == num_keys - 3

    @rule()
    def read_and_insert_all(self):
        snapshot = self.table.snapshot()
        rows, admission = snapshot.read(0, snapshot.num_rows), snapshot.admission
        del snapshot
        self.table.clear()
        assert self.table.num_keys == 0
        self.table.insert(rows)
        self.table.set_admission(admission)

    @rule(eviction=st.none() | EVICTIONS)
    def save(self, eviction):
        self.saved = self.write_file("full", eviction)

    @precondition(lambda self: self.saved is not None)
    @rule(eviction=st.none() | EVICTIONS)
    def save_changes(self, eviction):
        full = self.saved[2][0]
        self.saved = self.write_file("changes", eviction, full)

    def write_file(self, kind, eviction, *files):
        path = f"{self.folder.name}/{kind}"
        if eviction:
            self.evicted(**eviction)
        snapshot = self.table.snapshot(kind == "changes", evict=eviction, step=self.step)
        core.write_table(snapshot, path, save_id=len(files) + 1, changes_only=kind == "changes")
        snapshot.keep()
        return copy.deepcopy((self.dict, self.seen)) + ([*files, path],)

    @precondition(lambda self: self.saved is not None)
    @rule(into_new_table=st.booleans())
    def restore_files(self, into_new_table):
        if into_new_table:
            self.table = self.new_table()
        self.dict, self.seen, files = self.saved
        restore(self.table, files)
        self.saved = None

    def rows_of(self, snapshot, begin, end):
        rows = snapshot.read(begin, end)
        columns = (rows["values"], rows["slots"][0], rows["counts"], rows["versions"])
        found = zip(rows["keys"].tolist(), *(column.tolist() for column in columns))
        return [(key, Row(*row)) for key, *row in found]

    @invariant()
    def equals_the_dict(self):
        snapshot = self.table.snapshot()
        found = self.rows_of(snapshot, 0, snapshot.num_rows)

        assert len(found) == self.table.num_keys == len(self.dict)
        assert dict(found) == self.dict
        if self.admission != "bloom":
            assert counted_of(snapshot) == self.seen

    @invariant()
    def describes_the_dict(self):
        described = self.table.describe(ALL_KEYS)
        for i, key in enumerate(ALL_KEYS):
            row = self.dict.get(key)
            expected = (row.count, row.version) if row else (self.seen.get(key, -1), -1)
            assert (described["counts"][i], described["versions"][i]) == expected


@pytest.mark.parametrize("storage", storages.ALL)
def test_a_table_is_a_dict(storage):
    num_examples = 60 if storage.on_device else 100
    run_state_machine_as_test(
        lambda: TableIsADict(storage),
        settings=settings(max_examples=num_examples, stateful_step_count=30, deadline=None),
    )
