"""Random programs of tables with a budget whose keys expire too, against a dict that sorts keys.

A program trains, inserts, erases, scores, evicts, saves, restores on another number of ranks,
publishes and hands out evicted keys; after each call all keys are compared. To run programs for as
long as is wished: `PYTHONPATH=tests python -m table.budget_programs --help`.
"""

import argparse
import collections
import copy
import ctypes
import itertools
import os
import pathlib
import tempfile
import time

import numpy as np
from support.oracles.budget import BudgetedDict, FilteredDict, Row, content
from table import storages
from table.steps import core, counted_of, has_row, located, restore, start_of

DIM = 2
POLICIES = {
    "least_recent": {},
    "least_frequent": {"safe_steps": 2},
    "decayed_frequency": {"decay_steps": 3, "safe_steps": 1},
    "smallest_norm": {},
    "score": {"safe_steps": 1},
    "earliest": {},
}
EXPIRIES = [
    {"steps_to_live": 12},
    {"minutes_to_live": 15},
    {"l2_weight": 0.6},
    {"steps_to_live": 20, "minutes_to_live": 25, "l2_weight": 0.3},
]
# How often a program has each filter, what it asks of keys, and what else a table must know of it.
# No two keys share all counters of the Bloom filter.
FILTERS = {"all": 0.4, "counter": 0.2, "bloom": 0.2, "chance": 0.2}
ASKED = {
    "all": {},
    "counter": {"min_count": 2},
    "bloom": {"min_count": 3},
    "chance": {"probability": 0.5},
}
OF_TABLE = {
    "all": {},
    "counter": {"admission": "counter"},
    "bloom": {"admission": "bloom", "num_counters": 2**18, "num_hashes": 4, "counter_bytes": 2},
    "chance": {"admission": "counter"},
}
NUM_SHARES, MAX_KEYS = 6, 90
PUBLISHER = 7  # a follower of changes
NUM_CALLS = 80  # of a program


# Keys start as rows of a matrix, or all as this, which is not what keys without a row read.
STARTS = {"matrix": {}, "constant": {"a": 1.0}}


def read_all(snapshot):
    """(key, count, version, values) of all its rows."""
    for begin in range(0, snapshot.num_rows, 100):
        yield from rows_of(snapshot.read(begin, begin + 100))


def rows_of(part):
    """(key, count, version, values) of rows as a table gives them."""
    values = map(tuple, part["values"].tolist())
    return zip(part["keys"].tolist(), part["counts"].tolist(), part["versions"].tolist(), values)


def starts_in(distribution, keys):
    """The rows that keys start as, [len(keys), DIM]."""
    if distribution == "matrix":
        return start_of(keys, DIM)
    return np.full((len(keys), DIM), STARTS[distribution]["a"], np.float32)


class Program:
    """Anything that may happen to a table, drawn at random.

    Args:
      storage: of `storages.ALL`.
      num_ranks: over how many tables keys are spread at first.
      folder: for checkpoints.
    """

    def __init__(self, storage, seed, num_ranks, folder):
        self.storage, self.folder = storage, pathlib.Path(folder)
        self.random = np.random.default_rng(seed)
        evict = str(self.random.choice(list(POLICIES)))
        self.budget = {
            "max_keys": MAX_KEYS, "keep": 0.8, "evict": evict, "num_shares": NUM_SHARES,
            **POLICIES[evict],
        }  # fmt: skip
        self.expiry = EXPIRIES[self.random.integers(len(EXPIRIES))]
        self.distribution = str(self.random.choice(list(STARTS)))
        self.filter = str(self.random.choice(list(FILTERS), p=list(FILTERS.values())))
        self.step, self.minute, self.next_new = 0, 1000, 10**6
        self.saved = None
        self.start(num_ranks)

    def start(self, num_ranks):
        """All tables are new."""
        num_threads = int(self.random.choice([1, 4]))
        self.tables = [
            self.storage.make_table(
                DIM, rows_in_memory=64, keeps_time=True, num_threads=num_threads,
                budget=core.Budget(hands_out="rows", rank=r, num_ranks=num_ranks, **self.budget),
                distribution=self.distribution, **STARTS[self.distribution],
                **ASKED[self.filter], **OF_TABLE[self.filter],
            )
            for r in range(num_ranks)
        ]  # fmt: skip
        distribution = self.distribution  # a reference to self would keep the tables

        def start(key):
            return tuple(starts_in(distribution, [key])[0].tolist())

        if self.filter == "all":
            self.oracle = BudgetedDict(start=start, **self.budget)
        else:
            self.oracle = FilteredDict(
                is_bloom=self.filter == "bloom", start=start, **ASKED[self.filter], **self.budget
            )
        self.published = {}
        self.num_missed = 0
        self.set_time()

    def set_time(self):
        self.oracle.minute = self.minute
        for table in self.tables:
            table.set_time(self.minute)

    def by_rank(self, keys):
        """Tables, and which of the keys are theirs."""
        owners = core.key_owners(keys, len(self.tables))
        return [(table, np.flatnonzero(owners == r)) for r, table in enumerate(self.tables)]

    def keys(self, most):
        size = self.random.integers(1, most)
        known = self.random.integers(0, 200, size)
        new = self.random.integers(0, 10, size) == 0
        self.next_new += size
        return np.where(new, self.next_new + np.arange(size), known).tolist()

    def run(self, num_calls=NUM_CALLS):
        calls = [self.train] * 8 + [
            self.insert, self.erase, self.evict, self.set_scores, self.save, self.save_changes,
            self.fail_to_save, self.restore, self.publish, self.publish, self.hand_out,
        ]  # fmt: skip
        for _ in range(num_calls):
            self.random.choice(np.array(calls, object))()
            self.check()
        self.publish()
        self.hand_out()

    def train(self):
        batch = self.keys(40)
        self.minute += int(self.random.integers(0, 3))
        self.set_time()
        self.oracle.train(batch, self.step)
        value = float(self.random.integers(-3, 4)) if self.random.random() < 0.5 else None
        for table, places in self.by_rank(batch):
            own = np.array(batch)[places]
            with located(table, own, train=True, step=self.step) as rows:
                has_place = has_row(table, own)
                without = {key for key in own.tolist() if key not in self.oracle.rows}
                assert set(own[~has_place].tolist()) == without
                self.check_rows_of_no_key(table, own[~has_place], rows[~has_place])
                if value is not None:
                    written = rows[rows >= table.first_row]  # lent ones, too
                    table.before_write(written)
                    table.rows[written] = value
        for key in set(batch).intersection(self.oracle.rows) if value is not None else ():
            self.oracle.rows[key].values = (value,) * DIM
        self.step += 1

    def check_rows_of_no_key(self, table, keys, rows):
        """Keys without a place read what they start as. Without a matrix these are rows that are
        lent to them; where none is left, they read zeros, as with a filter."""
        if self.filter != "all":
            assert (rows < table.first_row).all()
            is_lent = np.zeros(len(keys), bool)
        elif self.distribution == "matrix":
            assert (rows < table.first_row).all()
            is_lent = np.ones(len(keys), bool)
        else:
            is_lent = rows >= table.first_row
            lent = dict(zip(keys[is_lent].tolist(), rows[is_lent].tolist()))
            assert len(set(lent.values())) == len(lent)
        assert (table.rows[rows[~is_lent]] == 0).all()
        np.testing.assert_array_equal(
            table.rows[rows[is_lent]], starts_in(self.distribution, keys[is_lent])
        )

    def insert(self):
        keys = np.array(list(dict.fromkeys(self.keys(60))))
        counts = self.random.integers(0, 9, len(keys))
        versions = self.random.integers(-1, self.step + 1, len(keys))
        values = self.random.integers(-3, 4, (len(keys), DIM)).astype(np.float32)
        given = {"keys": keys, "counts": counts, "versions": versions, "values": values}
        for table, places in self.by_rank(keys):
            table.insert({name: array[places] for name, array in given.items()})
        self.oracle.insert(
            {
                key: Row(count, version, None, 0.0, row)
                for key, count, version, row in rows_of(given)
            }
        )

    def erase(self):
        keys = self.keys(10)
        for table, places in self.by_rank(keys):
            table.erase(np.array(keys)[places])
        self.oracle.erase(keys)

    def set_scores(self):
        if self.budget["evict"] != "score":
            return
        keys = np.array(self.keys(30))
        scores = self.random.integers(-3, 9, len(keys)).astype(np.float32)
        for table, places in self.by_rank(keys):
            table.set_scores(keys[places], scores[places])
        for key in set(keys.tolist()).intersection(self.oracle.rows):
            self.oracle.rows[key].score = float(scores[keys == key].max())

    def evict(self):
        before = len(self.oracle.rows)
        self.oracle.expire(self.step, **self.expiry)
        evicted = sum(table.evict(self.expiry, self.step) for table in self.tables)
        assert evicted == before - len(self.oracle.rows)

    def save(self):
        self.write("full", changes_only=False)

    def save_changes(self):
        if self.saved is not None:
            self.write("changes", changes_only=True)

    def write(self, name, changes_only):
        """Expires keys, and saves the tables as they are at this instant."""
        save_id, files = self.random.integers(2**40), []
        snapshots = self.snapshots(changes_only)
        oracle = self.oracle
        state = copy.deepcopy((oracle.rows, oracle.counts, oracle.last_step, oracle.minute))
        if self.random.random() < 0.3:
            self.train()
        for r, snapshot in enumerate(snapshots):
            files.append(str(self.folder / f"{name}-{r}"))
            core.write_table(
                snapshot, files[-1], save_id=save_id, part=r, num_parts=len(snapshots),
                changes_only=changes_only,
            )  # fmt: skip
            snapshot.keep()
        snapshots.clear()
        full = self.saved[0][: len(files)] if changes_only else []
        self.saved = [*full, *files], state

    def fail_to_save(self):
        """The keys have expired all the same."""
        for snapshot in self.snapshots(changes_only=False):
            if self.random.random() < 0.5:
                snapshot.read(0, snapshot.num_rows // 2)

    def snapshots(self, changes_only):
        """Snapshots of all tables; in most of them keys expire."""
        expiry = self.expiry if self.random.random() < 0.7 else {}
        if expiry:
            self.oracle.expire(self.step, **expiry)
        return [t.snapshot(changes_only, evict=expiry, step=self.step) for t in self.tables]

    def restore(self):
        if self.saved is None:
            return
        files, state = self.saved
        self.start(num_ranks=int(self.random.integers(1, 4)))
        for rank, table in enumerate(self.tables):
            restore(table, files, index=rank, count=len(self.tables))
        oracle = self.oracle
        oracle.rows, oracle.counts, oracle.last_step, oracle.minute = state
        self.saved = None

    def publish(self):
        """A server reads the changes, and then has the rows of the tables."""
        for table in self.tables:
            snapshot = table.snapshot(changes_only=table.follows(PUBLISHER), follower=PUBLISHER)
            for key in snapshot.erased.tolist():
                self.published.pop(key, None)
            self.published.update({key: values for key, *_, values in read_all(snapshot)})
            table.follow(PUBLISHER, snapshot)
            del snapshot
        assert self.published == {key: row.values for key, row in self.oracle.rows.items()}

    def hand_out(self):
        """Each key that went is handed out once, with its row, or counted as missed."""
        taken = [row for table in self.tables for row in rows_of(table.take_evicted())]
        went = [(key, r.count, r.version, r.values) for key, r in self.oracle.handed_out]
        missed = sum(table.budget_counts()["missed"] for table in self.tables)
        assert not collections.Counter(taken) - collections.Counter(went)
        assert len(taken) + missed - self.num_missed == len(went)
        self.num_missed = missed
        self.oracle.handed_out.clear()

    def check(self):
        found, counted = {}, {}
        for table in self.tables:
            snapshot = table.snapshot()
            counted |= counted_of(snapshot)
            found |= {key: (count, version) for key, count, version, _ in read_all(snapshot)}
            del snapshot
        assert found == content(self.oracle.rows)
        assert self.filter == "bloom" or counted == self.oracle.counts
        counts = [table.budget_counts() for table in self.tables]
        assert sum(table.num_keys for table in self.tables) == len(found) <= MAX_KEYS
        assert sum(c["max_keys"] for c in counts) == MAX_KEYS
        assert sum(c["without_place"] for c in counts) == self.oracle.without_place
        assert sum(c["evicted"] for c in counts) == len(self.oracle.evicted)


class Stream:
    """A table with a budget through which keys pass, each of which comes once."""

    MAX_KEYS, BATCH = 100_000, 16_384

    def __init__(self):
        budget = core.Budget(max_keys=self.MAX_KEYS, hands_out="keys")
        self.table = storages.DRAM.make_table(DIM, budget=budget)
        self.num_keys = 0

    def train(self):
        keys = np.arange(self.num_keys, self.num_keys + self.BATCH)
        with located(self.table, keys, train=True, step=self.num_keys // self.BATCH) as rows:
            assert (rows >= self.table.first_row).all()
        self.num_keys += self.BATCH
        assert self.table.num_keys <= self.MAX_KEYS


def resident_bytes():
    """Without freed memory that the C library keeps: RocksDB's threads leave some in its pools."""
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def run_for(seconds, first_seed):
    """Runs programs with every storage on 1, 2 and 3 ranks, and a stream of keys beside them.
    Yields after each program {programs, keys of the stream, bytes of the process}."""
    kinds = [(p.values[0], ranks) for p in storages.ON_HOST for ranks in (1, 2, 3)]
    end, stream = time.monotonic() + seconds, Stream()
    for number in itertools.count():
        if time.monotonic() >= end:
            return
        seed = first_seed + number
        storage, num_ranks = kinds[number % len(kinds)]
        with tempfile.TemporaryDirectory() as folder:
            program = Program(storage, seed, num_ranks, folder)
            try:
                program.run()
            except Exception as error:
                raise AssertionError(f"{storage.name}, {num_ranks} ranks, seed {seed}") from error
        del program
        stream.train()
        yield {"programs": number + 1, "keys": stream.num_keys, "bytes": resident_bytes()}


def main():
    parser = argparse.ArgumentParser(prog="table.budget_programs", description=__doc__)
    parser.add_argument("seconds", type=float)
    parser.add_argument("--seed", type=int, default=0, help="of the first program")
    args = parser.parse_args()
    begin = next_report = time.monotonic()
    for done in run_for(args.seconds, args.seed):
        if time.monotonic() >= next_report:
            seconds = time.monotonic() - begin
            print(f"{seconds:6.0f} s  {done['programs']:,} programs, {done['keys']:,} keys, "
                  f"{done['bytes'] / 1e6:.1f} MB", flush=True)  # fmt: skip
            next_report += 60
    print(f"{done['programs']:,} programs, no difference", flush=True)


if __name__ == "__main__":
    main()
