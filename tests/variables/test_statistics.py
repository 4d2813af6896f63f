"""Statistics of keyed tables: numbers, a printed table, Prometheus's text."""

import re
import sys
import threading

import numpy as np
import pytest
import tensorflow as tf
from table.test_budget_errors_core import break_files

import group_embedding as ge
from group_embedding.keras_compat import keras
from group_embedding.variables.live_tables import live_tables

v1 = tf.compat.v1
SEED = 3


def in_tiers(*of_tests):
    """Makes a test for tables in these tiers, such as "hbm+dram"."""
    return pytest.mark.parametrize(
        "tiers",
        [
            pytest.param(
                tiers.split("+"), id=tiers, marks=[pytest.mark.gpu] if "hbm" in tiers else []
            )
            for tiers in of_tests
        ],
    )


def trainer(table):
    optimizer = ge.optimizers.wrap(tf.keras.optimizers.SGD(0.1))

    def train(keys):
        with tf.GradientTape() as tape:
            (rows,) = ge.lookup([table], [tf.constant(keys, tf.int64)])
            loss = tf.reduce_sum(rows)
        optimizer.apply_gradients([(tape.gradient(loss, table), table)])

    return train


def of(table):
    (found,) = ge.statistics([table]).tables.values()
    return found


@in_tiers("dram", "hbm", "hbm+dram")
def test_ids_that_have_a_row_and_keys_that_get_one(tiers):
    # Given a table that admits keys the second time
    tier_bytes = [1 << 20] if len(tiers) > 1 else None
    table = ge.keyed_table("counted", 4, admit_after=2, tiers=tiers, tier_bytes=tier_bytes)
    train = trainer(table)

    # When it trains 1 and 2, then 2 twice and 3, and reads 1, 2 and 3
    train([1, 2])
    train([2, 2, 3])
    ge.lookup([table], [tf.constant([[1, 2, 3]], tf.int64)])

    # Then 2 alone has a row, since the second step, and one of eight ids found it
    found = of(table)
    assert (found.keys, found.admitted) == (1, 1)
    of_others = dict.fromkeys(tiers[1:], 0)
    assert (found.looked_up, found.found) == (8, {tiers[0]: 1, **of_others})
    assert found.hit_rates() == {tiers[0]: 1 / 8, **of_others}
    assert found.memory_bytes == int(table.memory_bytes())
    assert found.bytes_by_tier == {tiers[0]: found.memory_bytes, **of_others}


@in_tiers("dram", "dram+disk", "hbm", "hbm+dram")
def test_reads_of_each_kind_are_counted(tiers, tmp_path):
    # Given a table with the keys 1 and 2
    below = {"tier_bytes": [1 << 20]} if len(tiers) > 1 else {}
    if "disk" in tiers:
        below["disk_folder"] = str(tmp_path)
    table = ge.keyed_table("read", 4, tiers=tiers, **below)
    trainer(table)([1, 2])
    before = of(table).looked_up

    # When both are read beside a key that has no row, in three ways
    ids = tf.constant([1, 2, 3], tf.int64)
    tf.nn.embedding_lookup(table, ids), tf.gather(table, ids), table.sparse_read(ids)

    # Then each id counts
    assert of(table).looked_up == before + 9
    assert sum(of(table).found.values()) == 6


@in_tiers("dram+disk", "hbm+dram", "hbm+dram+disk")
def test_rows_in_memory_and_below(tiers, tmp_path):
    # Given a table with 1,000 keys, most of which are not in the first tier
    tier_bytes = [200 * 96, 300 * 96][: len(tiers) - 1]
    table = ge.keyed_table(
        "tiered", 16, num_initial_rows=8, tiers=tiers, tier_bytes=tier_bytes,
        disk_folder=str(tmp_path) if "disk" in tiers else None,
    )  # fmt: skip
    train, keys = trainer(table), np.arange(1000)
    for part in np.split(keys, 20):
        train(part)
    before = of(table)
    some = keys[::16]
    tier_of = table.lookup_tier(some).numpy()

    # When some are looked up, each twice, beside keys that have no row
    ids = np.concatenate([some, some, [-1, -2, -3]])
    ge.lookup([table], [tf.constant(ids)])

    # Then ids are counted by the tier in which their row was
    found = of(table)
    expected = {tier: 2 * int((tier_of == n).sum()) for n, tier in enumerate(tiers)}
    assert min(expected.values()) > 0 and sum(expected.values()) == 2 * len(some)
    assert found.looked_up - before.looked_up == len(ids)
    assert found.hit_rates(before) == {tier: n / len(ids) for tier, n in expected.items()}
    if "disk" in tiers:
        assert found.wait_seconds > before.wait_seconds > 0
        assert found.bytes_by_tier["disk"] == found.disk_bytes >= 0
    if "hbm" in tiers:
        assert found.bytes_by_tier["dram"] == found.host_bytes >= 100 * 64
    assert sum(found.bytes_by_tier.values()) == found.memory_bytes + found.disk_bytes
    # and rows that are prefetched are not counted, until they are looked up
    ge.route_ids([table], [tf.constant(keys[100:150])])
    again = of(table)
    assert (again.looked_up, again.found) == (found.looked_up, found.found)


@in_tiers("dram", "dram+disk", "hbm", "hbm+dram+disk")
def test_scores_are_no_lookups(tiers, tmp_path):
    # Given a table that evicts by score, most of whose rows may be on disk
    on_disk = {}
    if "disk" in tiers:
        tier_bytes = [60 * 96] * (len(tiers) - 1)
        on_disk = {"tier_bytes": tier_bytes, "disk_folder": str(tmp_path)}
    table = ge.keyed_table(
        "scored", 4, num_initial_rows=8, tiers=tiers, max_keys=400, budget_of="rank",
        evict="score", **on_disk,
    )  # fmt: skip
    train = trainer(table)
    for step in range(20):
        train(np.arange(20) + 20 * step)
    before = of(table)

    # When all keys get scores
    table.set_scores(np.arange(400), np.arange(400, dtype=np.float32))

    # Then no id was looked up, and the next ones are counted by tier
    found = of(table)
    assert (found.looked_up, found.found) == (before.looked_up, before.found)
    ge.lookup([table], [tf.constant(np.arange(0, 400, 40))])
    after = of(table)
    assert after.looked_up == before.looked_up + 10
    assert sum(after.found.values()) == sum(before.found.values()) + 10


@pytest.mark.parametrize("broken", [0, 1])
@in_tiers("dram+disk", "hbm+dram+disk")
def test_a_call_whose_disk_fails_is_no_lookup(tiers, broken, tmp_path):
    # Given tables, of which most rows of each are on disk
    row_bytes = 128 * 4 + 40
    tables = [
        ge.keyed_table(
            name, 128, num_initial_rows=8, tiers=tiers, disk_folder=str(tmp_path / name),
            tier_bytes=[4000 * row_bytes] * (len(tiers) - 1),
        )
        for name in ("first", "second")
    ]  # fmt: skip
    trainers = [trainer(table) for table in tables]
    for part in np.split(np.arange(60_000), 30):
        for train in trainers:
            train(part)

    def counts(table):
        found = of(table)
        return found.looked_up, sum(found.found.values()), found.found["disk"]

    before = [counts(table) for table in tables]

    # When the files of one are broken, and both are asked for rows on disk and in memory
    name = ["first", "second"][broken]
    break_files(tmp_path / name)
    on_disk, in_memory = np.arange(2000), np.arange(59_500, 60_000)
    for _ in range(3):
        with pytest.raises(tf.errors.OpError, match=f"table '{name}', disk tier.*truncated"):
            ge.lookup(tables, [tf.constant(np.r_[on_disk, in_memory])] * 2)

    # Then no id of these calls was looked up in either, and those of the next call are counted
    assert [counts(table) for table in tables] == before
    ge.lookup([tables[broken]], [tf.constant(in_memory)])
    looked_up, found, on_disk = before[broken]
    assert counts(tables[broken]) == (looked_up + 500, found + 500, on_disk)


@in_tiers("dram", "dram+disk", "hbm", "hbm+dram+disk")
def test_keys_that_go_by_policy(tiers, tmp_path):
    on_disk = {}
    if "disk" in tiers:
        tier_bytes = [60 * 96] * (len(tiers) - 1)
        on_disk = {"tier_bytes": tier_bytes, "disk_folder": str(tmp_path)}
    table = ge.keyed_table(
        "going", 4, tiers=tiers, max_keys=100, budget_of="rank", evict="least_frequent",
        evict_after_steps=3, evict_below_norm=1e-9, **on_disk,
    )  # fmt: skip
    train = trainer(table)
    for step in range(6):
        train(np.arange(20) + 20 * step)
    counts = table.budget_counts()

    # Keys of the first steps that are still there go as the table is saved
    kept = int(table.total_count())
    tf.train.Checkpoint(table=table).save(str(tmp_path / "save"))

    found = of(table)
    assert found.max_keys == 100
    assert found.evicted == {
        "least_frequent": int(counts.evicted),
        "evict_after_steps": kept - found.keys,
        "evict_below_norm": 0,
    }
    assert found.evicted["least_frequent"] > 0 and found.keys < kept
    assert 0 < found.oldest_steps <= 3


@in_tiers("dram", "dram+disk", "hbm", "hbm+dram", "hbm+dram+disk")
@pytest.mark.parametrize("by_save", [False, True], ids=["by a call", "by a save"])
def test_keys_that_expire_count_for_the_first_policy_that_holds(tiers, by_save, tmp_path):
    # Given keys of which 30 are too old in steps, 15 others in minutes, and 15 others too short: an
    # inserted row has no minute
    below = {"tier_bytes": [1 << 20]} if tiers == ["hbm", "dram"] else {}
    if "disk" in tiers:
        below = {"tier_bytes": [15 * 96] * (len(tiers) - 1), "disk_folder": str(tmp_path)}
    table = ge.keyed_table(
        "expiring", 4, initializer=tf.ones_initializer(), num_initial_rows=1, tiers=tiers,
        evict_after_steps=3, evict_after_minutes=60, evict_below_norm=1.0, **below,
    )  # fmt: skip
    train = trainer(table)
    for step, minute, keys in [(0, 0, range(30)), (1, 0, range(30, 50)), (2, 90, range(50, 90))]:
        table.step = step
        table.set_time(60_000_000 + 60 * minute)
        for first in keys[::10]:
            train(range(first, first + 10))
    short = np.r_[0:5, 45:50, 80:90]
    found = table.export()
    versions = dict(zip(found.keys.numpy(), found.versions.numpy()))
    table.insert(short, np.full([20, 4], 0.1), versions=[versions[key] for key in short])
    table.step = 4

    # When they go
    if by_save:
        tf.train.Checkpoint(table=table).save(str(tmp_path / "save"))
    else:
        assert int(table.evict()) == 60

    # Then each counts once
    assert of(table).keys == 30
    assert of(table).evicted == {
        "evict_after_steps": 30,
        "evict_after_minutes": 15,
        "evict_below_norm": 15,
    }


@in_tiers("dram", "dram+disk", "hbm")
def test_the_age_at_which_keys_expire(tiers, tmp_path):
    # Given two tables with keys that were trained last in each of six steps, and the age of each
    on_disk = {"tier_bytes": [15 * 96], "disk_folder": str(tmp_path)} if "disk" in tiers else {}
    tables = [
        ge.keyed_table(f"after_{steps}", 4, tiers=tiers, evict_after_steps=steps, **on_disk)
        for steps in (1, 3)
    ]
    for table in tables:
        train = trainer(table)
        for step in range(6):
            train(range(10 * step, 10 * step + 10))
        assert of(table).oldest_steps == 5

    # When they are saved, Then keys go that were not trained in so many last steps
    for table, steps in zip(tables, (1, 3)):
        tf.train.Checkpoint(table=table).save(str(tmp_path / f"save_{steps}"))
        assert (of(table).keys, of(table).oldest_steps) == (10 * steps, steps - 1)


@in_tiers("dram+disk", "hbm+dram+disk")
@pytest.mark.parametrize("num_keys", [600, 6000])
def test_the_age_of_the_coldest_is_found_on_disk(tiers, num_keys, tmp_path):
    # Given a table with few rows in memory: a third of its keys were trained first, and are on disk
    table = ge.keyed_table(
        "cold", 4, tiers=tiers, tier_bytes=[100 * 96] * (len(tiers) - 1), keep="last_used",
        disk_folder=str(tmp_path),
    )  # fmt: skip
    train = trainer(table)
    keys = np.random.default_rng(SEED).integers(-(2**63), 2**63, num_keys)
    table.insert(keys[: num_keys // 3], np.ones([num_keys // 3, 4]), versions=[0] * (num_keys // 3))
    for step in (5, 7):
        table.step = step
        train(keys[-50:])
    table.insert(keys[num_keys // 3 :], np.ones([len(keys) - num_keys // 3, 4]),
                 versions=[6] * (len(keys) - num_keys // 3))  # fmt: skip

    # When its statistics are read, Then the age of these keys is found
    assert of(table).keys == num_keys
    assert of(table).oldest_steps == 7

    # And without these keys it is that of the others
    table.erase(keys[: num_keys // 3])
    assert of(table).oldest_steps == 1


@in_tiers("dram", "hbm", "hbm+dram")
def test_the_age_of_the_coldest_of_many_keys(tiers):
    # Given a table with more keys than are looked at, of which half are trained in later steps
    tier_bytes = [20_000 * 56] if len(tiers) > 1 else None
    table = ge.keyed_table("aging", 4, tiers=tiers, tier_bytes=tier_bytes, evict_after_steps=9)
    train, keys = trainer(table), np.arange(140_000)
    train(keys)
    ages = [of(table).oldest_steps]
    for _ in range(3):
        train(keys[::2])
        ages.append(of(table).oldest_steps)

    # When these others are erased, and some keys come anew
    table.erase(keys[1::2])
    ages.append(of(table).oldest_steps)
    train(keys[1:1000:2])
    ages.append(of(table).oldest_steps)

    # Then it was the age of the others, and is that of the half
    assert ages == [0, 1, 2, 3, 0, 1]


@in_tiers("dram", "dram+disk", "hbm")
def test_how_ids_repeat_by_samples(tiers, tmp_path):
    # Given two tables with batches of their own: of 1,000 ids, a third of which are one key, and of
    # 800 ids of 30 keys, some of which are keys of the other table, too
    random = np.random.default_rng(SEED)
    ids = [
        random.permutation(np.r_[np.full(333, 7), random.integers(100, 600, 667)]),
        random.integers(90, 120, 800),
    ]
    on_disk = {"tier_bytes": [600 * 32], "disk_folder": str(tmp_path)} if "disk" in tiers else {}
    tables = [ge.keyed_table(name, 4, tiers=tiers, **on_disk) for name in ("repeated", "few")]
    if on_disk:
        for table, of_table in zip(tables, ids):  # which have rows, on disk after those of others
            train = trainer(table)
            for keys in (np.unique(of_table), *np.split(np.arange(1000, 3000), 5)):
                train(keys)

    # When they were looked up together often enough for samples of all parts of the tables
    for _ in range(2048 if "hbm" in tiers else 512):
        ge.lookup(tables, [tf.constant(of_table) for of_table in ids])

    # Then the samples say what all ids say
    assert of(tables[0]).hottest_share == pytest.approx(0.333)
    for table, of_table in zip(tables, ids):
        found = of(table)
        times = np.unique(of_table, return_counts=True)[1]
        assert found.hottest_share == pytest.approx(times.max() / len(of_table))
        assert found.unique_share == pytest.approx(len(times) / len(of_table))


def test_all_tables_of_the_process_a_model_and_a_layer():
    table = ge.TableConfig("users", None, 4)
    layer = ge.layers.GroupEmbedding([ge.FeatureConfig("user", table)], concat=True)
    inputs = {"user": keras.Input((2,), dtype="int64", name="user")}
    model = keras.Model(inputs, keras.layers.Dense(1)(layer(inputs)))
    one, two = ge.keyed_table("same", 2), ge.keyed_table("same", 2)
    two.insert([1], tf.ones([1, 2]))
    with tf.Graph().as_default():
        of_a_graph = ge.keyed_table("of_a_graph", 2)

    of_all = ge.statistics()

    (name,) = layer.statistics().tables
    assert name.endswith("users")
    assert set(ge.statistics(model).tables) == {name} <= set(of_all.tables)
    both = ge.statistics([one, two]).tables
    assert {name: found.keys for name, found in both.items()} == {"same": 0, "same#2": 1}
    assert of_a_graph.name.partition(":")[0] not in of_all.tables
    del two
    assert of_all.rank == 0 and of_all.exchange is None


def test_names_of_tables_of_one_name():
    # Given tables of which one is called as the second of another name would be
    tables = [ge.keyed_table(name, 2) for name in ("same", "same#3", "same", "same", "other")]

    # When they are read, one of them twice, Then each has a name of its own
    names = ["same", "same#3", "same#2", "same#4", "other"]
    assert list(ge.statistics([*tables, tables[0]]).tables) == names
    assert list(ge.statistics(tables[1]).tables) == ["same#3"]


@pytest.mark.parametrize(
    "of, error, message",
    [
        (lambda: "users", TypeError, "expected a layer, a model.* got 'users'"),
        (lambda: [ge.keyed_table("kept", 2), 3], TypeError, "got 3"),
        (lambda: [tf.Variable(1.0)], TypeError, "got <tf.Variable"),
        (lambda: {"users": ge.keyed_table("kept", 2)}, TypeError, "got {'users'"),
        (lambda: keras.layers.Dense(1, name="late"), ValueError, "is built, got 'late'"),
    ],
)
def test_what_has_no_statistics_is_refused(of, error, message):
    with pytest.raises(error, match=f"statistics: .*{message}"):
        ge.statistics(of())


def test_a_function_does_not_read_statistics_once():
    with pytest.raises(RuntimeError, match="outside of graphs and of tf.function"):
        tf.function(lambda: ge.statistics().tables and 1.0)()


def test_shares_are_unknown_until_a_sample_has_ids():
    # Given a table that looks nothing up
    table = ge.keyed_table("idle", 2)

    # When its statistics are read, Then they have no share, in no form
    found = ge.statistics(table)
    assert of(table).unique_share is of(table).hottest_share is None
    assert "share" not in found.prometheus() and "%" not in str(found)
    assert not [tag for tag in found.scalars() if "share" in tag]


def test_tables_are_made_while_others_are_listed():
    # Given a thread that lists the process's tables
    errors, ends = [], threading.Event()

    def read():
        while not ends.is_set():
            try:
                live_tables()
            except RuntimeError as error:
                errors.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    thread = threading.Thread(target=read)
    thread.start()

    # When tables are made and forgotten meanwhile
    try:
        for _ in range(40):
            tables = [ge.keyed_table("made", 2, num_initial_rows=1) for _ in range(5)]
            del tables
    finally:
        ends.set()
        thread.join()
        sys.setswitchinterval(interval)

    # Then no list failed
    assert errors == []


def test_a_printed_table_and_a_page_of_prometheus():
    # Given the statistics of two tables
    users = ge.keyed_table('the "users"', 4, max_keys=50, budget_of="rank")
    items = ge.keyed_table("items", 4)
    trainer(users)(range(40))
    found = ge.statistics([users, items])

    # When they are printed, Then each table has a line
    lines = str(found).splitlines()
    assert len(lines) == 3 and lines[0].startswith("table")
    assert re.search(r'^the "users" +40 +50 +dram .* +dram 0.0% +100.0%', lines[1])

    # When they are text for Prometheus, Then each metric has a type and one sample for each table
    text = found.prometheus()
    samples = dict(re.findall(r"^(group_embedding_\S+\{.*\}) (\S+)$", text, re.MULTILINE))
    assert samples['group_embedding_table_keys{table="items",rank="0"}'] == "0"
    name = 'the \\"users\\"'
    assert samples[f'group_embedding_table_admitted_total{{table="{name}",rank="0"}}'] == "40"
    of_policy = f'table="{name}",policy="least_recent",rank="0"'
    assert samples[f"group_embedding_table_evicted_total{{{of_policy}}}"] == "0"
    types = re.findall(r"^# TYPE (\S+) (gauge|counter)$", text, re.MULTILINE)
    assert {sample.partition("{")[0] for sample in samples} == {name for name, _ in types}


def test_a_graph_of_tensorflow_1_has_a_hook():
    with tf.Graph().as_default(), pytest.raises(RuntimeError, match="StatisticsHook"):
        ge.statistics()
