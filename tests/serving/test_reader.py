"""Readers take no version that is partial, damaged, repeated or out of order."""

import shutil

import numpy as np
import pytest
from serving.serving_models import TwoTables, assert_same, content_of, reader_of

import group_embedding as ge
from group_embedding.ops._library import core
from group_embedding.serving.__main__ import main
from group_embedding.serving.stores import records
from group_embedding.serving.stores.records import DamagedVersion
from group_embedding.serving.versions.deltas import NotConsecutive

NUM_VERSIONS = 4


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """A target with versions, and what they are."""
    target = tmp_path_factory.mktemp("published") / "target"
    random = np.random.default_rng(3)
    model = TwoTables("read")
    expected = {}
    with ge.serving.Publisher(model, target) as publisher:
        for step in range(NUM_VERSIONS):
            model.change(random)
            expected[publisher.publish(step)] = content_of(model)
    return target, expected


@pytest.fixture
def target(published, tmp_path):
    shutil.copytree(published[0], tmp_path / "target")
    return tmp_path / "target"


def files_of(target, version):
    return sorted((target / "versions" / f"{version:020d}").iterdir())


@pytest.mark.parametrize("how", ["a flipped bit", "the end is missing", "more at the end", "gone"])
def test_damage_is_found_in_every_file(how, published, target):
    # Given a delta, and the content of the version before
    reader, random = reader_of(target), np.random.default_rng(5)
    before = reader.read(2)
    names = {path.name.partition("-")[0] for path in files_of(target, 3)}
    assert names == {"COMMIT", "rows", "variables"}

    for path in files_of(target, 3):
        content = path.read_bytes()
        for _ in range(20):
            # When a file of the delta is damaged
            if how == "a flipped bit":
                at = random.integers(len(content))
                flipped = bytes([content[at] ^ (1 << random.integers(8))])
                path.write_bytes(content[:at] + flipped + content[at + 1 :])
            elif how == "the end is missing":
                path.write_bytes(content[: random.integers(len(content))])
            elif how == "more at the end":
                path.write_bytes(content + random.bytes(random.integers(1, 50)))
            else:
                path.unlink(missing_ok=True)

            # Then the delta is refused, with the name of the file
            with pytest.raises(DamagedVersion, match=path.name):
                reader.apply(before, reader.record(3))
        path.write_bytes(content)

    # And is good without damage
    assert_same(reader.apply(before, reader.record(3)), published[1][3])


def test_verify_names_the_damaged_file(published, target, capsys):
    # Given a target in which all is good
    assert main(["verify", str(target)]) == 0
    assert main(["inspect", str(target)]) == 0
    printed = capsys.readouterr().out
    assert "version 1: base, step 0" in printed and "version 4: delta of base 1" in printed
    assert "table 'read_users': " in printed and " rows of dim 4, float32, " in printed

    # When one file of each kind is damaged
    base = target / "1" / "variables" / "variables.index"
    rows, *_, variables = files_of(target, 3)[1:]
    for path in (base, rows, variables):
        content = path.read_bytes()
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))

        # Then it is named
        assert main(["verify", str(target)]) == 1
        assert f"{path}' is damaged" in capsys.readouterr().out
        path.write_bytes(content)
    with pytest.raises(SystemExit, match="expected versions in the target"):
        main(["verify", str(target / "empty")])


def test_order(published, target):
    # Given the content of version 2
    reader = reader_of(target)
    content = reader.read(2)

    # When another version than the next is applied
    for version in (1, 2, 4):
        with pytest.raises(NotConsecutive):
            reader.apply(content, reader.record(version))

    # Then the content is as before, and the next one is taken, once
    after = reader.apply(content, reader.record(3))
    assert_same(content, published[1][2])
    assert_same(after, published[1][3])
    with pytest.raises(NotConsecutive):
        reader.apply(after, reader.record(3))


def test_a_delta_of_another_base_is_not_taken(published, target, tmp_path):
    # Given a delta with the right number, of another target
    other = tmp_path / "other"
    model = TwoTables("read_elsewhere")
    with ge.serving.Publisher(model, other) as publisher:
        for _ in range(3):
            publisher.publish()
            model.change(np.random.default_rng(1))
    reader = reader_of(target)
    content = reader.read(2)

    # When it stands in the place of ours, then it is refused
    shutil.rmtree(files_of(target, 3)[0].parent)
    shutil.copytree(files_of(other, 3)[0].parent, target / "versions" / f"{3:020d}")
    with pytest.raises(NotConsecutive, match="of base"):
        reader.apply(content, reader.record(3))


def test_files_without_a_record_are_no_version(published, target):
    files_of(target, 4)[0].unlink()
    reader = reader_of(target)

    assert reader.versions() == [1, 2, 3]
    with pytest.raises(DamagedVersion, match="cannot be read"):
        reader.record(4)


def test_rollbacks(published, target, capsys):
    # Given versions, two of which are rollbacks, one to a rollback
    reader = reader_of(target)
    assert main(["rollback", str(target)]) == 0
    assert main(["rollback", str(target), "--to", "2"]) == 0
    assert main(["rollback", str(target), "--to", "5"]) == 0
    assert "version 7 has the content of version 3" in capsys.readouterr().out

    # Then they have the content of older versions, from any version that a reader has
    for version, content in {5: 3, 6: 2, 7: 3}.items():
        assert_same(reader.read(version), published[1][content])
        assert_same(reader.apply(reader.read(4), reader.record(version)), published[1][content])
    assert main(["verify", str(target)]) == 0

    # And versions that do not exist are refused
    for to in ("7", "9", "0"):
        with pytest.raises(SystemExit, match=r"one of \[1, 2, 3, 4, 5, 6\]"):
            main(["rollback", str(target), "--to", to])
    variables = files_of(target, 3)[-1]
    variables.write_bytes(b"")
    with pytest.raises(SystemExit, match="not rolled back: .*variables"):
        main(["rollback", str(target), "--to", "3"])


def test_hostile_records_and_variables(published, target):
    # Given a record, and a file of variables, of which sections are changed with right checksums
    random, reader = np.random.default_rng(9), reader_of(target)
    before = reader.read(2)
    record = reader.record(3)
    variables = [file for file in record.files if file.kind == records.VARIABLES][0]
    paths = [files_of(target, 3)[0], files_of(target, 3)[0].parent / variables.path]
    refused = 0
    for case in range(400):
        path = paths[case % 2]
        content = path.read_bytes()
        sections = [list(section) for section in core().SectionFile(str(path), 1 << 20)]
        changed = sections[random.integers(min(len(sections), 6))]
        payload = bytearray(changed[1])
        for _ in range(random.integers(1, 4)):
            if payload:
                at = random.integers(min(len(payload), 80))
                payload[at] = random.choice([0, 1, 127, 128, 255])
        changed[1] = bytes(payload)
        hostile, found = core().encode_sections([tuple(section) for section in sections])
        path.write_bytes(hostile)

        # When it is read
        try:
            read = reader.record(3)
            if case % 2:
                file = variables._replace(bytes=found["bytes"], crc=found["crc"])
                others = [f for f in record.files if f.kind != records.VARIABLES]
                read = record._replace(files=(*others, file))
            reader.apply(before, read)
        except (DamagedVersion, NotConsecutive):
            refused += 1
        path.write_bytes(content)

    # Then it is taken or refused, and nothing else happens
    assert refused > 100
    assert_same(reader.apply(before, reader.record(3)), published[1][3])
