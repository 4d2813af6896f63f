"""Tables with a budget, in every storage, against a dict that sorts all its keys."""

import numpy as np
import pytest
from support.cases.core_cases import from_storage, to_storage
from support.oracles.budget import BudgetedDict, FilteredDict, content, mix_bits, zipf_batches
from table import storages
from table.budget_programs import DIM
from table.budget_programs import POLICIES as OF_PROGRAMS
from table.steps import core, counted_of, has_row, located, restore, start_of

POLICIES = {name: options for name, options in OF_PROGRAMS.items() if name != "earliest"}
STORAGES = storages.ALL


def start_values(key):
    return tuple(start_of([key], DIM)[0].tolist())


class Pair:
    """A table and its oracle, which see the same calls."""

    def __init__(
        self, storage, *, dtype="float32", num_threads=1, slots=(), rows_in_memory=64, **budget
    ):
        self.storage, self.budget, self.slots, self.dtype = storage, budget, slots, dtype
        self.options = {
            "dtype": dtype, "num_threads": num_threads, "rows_in_memory": rows_in_memory
        }  # fmt: skip
        self.table = self.new_table()
        self.oracle = BudgetedDict(start=start_values, **self.budget)
        self.step = 0

    def new_table(self):
        return self.storage.make_table(
            DIM, budget=core.Budget(hands_out="rows", **self.budget), slots=self.slots,
            **self.options,
        )  # fmt: skip

    def train(self, batch):
        batch = [int(key) for key in batch]
        without = self.oracle.train(batch, self.step)
        with located(self.table, batch, train=True, step=self.step) as rows:
            for key, row in zip(batch, rows):
                has_place = key not in without
                assert (row >= self.table.first_row) == has_place
                if not has_place:
                    np.testing.assert_array_equal(
                        self.table.rows[row], self.stored(start_values(key))
                    )
        self.step += 1

    def stored(self, values):
        """The values as the table has them: numbers of 16 bits as uint16."""
        values = to_storage(values, self.dtype)
        return values.view(np.uint16) if self.dtype == "float16" else values

    def write(self, keys, value):
        keys = [key for key in keys if key in self.oracle.rows]
        with located(self.table, keys) as rows:
            self.table.before_write(rows)
            self.table.rows[rows] = self.stored([value] * DIM)
        for key in keys:
            rounded = from_storage(to_storage([value] * DIM, self.dtype), self.dtype)
            self.oracle.rows[key].values = tuple(rounded.tolist())

    def set_scores(self, keys, scores):
        self.table.set_scores(np.array(keys), np.array(scores, np.float32))
        for key in dict.fromkeys(keys):
            if key in self.oracle.rows:
                given = [score for k, score in zip(keys, scores) if k == key]
                self.oracle.rows[key].score = float(np.float32(max(given)))

    def check(self):
        snapshot = self.table.snapshot()
        read = [snapshot.read(b, b + 100) for b in range(0, snapshot.num_rows, 100)]
        del snapshot
        found = {
            int(key): (int(count), int(version))
            for part in read
            for key, count, version in zip(part["keys"], part["counts"], part["versions"])
        }
        assert found == content(self.oracle.rows)
        counts = self.table.budget_counts()
        assert self.table.num_keys == len(found) <= counts["max_keys"]
        assert counts["without_place"] == self.oracle.without_place


@pytest.mark.parametrize("storage", STORAGES)
def test_the_highest_of_several_scores_of_a_key_holds(storage):
    # Given a table of four keys
    budget = core.Budget(max_keys=4, keep=1.0, evict="score")
    table = storage.make_table(DIM, budget=budget, rows_in_memory=64)
    with located(table, np.arange(4), train=True, step=0):
        pass

    # When two of them get NaN, which is above all numbers, before or after a number
    table.set_scores(np.array([0, 0, 1, 1, 2, 3]), np.array([np.nan, 1, 1, np.nan, 5, 6], "f4"))
    with located(table, np.arange(4, 6), train=True, step=1):
        pass

    # Then the others go for new keys
    snapshot = table.snapshot()
    assert sorted(snapshot.read(0, snapshot.num_rows)["keys"].tolist()) == [0, 1, 4, 5]


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize(
    "evict, dtype",
    [(evict, "float32") for evict in POLICIES]
    + [("smallest_norm", "float16"), ("smallest_norm", "bfloat16")],
)
def test_the_lowest_go(storage, evict, dtype):
    pair = Pair(storage, dtype=dtype, max_keys=100, keep=0.8, evict=evict, **POLICIES[evict])
    random = np.random.default_rng(7)

    for batch in zipf_batches(seed=7, num_batches=60, size=24, num_keys=400):
        pair.train(batch)
        if evict == "smallest_norm":
            pair.write(set(batch[:8].tolist()), random.normal())
        if evict == "score":
            pair.set_scores(batch.tolist(), random.integers(-3, 9, len(batch)).tolist())
        pair.check()

    assert len(pair.oracle.evicted) > 300
    assert pair.table.budget_counts()["evicted"] == len(pair.oracle.evicted)


@pytest.mark.parametrize("num_threads", [1, 4])
def test_the_same_keys_go_for_any_number_of_threads(num_threads):
    pair = Pair(storages.DRAM, num_threads=num_threads, max_keys=5000, evict="least_frequent")

    for batch in zipf_batches(seed=3, num_batches=8, size=3000, num_keys=20000):
        pair.train(batch)

    pair.check()
    assert len(pair.oracle.evicted) > 300


@pytest.mark.parametrize("storage", STORAGES)
def test_a_batch_with_more_new_keys_than_places(storage):
    pair = Pair(storage, max_keys=10, evict="least_frequent")
    pair.train(range(8))

    pair.train(range(100, 130))

    pair.check()
    kept = sorted(range(100, 130), key=mix_bits)[-10:]
    assert sorted(pair.oracle.rows) == sorted(kept)
    assert pair.table.budget_counts()["without_place"] == 20


def test_keys_without_a_place_read_values_of_their_own():
    """Also where these are not rows of a matrix; what they train is nobody's."""
    budget = core.Budget(max_keys=4)
    table = core.HostTable(dim=DIM, distribution="uniform", a=1, b=2, seed=5, budget=budget)
    other = core.HostTable(dim=DIM, distribution="uniform", a=1, b=2, seed=5)
    keys = np.arange(12)

    with located(table, keys, train=True, step=0) as rows, \
            located(other, keys, train=True, step=0) as expected:  # fmt: skip
        np.testing.assert_array_equal(table.rows[rows], other.rows[expected])
        assert len(set(rows.tolist())) == 12
        table.rows[rows] = 9

    assert table.num_keys == 4
    with located(table, keys, train=True, step=1) as rows:
        trained = table.rows[rows][:, 0] == 9
        assert trained.sum() == 4


@pytest.mark.parametrize("storage", STORAGES)
def test_keys_of_a_batch_in_flight_stay(storage):
    pair = Pair(storage, max_keys=10, keep=0.5)
    table = pair.table
    batch = table.begin_batch()
    held = table.locate(np.arange(5), train=True, step=0, batch=batch)

    with located(table, np.arange(10, 30), train=True, step=1):
        assert has_row(table, np.arange(5)).all()
        assert table.num_keys == 10
        assert table.budget_counts()["without_place"] == 15

    np.testing.assert_array_equal(table.rows[held], start_of(np.arange(5), DIM))
    table.end_batch(batch)


@pytest.mark.parametrize("storage", STORAGES)
def test_rows_of_evicted_keys_are_handed_out(storage):
    pair = Pair(storage, max_keys=20, keep=0.5, rows_in_memory=16)
    for first in range(0, 60, 4):
        pair.train(range(first, first + 4))
        taken = pair.table.take_evicted()

        np.testing.assert_array_equal(taken["values"], start_of(taken["keys"], DIM))
        assert sorted(taken["keys"].tolist()) == sorted(pair.oracle.evicted)
        pair.oracle.evicted.clear()


@pytest.mark.parametrize("storage", [STORAGES[0], STORAGES[-1]])
@pytest.mark.parametrize("num_shares", [6, 24])
def test_ranks_keep_the_keys_that_one_keeps(num_shares, storage):
    batches = zipf_batches(seed=11, num_batches=30, size=60, num_keys=900)
    kept = {}
    for num_ranks in (1, 2, 3):
        kept[num_ranks] = {}
        for rank in range(num_ranks):
            budget = core.Budget(
                max_keys=200, evict="least_frequent", num_shares=num_shares, rank=rank,
                num_ranks=num_ranks,
            )  # fmt: skip
            table = storage.make_table(DIM, budget=budget, rows_in_memory=64)
            for step, batch in enumerate(batches):
                own = [int(k) for k in batch if core.key_owners([int(k)], num_ranks)[0] == rank]
                with located(table, own, train=True, step=step):
                    pass
            snapshot = table.snapshot()
            read = snapshot.read(0, snapshot.num_rows)
            kept[num_ranks].update(zip(read["keys"].tolist(), read["counts"].tolist()))
            del snapshot

    assert kept[1] == kept[2] == kept[3]
    assert len(kept[1]) <= 200
    oracle = BudgetedDict(max_keys=200, evict="least_frequent", num_shares=num_shares)
    for step, batch in enumerate(batches):
        oracle.train(batch.tolist(), step)
    assert kept[1] == {key: row.count for key, row in oracle.rows.items()}


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("changes_only", [False, True])
def test_a_restart_in_the_middle_changes_nothing(storage, changes_only, tmp_path):
    budget = {"max_keys": 60, "evict": "decayed_frequency", "decay_steps": 4, "safe_steps": 3}
    pair = Pair(storage, slots=["m"], **budget)
    batches = zipf_batches(seed=5, num_batches=40, size=16, num_keys=300)
    for batch in batches[:10]:
        pair.train(batch)
    full = str(tmp_path / "full")
    snapshot = pair.table.snapshot()
    core.write_table(snapshot, full, save_id=1)
    snapshot.keep()
    del snapshot
    for batch in batches[10:20]:
        pair.train(batch)
    files = [full]
    if changes_only:
        snapshot = pair.table.snapshot(changes_only=True)
        core.write_table(snapshot, str(tmp_path / "changes"), save_id=2, changes_only=True)
        files.append(str(tmp_path / "changes"))
    else:
        snapshot = pair.table.snapshot()
        core.write_table(snapshot, full, save_id=1)
    del snapshot

    pair.table = pair.new_table()
    restore(pair.table, files)
    pair.oracle.without_place = 0

    pair.check()
    for batch in batches[20:]:
        pair.train(batch)
        pair.check()


@pytest.mark.parametrize("storage", STORAGES)
def test_more_rows_than_the_budget_are_restored_by_their_order(storage, tmp_path):
    large = Pair(storage, max_keys=200)
    for first in range(0, 150, 10):
        large.train(range(first, first + 10))
    path = str(tmp_path / "table")
    snapshot = large.table.snapshot()
    core.write_table(snapshot, path, save_id=1)
    del snapshot

    small = Pair(storage, max_keys=50, keep=0.8)
    restore(small.table, [path])

    assert 40 <= small.table.num_keys <= 50
    assert has_row(small.table, np.arange(110, 150)).all()
    assert not has_row(small.table, np.arange(0, 100)).any()


def test_erased_keys_are_forgotten_when_nobody_follows():
    budget = core.Budget(max_keys=1000)
    table = core.HostTable(dim=DIM, budget=budget)
    before = None
    for step in range(400):
        with located(table, np.arange(step * 1000, step * 1000 + 1000), train=True, step=step):
            pass
        if step == 200:
            before = table.memory_bytes

    assert table.budget_counts()["evicted"] == 399_000
    assert table.memory_bytes <= 1.2 * before


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("num_shares", [0, 6])
def test_counts_of_keys_without_a_row_have_a_bound(storage, num_shares):
    """Beyond it they are halved, as a dict does it."""
    limit = 60
    budget = core.Budget(max_keys=limit, num_shares=num_shares)
    table = storage.make_table(
        DIM, admission="counter", min_count=5, budget=budget, rows_in_memory=64
    )
    oracle = FilteredDict(min_count=5, max_keys=limit, num_shares=num_shares)
    for step, batch in enumerate(zipf_batches(seed=2, num_batches=60, size=20, num_keys=300)):
        oracle.train(batch.tolist(), step)
        with located(table, batch, train=True, step=step):
            pass

        snapshot = table.snapshot()
        assert counted_of(snapshot) == oracle.counts
        read = snapshot.read(0, snapshot.num_rows)
        assert sorted(read["keys"].tolist()) == sorted(oracle.rows)
        del snapshot


def test_a_budget_too_small_for_its_shares_is_refused():
    with pytest.raises(RuntimeError, match="table 'table': expected a budget for at least 24 keys"):
        core.HostTable(dim=DIM, budget=core.Budget(max_keys=20, num_shares=24))
