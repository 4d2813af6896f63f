"""Every row once: files, ranks, shuffled or in order, several epochs, Parquet and CSV."""

import itertools
import threading
import time

import pytest
import tensorflow as tf
from support.cases.sample_files import SIZES, columns_of, users, write_csv, write_parquet

import group_embedding as ge
from group_embedding.data import csv_files, pieces

NUM_ROWS = sum(SIZES)
CSV_COLUMNS = ["user", ge.data.Column("age", "float32"), "word", "label"] + [
    ge.data.Column("clicks", "int64", separator="|")
]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("samples")
    return {
        "parquet": write_parquet(folder / "parquet"),
        "csv": write_csv(folder / "csv"),
        "csv.gz": write_csv(folder / "gz", compressed=True),
    }


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    """Several pieces in a row group, and several units in a text file."""
    monkeypatch.setattr(pieces, "PIECE_ROWS", 13)
    monkeypatch.setattr(csv_files, "UNIT_BYTES", 600)


def reader_of(folders, kind, *arguments, **options):
    columns = None if kind == "parquet" else CSV_COLUMNS
    return ge.data.Reader(folders[kind], *arguments, columns=columns, **options)


@pytest.mark.parametrize("kind", ["parquet", "csv", "csv.gz"])
@pytest.mark.parametrize("shuffle_rows", [0, 50])
def test_values_of_all_columns(folders, kind, shuffle_rows):
    # Given files of sizes that no batch divides
    reader = reader_of(folders, kind, 32, labels="label", shuffle_rows=shuffle_rows, seed=5)

    # When all batches are read
    seen = []
    for features, label in reader:
        rows = features["user"].numpy().tolist()
        seen += rows

        # Then each row has its values, whatever its order
        expected = columns_of(rows)
        assert sorted(features) == ["age", "clicks", "user", "word"]
        assert features["age"].dtype == tf.float32
        assert features["age"].numpy().tolist() == expected["age"].tolist()
        assert features["clicks"].to_list() == expected["clicks"]
        assert features["word"].numpy().tolist() == [word.encode() for word in expected["word"]]
        assert label.numpy().tolist() == expected["label"].tolist()
    # Then each row is there once, in another order where it was shuffled
    assert sorted(seen) == list(range(NUM_ROWS))
    assert (seen == list(range(NUM_ROWS))) == (shuffle_rows == 0)


@pytest.mark.covering(1)
@pytest.mark.parametrize("kind", ["parquet", "csv"])
@pytest.mark.parametrize("num_ranks, batch_size", [(1, 7), (2, 16), (5, 29)])
@pytest.mark.parametrize("drop_remainder", [False, True])
def test_ranks_share_rows(folders, kind, num_ranks, batch_size, drop_remainder):
    # Given a reader of each rank, for two epochs
    readers = [
        reader_of(
            *(folders, kind, batch_size),
            **{"rank": rank, "num_ranks": num_ranks, "epochs": 2, "shuffle_rows": 40},
            drop_remainder=drop_remainder,
        )
        for rank in range(num_ranks)
    ]

    # When all are read
    batches = [users(reader) for reader in readers]

    # Then all have as many batches, as the readers say, of one size where remainders are dropped
    num_batches = readers[0].num_batches
    assert [len(of_rank) for of_rank in batches] == [2 * num_batches] * num_ranks
    orders = []
    for epoch in range(2):
        epochs = [of_rank[epoch * num_batches :][:num_batches] for of_rank in batches]
        rows = [row for of_rank in epochs for batch in of_rank for row in batch]
        orders.append(rows)
        assert len(set(rows)) == len(rows)
        if drop_remainder:
            assert len(rows) == num_batches * batch_size * num_ranks
        else:
            # Then no row is lost, and none is read twice
            assert sorted(rows) == list(range(NUM_ROWS))
    # Then the epochs have orders of their own
    assert orders[0] != orders[1]


def test_seed_and_threads(folders):
    # Given readers with one seed and other numbers of threads, and with another seed
    orders = [
        list(
            itertools.chain(
                *users(reader_of(folders, "parquet", 20, shuffle_rows=60, seed=s, num_threads=t))
            )
        )
        for s, t in [(1, 1), (1, 5), (2, 2)]
    ]

    # Then the order depends on the seed alone
    assert orders[0] == orders[1]
    assert orders[0] != orders[2]


def test_static_batch_size(folders):
    # Given batches that all have one size
    reader = reader_of(folders, "parquet", 32, drop_remainder=True)

    # Then their specs say so
    assert reader.element_spec["user"].shape == [32]
    assert reader.element_spec["clicks"].shape == [32, None]
    assert [len(batch["user"]) for batch in reader] == [32] * (NUM_ROWS // 32)


def test_endless_epochs(folders):
    # Given a reader without an end
    reader = reader_of(folders, "csv", 150, epochs=None)

    # When more batches are taken than an epoch has
    taken = users(reader.take(7))

    # Then the epochs follow each other, each with its smaller last batch
    assert [len(batch) for batch in taken] == [150, 150, 100, 150, 150, 100, 150]


def test_groups_and_projection(folders):
    # Given two columns side by side, and one more of five
    columns = [ge.data.Column("user", "float32"), "age", "word"]
    reader = ge.data.Reader(folders["parquet"], 10, columns, groups={"dense": ["age", "user"]})

    # When the first batch is read
    batch = next(iter(reader))

    # Then the group is a matrix in its order, and other columns are not there
    assert sorted(batch) == ["dense", "word"]
    assert batch["dense"].numpy()[:3].tolist() == [[0, 0], [0.25, 1], [0.5, 2]]


def test_several_labels(folders):
    # Given two labels, which are no features
    reader = reader_of(folders, "parquet", 10, labels=["label", "age"])

    # When a batch is read
    features, labels = next(iter(reader))

    # Then they are a dict of their own
    assert sorted(labels) == ["age", "label"] and sorted(features) == ["clicks", "user", "word"]


def test_in_a_function(folders):
    # Given a loop over a reader in a tf.function
    reader = reader_of(folders, "parquet", 32)

    @tf.function
    def total():
        result = tf.constant(0, tf.int64)
        for batch in reader:
            result += tf.reduce_sum(batch["user"])
        return result

    # Then it runs over all rows
    assert int(total()) == NUM_ROWS * (NUM_ROWS - 1) // 2


def test_threads_end_with_the_iterator(folders):
    # Given an iteration that is left in its middle
    reader = reader_of(folders, "csv", 3, num_threads=4)
    iterator = iter(reader)
    next(iterator)
    assert any(thread.name.startswith("read ahead") for thread in threading.enumerate())

    # When the iterator is gone
    del iterator

    # Then its threads end
    deadline = time.time() + 20
    while time.time() < deadline:
        if not any(thread.name.startswith("read ahead") for thread in threading.enumerate()):
            return
        time.sleep(0.05)
    raise AssertionError("threads are left")


@pytest.mark.parametrize(
    "arguments, words",
    [
        ({"batch_size": 0}, "batch_size"),
        ({"columns": ["user", "usr"]}, "expected a column 'usr', got user, age"),
        ({"columns": ["user", "user"]}, "each name once"),
        ({"labels": "lable"}, "expected a column 'lable'"),
        ({"groups": {"dense": ["user", "age"]}}, "columns of one dtype for 'dense'"),
        ({"format": "xml"}, "'parquet', 'csv'"),
        ({"rank": 2, "num_ranks": 2}, "rank: expected 0 to 1"),
        ({"on_bad_rows": "drop"}, "'raise' or 'skip'"),
        ({"epochs": 0}, "epochs"),
        ({"num_threads": 0}, "num_threads"),
        ({"columns": [ge.data.Column("clicks", is_list=False)]}, "'clicks': expected one value"),
    ],
)
def test_arguments(folders, arguments, words):
    with pytest.raises(ValueError, match=words):
        ge.data.Reader(folders["parquet"], **{"batch_size": 4, **arguments})


def test_no_files(tmp_path):
    with pytest.raises(FileNotFoundError, match="no_such"):
        ge.data.Reader(str(tmp_path / "no_such*.csv"), 4)
    with pytest.raises(FileNotFoundError, match="folder with files"):
        ge.data.Reader(tmp_path, 4)


def test_files_that_are_no_samples_are_left_out(tmp_path):
    # Given a folder as Spark writes it
    write_csv(tmp_path / "day=1", (3,))
    write_csv(tmp_path / "day=2", (2,))
    (tmp_path / "_SUCCESS").write_text("")
    (tmp_path / "day=1" / ".part.crc").write_text("")

    # When its files are found
    found = ge.data.find_files(tmp_path)

    # Then they are those of samples, in order
    assert found == [str(tmp_path / f"day={day}" / "part-0.csv") for day in (1, 2)]
