"""A reader goes on in the middle to the same batches: from JSON, from a checkpoint, in fit."""

import json

import numpy as np
import pytest
import tensorflow as tf
from support.cases.sample_files import users, write_csv, write_parquet

import group_embedding as ge
from group_embedding.data import csv_files, pieces

SIZES = (40, 9, 31)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("samples")
    return {
        "parquet": write_parquet(folder / "parquet", SIZES, 17),
        "csv": write_csv(folder / "csv", SIZES),
    }


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    monkeypatch.setattr(pieces, "PIECE_ROWS", 8)
    monkeypatch.setattr(csv_files, "UNIT_BYTES", 300)


def reader_of(folders, kind="parquet", batch_size=16, **options):
    options = {"shuffle_rows": 25, "seed": 3, "epochs": 2, **options}
    return ge.data.Reader(folders[kind], batch_size, ["user"], **options)


@pytest.mark.parametrize("kind", ["parquet", "csv"])
@pytest.mark.parametrize("options", [{}, {"shuffle_rows": 0}, {"rank": 1, "num_ranks": 3}])
def test_goes_on_from_every_batch(folders, kind, options):
    # Given all batches of two epochs, and the state behind each
    reader = reader_of(folders, kind, **options)
    whole, states = [], [reader.state.to_json()]
    for batch in reader.batches():
        whole += users([batch])
        states.append(reader.state.to_json())
    assert reader.state.epoch == 2

    # When other readers go on from some of them, to the end
    for number, state in list(enumerate(states[:-1]))[::3]:
        other = reader_of(folders, kind, **options)
        other.state.from_json(state)

        # Then they have the batches that followed
        assert users(other.batches()) == whole[number:], number
        assert other.state.to_json() == states[-1]


def test_next_epochs_follow(folders):
    # Given a reader that was read to its end, of two epochs
    reader = reader_of(folders)
    first = users(reader.batches())

    # When it is read again
    second = users(reader.batches())

    # Then the epochs that follow have an order of their own; reset goes back to the first
    assert reader.state.epoch == 4
    assert sorted(sum(first, [])) == sorted(sum(second, []))
    assert first != second
    reader.state.reset()
    assert users(reader.batches()) == first


def test_reading_that_is_not_counted_leaves_the_state(folders):
    # Given a reader of which some batches were looked at
    reader = reader_of(folders)
    looked_at = users(reader.take(3))

    # Then its batches begin at the first
    assert users(reader.batches())[:3] == looked_at


def test_checkpoint(folders, tmp_path):
    # Given a model and a reader that are saved together after three batches
    reader, weight = reader_of(folders), tf.Variable(0.0)
    batches = reader.batches()
    for _ in range(3):
        weight.assign_add(float(next(batches)["user"][0]))
    path = tf.train.Checkpoint(weight=weight, reader=reader.state).save(str(tmp_path / "model"))
    following = users(batches)

    # When a new process restores both
    again, restored = reader_of(folders), tf.Variable(0.0)
    checkpoint = tf.train.Checkpoint(weight=restored, reader=again.state)
    checkpoint.restore(path).assert_consumed()

    # Then it goes on with both
    assert float(restored) == float(weight)
    assert again.state.consumed == 3
    assert users(again.batches()) == following


def test_mapped_and_prefetched_batches_are_counted_as_they_are_consumed(folders):
    # Given a dataset that is read far ahead
    reader = reader_of(folders)
    dataset = reader.map(lambda batch: {"user": batch["user"] + 0}).prefetch(50)

    # When four batches are taken
    batches = reader.batches(dataset)
    taken = [next(batches) for _ in range(4)]
    state = json.loads(reader.state.to_json())

    # Then the state is behind these four
    assert len(taken) == 4 and state["consumed"] == 4
    again = reader_of(folders)
    again.state.from_json(json.dumps(state))
    assert users(again.batches()) == users(batches)


def test_fit_counts_batches(folders):
    # Given a model that is fitted with the callback, for two of its epochs
    reader = reader_of(folders, epochs=1)
    dataset = reader.map(
        lambda batch: (tf.cast(batch["user"], tf.float32)[:, None], tf.zeros_like(batch["user"]))
    )
    model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
    model.compile("sgd", "mse")

    # When it was trained
    model.fit(dataset, epochs=2, verbose=0, callbacks=[ge.data.CountBatches(reader)])

    # Then the state is behind both epochs
    assert reader.state.epoch == 2
    assert reader.state.consumed == 2 * reader.num_batches


def test_advance_by_hand(folders):
    # Given an iteration that the program counts
    reader = reader_of(folders)
    whole = users(reader)
    iterator = iter(reader)
    for _ in range(5):
        next(iterator)
    reader.state.advance(5)

    # Then the next iteration goes on behind it
    assert users(reader) == whole[5:]
    with pytest.raises(ValueError, match="expected batches that were read"):
        reader.state.advance(1000)


@pytest.mark.parametrize(
    "options, words",
    [
        ({"seed": 4}, "seed 3, got one with 4|seed 4, got one with 3"),
        ({"batch_size": 8}, "batch_size 8"),
        ({"num_ranks": 2, "rank": 0}, "num_ranks 2"),
        ({"kind": "csv"}, "files"),
    ],
)
def test_state_of_another_reader_is_refused(folders, options, words):
    state = reader_of(folders).state.to_json()

    with pytest.raises(ValueError, match=words):
        reader_of(folders, **options).state.from_json(state)


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"consumed": 1, "position": {}}'])
def test_text_that_is_no_state_is_refused(folders, text):
    with pytest.raises(ValueError, match="expected the JSON of ReaderState.to_json"):
        reader_of(folders).state.from_json(text)


def test_bad_rows_and_resume(folders, tmp_path):
    # Given a file with bad rows, which are left out, on two ranks
    lines = [f"{i}" if i % 7 else f"x{i}" for i in range(100)]
    (tmp_path / "bad.csv").write_text("user\n" + "\n".join(lines) + "\n")
    options = {"on_bad_rows": "skip", "num_ranks": 2, "shuffle_rows": 11, "epochs": 1}

    def make(rank):
        columns = [ge.data.Column("user", "int64")]
        return ge.data.Reader(tmp_path / "bad.csv", 8, columns, rank=rank, **options)

    # When both are read, and read on from some of their batches
    for rank in range(2):
        reader, states = make(rank), []
        whole = []
        for batch in reader.batches():
            whole += users([batch])
            states.append(reader.state.to_json())
        for number, state in list(enumerate(states[:-1]))[2::3]:
            again = make(rank)
            again.state.from_json(state)
            assert users(again) == whole[number + 1 :]

        # Then each has seven batches, its good rows, and some of them again for those left out
        rows = np.array(sum(whole, []))
        good = [i for i in range(50 * rank, 50 * rank + 50) if i % 7]
        assert [len(batch) for batch in whole] == [8] * 6 + [2]
        assert sorted(set(rows)) == good and len(rows) == 50
        assert reader.bad_rows == 50 - len(good)
