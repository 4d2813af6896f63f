"""Parquet: types, missing values, and rows that are refused or left out."""

import datetime

import numpy as np
import pytest
import tensorflow as tf

import group_embedding as ge
from group_embedding.recommender.data import arrow

pa = pytest.importorskip("pyarrow")
import pyarrow.parquet  # noqa: E402


def write(path, columns, **options):
    pyarrow.parquet.write_table(pa.table(columns), path, **options)
    return path


def read_all(path, columns=None, **options):
    reader = ge.data.Reader(path, 3, columns, **options)
    return reader, list(reader)


TYPES = {
    **{name: [1, 2, 3, 4] for name in ("int8", "int16", "int32", "int64", "uint8", "uint32")},
    "uint64": [2**64 - 1, 0, 1, 2],
    **{name: [0.5, -1.5, 2.0, 3.0] for name in ("float32", "float64")},
    "bool_": [True, False, True, True],
    "string": ["a", "", "ä", "b"],
    "large_string": ["a", "", "ä", "b"],
    "binary": [b"a", b"\xff", b"", b"b"],
}


@pytest.mark.parametrize("kind", TYPES)
def test_types(tmp_path, kind):
    # Given a column of a type of Arrow, and lists of it
    arrow_type, values = getattr(pa, kind)(), TYPES[kind]
    path = write(
        tmp_path / "a.parquet",
        {
            "flat": pa.array(values, arrow_type),
            "list": pa.array([values[:2], [], values[1:], values], pa.list_(arrow_type)),
        },
    )

    # When it is read
    _, batches = read_all(path)

    # Then the tensors have its type and its values
    flat = np.concatenate([batch["flat"].numpy() for batch in batches])
    expected = [v.encode() if isinstance(v, str) else v for v in values]
    assert flat.tolist() == expected
    assert batches[0]["list"].to_list() == [expected[:2], [], expected[1:]]
    wanted = "string" if isinstance(expected[0], bytes) else kind.rstrip("_")
    assert batches[0]["flat"].dtype == wanted and batches[0]["list"].dtype == wanted


def test_dictionaries_decimals_and_fixed_lists(tmp_path):
    # Given columns that Arrow keeps in other forms
    import decimal

    path = write(
        tmp_path / "a.parquet",
        {
            "word": pa.array(["x", "y", "x"]).dictionary_encode(),
            "price": pa.array([decimal.Decimal("1.25"), decimal.Decimal("2.5"), None]),
            "pair": pa.array([[1, 2], [3, 4], [5, 6]], pa.list_(pa.int64(), 2)),
        },
    )

    # When they are read
    columns = ["word", ge.data.Column("price", missing=-1.0), "pair"]
    _, (batch,) = read_all(path, columns)

    # Then they are strings, numbers and lists
    assert batch["word"].numpy().tolist() == [b"x", b"y", b"x"]
    assert batch["price"].numpy().tolist() == [1.25, 2.5, -1.0]
    assert batch["pair"].to_list() == [[1, 2], [3, 4], [5, 6]]


def test_other_dtypes_are_converted(tmp_path):
    # Given numbers and texts of numbers
    path = write(
        tmp_path / "a.parquet",
        {"a": [1, 2, 300], "b": ["1", "-2", "3"], "c": ["ff", "0A", "68fd1e64"], "d": [1, 0, 1]},
    )
    columns = [
        ge.data.Column("a", "float32"),
        ge.data.Column("b", "int32"),
        ge.data.Column("c", base=16),
        ge.data.Column("d", "string"),
    ]

    # When other dtypes are asked for
    _, (batch,) = read_all(path, columns)

    # Then the values are converted
    assert batch["a"].dtype == tf.float32 and batch["a"].numpy().tolist() == [1, 2, 300]
    assert batch["b"].dtype == tf.int32 and batch["b"].numpy().tolist() == [1, -2, 3]
    assert batch["c"].dtype == tf.int64 and batch["c"].numpy().tolist() == [255, 10, 0x68FD1E64]
    assert batch["d"].numpy().tolist() == [b"1", b"0", b"1"]


@pytest.mark.parametrize(
    "values, dtype, good, got",
    [
        ([1, 300, 2, 301], "int8", [1, 2], "300"),
        ([1.0, 2.5, 3.0], "int64", [1, 3], "2.5"),
        (["7", "x", "9", None], "int64", [7, 9], "'x'|a missing value"),
        ([1, None, 3], "int64", [1, 3], "a missing value"),
        ([-1, 2], "uint32", [2], "-1"),
        (["a", None], "string", [b"a"], "a missing value"),
    ],
)
def test_bad_values(tmp_path, values, dtype, good, got):
    # Given rows of which some have values that do not fit
    path = write(tmp_path / "a.parquet", {"a": values, "id": range(len(values))})
    columns = [ge.data.Column("a", dtype), "id"]

    # When bad rows are an error: it names file, row, column, expected and got
    bad = next(
        i
        for i, v in enumerate(values)
        if v not in [getattr(g, "decode", lambda g=g: g)() for g in good]
        and str(v) not in map(str, good)
    )
    with pytest.raises(
        tf.errors.InvalidArgumentError,
        match=rf"a.parquet, row {bad + 1}, column 'a': expected {dtype}, got ({got})",
    ):
        read_all(path, columns)

    # Then left out, they are counted, and the columns of the good rows belong together
    reader, batches = read_all(path, columns, on_bad_rows="skip")
    rows = [row for batch in batches for row in batch["id"].numpy().tolist()]
    assert [v for batch in batches for v in batch["a"].numpy().tolist()] == good
    assert [str(values[row]) for row in rows] == [
        g.decode() if isinstance(g, bytes) else str(type(values[row])(g))
        for row, g in zip(rows, good)
    ]
    assert reader.bad_rows == len(values) - len(good)
    assert f"row {bad + 1}" in reader.first_bad_row


def test_lists_with_missing_values(tmp_path):
    # Given a missing list, and a list with a missing value
    path = write(tmp_path / "a.parquet", {"a": [[1], None, [2, None], []], "id": [0, 1, 2, 3]})

    # When missing values are bad, or have a number
    reader, batches = read_all(path, on_bad_rows="skip")
    _, filled = read_all(path, [ge.data.Column("a", missing=-1)])

    # Then a missing list is an empty one
    assert [row for batch in batches for row in batch["a"].to_list()] == [[1], [], []]
    assert reader.bad_rows == 1
    assert [row for batch in filled for row in batch["a"].to_list()] == [[1], [], [2, -1], []]


def test_missing_values_of_each_dtype(tmp_path):
    path = write(tmp_path / "a.parquet", {"a": [1, None], "b": [None, 1.5], "c": [None, "x"]})
    columns = [
        ge.data.Column("a", missing=-1),
        ge.data.Column("b", missing=float("nan")),
        ge.data.Column("c", missing="?"),
    ]

    _, (batch,) = read_all(path, columns)

    assert batch["a"].numpy().tolist() == [1, -1]
    assert np.isnan(batch["b"].numpy()).tolist() == [True, False]
    assert batch["c"].numpy().tolist() == [b"?", b"x"]


def test_row_number_of_a_later_row_group(tmp_path):
    # Given a bad row in the fourth row group of the second file
    (tmp_path / "x").mkdir()
    write(tmp_path / "x" / "a.parquet", {"a": list(range(50))})
    write(tmp_path / "x" / "b.parquet", {"a": [*range(37), None, 1]}, row_group_size=10)

    # Then the error has its number in the file
    with pytest.raises(tf.errors.InvalidArgumentError, match="b.parquet, row 38, column 'a'"):
        read_all(tmp_path / "x", shuffle_rows=1000)


def test_files_that_differ(tmp_path):
    # Given a second file without the column, or with lists
    (tmp_path / "x").mkdir()
    write(tmp_path / "x" / "a.parquet", {"a": [1, 2]})
    for columns, words in [
        ({"b": [1]}, "expected a column 'a', got b"),
        ({"a": [[1]]}, "expected one value a row, got list"),
    ]:
        write(tmp_path / "x" / "b.parquet", columns)

        # Then the error names the file
        with pytest.raises(tf.errors.InvalidArgumentError, match=f"b.parquet: .*{words}"):
            read_all(tmp_path / "x")


def test_damaged_files(tmp_path):
    # Given a file that ends early, and one of another kind
    good = write(tmp_path / "good.parquet", {"a": list(range(1000))})
    content = good.read_bytes()
    for name, data in [("cut", content[:-10]), ("text", b"a,b\n1,2\n"), ("empty", b"")]:
        path = tmp_path / f"{name}.parquet"
        path.write_bytes(data)

        # Then it is an error that names it
        with pytest.raises(ValueError, match=f"{name}.parquet"):
            ge.data.Reader(path, 2)

    # Given a file whose pages are damaged
    path = tmp_path / "page.parquet"
    path.write_bytes(content[:4] + b"\xff" * 200 + content[204:])
    with pytest.raises(tf.errors.OpError, match="page.parquet"):
        read_all(path)


def test_types_without_tensors(tmp_path):
    path = write(
        tmp_path / "a.parquet", {"a": [1], "when": [datetime.datetime(2020, 1, 1)], "deep": [[[1]]]}
    )

    with pytest.raises(ValueError, match="column 'when': expected numbers, text"):
        ge.data.Reader(path, 1)
    with pytest.raises(ValueError, match="column 'deep'"):
        ge.data.Reader(path, 1, ["deep"])
    assert len(list(ge.data.Reader(path, 1, ["a"]))) == 1


def test_without_pyarrow(tmp_path, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "pyarrow", None)
    arrow.cache_clear()
    (tmp_path / "a.parquet").write_bytes(b"")
    with pytest.raises(ImportError, match=r"pip install group_embedding\[parquet\]"):
        ge.data.Reader(tmp_path / "a.parquet", 1)
