"""HugeCTR's Raw files and TorchRec's arrays, written here by their layouts."""

import numpy as np
import pytest
import tensorflow as tf

import group_embedding as ge
from group_embedding.data import binary_files, pieces


@pytest.fixture(autouse=True)
def small_units(monkeypatch):
    monkeypatch.setattr(binary_files, "UNIT_ROWS", 50)
    monkeypatch.setattr(pieces, "PIECE_ROWS", 16)


def arrays(num_rows, seed):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, [num_rows, 1], np.int32)
    dense = rng.integers(0, 1000, [num_rows, 13], np.int32)
    sparse = rng.integers(0, 2**32, [num_rows, 26], np.uint32)
    return labels, dense, sparse


def read(path, **options):
    """(labels, dense, sparse) of all batches, of all ranks."""
    groups = {"dense": [f"I{i}" for i in range(1, 14)], "sparse": [f"C{i}" for i in range(1, 27)]}
    parts = []
    for rank in range(options.get("num_ranks", 1)):
        reader = ge.data.Reader(path, 32, labels="label", groups=groups, rank=rank, **options)
        parts += [(label, batch["dense"], batch["sparse"]) for batch, label in reader]
    return [np.concatenate(column) for column in zip(*parts)]


@pytest.mark.parametrize("is_float", [False, True])
def test_hugectr_raw(tmp_path, is_float):
    # Given rows of int32 labels, int32 or float32 dense features, and uint32 categories
    labels, dense, sparse = arrays(203, 1)
    head = np.concatenate([labels, dense], axis=1).astype("<f4" if is_float else "<i4")
    rows = np.concatenate([head.view("<u4"), sparse], axis=1)
    (tmp_path / "train.bin").write_bytes(rows.tobytes())

    # When they are read, by one rank and by three
    form = ge.data.HugeCTRRawFormat(float_label_dense=is_float)
    for num_ranks in (1, 3):
        got = read(tmp_path / "train.bin", format=form, num_ranks=num_ranks)

        # Then the values are the file's; integers become log(x + 1), as HugeCTR makes them
        np.testing.assert_array_equal(got[0], labels[:, 0])
        expected = dense if is_float else np.log(dense.astype(np.float64) + 1)
        np.testing.assert_allclose(got[1], expected, rtol=1e-6)
        np.testing.assert_array_equal(got[2], sparse.astype(np.int64))


def test_hugectr_raw_of_several_ids(tmp_path):
    # Given two labels, one dense feature, and three ids of one category
    rows = np.array([[1, 0, 7, 5, 11, 12, 13], [0, 1, 0, 6, 21, 22, 23]], "<u4")
    (tmp_path / "train.bin").write_bytes(rows.tobytes())
    form = ge.data.HugeCTRRawFormat(["click", "buy"], ["age"], {"user": 1, "items": 3})

    # When they are read, shuffled
    reader = ge.data.Reader(
        tmp_path / "train.bin", 2, labels=["click", "buy"], format=form, shuffle_rows=9
    )
    ((batch, labels),) = reader

    # Then several ids are lists
    order = np.argsort(batch["user"].numpy())
    assert batch["user"].numpy()[order].tolist() == [5, 6]
    assert [batch["items"].to_list()[i] for i in order] == [[11, 12, 13], [21, 22, 23]]
    assert labels["buy"].numpy()[order].tolist() == [0, 1]
    np.testing.assert_allclose(batch["age"].numpy()[order], [np.log(8), 0], rtol=1e-6)


def test_torchrec_arrays(tmp_path):
    # Given three arrays for each of two days
    days = [arrays(120, 2), arrays(77, 3)]
    for day, (labels, dense, sparse) in enumerate(days):
        np.save(tmp_path / f"day_{day}_labels.npy", labels)
        np.save(tmp_path / f"day_{day}_dense.npy", np.log1p(dense).astype(np.float32))
        np.save(tmp_path / f"day_{day}_sparse.npy", sparse.view(np.int32) >> 1)

    # When the folder, or the labels' files, are read
    for path, ranks in [(tmp_path, 1), (str(tmp_path / "*_labels.npy"), 4)]:
        got = read(path, format="torchrec", num_ranks=ranks)

        # Then the values are the arrays'
        np.testing.assert_array_equal(got[0], np.concatenate([d[0][:, 0] for d in days]))
        np.testing.assert_allclose(got[1], np.concatenate([np.log1p(d[1]) for d in days]), 1e-6)
        expected = np.concatenate([d[2].view(np.int32) >> 1 for d in days])
        np.testing.assert_array_equal(got[2], expected)


def test_files_that_do_not_fit(tmp_path):
    # Given a Raw file that ends within a row
    (tmp_path / "train.bin").write_bytes(b"1234" * 79)
    with pytest.raises(tf.errors.InvalidArgumentError, match="train.bin: expected rows of 160 by"):
        next(iter(ge.data.Reader(tmp_path / "train.bin", 2, format="hugectr")))

    # Given arrays of different lengths, of another width, cut, missing, or that are none
    def refused(words):
        with pytest.raises(tf.errors.InvalidArgumentError, match=words):
            next(iter(ge.data.Reader(str(tmp_path / "a_labels.npy"), 2)))

    labels, dense, sparse = arrays(10, 4)
    np.save(tmp_path / "a_labels.npy", labels)
    refused("a_dense.npy: expected this file beside the labels")
    np.save(tmp_path / "a_dense.npy", dense[:9])
    np.save(tmp_path / "a_sparse.npy", sparse)
    refused("as many rows, got.*'dense': 9")
    np.save(tmp_path / "a_dense.npy", dense[:, :12])
    refused(r"a_dense.npy: expected an array \[rows, 13\].*\[10, 12\]")
    np.save(tmp_path / "a_dense.npy", dense)
    content = (tmp_path / "a_dense.npy").read_bytes()
    (tmp_path / "a_dense.npy").write_bytes(content[:-5])
    refused(f"a_dense.npy: expected {len(content)} bytes, for 10 rows, got {len(content) - 5}")
    (tmp_path / "a_dense.npy").write_bytes(b"no array")
    refused("a_dense.npy: expected an array of NumPy")


@pytest.mark.parametrize(
    "column, words",
    [
        (ge.data.Column("C27"), "expected a column 'C27'"),
        (ge.data.Column("C1", "int8"), "'C1': expected dtype int32, int64"),
        (ge.data.Column("I1", "string"), "'I1': expected dtype of numbers"),
        (ge.data.Column("I1", is_list=True), "'I1': expected is_list=False"),
    ],
)
def test_columns_that_do_not_fit(tmp_path, column, words):
    (tmp_path / "train.bin").write_bytes(b"")
    for form in ("hugectr", "torchrec"):
        with pytest.raises(ValueError, match=words):
            ge.data.Reader(tmp_path / "train.bin", 2, [column], format=form)
