"""Descriptions of files: counts against NumPy's and Python's, estimates, the command line."""

import collections

import numpy as np
import pytest

import group_embedding as ge
from group_embedding.data import __main__ as command
from group_embedding.data import pieces
from group_embedding.recommender.data.key_counts import KeyCounts

pa = pytest.importorskip("pyarrow")
import pyarrow.parquet  # noqa: E402


def write(path):
    rng = np.random.default_rng(1)
    users = rng.zipf(1.5, 3000).astype(np.int64) % 1000
    items = [rng.integers(0, 50, n).tolist() for n in rng.integers(0, 6, 3000)]
    ages = [None if i % 10 == 0 else float(i % 50) for i in range(3000)]
    words = [None if i % 4 == 0 else f"w{i % 30}" for i in range(3000)]
    counts = [None if i % 5 == 0 else i % 7 for i in range(3000)]
    columns = {"user": users, "items": items, "age": ages, "word": words, "count": counts}
    table = pa.table({**columns, "click": users % 2})
    pyarrow.parquet.write_table(table, path, row_group_size=700)
    return columns


def test_counts(tmp_path, monkeypatch):
    # Given a file with missing values and lists
    monkeypatch.setattr(pieces, "PIECE_ROWS", 200)
    columns = write(tmp_path / "a.parquet")

    # When it is described
    seen = []
    described = ge.data.describe(
        tmp_path / "a.parquet", progress=lambda rows, share: seen.append((rows, share))
    )
    by_name = {one.column.name: one for one in described.columns}

    # Then the counts are those of Python
    assert described.num_rows == 3000 and seen[-1][0] == 3000
    users = collections.Counter(columns["user"].tolist())
    top = sum(count for _, count in users.most_common(round(len(users) / 100)))
    assert by_name["user"].distinct == len(users)
    assert by_name["user"].top_share == pytest.approx(top / 3000)
    assert (by_name["user"].least, by_name["user"].most) == (min(users), max(users))
    lengths = [len(items) for items in columns["items"]]
    assert by_name["items"].lengths == (0, pytest.approx(np.mean(lengths)), 5)
    assert by_name["items"].distinct == 50 and by_name["items"].num_values == sum(lengths)
    ages = [age for age in columns["age"] if age is not None]
    assert by_name["age"].missing == 300 and by_name["age"].distinct is None
    assert by_name["age"].mean == pytest.approx(np.mean(ages))
    assert by_name["age"].deviation == pytest.approx(np.std(ages))
    assert by_name["word"].missing == 750 and by_name["word"].distinct == 30 - 0
    assert by_name["count"].missing == 600 and by_name["count"].distinct == 7

    # Then the schema that is suggested reads the file
    schema = described.schema()
    assert schema.labels == "click"
    kinds = {feature.name: feature.kind for feature in schema.features}
    assert kinds["age"] == "continuous" and kinds["word"] == "categorical"
    assert schema.check(tmp_path / "a.parquet") == 3000
    assert len(list(ge.data.Reader(tmp_path / "a.parquet", 1000, schema))) == 3
    ge.layers.GroupEmbedding(schema.feature_configs())


@pytest.mark.parametrize("as_text", [False, True])
def test_more_keys_than_are_counted(as_text):
    # Given 40,000 keys, of which every hundredth occurs 100 times, and counts of at most 2,000
    keys = np.arange(40_000)
    values = np.concatenate([keys, np.repeat(keys[::100], 99)])
    np.random.default_rng(2).shuffle(values)
    if as_text:
        values = np.array([b"key %d" % value for value in values], object)

    # When they are counted, piece by piece
    counts = KeyCounts(limit=2000)
    for piece in np.array_split(values, 50):
        counts.add(piece)

    # Then what is kept is a sample with exact counts
    kept, times = counts.sampled()
    numbers = np.array([int(key[4:]) for key in kept]) if as_text else kept
    assert not counts.exact and len(kept) <= 2000
    assert times.tolist() == np.where(numbers % 100 == 0, 100, 1).tolist()
    assert counts.num_distinct == pytest.approx(40_000, rel=0.1)


def test_command_line(tmp_path, capsys):
    # Given a file
    write(tmp_path / "a.parquet")

    # When it is described from the command line
    pytest.importorskip("matplotlib")
    schema, picture = tmp_path / "schema.yaml", tmp_path / "skew.png"
    arguments = ["describe", str(tmp_path / "a.parquet"), "--label", "click"]
    assert command.main([*arguments, "--schema", str(schema), "--picture", str(picture)]) == 0

    # Then a table is printed, a progress line, and the files are there
    printed = capsys.readouterr()
    table = printed.out.replace(str(tmp_path), "")  # in which a worker's name may be
    assert "3,000 rows" in table and "w0" not in table
    word = next(line for line in printed.out.splitlines() if line.startswith("word"))
    assert word.split()[1:4] == ["string", "25.0%", "30"]
    assert "rows, " in printed.err
    assert ge.data.Schema.load(schema).labels == "click"
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_command_line_errors(tmp_path):
    with pytest.raises(SystemExit, match="no_such.csv"):
        command.main(["describe", str(tmp_path / "no_such.csv")])
