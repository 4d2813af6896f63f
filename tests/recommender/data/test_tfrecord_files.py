"""TFRecord files of Examples, written by TensorFlow."""

import pytest
import tensorflow as tf

import group_embedding as ge
from group_embedding.data import tfrecord_files


@pytest.fixture(autouse=True)
def few_parsed_rows(monkeypatch):
    monkeypatch.setattr(tfrecord_files, "PARSED_ROWS", 10)


def example(**features):
    def feature(values):
        if all(isinstance(value, int) for value in values):
            return tf.train.Feature(int64_list=tf.train.Int64List(value=values))
        if all(isinstance(value, float) for value in values):
            return tf.train.Feature(float_list=tf.train.FloatList(value=values))
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))

    features = {name: feature(values) for name, values in features.items()}
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()


def write(path, records, compression=""):
    with tf.io.TFRecordWriter(str(path), compression) as writer:
        for record in records:
            writer.write(record)


def sample(i):
    return example(user=[i], age=[i / 2], clicks=list(range(i % 4)), word=[b"w%d" % i])


@pytest.mark.parametrize("suffix, compression", [("", ""), (".gz", "GZIP")])
def test_values(tmp_path, suffix, compression):
    # Given files of Examples
    for number, rows in enumerate([range(33), range(33, 40), range(40, 101)]):
        path = tmp_path / f"part-{number}.tfrecord{suffix}"
        write(path, [sample(i) for i in rows], compression)

    # When they are read, in order, and shuffled by three ranks
    readers = [ge.data.Reader(tmp_path, 8, epochs=1)]
    shuffled = [
        ge.data.Reader(tmp_path, 8, shuffle_rows=20, rank=rank, num_ranks=3) for rank in range(3)
    ]
    for group in (readers, shuffled):
        rows = []
        for batch in (batch for reader in group for batch in reader):
            users = batch["user"].numpy().tolist()
            rows += users

            # Then each row has its values
            assert batch["age"].numpy().tolist() == [i / 2 for i in users]
            assert batch["word"].numpy().tolist() == [b"w%d" % i for i in users]
            assert batch["clicks"].to_list() == [list(range(i % 4)) for i in users]
        assert sorted(rows) == list(range(101))
    assert {len(list(reader)) for reader in shuffled} == {5}


def test_goes_on_in_the_middle(tmp_path):
    # Given a reader that is in the middle of a file
    write(tmp_path / "a.tfrecord", [sample(i) for i in range(100)])
    reader = ge.data.Reader(tmp_path, 7, ["user"], shuffle_rows=25)
    batches = reader.batches()
    for _ in range(6):
        next(batches)
    state = reader.state.to_json()
    following = [batch["user"].numpy().tolist() for batch in batches]

    # When another goes on from there
    other = ge.data.Reader(tmp_path, 7, ["user"], shuffle_rows=25)
    other.state.from_json(state)

    # Then it has the batches that followed
    assert [batch["user"].numpy().tolist() for batch in other] == following


def test_other_dtypes_and_missing_values(tmp_path):
    # Given Examples without some features
    write(tmp_path / "a.tfrecord", [example(a=[5]), example(b=[1.5]), example(a=[7], b=[2.5])])
    columns = [ge.data.Column("a", "int32", False, -1), ge.data.Column("b", "float64", False, 0.5)]

    # When they are read with values for missing ones
    (batch,) = ge.data.Reader(tmp_path / "a.tfrecord", 9, columns)

    # Then these stand in
    assert batch["a"].dtype == tf.int32 and batch["a"].numpy().tolist() == [5, -1, 7]
    assert batch["b"].dtype == tf.float64 and batch["b"].numpy().tolist() == [0.5, 1.5, 2.5]


@pytest.mark.parametrize(
    "record, words",
    [
        (b"no example", "row 14: expected a tf.train.Example"),
        (example(user=[1.5]), "row 14: .*user.*int8"),
        (example(), "row 14, feature 'user': expected one int8, got 0 values"),
        (example(user=[1, 2]), "row 14, feature 'user': expected one int8, got 2 values"),
        (example(user=[300]), "row 14, feature 'user': expected one int8, got 300"),
    ],
)
def test_bad_records(tmp_path, record, words):
    # Given a bad record among good ones
    records = [example(user=[i]) for i in range(40)]
    write(tmp_path / "a.tfrecord", [*records[:13], record, *records[14:]])
    columns = [ge.data.Column("user", "int8", False)]
    path = tmp_path / "a.tfrecord"

    # Then it is an error that names it, or left out and counted
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"a.tfrecord, {words}"):
        list(ge.data.Reader(path, 8, columns))
    reader = ge.data.Reader(path, 8, columns, on_bad_rows="skip")
    rows = [row for batch in reader for row in batch["user"].numpy().tolist()]
    assert rows == [i for i in range(40) if i != 13]
    assert reader.bad_rows == 1


def test_damaged_files(tmp_path):
    # Given a file that ends within a record, and one of another kind
    write(tmp_path / "a.tfrecord", [sample(i) for i in range(400)])
    content = (tmp_path / "a.tfrecord").read_bytes()
    (tmp_path / "a.tfrecord").write_bytes(content[:-7])
    with pytest.raises(tf.errors.InvalidArgumentError, match="a.tfrecord: expected a file of TFR"):
        list(ge.data.Reader(tmp_path / "a.tfrecord", 8))
    (tmp_path / "a.tfrecord").write_bytes(b"text, much of it")
    with pytest.raises(ValueError, match="a.tfrecord: expected a file of TFRecords"):
        ge.data.Reader(tmp_path / "a.tfrecord", 8)


def test_columns_that_do_not_fit(tmp_path):
    write(tmp_path / "a.tfrecord", [example(a=[1]), example(a=[1.5])])

    with pytest.raises(ValueError, match="expected a feature 'b', got a"):
        ge.data.Reader(tmp_path / "a.tfrecord", 8, ["b"])
    with pytest.raises(ValueError, match="'a': expected values of one dtype, got float32 and int"):
        ge.data.Reader(tmp_path / "a.tfrecord", 8)
