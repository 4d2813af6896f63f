"""Batches for training and evaluation: every example, in the same order for every model."""

import numpy as np
import pytest

from dlrm.examples import Examples, evaluation_batches, training_batches, training_rows


@pytest.fixture
def examples():
    return Examples(
        {"id": np.arange(10), "words": np.array([[b"a", b""]] * 10)},
        np.arange(10, dtype=np.float32),
    )


def rows_of(*arguments, **options):
    return [rows.tolist() for rows in training_rows(*arguments, **options)]


def test_an_epoch_holds_each_example_once_and_the_next_is_shuffled_anew():
    batches = rows_of(10, batch_size=5, num_batches=4, seed=1)
    first, second = sum(batches[:2], []), sum(batches[2:], [])
    assert sorted(first) == sorted(second) == list(range(10))
    assert first != second


def test_the_order_is_that_of_the_seed():
    assert rows_of(10, 5, 4, seed=1) == rows_of(10, 5, 4, seed=1)
    assert rows_of(10, 5, 4, seed=1) != rows_of(10, 5, 4, seed=2)


def test_ranks_share_each_batch():
    whole = rows_of(12, 6, 4, seed=1)
    parts = [rows_of(12, 6, 4, seed=1, rank=rank, num_ranks=3) for rank in range(3)]
    for batch, *shares in zip(whole, *parts):
        assert [len(share) for share in shares] == [2, 2, 2]
        assert sorted(batch) == sorted(sum(shares, []))


def test_sizes_that_do_not_fit_are_refused(examples):
    with pytest.raises(ValueError, match="batch size 5 cannot be shared evenly by 2 ranks"):
        training_batches(examples, 5, 1, seed=1, num_ranks=2)
    with pytest.raises(ValueError, match="batch size 11 is more than the 10 examples"):
        training_batches(examples, 11, 1, seed=1)


def test_training_batches_pair_features_with_labels(examples):
    batches = list(training_batches(examples, batch_size=4, num_batches=5, seed=1))
    assert len(batches) == 5
    for features, labels in batches:
        assert features["id"].numpy().tolist() == labels.numpy().tolist()
        assert features["words"].shape == (4, 2)


def test_evaluation_reads_all_in_order(examples):
    labels = [labels.numpy().tolist() for _, labels in evaluation_batches(examples, batch_size=4)]
    assert labels == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_split_and_sample(examples):
    train, test = examples.split(0.8)
    assert (len(train), len(test)) == (8, 2)
    assert examples.sample(4).labels.tolist() == [0, 3, 6, 9]
    with pytest.raises(ValueError, match="1 examples are too few to split at 80%"):
        examples[:1].split(0.8)
