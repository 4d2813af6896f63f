"""Inputs of native ops that a graph may give, but no Python function of the package does: each
raises an error that says what was expected. tests/test_op_fuzz.py draws more such calls."""

import numpy as np
import pytest
import tensorflow as tf
from support.cases.op_calls import (  # noqa: F401
    GROUP,
    HUGE,
    IDS,
    INT32_MAX,
    Refused,
    batch_of,
    gradient,
    look_up,
    on_the_cpu,
    pack,
    read_requests,
    route,
    select,
    tables,
    update,
)

from group_embedding.ops._library import library

WRONG_SPLITS = [
    (0, HUGE, 3, 4),
    (0, -HUGE, 3, 4),
    (0, 4, 3, 4),  # falls
    (0, 2, 3, 2**63 - 1),
    (-(2**63), 2, 3, 4),
    (1, 2, 3, 4),  # does not begin with the ids
    (0, 2, 2, 4),  # one feature has an id of the other
]
WRONG_SIZES = [
    ((2, 3), (1, HUGE)),
    ((HUGE, 3), (HUGE, 1)),
    ((-1, 3), (4, 1)),
    ((2, 5), (1, -1)),
    ((2, 3),),
    ((2, 3, 1), (1, 1, 1)),
    (2, 3),
]


READS_BATCHES = [look_up, gradient, update, select, route]


def test_what_is_refused_below_is_taken_where_it_is_right():
    # Given the calls of this file, When nothing is changed in them
    # Then they run
    for call in READS_BATCHES:
        call()
    pack([[2, 1]])
    read_requests(*route(num_ranks=1)[:2])


@pytest.mark.parametrize("call", READS_BATCHES)
@pytest.mark.parametrize("row_splits", WRONG_SPLITS, ids=str)
def test_row_splits_of_a_batch(call, row_splits):
    # Given a batch whose row splits lead out of it, or back, When an op is to read it
    # Then it names the feature, before it reads an id
    with pytest.raises(Refused, match=r"feature '(clicks|users|0|1)': row_splits has .* at posi"):
        call(batch_of(row_splits, IDS))


@pytest.mark.parametrize("call", READS_BATCHES)
@pytest.mark.parametrize("sizes", WRONG_SIZES, ids=str)
def test_sizes_of_a_batch(call, sizes):
    # Given sizes that a batch cannot have, or that are not of this one, When an op is to read it
    # Then it is refused
    with pytest.raises(Refused, match="sizes"):
        call(sizes=sizes)


@pytest.mark.parametrize("call", READS_BATCHES)
def test_a_batch_of_no_or_other_memory(call):
    for batch in (tf.zeros([0]), tf.zeros([3]), tf.zeros([40])):
        with pytest.raises(Refused, match="batch|sizes"):
            call(batch)


def test_wrong_splits_far_into_a_feature_are_found():
    # Given a feature of many samples, which threads share, one of whose splits falls
    splits = np.arange(100_001)
    splits[77_000] = 3
    ids = np.zeros(100_000, np.int64)
    attrs = {name: value[:1] for name, value in GROUP.items()}
    # When it is looked up, Then the sample is named
    for combiner in ("sum", "mean"):
        with pytest.raises(Refused, match="'clicks': row_splits has 3 at position 77000; .*100000"):
            look_up(
                batch_of(splits, ids),
                [[100_000, 100_000]],
                1,
                tables=[tf.ones([5, 3])],
                **{**attrs, "combiners": [combiner]},
            )


@pytest.mark.parametrize(
    "attrs, message",
    [
        ({"table_names": []}, "expected attributes of one length"),
        ({"feature_names": ["clicks"]}, "expected attributes of one length"),
        ({"max_norms": [0.0]}, "expected attributes of one length"),
        ({"combiners": []}, "expected attributes of one length"),
        ({"dims": [3]}, "expected attributes of one length|indices into"),
        ({"dims": [3, INT32_MAX]}, "expected 1 <= dim <= 4096, got 2147483647"),
        ({"dims": [3, -5]}, "expected"),
        ({"table_of_feature": [0, 2]}, "table_of_feature: expected indices into"),
        ({"table_of_feature": [-1, 0]}, "table_of_feature: expected indices into"),
    ],
    ids=str,
)
def test_attributes_of_groups_that_do_not_belong_together(attrs, message):
    for call in (look_up, gradient, update):
        with pytest.raises(Refused, match=message):
            call(**attrs)


@pytest.mark.parametrize(
    "call",
    [
        lambda: look_up(num_outputs=1),
        lambda: look_up(num_outputs=3),
        lambda: look_up(concat=True),
        lambda: look_up(tables=tables()[:1]),
        lambda: look_up(keyed=[0]),
        lambda: gradient(num_tables=1),
        lambda: gradient(num_tables=3),
        lambda: gradient(grad_features=[0]),
        lambda: gradient(grad_features=[0, 2]),
        lambda: gradient(grad_features=[-1, 0]),
        lambda: update(updated_tables=[0]),
        lambda: update(updated_tables=[0, 7]),
        lambda: update(slots=[]),
        lambda: update(rule="no such rule"),
        lambda: update(rule_slots=[9]),
        lambda: update(rule="rowwise_adagrad", rule_slots=[], slots=[]),
    ],
)
def test_fewer_inputs_or_outputs_than_attributes_say(call):
    with pytest.raises(Refused):
        call()


@pytest.mark.parametrize("shape", [[2**61, 0], [2**40, 2**21, 0]], ids=str)
def test_shapes_of_nothing_that_is_too_large(shape):
    # Given ids of no element, whose samples no memory holds
    values = tf.zeros([0], tf.int64)
    try:
        values = tf.reshape(values, tf.constant(shape, tf.int64))
    except tf.errors.InvalidArgumentError:
        pytest.skip("TensorFlow makes no such tensor")
    # When they are grouped, Then it is refused
    with pytest.raises(Refused, match="2\\^40"):
        library().group_ids(
            values=[values],
            partitions=[],
            dense_shapes=[],
            weights=[],
            weight_partitions=[],
            num_features=1,
            layouts=["dense"],
            weighted_features=[],
            feature_names=["clicks"],
        )


def test_shape_functions_look_at_ranks():
    with tf.Graph().as_default():
        scalar = tf.constant(1, tf.int64)
        with pytest.raises(ValueError, match="rank"):
            library().pack_rows(
                rows=[tf.ones([1, 1])], indices=[], counts=scalar, wire=[tf.float32]
            )
        with pytest.raises(ValueError, match="rank"):
            read_requests(scalar[None], tf.constant(1))
        handle = library().embedding_table_handle_op(table_name="t")
        with pytest.raises(ValueError, match="rank"):
            library().evict_keys(table=handle, step=scalar[None], kind="global_step")
        with pytest.raises(ValueError, match="rank"):
            library().write_averages(
                table=handle, momentum=[0.5], step=scalar, average_slot="a", step_slot="b"
            )
        with pytest.raises(ValueError, match="outputs"):
            look_up(num_outputs=1)
        with pytest.raises(ValueError, match="positive"):
            look_up(dims=[3, -5])
