"""Grouping in the framework-free core: the buffer that ids, row splits and weights come to."""

import numpy as np
import pytest
from support.cases.core_runner import PLACES, arrays_of, core


def grouped(features, place, weighted=False):
    """(row_splits, ids, weights) of features given as (maker, *NumPy arrays or shapes)."""
    arrays = arrays_of(place)
    on_place = [
        maker(*(arrays.to_device(a) if isinstance(a, np.ndarray) else a for a in rest))
        for maker, *rest in features
    ]
    grouping = core.Grouping(on_place, weighted=weighted, allocate=arrays.allocate)
    layout = grouping.layout
    buffer = arrays.to_device(np.full(layout["size"], np.nan, np.float32))
    grouping.run(buffer)
    grouping.check()
    buffer = arrays.to_host(buffer)
    splits = buffer[: 2 * (layout["num_samples"] + 1)].view(np.int64)
    ids = buffer[layout["ids"] : layout["weights"]].view(np.int64)
    return splits, ids, buffer[layout["weights"] :]


def sparse(rows, num_rows, values, dtype=np.int64):
    indices = np.stack([np.array(rows, np.int64), np.zeros(len(rows), np.int64)], axis=1)
    return core.sparse_ids, np.array(values, dtype), indices, [num_rows, 1]


@pytest.mark.parametrize("place", PLACES)
def test_every_layout(place):
    # Given a sparse feature with empty rows, a ragged one, and a dense one, of several id types
    features = [
        sparse([1, 1, 4], 6, [10, 11, 12], np.int32),
        (core.ragged_ids, np.array([20, 21, 22], np.uint32), np.array([0, 2, 2, 3], np.int32)),
        (core.dense_ids, np.array([[30, 31], [32, 33]], np.uint64)),
    ]
    # When they are grouped
    splits, ids, weights = grouped(features, place)
    # Then samples and ids follow each other
    np.testing.assert_array_equal(splits, [0, 0, 2, 2, 2, 3, 3, 5, 5, 6, 8, 10])
    np.testing.assert_array_equal(ids, [10, 11, 12, 20, 21, 22, 30, 31, 32, 33])
    assert weights.size == 0


@pytest.mark.parametrize("place", PLACES)
def test_long_features(place):
    # Given thousands of ids over uneven rows, among them long runs of empty ones
    rng = np.random.default_rng(0)
    features, expected, at = [], [0], 0
    for _ in range(3):
        lengths = rng.integers(0, 9, size=5000) * (rng.random(5000) < 0.5)
        lengths[1000:3000] = 0
        rows = np.repeat(np.arange(5000), lengths)
        features.append(sparse(rows, 5000, rows % 97))
        expected += (at + lengths.cumsum()).tolist()
        at += rows.size
    splits, _, _ = grouped(features, place)
    np.testing.assert_array_equal(splits, expected)


@pytest.mark.parametrize("place", PLACES)
def test_higher_rank_is_pooled_over_the_last_axis(place):
    indices = np.array([[0, 1, 0], [0, 1, 2], [1, 0, 0]])
    feature = (core.sparse_ids, np.array([5, 6, 7]), indices, [2, 3, 4])
    splits, _, _ = grouped([feature], place)
    np.testing.assert_array_equal(splits, [0, 0, 2, 2, 3, 3, 3])


@pytest.mark.parametrize("place", PLACES)
def test_weights_are_one_where_a_feature_has_none(place):
    maker, values, indices, shape = sparse([0, 1], 2, [1, 2])
    weights = np.array([0.5, 2.0], np.float32)
    features = [(maker, values, indices, shape, weights, indices.copy()), sparse([0], 1, [3])]
    np.testing.assert_array_equal(grouped(features, place, weighted=True)[2], [0.5, 2.0, 1.0])


@pytest.mark.parametrize("place", PLACES)
def test_uint64_ids_past_int64_stay_past_every_table(place):
    feature = (core.dense_ids, np.array([[2**64 - 1, 7]], np.uint64))
    np.testing.assert_array_equal(grouped([feature], place)[1], [2**63 - 1, 7])


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    "feature, message",
    [
        (sparse([0, 2, 1], 3, [1, 2, 3]), r"row 1 at position 2 is smaller than the row before it"),
        (sparse([0, 3], 3, [1, 2]), r"row 3 at position 1 .* 0 <= value < 3"),
        (sparse([-1, 1], 3, [1, 2]), r"row -1 at position 0"),
        (
            (core.ragged_ids, np.array([1, 2]), np.array([0, 3, 2])),
            r"row_splits has 3 at position 1",
        ),
        ((core.ragged_ids, np.array([1, 2]), np.array([0, 1])), r"row_splits has 1 at position 1"),
        ((core.ragged_ids, np.array([1, 2]), np.array([1, 2])), r"row_splits has 1 at position 0"),
    ],
)
def test_wrong_partitions_are_named(place, feature, message):
    with pytest.raises(ValueError, match="feature '0'.*" + message):
        grouped([feature], place)


@pytest.mark.parametrize("place", PLACES)
def test_weights_of_other_rows_are_named(place):
    maker, values, indices, shape = sparse([0, 1, 1], 2, [1, 2, 3])
    other = indices.copy()
    other[1, 0] = 0
    weights = np.ones(3, np.float32)
    with pytest.raises(ValueError, match="sp_weights differ .* at position 1"):
        grouped([(maker, values, indices, shape, weights, other)], place, weighted=True)


@pytest.mark.parametrize("place", PLACES)
def test_nothing_to_group(place):
    splits, ids, _ = grouped([sparse([], 0, []), sparse([], 2, [])], place)
    np.testing.assert_array_equal(splits, [0, 0, 0])
    assert ids.size == 0
