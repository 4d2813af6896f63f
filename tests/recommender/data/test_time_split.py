"""Rows before and after a moment, as two Parquet files."""

import numpy as np
import pytest
from support.cases.sample_files import columns_of, write_csv, write_parquet

import group_embedding as ge
from group_embedding.data import pieces

pytest.importorskip("pyarrow")
CSV = ["user", ge.data.Column("age", "float32"), ge.data.Column("clicks", "int64", separator="|")]


@pytest.mark.parametrize("kind", ["parquet", "csv"])
@pytest.mark.parametrize("how", [{"at": 31.25}, {"fraction": 0.75}])
def test_split(tmp_path, monkeypatch, kind, how):
    # Given files whose column age is the time
    monkeypatch.setattr(pieces, "PIECE_ROWS", 19)
    folder = (write_parquet if kind == "parquet" else write_csv)(tmp_path / "raw")
    columns = None if kind == "parquet" else [*CSV, "word"]
    paths = [str(tmp_path / name) for name in ("train.parquet", "test.parquet")]

    # When they are split at a moment, or where a share of the rows lies before
    at, *counts = ge.data.split_by_time(folder, "age", *paths, columns=columns, **how)

    # Then each row is in one of the files, in order, with all of its values
    first = 125 if "at" in how else 300
    assert at == first / 4 and counts == [first, 400 - first]
    for path, rows in zip(paths, (range(first), range(first, 400))):
        batches = list(ge.data.Reader(path, 1000))
        expected = columns_of(rows)
        assert batches[0]["user"].numpy().tolist() == list(rows)
        assert batches[0]["clicks"].to_list() == expected["clicks"]
        np.testing.assert_array_equal(batches[0]["age"], expected["age"])
        assert batches[0]["word"].numpy().tolist() == [w.encode() for w in expected["word"]]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["raw", "test.parquet", "train.parquet"]


@pytest.mark.parametrize(
    "arguments, words",
    [
        ({"time": "word", "at": 1}, "'word': expected one number a row, got string"),
        ({"time": "clicks", "at": 1}, "'clicks': expected one number a row, got a list"),
        ({"time": "age"}, "expected at, or a fraction"),
        ({"time": "age", "fraction": 1.5}, "expected at, or a fraction"),
        ({"time": "age", "at": 1, "fraction": 0.5}, "expected at, or a fraction"),
        ({"time": "when", "at": 1}, "expected a column 'when'"),
    ],
)
def test_arguments(tmp_path, arguments, words):
    write_parquet(tmp_path / "raw", (5,))
    with pytest.raises(ValueError, match=words):
        ge.data.split_by_time(tmp_path / "raw", before="a", after="b", **arguments)
