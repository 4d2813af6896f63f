"""Ids and weights whose row splits are of either type."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

import group_embedding as ge

IDS = {"user": [[0, 1], [], [2]], "item": [[1], [0, 0, 1], []]}
WEIGHTS = {"user": [[0.5, 2.0], [], [1.0]], "item": [[3.0], [1.0, 2.0, 0.5], []]}
ROWS = {name: np.arange(6.0, dtype=np.float32).reshape(3, 2) + len(name) for name in IDS}
# Types of the splits of ids, and of weights, of the two features.
TYPES = [
    (tf.int32, tf.int64, tf.int64, tf.int32),
    (tf.int64, tf.int32, tf.int32, tf.int32),
    (tf.int64, tf.int64, tf.int32, tf.int64),
]


def ragged(values, splits_dtype, dtype):
    return tf.ragged.constant(values, dtype, row_splits_dtype=splits_dtype)


def inputs(types):
    splits = {"user": types[:2], "item": types[2:]}
    ids = {name: ragged(IDS[name], splits[name][0], tf.int64) for name in IDS}
    return ids, {name: ragged(WEIGHTS[name], splits[name][1], tf.float32) for name in IDS}


def expected(combiner):
    ids, weights = inputs([tf.int64] * 4)
    return [
        tf.nn.safe_embedding_lookup_sparse(
            ROWS[name], ids[name].to_sparse(), weights[name].to_sparse(), combiner
        )
        for name in IDS
    ]


def by_lookup(ids, weights):
    tables = [tf.Variable(ROWS[name]) for name in ids]
    given = list(ids.values()), "mean"
    return ge.group_embedding_lookup_sparse(tables, *given, sp_weights=list(weights.values()))


def by_function(ids, weights):
    tables = [tf.Variable(ROWS[name]) for name in ids]

    @tf.function
    def look_up(ids, weights):
        return ge.group_embedding_lookup_sparse(tables, ids, "mean", sp_weights=weights)

    return look_up(list(ids.values()), list(weights.values()))


def by_routed_ids(ids, weights):
    tables = [tf.Variable(ROWS[name]) for name in ids]
    routed = ge.route_ids(tables, list(ids.values()), "mean", sp_weights=list(weights.values()))
    return ge.group_embedding_lookup_sparse(tables, routed, "mean")


def layer(**options):
    return ge.layers.GroupEmbedding(
        [
            ge.FeatureConfig(
                name, ge.TableConfig(name, 3, 2, tf.constant_initializer(rows)), **options
            )
            for name, rows in ROWS.items()
        ]
    )


def by_layer(ids, weights):
    return list(layer()(ids, weights=weights).values())


@pytest.mark.parametrize("look_up", [by_lookup, by_function, by_routed_ids, by_layer])
def test_any_types_mean_the_same(look_up):
    tables = expected("mean")
    for types in TYPES:
        for actual, rows in zip(look_up(*inputs(types)), tables):
            np.testing.assert_allclose(actual, rows, rtol=1e-6)


@pytest.mark.parametrize("form", [{"max_length": 2}, {"ragged": True}], ids=str)
def test_sequences(form):
    with_ids = layer(**form)
    for types in TYPES:
        ids, weights = inputs(types)
        for name, rows in with_ids(ids, weights=weights).items():
            for s, sample in enumerate(np.array(IDS[name], object)):
                count = min(len(sample), form.get("max_length", 9))
                scales = np.array(WEIGHTS[name][s][:count])[:, None]
                vectors = ROWS[name][np.array(sample[:count], int)] * scales
                np.testing.assert_allclose(rows[s].numpy()[:count], vectors.reshape(count, 2))


def test_gradients_of_weights():
    for types in TYPES:
        ids, weights = inputs(types)
        values = [of_feature.values for of_feature in weights.values()]
        with tf.GradientTape() as tape:
            tape.watch(values)
            loss = tf.add_n([tf.reduce_sum(rows) for rows in by_lookup(ids, weights)])
        stock = [of_feature.values for of_feature in inputs([tf.int64] * 4)[1].values()]
        for actual, of_stock in zip(tape.gradient(loss, values), gradients_of_stock(stock)):
            np.testing.assert_allclose(actual, of_stock, rtol=1e-5, atol=1e-6)


def gradients_of_stock(values):
    ids, weights = inputs([tf.int64] * 4)
    with tf.GradientTape() as tape:
        tape.watch(values)
        loss = 0.0
        for (name, of_feature), of_weights in zip(weights.items(), values):
            sparse_weights = of_feature.with_values(of_weights).to_sparse()
            loss += tf.reduce_sum(
                tf.nn.safe_embedding_lookup_sparse(
                    ROWS[name], ids[name].to_sparse(), sparse_weights, "mean"
                )
            )
    return tape.gradient(loss, values)


def test_other_rows_are_refused_whatever_the_types():
    for of_ids, of_weights in itertools.product([tf.int32, tf.int64], repeat=2):
        ids = ragged([[0, 1], [2]], of_ids, tf.int64)
        weights = ragged([[1.0], [2.0, 3.0]], of_weights, tf.float32)
        with pytest.raises(tf.errors.InvalidArgumentError, match="indices of sp_weights differ"):
            ge.group_embedding_lookup_sparse(
                [tf.Variable(ROWS["user"])], [ids], "sum", sp_weights=[weights]
            )
