"""ParquetDataset: files as pyarrow reads them whole, in batches."""

import numpy as np
import pytest
import tensorflow as tf

import group_embedding as ge
from group_embedding.parquet import DataFrame, ParquetDataset

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
v1 = tf.compat.v1
ROWS = 23


def make_table(start=0, rows=ROWS):
    i = np.arange(start, start + rows)
    lists = [list(range(k % 4)) for k in i]
    return pa.table(
        {
            "user": pa.array(i, pa.int64()),
            "age": pa.array(i % 90, pa.uint8()),
            "price": pa.array(i / 4, pa.float32()),
            "weight": pa.array((i / 8).astype(np.float16), pa.float16()),
            "bought": pa.array(i % 2 == 0),
            "country": pa.array([f"ä{k}" for k in i]).dictionary_encode(),
            "blob": pa.array([bytes([k % 256, 0]) for k in i]),
            "clicks": pa.array(lists, pa.list_(pa.int32())),
            "words": pa.array([[str(k)] * (k % 3) for k in i], pa.large_list(pa.string())),
            "pages": pa.array([[one, one] for one in lists], pa.list_(pa.list_(pa.int64()))),
            "pixels": pa.array([[k, k, k, k] for k in i], pa.list_(pa.int64(), 4)),
        }
    )


@pytest.fixture
def path(tmp_path):
    path = str(tmp_path / "one.parquet")
    pq.write_table(make_table(), path, row_group_size=5)
    return path


@pytest.fixture
def paths(tmp_path):
    """Three files of other sizes; of the last one no row."""
    paths = [str(tmp_path / f"{i}.parquet") for i in range(3)]
    for i, (start, rows) in enumerate([(0, ROWS), (100, 7), (200, 0)]):
        pq.write_table(make_table(start, rows), paths[i], row_group_size=4)
    return paths


def as_list(value):
    if isinstance(value, tf.RaggedTensor):
        return value.to_list()
    return value.numpy().tolist()


def columns_of(batches):
    columns = {}
    for batch in batches:
        for name, value in batch.items():
            columns.setdefault(name, []).extend(as_list(value))
    return columns


def expected_columns(table):
    columns = table.to_pydict()
    columns["country"] = [word.encode() for word in columns["country"]]
    columns["words"] = [[word.encode() for word in words] for words in columns["words"]]
    return columns


@pytest.mark.parametrize("batch_size", [1, 5, 7, 100])
def test_columns_of_every_type(path, batch_size):
    # Given a file of several row groups, which batches do not agree with
    # When all its fields are read in batches
    batches = list(ParquetDataset(path, batch_size))
    # Then they are what pyarrow reads, in full batches but for the last one
    assert columns_of(batches) == expected_columns(make_table())
    sizes = [len(as_list(batch["user"])) for batch in batches]
    assert set(sizes[:-1]) <= {batch_size} and sum(sizes) == ROWS
    assert batches[0]["clicks"].row_splits.dtype == tf.int32


def test_types_and_shapes(path):
    # Given chosen fields, of which one has a fixed shape
    fields = ["age", DataFrame.Field("pixels", tf.int64, shape=[2, 2]), DataFrame.Field("words")]
    # When batches may not be smaller
    dataset = ParquetDataset(path, 4, fields, drop_remainder=True)
    # Then the static shapes say so, and the last three samples are left out
    spec = dataset.element_spec
    assert spec["age"] == tf.TensorSpec([4], tf.uint8)
    assert spec["pixels"] == tf.TensorSpec([4, 2, 2], tf.int64)
    assert spec["words"].dtype == tf.string and spec["words"].ragged_rank == 1
    batches = list(dataset)
    assert len(batches) == 5 and set(batches[0]) == {"age", "pixels", "words"}
    np.testing.assert_array_equal(batches[1]["pixels"][0], [[4, 4], [4, 4]])


@pytest.mark.parametrize("count", [1, 2, 3, 9])
def test_partitions_have_each_sample_once(path, count):
    # Given as many readers as partitions; more than the file has row groups
    # When each reads its own
    users = [
        columns_of(ParquetDataset(path, 3, ["user"], count, index)).get("user", [])
        for index in range(count)
    ]
    # Then all samples are read, each by one
    assert sorted(sum(users, [])) == list(range(ROWS))
    assert users[0][:5] == list(range(5))


@pytest.mark.parametrize("num_parallel_reads", [None, 2, tf.data.AUTOTUNE])
def test_several_files(paths, num_parallel_reads):
    dataset = ParquetDataset(paths, 4, ["user"], num_parallel_reads=num_parallel_reads)
    users = columns_of(dataset)["user"]
    assert sorted(users) == [*range(ROWS), *range(100, 107)]
    assert num_parallel_reads or users == sorted(users)


@pytest.mark.parametrize("kind", [tf.constant, tf.data.Dataset.from_tensor_slices])
def test_paths_that_are_known_later(paths, kind):
    fields = [DataFrame.Field("user", tf.int64, 0), DataFrame.Field("clicks", tf.int32, 1)]
    assert len(columns_of(ParquetDataset(kind(paths), 4, fields))["clicks"]) == ROWS + 7
    with pytest.raises(ValueError, match="expected DataFrame.Field with dtype and ragged_rank"):
        ParquetDataset(kind(paths), 4, ["user"])


def test_a_graph_trains_on_it(path):
    # Given a graph of TensorFlow 1, with a dataset that is shuffled, repeated and mapped
    with tf.Graph().as_default(), v1.Session() as session:
        dataset = ParquetDataset(path, 8, ["user", "price"]).shuffle(9, seed=1).repeat(2)
        dataset = dataset.map(lambda batch: (batch, batch.pop("price")))
        iterator = v1.data.make_initializable_iterator(dataset)
        features, label = iterator.get_next()
        # When it is run until the data end
        session.run(iterator.initializer)
        total = 0
        with pytest.raises(tf.errors.OutOfRangeError):
            while True:
                total += len(session.run([features["user"], label])[1])
    # Then all of it came twice
    assert total == 2 * ROWS


def test_sparse_features(path):
    # Given a dataset of lists
    dataset = ParquetDataset(path, 5, ["pages", "user"])
    # When they are made sparse, as batches and as single samples
    batch = next(iter(dataset.apply(ge.parquet.to_sparse())))
    sample = list(ParquetDataset(path, 1, ["pages", "user"]).apply(
        ge.parquet.unbatch_and_to_sparse()))[3]  # fmt: skip
    # Then both have the same values
    assert batch["pages"].dense_shape.numpy().tolist() == [5, 2, 3]
    assert tf.sparse.to_dense(sample["pages"]).numpy().tolist() == [[0, 1, 2]] * 2
    assert batch["user"].numpy().tolist() == list(range(5))


def test_schema(path):
    fields = ParquetDataset.read_schema(path, ["USER", "clicks"], lower=True)
    assert [(f.name, f.dtype, f.ragged_rank) for f in fields] == [
        ("user", tf.int64, 0),
        ("clicks", tf.int32, 1),
    ]
    assert ParquetDataset(path).fields == ParquetDataset.read_schema(path)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"batch_size": 0}, "batch_size: expected a positive number, got 0"),
        ({"partition_count": 2, "partition_index": 2}, "partition_index: expected 0 to 1"),
        ({"fields": ["usr"]}, "expected a field 'usr', got user, age"),
        ({"fields": [3]}, "expected names or DataFrame.Field, got 3"),
        ({"fields": [DataFrame.Field("user", tf.int32)]}, "expected dtype .*int32.* has .*int64"),
        ({"fields": [DataFrame.Field("user", ragged_rank=1)]}, "expected ragged_rank 1"),
    ],
)
def test_refusals(path, arguments, message):
    with pytest.raises(ValueError, match=message):
        ParquetDataset(path, **arguments)


def test_what_a_file_may_not_hold(tmp_path):
    # Given files with a type that TensorFlow lacks, with nulls, and with a list of another length
    path = str(tmp_path / "bad.parquet")
    table = {"when": pa.array([1, 2], pa.timestamp("s")), "n": [1, None], "l": [[1, 2], [3]]}
    pq.write_table(pa.table(table), path)
    # When they are read, then errors name file and field
    with pytest.raises(ValueError, match="bad.parquet: field 'when' is of timestamp"):
        ParquetDataset(path)
    with pytest.raises(tf.errors.InvalidArgumentError, match="field 'n'.* got 1 nulls"):
        list(ParquetDataset(path, 2, ["n"]))
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="field 'l'.* lists of 2.* got one of 1"
    ):
        list(ParquetDataset(path, 2, [DataFrame.Field("l", shape=[2])]))


def test_files_that_differ(paths, tmp_path):
    # Given a second file without the field
    other = str(tmp_path / "other.parquet")
    pq.write_table(pa.table({"item": [1]}), other)
    # When it is come to, then the error names it
    with pytest.raises(tf.errors.InvalidArgumentError, match="other.parquet: expected a field"):
        list(ParquetDataset([paths[0], other], 4, ["user"]))
