"""Initial values of keys: rows of a matrix, or values of their own."""

import numpy as np
import pytest
import tensorflow as tf

import group_embedding as ge
from group_embedding.keras_compat import keras

v1 = tf.compat.v1
MANY = np.arange(-20_000, 20_000)
PER_KEY = ge.InitializerOption(default_value_dim=None)

# Initializer; mean, standard deviation and bounds of its values at dim 4.
SPREAD = {
    "v1 uniform": (v1.random_uniform_initializer(-1, 3, seed=1), 1, 4 / 12**0.5, (-1, 3)),
    "v1 normal": (v1.random_normal_initializer(1, 2, seed=1), 1, 2, None),
    "v1 truncated": (v1.truncated_normal_initializer(1, 2, seed=1), 1, 1.7593, (-3, 5)),
    "v1 glorot": (
        v1.glorot_uniform_initializer(seed=1), 0, (2 / 4100) ** 0.5, (-0.0383, 0.0383)
    ),
    "tf uniform": (tf.random_uniform_initializer(-1, 3, seed=1), 1, 4 / 12**0.5, (-1, 3)),
    "tf normal": (tf.random_normal_initializer(1, 2, seed=1), 1, 2, None),
    "keras uniform": (keras.initializers.RandomUniform(-1, 3, seed=1), 1, 4 / 12**0.5, (-1, 3)),
    "keras truncated": (keras.initializers.TruncatedNormal(1, 2, seed=1), 1, 1.7593, (-3, 5)),
    "keras he": (keras.initializers.HeNormal(seed=1), 0, (2 / 4096) ** 0.5, None),
    "keras fan out": (
        keras.initializers.VarianceScaling(1.0, "fan_out", "untruncated_normal", seed=1),
        0, 0.5, None,
    ),
}  # fmt: skip


def table_of(initializer, option=PER_KEY, name="user", dim=4, **arguments):
    options = ge.EmbeddingVariableOption(init_option=option)
    return ge.get_embedding_variable(
        name, dim, initializer=initializer, ev_option=options, **arguments
    )


def train(table, keys):
    """Without moving the rows."""
    with tf.GradientTape() as tape:
        (rows,) = ge.group_embedding_lookup([table], [tf.constant(keys, tf.int64)])
    tape.gradient(rows, table)
    return np.asarray(rows)


@pytest.mark.parametrize("name", SPREAD)
def test_distributions_per_key(name):
    # Given a table whose keys draw values of their own
    initializer, mean, deviation, bounds = SPREAD[name]
    table = table_of(initializer)
    # When many keys come
    rows = train(table, MANY)
    # Then their values are spread as the initializer's
    error = 5 * deviation / rows.size**0.5
    np.testing.assert_allclose(rows.mean(), mean, atol=error)
    np.testing.assert_allclose(rows.std(), deviation, rtol=0.02)
    if bounds is not None:
        assert rows.min() >= bounds[0] and rows.max() <= bounds[1]
    assert len(np.unique(rows, axis=0)) == len(rows)


@pytest.mark.parametrize(
    "initializer, value",
    [
        (v1.zeros_initializer(), 0),
        (tf.ones_initializer(), 1),
        (v1.constant_initializer(2.5), 2.5),
        (keras.initializers.Constant(-1.5), -1.5),
        (v1.zeros_initializer, 0),
    ],
)
def test_constants_per_key(initializer, value):
    np.testing.assert_array_equal(train(table_of(initializer), [1, -9]), np.full([2, 4], value))


def test_values_depend_on_the_key_alone():
    # Given two tables of one seed, and one of another
    first, second, other = (
        table_of(v1.random_normal_initializer(seed=seed), name=f"t{i}")
        for i, seed in enumerate([3, 3, 4])
    )
    # When keys come in other orders, beside others
    a = train(first, [5, 7, -1])
    train(second, [40, 41, -1])
    b = train(second, [-1, 7, 5])[::-1]
    # Then they start alike
    np.testing.assert_array_equal(a, b)
    assert (train(other, [5]) != a[0]).any()


def test_missing_keys_read_the_constant():
    # Given values per key, and a constant for those that are not there
    table = table_of(
        tf.ones_initializer(),
        ge.InitializerOption(default_value_dim=None, default_value_no_permission=7.0),
    )
    # When a key is read, trained, and read
    keys = tf.constant([3], tf.int64)
    before = tf.gather(table, keys)
    train(table, [3])
    # Then it reads the constant until it is there
    np.testing.assert_array_equal(before, np.full([1, 4], 7.0))
    np.testing.assert_array_equal(tf.gather(table, keys), np.ones([1, 4]))


@pytest.mark.parametrize(
    "initializer", [v1.orthogonal_initializer(), keras.initializers.Identity(), lambda s, dtype: 0]
)
def test_unsupported_per_key(initializer):
    with pytest.raises(ValueError, match="'user'.*default_value_dim=None.*VarianceScaling.*4096"):
        table_of(initializer)


@pytest.mark.parametrize(
    "initializer",
    [
        v1.orthogonal_initializer(seed=1),
        keras.initializers.Orthogonal(seed=1),
        keras.initializers.GlorotUniform(seed=1),
        lambda shape, dtype: tf.ones(shape, dtype),
        v1.ones_initializer,
    ],
)
def test_any_initializer_draws_a_matrix(initializer):
    # Given a matrix of 8 rows that some initializer draws
    table = table_of(initializer, ge.InitializerOption(default_value_dim=8))
    # When keys come that are congruent modulo 8, taken as unsigned
    rows = train(table, [3, 11, -5])
    # Then they start alike
    np.testing.assert_array_equal(rows, rows[[0, 0, 0]])


def test_default_is_a_truncated_normal_distribution():
    rows = train(ge.get_embedding_variable("user", 4), np.arange(4096))
    np.testing.assert_allclose(rows.std(), 0.8796, rtol=0.05)
    assert np.abs(rows).max() <= 2


def test_initializer_of_the_option():
    option = ge.InitializerOption(v1.constant_initializer(3.0), default_value_dim=2)
    np.testing.assert_array_equal(train(table_of(None, option), [1]), np.full([1, 4], 3.0))
