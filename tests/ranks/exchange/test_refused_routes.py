"""Routed ids that do not fit the lookup they are given to, and what cannot be routed at all."""

import pytest
import tensorflow as tf

import group_embedding as ge

TABLE, OTHER = tf.Variable(tf.ones([3, 2]), name="user"), tf.Variable(tf.ones([3, 4]), name="item")
IDS = tf.ragged.constant([[0, 1], [2]])


@pytest.mark.parametrize(
    "params, combiners, options, message",
    [
        ([TABLE, TABLE], "sum", {}, "expected the 1 lookups that they were routed for, got 2"),
        ([OTHER], "sum", {}, "table 0, 'user', 2 float32; got .* table 0, 'item', 4 float32"),
        ([TABLE], "mean", {}, "'sp_ids\\[0\\]': sum of table .* got 'sp_ids\\[0\\]': mean of"),
        ([TABLE], "sum", {"max_norm": 2.0}, "2 float32; got .* 2 float32, max_norm 2"),
        ([TABLE], "sum", {"invalid_ids": "ignore"}, "invalid_ids 'raise'; got .* 'ignore'"),
        ([TABLE], "sum", {"feature_names": ["x"]}, "'sp_ids\\[0\\]': .* got 'x': sum"),
        ([TABLE], "sum", {"sp_weights": [IDS]}, "sp_weights: expected None as routed ids"),
    ],
)
def test_a_lookup_of_other_arguments_is_refused(params, combiners, options, message):
    routed = ge.route_ids([TABLE], [IDS], "sum")

    with pytest.raises(ValueError, match=message):
        ge.group_embedding_lookup_sparse(params, routed, combiners, **options)


def test_ids_routed_for_the_other_lookup_are_refused():
    routed = ge.route_ids([TABLE], [tf.constant([1])], feature_names=["x"])

    with pytest.raises(ValueError, match="got group_embedding_lookup_sparse"):
        ge.group_embedding_lookup_sparse([TABLE], routed, "sum", feature_names=["x"])


@pytest.mark.parametrize(
    "ids, options, error, message",
    [
        ([IDS, IDS], {"combiners": "sum"}, ValueError, "len of ids must be equal to len of params"),
        ([IDS], {}, TypeError, "expected dense ids, got RaggedTensor"),
        ([tf.constant([1])], {"combiners": "sum"}, TypeError, "neither SparseTensor nor Ragged"),
        ([tf.constant([1])], {"max_norm": 1.0}, ValueError, "max_norm: expected None without"),
        (
            [tf.constant([1])],
            {"sp_weights": [IDS]},
            ValueError,
            "sp_weights: expected None without",
        ),
    ],
)
def test_what_cannot_be_routed_is_refused(ids, options, error, message):
    with pytest.raises(error, match=message):
        ge.route_ids([TABLE], ids, **options)


def test_routed_ids_are_routed_again_for_the_same_lookup_alone():
    # Given ids that were routed
    routed = ge.route_ids([TABLE], [IDS], "sum")

    # When they are routed again, Then nothing changes
    again = ge.route_ids([TABLE], routed, "sum")
    assert again == routed

    # And for another lookup, or with weights, they are refused
    with pytest.raises(ValueError, match="expected what they were routed for"):
        ge.route_ids([TABLE], routed, "mean")
    with pytest.raises(ValueError, match="sp_weights: expected None as routed ids have"):
        ge.route_ids([TABLE], routed, "sum", sp_weights=[IDS])
