"""Files of keyed tables: what is saved is restored, or the file is refused."""

import numpy as np
import pytest

core = pytest.importorskip("support.core")

from support.oracles import table_file_format as tf_format  # noqa: E402
from support.oracles.table_file_format import Section  # noqa: E402
from table.steps import located  # noqa: E402
from table.table_files import DIM, content, make_table, random_keys, save, train  # noqa: E402

FILTERS = {
    "all": {},
    "counter": {"admission": "counter", "min_count": 3},
    "bloom": {
        "admission": "bloom",
        "min_count": 3,
        "num_counters": 500,
        "num_hashes": 3,
        "counter_bytes": 2,
    },
}


def trained_table(seed, num_keys=3000, **options):
    rng = np.random.default_rng(seed)
    table = make_table(**options)
    keys = np.concatenate([random_keys(rng, num_keys), [0, -1, 2**63 - 1, -(2**63)]])
    for step in range(5):
        train(table, rng.choice(keys, num_keys), step, rng)
    return table, rng


@pytest.mark.parametrize("options", FILTERS.values(), ids=FILTERS)
def test_what_was_saved_is_restored_bit_for_bit(options, tmp_path):
    table, rng = trained_table(0, **options)
    save(table, tmp_path / "file")

    restored = make_table(slots={}, **options)
    train(restored, [1, 2, 3, 3, 3], 7, rng, slots={})  # what it held is gone
    core.restore_table(restored, [str(tmp_path / "file")])

    assert content(restored) == content(table)


def test_keys_that_are_new_after_a_restore_start_as_they_would_have(tmp_path):
    table, _ = trained_table(0)
    save(table, tmp_path / "file")

    other = make_table(matrix=np.zeros([8, 4], np.float32))
    core.restore_table(other, [str(tmp_path / "file")])

    np.testing.assert_array_equal(other.rows[:8], table.rows[:8])


@pytest.mark.parametrize("num_saved", [1, 2, 3, 4])
@pytest.mark.parametrize("num_restored", [1, 2, 3, 4])
def test_parts_are_restored_into_any_number_of_parts(num_saved, num_restored, tmp_path):
    rng = np.random.default_rng(num_saved)
    keys = random_keys(rng, 2000)
    parts = [make_table(**FILTERS["counter"]) for _ in range(num_saved)]
    for step in range(3):
        batch = rng.choice(keys, 3000)
        for p, part in enumerate(parts):
            train(part, batch[core.key_owners(batch, num_saved) == p], step, rng)
    paths = [str(tmp_path / f"part{p}") for p in range(num_saved)]
    for p, (part, path) in enumerate(zip(parts, paths)):
        save(part, path, part=p, num_parts=num_saved)

    restored = [make_table(slots={}, **FILTERS["counter"]) for _ in range(num_restored)]
    for p, part in enumerate(restored):
        core.restore_table(part, paths[::-1], index=p, count=num_restored)

    assert content(*restored) == content(*parts)
    for p, part in enumerate(restored):
        own = [k for k in content(part) if isinstance(k, int)]
        assert own and (core.key_owners(own, num_restored) == p).all()


@pytest.mark.parametrize("num_saved, num_restored", [(1, 2), (2, 1), (2, 3), (3, 3), (4, 2)])
def test_a_bloom_filter_of_other_parts_counts_no_key_too_low(num_saved, num_restored, tmp_path):
    # Given parts that have seen keys twice; at the third time they are admitted
    options = {**FILTERS["bloom"], "num_counters": 100_000}
    rng = np.random.default_rng(0)
    keys = random_keys(rng, 1000)
    for p in range(num_saved):
        part = make_table(**options)
        own = keys[core.key_owners(keys, num_saved) == p]
        train(part, np.repeat(own, 2), 0, rng)
        assert part.num_keys == 0
        save(part, tmp_path / f"part{p}", part=p, num_parts=num_saved)

    num_keys = 0
    for p in range(num_restored):
        table = make_table(**options)
        paths = [str(tmp_path / f"part{q}") for q in range(num_saved)]
        core.restore_table(table, paths, index=p, count=num_restored)
        train(table, keys[core.key_owners(keys, num_restored) == p], 1, rng)
        num_keys += table.num_keys

    assert num_keys == len(keys)


def test_a_file_of_format_version_3_has_the_step_before_its_own(tmp_path):
    # Given a file without the newest step, saved at step 7, of keys of which two are new
    budget = core.Budget(max_keys=4, evict="least_frequent", safe_steps=2)
    table = make_table(budget=budget, slots={})
    for step, keys in enumerate([[1, 1, 2, 2, 2], [1], [2], [1], [2], [1], [3, 4]]):
        with located(table, keys, train=True, step=step):
            pass
    save(table, tmp_path / "new", step=7)
    sections = tf_format.sections_of((tmp_path / "new").read_bytes())
    header = tf_format.header_of(sections[0].payload)
    assert header.fields["last_step"] == 6
    old = Section(tf_format.HEADER, tf_format.header_payload(header, version=3))
    (tmp_path / "old").write_bytes(tf_format.file_of([old, *sections[1:]], version=3))

    # When tables restore both, and get rows before the next step
    kept = []
    for name in ("new", "old"):
        again = make_table(budget=budget, slots={})
        core.restore_table(again, [str(tmp_path / name)])
        again.insert({"keys": np.array([9]), "values": np.ones((1, DIM), np.float32)})
        kept.append(sorted(content(again)))

    # Then the new keys are safe in both
    assert kept[0] == kept[1] and {3, 4} <= set(kept[0])


def test_a_bloom_filter_counts_the_same_after_any_number_of_restores(tmp_path):
    # Given a table that has seen keys once; at the third time they are admitted
    options = {**FILTERS["bloom"], "num_counters": 100_000}
    rng = np.random.default_rng(0)
    keys = random_keys(rng, 1000)
    tables = [make_table(**options)]
    train(tables[0], keys, 0, rng)

    # When it is restored into other numbers of parts, one after the other
    for i, count in enumerate([2, 1, 3, 2, 1, 2]):
        paths = [str(tmp_path / f"{i}_{p}") for p in range(len(tables))]
        for p, table in enumerate(tables):
            save(table, paths[p], part=p, num_parts=len(tables))
        tables = [make_table(**options) for _ in range(count)]
        for p, table in enumerate(tables):
            core.restore_table(table, paths, index=p, count=count)

    # Then keys are admitted at the third time
    for num_expected in (0, len(keys)):
        for p, table in enumerate(tables):
            train(table, keys[core.key_owners(keys, len(tables)) == p], 1, rng)
        assert sum(table.num_keys for table in tables) == num_expected


@pytest.mark.parametrize("options", FILTERS.values(), ids=FILTERS)
@pytest.mark.parametrize("seed", range(5))
def test_a_full_save_and_the_changes_since_equal_a_full_save(seed, options, tmp_path):
    table, rng = trained_table(seed, 500, **options)
    keys = np.array([k for k in content(table) if isinstance(k, int)], np.int64)
    save(table, tmp_path / "full")

    # Keys are erased, come back, come new, are inserted, and many are not touched
    for step in range(5, 8):
        table.erase(rng.choice(keys, 20))
        train(table, np.concatenate([rng.choice(keys, 40), random_keys(rng, 20)]), step, rng)
        given = random_keys(rng, 3)
        table.insert({"keys": given, "values": np.ones([3, 4], np.float32)})
        table.erase(given[:1])
        save(table, tmp_path / "changes", changes_only=True, save_id=100 + step)
    restored = make_table(**options)
    core.restore_table(restored, [str(tmp_path / "full"), str(tmp_path / "changes")])

    assert content(restored) == content(table)
    changes = core.verify_table_file(str(tmp_path / "changes"))
    assert changes["num_rows"] < table.num_keys / 2
    assert changes["num_erased"] > 0


def test_what_is_inserted_at_once_after_a_full_save_is_a_change(tmp_path):
    table, _ = trained_table(0)
    save(table, tmp_path / "full")
    table.insert({"keys": [77], "values": np.ones([1, 4], np.float32)})
    save(table, tmp_path / "changes", changes_only=True, save_id=2)

    restored = make_table()
    core.restore_table(restored, [str(tmp_path / "full"), str(tmp_path / "changes")])

    assert content(restored) == content(table)


def test_rows_that_are_trained_while_they_are_saved_are_saved_as_they_were(tmp_path):
    table, rng = trained_table(0)
    before = content(table)
    keys = np.array(list(before), np.int64)

    snapshot = table.snapshot()
    train(table, np.concatenate([keys[::2], random_keys(rng, 5000)]), 9, rng)
    table.erase(keys[1::4])
    core.write_table(snapshot, str(tmp_path / "file"), save_id=1)
    del snapshot
    restored = make_table()
    core.restore_table(restored, [str(tmp_path / "file")])

    assert content(restored) == before
    assert content(table) != before


def test_every_flipped_bit_and_every_truncation_is_refused(tmp_path):
    # Given small files of a full save and of changes, with sections of all kinds
    table, rng = trained_table(0, 40, **FILTERS["counter"])
    paths = [tmp_path / "full", tmp_path / "changes"]
    save(table, paths[0])
    train(table, random_keys(rng, 30).repeat(3), 6, rng)
    table.erase([0, -1])
    save(table, paths[1], changes_only=True, save_id=2)
    restored = make_table(**FILTERS["counter"])
    train(restored, [5, 5, 5, 6], 1, rng)
    before = content(restored)
    print("seed", 3)
    rng = np.random.default_rng(3)

    # When any bit is flipped, or the end is missing
    for path in paths:
        whole = path.read_bytes()
        bits = rng.choice(8 * len(whole), min(500, 8 * len(whole)), replace=False)
        damaged = [(b, flip(whole, b)) for b in bits.tolist()]
        damaged += [(n, whole[:n]) for n in rng.integers(0, len(whole), 100).tolist()]
        for where, bytes_ in damaged:
            path.write_bytes(bytes_)
            # Then the file and the table are named, and the table is as it was
            with pytest.raises(RuntimeError) as error:
                core.restore_table(restored, [str(p) for p in paths])
            assert "table 'user'" in str(error.value) and str(path) in str(error.value), where
        path.write_bytes(whole)
        assert content(restored) == before
    core.restore_table(restored, [str(p) for p in paths])
    assert content(restored) == content(table)


def flip(whole, bit):
    damaged = bytearray(whole)
    damaged[bit // 8] ^= 1 << bit % 8
    return bytes(damaged)


def test_files_that_do_not_belong_together_are_refused(tmp_path):
    table, _ = trained_table(0, 50)
    paths = [str(tmp_path / f"part{p}") for p in range(4)]
    for p in range(2):
        save(table, paths[p], part=p, num_parts=2, save_id=1)
    save(table, paths[2], part=1, num_parts=2, save_id=2)
    save(table, paths[3], changes_only=True, save_id=3)
    before = content(table)

    for wrong in ([0], [0, 0], [0, 2], [0, 1, 2], [3], [0, 1, 3, 3]):
        with pytest.raises(RuntimeError, match="table 'user': expected"):
            core.restore_table(table, [paths[p] for p in wrong])

    assert content(table) == before


@pytest.mark.parametrize(
    "options, words",
    [
        ({"dim": 5, "matrix": None}, "expected dim 5, got 4"),
        ({"dtype": "float16", "matrix": None}, "expected values of type float16, got float32"),
    ],
)
def test_a_table_of_another_kind_is_refused(options, words, tmp_path):
    table, _ = trained_table(0, 50)
    save(table, tmp_path / "file")

    with pytest.raises(RuntimeError, match=words):
        core.restore_table(make_table(slots={}, **options), [str(tmp_path / "file")])


def test_a_slot_of_another_shape_is_refused(tmp_path):
    table, _ = trained_table(0, 50)
    save(table, tmp_path / "file")
    other = make_table(slots={"momentum/count": {}})

    with pytest.raises(RuntimeError, match="expected slot 'momentum/count' of 4 columns.*got 1"):
        core.restore_table(other, [str(tmp_path / "file")])


def test_a_file_that_cannot_be_written_leaves_nothing(tmp_path):
    table, _ = trained_table(0, 50)

    with pytest.raises(RuntimeError, match="table 'user': cannot create.*no_folder"):
        save(table, tmp_path / "no_folder" / "file")

    assert not list(tmp_path.iterdir())


def test_a_file_says_what_it_holds(tmp_path):
    table, _ = trained_table(0, 50)
    sums = save(table, tmp_path / "file", step=12)

    said = core.verify_table_file(str(tmp_path / "file"))

    assert said["bytes"] == sums["bytes"] == (tmp_path / "file").stat().st_size
    assert (said["crc"], said["step"], said["num_rows"]) == (sums["crc"], 12, table.num_keys)
    assert [slot["name"] for slot in said["slots"]] == ["adagrad/accumulator", "momentum/count"]
    keys = np.concatenate([block["keys"] for block in core.TableFile(str(tmp_path / "file"))])
    assert sorted(keys.tolist()) == sorted(content(table))


@pytest.mark.parametrize("max_rows, fits", [(99, False), (100, True), (130, True)])
def test_a_restore_that_does_not_fit_changes_nothing(max_rows, fits, tmp_path):
    # Given a full save of 100 keys, of which the changes name 30, erase 10 and add 10
    rng = np.random.default_rng(0)
    table = make_table()
    train(table, np.arange(100), 1, rng)
    save(table, tmp_path / "full")
    table.erase(np.arange(10))
    train(table, np.arange(80, 110), 2, rng)
    save(table, tmp_path / "changes", changes_only=True, save_id=2)
    paths = [str(tmp_path / "full"), str(tmp_path / "changes")]
    row_bytes = 16 + 16 + 16 + 4  # values, what is kept of the row, slots
    small = make_table(slots={}, max_bytes=max_rows * row_bytes)
    train(small, [5], 3, rng, slots={})
    before = content(small)

    if fits:
        core.restore_table(small, paths)
    else:
        with pytest.raises(RuntimeError, match="'user': expected at most 99 rows.*has 100; give"):
            core.restore_table(small, paths)

    assert content(small) == (content(table) if fits else before)


def test_a_part_that_fits_is_restored(tmp_path):
    table = make_table(slots={})
    train(table, np.arange(100), 1, np.random.default_rng(0), slots={})
    save(table, tmp_path / "full")
    half = make_table(slots={}, max_bytes=75 * (16 + 16))

    core.restore_table(half, [str(tmp_path / "full")], index=1, count=2)

    assert 25 < half.num_keys < 75
