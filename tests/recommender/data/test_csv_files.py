"""CSV and TSV: headers, quotes, lines, Criteo's format, and rows that are refused or left out."""

import gzip
import os

import numpy as np
import pytest
import tensorflow as tf

import group_embedding as ge
from group_embedding.data import csv_files

pytest.importorskip("pyarrow")


def read_all(path, columns=None, batch_size=4, **options):
    reader = ge.data.Reader(path, batch_size, columns, **options)
    return reader, list(reader)


def values(batches, name):
    return [value for batch in batches for value in batch[name].numpy().tolist()]


@pytest.mark.covering(1)
@pytest.mark.parametrize("end, last", [("\n", True), ("\n", False), ("\r\n", True)])
@pytest.mark.parametrize("unit_bytes", [1, 23, 1 << 20])
def test_lines(tmp_path, monkeypatch, end, last, unit_bytes):
    # Given lines, some empty, in units that end anywhere
    monkeypatch.setattr(csv_files, "UNIT_BYTES", unit_bytes)
    lines = ["id,word", *(f"{i},{'x' * (i % 5)}" for i in range(40))]
    for number in (3, 9, 10, 30):
        lines.insert(number, "")
    (tmp_path / "a.csv").write_bytes((end.join(lines) + end * last).encode())

    # When they are read, in order and by three ranks
    _, batches = read_all(tmp_path / "a.csv", ["id", ge.data.Column("word", missing="")])
    ranks = [
        read_all(tmp_path / "a.csv", ["id"], rank=rank, num_ranks=3, batch_size=5)[1]
        for rank in range(3)
    ]

    # Then each line is there once
    assert values(batches, "id") == list(range(40))
    assert values(batches, "word") == [b"x" * (i % 5) for i in range(40)]
    assert [i for of_rank in ranks for i in values(of_rank, "id")] == list(range(40))


def test_quotes_and_types(tmp_path):
    # Given quoted values, and types that only the lines tell
    (tmp_path / "a.csv").write_text('id,price,name\n1,2.5,"a, b"\n2,3,"say ""x"""\n')

    # When the file is read without more
    reader, (batch,) = read_all(tmp_path / "a.csv")

    # Then each column has the type of its values
    assert [(column.name, column.dtype) for column in reader.columns] == [
        ("id", "int64"),
        ("price", "float64"),
        ("name", "string"),
    ]
    assert batch["name"].numpy().tolist() == [b"a, b", b'say "x"']


def test_names_by_argument_and_lists(tmp_path):
    # Given a file without a header, as MovieLens'
    (tmp_path / "a.dat").write_text("1\tAnimation|Comedy\t3|5\n2\t\t\n3\tDrama\t7\n")
    form = ge.data.CsvFormat("\t", names=["id", "genres", "seen"])
    columns = [
        "id",
        ge.data.Column("genres", separator="|"),
        ge.data.Column("seen", "int64", separator="|"),
    ]

    # When it is read
    _, (batch,) = read_all(tmp_path / "a.dat", columns, format=form)

    # Then values between separators are lists
    assert batch["genres"].to_list() == [[b"Animation", b"Comedy"], [], [b"Drama"]]
    assert batch["seen"].to_list() == [[3, 5], [], [7]]


def test_bad_rows(tmp_path, monkeypatch):
    # Given rows with too few and too many columns, and values that are no numbers
    monkeypatch.setattr(csv_files, "UNIT_BYTES", 30)
    bad = {5: "5", 8: "8,1,2", 12: "12,x", 13: "13,", 20: "y,20"}
    lines = ["id,count", *(bad.get(i, f"{i},{i * i}") for i in range(25))]
    (tmp_path / "a.csv").write_text("\n".join(lines) + "\n")
    columns = [ge.data.Column("id", "int64"), ge.data.Column("count", "float32")]

    # When they are left out
    reader, batches = read_all(tmp_path / "a.csv", columns, on_bad_rows="skip")

    # Then they are counted, and the others are there
    assert values(batches, "id") == [i for i in range(25) if i not in bad]
    assert values(batches, "count") == [i * i for i in range(25) if i not in bad]
    assert reader.bad_rows == len(bad)
    assert "a.csv, row 6: expected 2 columns, got 1: '5'" in reader.first_bad_row

    # When one alone is there, and an error: then it names file, row, column, expected and got
    expected = {
        5: "row 6: expected 2 columns, got 1",
        8: "row 9: expected 2 columns, got 3",
        12: "row 13, column 'count': expected float32, got 'x'",
        13: "row 14, column 'count': expected float32, got a missing value",
        20: "row 21, column 'id': expected int64, got 'y'",
    }
    for number, words in expected.items():
        lines = ["id,count", *(bad[i] if i == number else f"{i},{i * i}" for i in range(25))]
        (tmp_path / "a.csv").write_text("\n".join(lines) + "\n")
        with pytest.raises(tf.errors.InvalidArgumentError, match=f"a.csv, {words}"):
            read_all(tmp_path / "a.csv", columns)


def test_row_numbers_behind_wrong_rows(tmp_path):
    # Given a bad value behind a row of too few columns, in one block
    (tmp_path / "a.csv").write_text("a,b\n1,2\n3\n5,x\n7,8\n")
    columns = [ge.data.Column("a", "int64"), ge.data.Column("b", "int64")]

    # When bad rows are left out
    reader, batches = read_all(tmp_path / "a.csv", columns, on_bad_rows="skip")

    # Then those that are left are the good ones
    assert values(batches, "a") == [1, 7] and values(batches, "b") == [2, 8]
    assert reader.bad_rows == 2


def test_all_rows_bad(tmp_path):
    (tmp_path / "a.csv").write_text("a\n" + "x\n" * 20)
    column = ge.data.Column("a", "int64")

    for ranks in ({}, {"rank": 1, "num_ranks": 2}):
        with pytest.raises(tf.errors.InvalidArgumentError, match="row 1.*expected int64, got 'x'"):
            read_all(tmp_path / "a.csv", [column], on_bad_rows="skip", **ranks)


def criteo_line(i):
    dense = [str(i * j) if (i + j) % 3 else "" for j in range(13)]
    dense[2] = str(-i)
    categories = [
        f"{(i * 7919 + j) * 2654435761 % 2**32:08x}" if (i + j) % 5 else "" for j in range(26)
    ]
    return "\t".join([str(i % 2), *dense, *categories])


def test_criteo(tmp_path):
    # Given lines of Criteo's format, and the numbers that Python reads in them
    lines = [criteo_line(i) for i in range(101)]
    (tmp_path / "day_0").write_text("\n".join(lines) + "\n")
    fields = [line.split("\t") for line in lines]

    # When they are read
    groups = {"dense": [f"I{j}" for j in range(1, 14)]}
    reader = ge.data.Reader(tmp_path / "day_0", 32, labels="label", groups=groups, format="criteo")
    batches = list(reader)

    # Then all values are Python's; a missing integer is 0, a missing category -1
    dense = np.concatenate([features["dense"].numpy() for features, _ in batches])
    expected = [[float(value or 0) for value in row[1:14]] for row in fields]
    np.testing.assert_array_equal(dense, expected)
    for j in range(26):
        got = np.concatenate([features[f"C{j + 1}"].numpy() for features, _ in batches])
        assert got.dtype == np.int64
        assert got.tolist() == [int(row[14 + j], 16) if row[14 + j] else -1 for row in fields]
    labels = np.concatenate([label.numpy() for _, label in batches])
    assert labels.tolist() == [int(row[0]) for row in fields]


def test_hexadecimal_numbers(tmp_path):
    # Given numbers of all lengths, and texts that are none
    texts = ["0", "f", "FF", "abc", "0000000f", "7fffffffffffffff", "123456789abcdef"]
    bad = ["g", "0x1", "ffffffffffffffff", "12345678901234567", "-1", "1 "]
    (tmp_path / "a.csv").write_text("a\n" + "\n".join(texts + bad) + "\n")

    # When they are read
    column = ge.data.Column("a", "int64", base=16)
    reader, batches = read_all(tmp_path / "a.csv", [column], on_bad_rows="skip")

    # Then they are Python's
    assert values(batches, "a") == [int(text, 16) for text in texts]
    assert reader.bad_rows == len(bad)


def test_compressed(tmp_path, monkeypatch):
    # Given a .gz of several blocks
    monkeypatch.setattr(csv_files, "UNIT_BYTES", 50)
    text = "id\n" + "".join(f"{i}\n" for i in range(200))
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(text.encode()))

    # Then it is read as the plain file, and an error names the row
    _, batches = read_all(tmp_path / "a.csv.gz", shuffle_rows=1)
    assert sorted(values(batches, "id")) == list(range(200))
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress((text + "x\n").encode()))
    with pytest.raises(tf.errors.InvalidArgumentError, match="row 201, column 'id'"):
        read_all(tmp_path / "a.csv.gz", [ge.data.Column("id", "int64")])


def test_a_file_that_has_grown_or_shrunk(tmp_path):
    # Given a file that is cut after the reader looked at it
    path = tmp_path / "a.csv"
    path.write_text("id\n" + "1\n" * 100)
    reader = ge.data.Reader(path, 10, rank=0, num_ranks=2)
    assert reader.num_batches == 5
    path.write_text("id\n")

    # Then reading is an error, not an endless one
    with pytest.raises(tf.errors.OpError, match="a.csv"):
        list(reader)


def test_real_lines():
    # Given lines of Criteo's data set, where an environment variable names a file with a header
    path = os.environ.get("GROUP_EMBEDDING_TEST_CRITEO")
    if not path:
        pytest.skip("GROUP_EMBEDDING_TEST_CRITEO names no file")
    columns = [
        *(ge.data.Column(f"I{i}", "float32", missing=0) for i in range(1, 14)),
        *(ge.data.Column(f"C{i}", "int64", missing=-1, base=16) for i in range(1, 27)),
    ]

    # When they are read
    reader, batches = read_all(path, columns, batch_size=128, labels="Label")

    # Then each line is a row
    with open(path) as file:
        lines = file.read().splitlines()[1:]
    assert sum(len(label) for _, label in batches) == len(lines)
    assert sum(int(tf.reduce_sum(label)) for _, label in batches) == sum(
        int(line.split(",")[1]) for line in lines
    )
