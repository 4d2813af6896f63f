"""Readers of files on an S3 server and on HDFS read what they read of the same files here."""

import importlib.util
import os
import shutil
import time

import numpy as np
import pytest
import tensorflow as tf
from support.cases import sample_files

import group_embedding as ge
from group_embedding.files import remote_files

pytest.importorskip("fsspec")
KINDS = ("parquet", "csv", "csv.gz", "tfrecord", "hugectr", "torchrec")


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """By kind, a folder of this machine with files in two folders, and one that is left out."""
    root = tmp_path_factory.mktemp("samples")
    sample_files.write_parquet(root / "parquet")
    sample_files.write_csv(root / "csv")
    sample_files.write_csv(root / "csv.gz", compressed=True)
    _write_records(root / "tfrecord")
    (root / "hugectr").mkdir()
    (root / "torchrec").mkdir()
    for number, size in enumerate(sample_files.SIZES):
        rows = np.arange(size * 40, dtype=np.uint32).reshape(size, 40)
        rows.tofile(root / "hugectr" / f"part-{number}.bin")
        for name, columns in (("dense", slice(1, 14)), ("sparse", slice(14, 40)), ("labels", [0])):
            np.save(root / "torchrec" / f"{number}_{name}.npy", rows[:, columns].astype("i4"))
    for kind in KINDS:
        (root / kind / "later").mkdir()
        last = sorted(path for path in (root / kind).iterdir() if path.is_file())[-1]
        prefix = last.name.partition("_")[0]
        for path in [p for p in (root / kind).iterdir() if p.name.startswith(prefix)]:
            if path.is_file() and (path == last or kind == "torchrec"):
                shutil.move(path, root / kind / "later")
        (root / kind / "_SUCCESS").write_bytes(b"")
    return root


@pytest.fixture(
    scope="module", params=["s3", pytest.param("hdfs", marks=pytest.mark.slow), "memory"]
)
def there(request, here):
    """The URL of a copy of that folder."""
    if request.param == "memory":
        url = "memory://samples"
    else:
        url = request.getfixturevalue(f"{request.param}_server")["url"] + "/samples"
    for folder, _, names in os.walk(here):
        for name in names:
            path = os.path.join(folder, name)
            remote_files.upload(path, f"{url}/{os.path.relpath(path, here)}")
    return url


def batches_of(files, kind, **options):
    if kind.startswith("csv"):
        clicks = ge.data.Column("clicks", "int64", separator="|")
        options = {"columns": ["user", "age", clicks, "word", "label"], **options}
    kind = kind if kind in ("hugectr", "torchrec") else None
    reader = ge.data.Reader(files, 48, format=kind, **options)
    return [{name: to_list(values) for name, values in batch.items()} for batch in reader]


def to_list(values):
    return values.to_list() if isinstance(values, tf.RaggedTensor) else values.numpy().tolist()


@pytest.mark.covering(1)
@pytest.mark.parametrize("kind", KINDS)
def test_folders_give_the_same_batches(here, there, kind):
    # Given a folder with folders, here and there
    # When both are read, in order and shuffled
    # Then batches are equal, of all rows
    for options in ({}, {"shuffle_rows": 100, "seed": 3}):
        expected = batches_of(f"{here}/{kind}", kind, **options)
        assert batches_of(f"{there}/{kind}", kind, **options) == expected
        assert sum(len(next(iter(b.values()))) for b in expected) == sum(sample_files.SIZES)


def test_files_and_globs_are_listed_as_here(here, there):
    for pattern in (
        "csv",
        "csv/*.csv",
        "csv/part-[02].csv",
        "**/part-1.*",
        "parquet/part-2.parquet",
    ):
        expected = [os.path.relpath(path, here) for path in ge.data.find_files(f"{here}/{pattern}")]
        found = ge.data.find_files(f"{there}/{pattern}")
        assert [path[len(there) + 1 :] for path in found] == expected
    both = ge.data.find_files([f"{there}/csv/part-1.csv", f"{here}/csv/part-0.csv"])
    assert both == [f"{there}/csv/part-1.csv", f"{here}/csv/part-0.csv"]
    assert ge.data.find_files(f"file://{here}/csv/part-1.csv") == [f"{here}/csv/part-1.csv"]


@pytest.mark.parametrize("kind", ["parquet", "csv", "tfrecord"])
def test_three_ranks_share_all_rows(there, kind):
    users = []
    for rank in range(3):
        batches = batches_of(f"{there}/{kind}", kind, rank=rank, num_ranks=3, columns=["user"])
        users += [user for batch in batches for user in batch["user"]]
    assert users == list(range(sum(sample_files.SIZES)))


@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_goes_on_in_the_middle_with_a_state_from_here(here, there, kind):
    # Given a reader that has handed out three batches of local files
    options = {"columns": ["user"], "shuffle_rows": 60, "seed": 5}
    reader = ge.data.Reader(f"{here}/{kind}", 32, **options)
    batches = iter(reader.batches())
    for _ in range(3):
        next(batches)
    rest = [batch["user"].numpy().tolist() for batch in reader]

    # When a reader of the copies goes on from its state
    copies = ge.data.Reader(f"{there}/{kind}", 32, **options)
    copies.state.from_json(reader.state.to_json())

    # Then the batches that follow are the same
    assert [batch["user"].numpy().tolist() for batch in copies] == rest


def test_describe_and_check_read_urls(here, there):
    described = ge.data.describe(f"{there}/csv")
    assert described.num_rows == sum(sample_files.SIZES)
    assert described.schema().check(f"{there}/csv") == sum(sample_files.SIZES)


def test_the_start_of_a_file_of_records_says_its_features(there, here, monkeypatch):
    # Given a file of records, when its columns are asked for
    def refuse(*_):
        raise AssertionError("the whole file was copied")

    monkeypatch.setattr("group_embedding.files.remote_files.download", refuse)
    reader = ge.data.Reader(f"{there}/tfrecord/part-0.tfrecord", 8)

    # Then they are those of the file here, of which only the start was read
    assert reader.columns == ge.data.Reader(f"{here}/tfrecord/part-0.tfrecord", 8).columns


@pytest.mark.parametrize("damage", ["length", "end", "text"])
def test_damaged_records_are_named(here, damage):
    content = bytearray((here / "tfrecord" / "part-0.tfrecord").read_bytes())
    if damage == "length":
        content[5] = 0xFF
    elif damage == "end":
        del content[-3:]
    else:
        content = bytearray(b"user,click\n1,0\n" * 20)
    remote_files.write_file("memory://damaged/a.tfrecord", bytes(content))
    with pytest.raises(
        ValueError, match="memory://damaged/a.tfrecord: expected a file of TFRecords"
    ):
        ge.data.Reader("memory://damaged/a.tfrecord", 8)


def test_missing_files_are_named(there):
    for name in ("nothing", "nothing/*.csv", "nothing/part-1.csv"):
        with pytest.raises(FileNotFoundError, match=f"{there}/nothing"):
            ge.data.Reader(f"{there}/{name}", 8)


def test_a_file_that_is_replaced_is_read_anew(there, tmp_path):
    # Given a Parquet file that was read
    url = f"{there}/replaced.parquet"
    for number, size in enumerate((50, 20)):
        folder = sample_files.write_parquet(tmp_path / str(number), [size])

        # When another takes its place
        remote_files.upload(str(folder / "part-0.parquet"), url)

        # Then the next reader has the rows of the other
        assert ge.data.Reader(url, 8).num_rows == size
    remote_files.remove(url)


def test_a_client_that_is_missing_is_one_sentence(monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name: None if name in ("s3fs", "gcsfs", "hdfs_native") else found(name),
    )
    for url, extra in (
        ("s3://shop/a", "s3"),
        ("gs://shop/a", "gs"),
        ("hdfs://node:9000/a", "hdfs"),
    ):
        with pytest.raises(
            ImportError, match=rf"{url} needs .*pip install group_embedding\[{extra}\]"
        ):
            ge.data.Reader(url, 8)


def test_a_server_that_is_away_is_named():
    pytest.importorskip("hdfs_native")
    pytest.importorskip("s3fs")
    begin = time.monotonic()
    with pytest.raises(OSError, match="hdfs://127.0.0.1:9/data"):
        ge.data.Reader("hdfs://127.0.0.1:9/data", 8)
    ge.data.DataSourceParams("S3", "http://127.0.0.1:9").url("away/data")
    with pytest.raises(OSError, match="s3://away/data"):
        ge.data.Reader("s3://away/data", 8)
    assert time.monotonic() - begin < 30


def _write_records(folder):
    folder.mkdir()
    begin = 0
    for number, size in enumerate(sample_files.SIZES):
        columns = sample_files.columns_of(range(begin, begin + size))
        with tf.io.TFRecordWriter(f"{folder}/part-{number}.tfrecord") as writer:
            for i in range(size):
                ids = {"user": [columns["user"][i]], "clicks": columns["clicks"][i]}
                feature = {
                    name: tf.train.Feature(int64_list=tf.train.Int64List(value=values))
                    for name, values in ids.items()
                }
                example = tf.train.Example(features=tf.train.Features(feature=feature))
                writer.write(example.SerializeToString())
        begin += size
