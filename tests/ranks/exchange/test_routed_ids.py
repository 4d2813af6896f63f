"""Ids of all kinds are routed and looked up; bad ids, and ids of another table, are refused."""

import numpy as np
import pytest
import tensorflow as tf

import group_embedding as ge
from group_embedding import exchange
from group_embedding.distributed import enable_distributed_strategy
from group_embedding.ranks.sharding.make_sharded_table import make_table


def to_rank_3(ids):
    """The samples of sparse ids [n, k] as [n, 1, k]."""
    return tf.sparse.expand_dims(ids, 1)


def look_up_both_ways():
    """Results and gradients {whether ids were routed ahead: arrays}, of ids of all kinds."""
    wide = make_table(
        (5, 2), tf.keras.initializers.RandomUniform(seed=1), lambda s, i: tf.Variable(i(s))
    )
    narrow = make_table(
        (5, 4),
        tf.keras.initializers.RandomUniform(seed=2),
        lambda s, i: tf.Variable(tf.cast(i(s), tf.float16)),
    )
    rank = exchange.current().rank
    ragged = tf.ragged.constant([[0, rank + 1], [], [4, 4, 2]], dtype=tf.int64)
    cube = to_rank_3(ragged.to_sparse())
    given = ([wide, narrow, narrow], [ragged, cube, ragged], ["mean", "sum", "sqrtn"])
    dense = ([wide, narrow], [tf.constant([[3, rank], [0, 0]]), tf.constant([rank])])
    weights = tf.Variable([1.0, 0.5, 2.0, 1.0, 3.0])
    results = {}
    for ahead in (False, True):
        with tf.GradientTape() as tape:
            of_ids = [None, None, ragged.with_values(tf.identity(weights))]
            if ahead:
                routed = ge.route_ids(*given, sp_weights=of_ids)
                look_up = tf.function(lambda r: look_up_sparse(given[0], r, given[2]))
                outputs = look_up(routed)
                routed = ge.route_ids(*dense)
                outputs += tf.function(lambda r: ge.group_embedding_lookup(dense[0], r))(routed)
            else:
                outputs = look_up_sparse(*given, sp_weights=of_ids)
                outputs += ge.group_embedding_lookup(*dense)
            loss = tf.add_n([tf.reduce_sum(tf.cast(output, tf.float32) ** 2) for output in outputs])
        gradients = tape.gradient(loss, [wide, narrow, weights])
        results[ahead] = [np.asarray(tf.convert_to_tensor(t)) for t in [*outputs, *gradients]]
    return results


def look_up_sparse(*args, **options):
    return ge.group_embedding_lookup_sparse(*args, **options)


def look_up_both_ways_on_rank():
    enable_distributed_strategy()
    return look_up_both_ways()


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_ids_of_all_kinds_and_gradients_of_weights(request, num_ranks):
    # Given two tables of two dtypes; ragged ids, ids of rank 3, weighted ones, and dense ones
    ranks = [look_up_both_ways()]
    if num_ranks > 1:
        ranks = request.getfixturevalue("two_ranks").run(look_up_both_ways_on_rank)

    for results in ranks:
        # Then, through the border of a function, all is as without
        shapes = [array.shape for array in results[True][:5]]
        assert shapes == [(3, 2), (3, 1, 4), (3, 4), (2, 2, 2), (1, 4)]
        assert np.any(results[True][-1] != 0)
        for on, off in zip(results[True], results[False], strict=True):
            np.testing.assert_array_equal(on, off)


def route_bad_ids_on_rank():
    """Only rank 1 has a bad id; all ranks go on afterwards."""
    enable_distributed_strategy()
    rank = exchange.current().rank
    table = make_table((7, 2), tf.ones_initializer(), lambda s, i: tf.Variable(i(s)))
    bad, good = (tf.ragged.constant([[0, 9 if rank == 1 else i]]) for i in (1, 2))
    names = {"feature_names": ["clicks"]}
    with pytest.raises(tf.errors.InvalidArgumentError) as error:
        routed = ge.route_ids([table], [bad if rank == 1 else good], "sum", **names)
        ge.group_embedding_lookup_sparse([table], routed, "sum", **names)  # where GPUs find it
    good = tf.ragged.constant([[0, 1]])
    routed = ge.route_ids([table], [good], "sum")
    return error.value.message, ge.group_embedding_lookup_sparse([table], routed, "sum")[0].numpy()


def test_a_bad_id_raises_on_every_rank(two_ranks):
    for message, output in two_ranks.run(route_bad_ids_on_rank):
        assert "rank 1: table" in message
        assert "feature 'clicks': id 9 of sample 0 is outside" in message
        np.testing.assert_array_equal(output, [[2, 2]])


def look_up_in_a_table_of_other_rows_on_rank():
    enable_distributed_strategy()
    tables = [
        make_table(
            (num_rows, 2), tf.ones_initializer(), lambda s, i: tf.Variable(i(s), name="user")
        )
        for num_rows in (7, 8)
    ]
    routed = ge.route_ids(tables[:1], [tf.ragged.constant([[0, 1]])], "sum")
    with pytest.raises(ValueError) as error:
        ge.group_embedding_lookup_sparse(tables[1:], routed, "sum")
    return str(error.value)


def test_ids_routed_for_a_table_of_other_rows_are_refused(two_ranks):
    for message in two_ranks.run(look_up_in_a_table_of_other_rows_on_rank):
        assert "expected what they were routed for, 'sp_ids[0]': sum of table 0, 'user'" in message
        assert "7 rows of 2 float32" in message
        assert "8 rows of 2 float32" in message
