"""Inputs of native ops that a graph may give, but no Python function of the package does: each
raises an error that says what was expected. tests/test_op_fuzz.py draws more such calls."""

import numpy as np
import pytest
import tensorflow as tf

import group_embedding as ge
from group_embedding.ops._library import library
from group_embedding.ops.group_update import HYPER_NAMES

Refused = (tf.errors.InvalidArgumentError, tf.errors.FailedPreconditionError)
HUGE = 2**62
INT32_MAX = 2**31 - 1


@pytest.fixture(autouse=True)
def on_the_cpu():
    with tf.device("/CPU:0"):
        yield


def batch_of(row_splits, ids, weights=()):
    """A batch with any words: what GroupIds makes of right ones."""
    words = np.array([*row_splits, *ids], np.int64).view(np.float32)
    return tf.constant(np.concatenate([words, np.array(weights, np.float32)]))


# Two features of 2 and 1 samples.
SPLITS, IDS, SIZES = (0, 2, 3, 4), (1, 0, 2, 3), ((2, 3), (1, 1))
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
GROUP = {
    "table_of_feature": [0, 1],
    "combiners": ["sum", "mean"],
    "dims": [3, 2],
    "max_norms": [0.0, 0.0],
    "table_names": ["item", "user"],
    "feature_names": ["clicks", "users"],
}


def tables():
    return [tf.ones([5, 3]), tf.ones([4, 2])]


def look_up(batch=None, sizes=SIZES, num_outputs=2, **attrs):
    return library().group_lookup(
        tables=attrs.pop("tables", None) or tables(),
        batch=batch_of(SPLITS, IDS) if batch is None else batch,
        sizes=tf.constant(sizes, tf.int64),
        keyed_tables=attrs.pop("keyed_tables", []),
        num_outputs=num_outputs,
        **{"dtype": tf.float32, **GROUP, **attrs},
    )


def gradient(batch=None, sizes=SIZES, num_tables=2, **attrs):
    return library().group_lookup_grad(
        tables=tables(),
        batch=batch_of(SPLITS, IDS) if batch is None else batch,
        sizes=tf.constant(sizes, tf.int64),
        grads=[tf.ones([2, 3]), tf.ones([1, 2])],
        keyed_tables=[],
        num_tables=num_tables,
        **{"grad_features": [0, 1], **GROUP, **attrs},
    )


def update(batch=None, sizes=SIZES, variables=None, slots=None, **attrs):
    variables = variables or [tf.Variable(table) for table in tables()]
    slots = [tf.Variable(tf.zeros_like(v)) for v in variables] if slots is None else slots
    return library().group_update(
        tables=[v.handle for v in variables],
        slots=[s.handle for s in slots],
        batch=batch_of(SPLITS, IDS) if batch is None else batch,
        sizes=tf.constant(sizes, tf.int64),
        grads=[tf.ones([2, 3]), tf.ones([1, 2])],
        hyper=tf.zeros([len(HYPER_NAMES)]),
        keyed_tables=[],
        **{
            "rule": "adagrad",
            "rule_slots": [0],
            "grad_features": [0, 1],
            "updated_tables": [0, 1],
            **GROUP,
            **attrs,
        },
    )


def select(batch=None, sizes=SIZES):
    return library().select_samples(
        batch=batch_of(SPLITS, IDS) if batch is None else batch,
        sizes=tf.constant(sizes, tf.int64),
        samples=[tf.constant([1, 1], tf.int64)],
        features=[0],
    )


def route(batch=None, sizes=SIZES, **attrs):
    return library().route_ids(
        batch=batch_of(SPLITS, IDS) if batch is None else batch,
        sizes=tf.constant(sizes, tf.int64),
        **{
            "num_ranks": 2,
            "num_rows": [5, 4],
            "spreads": ["mod", "mod"],
            "home_ranks": [0, 0],
            "table_of_feature": [0, 1],
            "combiners": ["sum", "mean"],
            "description": "",
            **attrs,
        },
    )


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


def test_handles_of_something_else():
    # Given handles of a hash table, of a table of keys, of other variables, and none
    hash_table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.float32, 0.0)
    keyed = ge.get_embedding_variable("op_inputs_handles", 3)
    words = tf.Variable([["a", "b", "c"]])
    numbers = tf.Variable(tf.ones([5, 3], tf.int64))
    wide = tf.Variable(tf.zeros([0, INT32_MAX]))
    handles = [hash_table.resource_handle, keyed.table_handle, words.handle, numbers.handle]
    handles += [wide.handle, tf.stack([wide.handle] * 2), tf.stack([wide.handle])[:0]]
    for handle in handles:
        # When a table is expected, Then it is refused: to be read, to be written, to be asked
        with pytest.raises(Refused):
            look_up(tables=[handle, tables()[1]])
        with pytest.raises(Refused):
            update(variables=[Handle(handle), tf.Variable(tables()[1])], slots=[words, words])
        if handle is not keyed.table_handle:
            with pytest.raises((*Refused, tf.errors.NotFoundError)):
                library().find_keys(table=handle, keys=tf.constant([1], tf.int64))
    # And strings are still there
    assert words.numpy().tolist() == [[b"a", b"b", b"c"]]


class Handle:
    def __init__(self, handle):
        self.handle = handle


@pytest.mark.parametrize("filter_option", [None, ge.CounterFilter(3)], ids=["all", "counter"])
@pytest.mark.parametrize("times", [-1, 0, -HUGE, 2**63 - 1])
def test_how_often_keys_came(filter_option, times):
    # Given a table of keys
    option = ge.EmbeddingVariableOption(filter_option=filter_option)
    table = ge.get_embedding_variable(f"op_inputs_{filter_option}_{times}", 3, ev_option=option)

    def locate(times, sizes=((1, 2),)):
        return library().locate_rows(
            tables=[table.table_handle],
            batch=batch_of((0, 2), (7, 8)),
            sizes=tf.constant(sizes, tf.int64),
            steps=tf.constant([1], tf.int64),
            times=tf.constant(times, tf.int64),
            table_of_feature=[0],
            learning=[True],
            training=True,
        )

    # When keys are said to have come as often as they cannot, Then it is refused
    with pytest.raises(
        Refused, match=f"times: expected 1 <= times <= .* got {times} at position 1"
    ):
        locate([4, times])
    # And nothing was counted
    assert table.total_count() == 0
    locate([4, 5])
    np.testing.assert_array_equal(table.get_frequency([7, 8]), [4, 5])
    for sizes in (((1, HUGE),), ((HUGE, 2),), ((1, -2),)):
        with pytest.raises(Refused, match="sizes"):
            locate([4, 5], sizes)


def test_vectors_where_scalars_are_expected(tmp_path):
    table = ge.get_embedding_variable("op_inputs_scalars", 3)
    handle, lib = table.table_handle, library()
    step = tf.constant(1, tf.int64)
    prefix = tf.constant(f"{tmp_path}/model")
    for wrong in (lambda scalar: scalar[None], lambda scalar: scalar[None][:0]):
        with pytest.raises(Refused, match="step: expected a scalar"):
            lib.evict_keys(table=handle, step=wrong(step), kind="global_step")
        slots = {"average_slot": "a", "step_slot": "b"}
        with pytest.raises(Refused, match="step: expected a scalar"):
            lib.write_averages(table=handle, momentum=0.5, step=wrong(step), **slots)
        with pytest.raises(Refused, match="momentum: expected a scalar"):
            lib.write_averages(table=handle, momentum=wrong(tf.constant(0.5)), step=step, **slots)
        with pytest.raises(Refused, match="prefix: expected a scalar"):
            lib.save_table(table=handle, prefix=wrong(prefix), snapshot=step)
        with pytest.raises(Refused, match="snapshot: expected a scalar"):
            lib.save_table(table=handle, prefix=prefix, snapshot=wrong(step))
        for op in (lib.restore_table, lib.verify_table):
            with pytest.raises(Refused, match="manifest: expected a scalar"):
                op(table=handle, prefix=prefix, manifest=wrong(prefix))
            with pytest.raises(Refused, match="prefix: expected a scalar"):
                op(table=handle, prefix=wrong(prefix), manifest=prefix)


def pack(counts, rows=((2, 3), (1, 2)), indices=()):
    return library().pack_rows(
        rows=[tf.ones(shape) for shape in rows],
        indices=[tf.constant(i, tf.int64) for i in indices],
        counts=tf.constant(counts, tf.int64),
        wire=[tf.float32] * len(rows),
    )


@pytest.mark.parametrize(
    "counts",
    [[[-2, 1]], [[2, -1]], [[HUGE, 1]], [[3, 1], [-1, 0]], [[2**63 - 1, 1], [3, 0]], [2, 1], [[2]]],
    ids=str,
)
def test_counts_of_rows(counts):
    with pytest.raises(Refused, match="counts"):
        pack(counts)
    with pytest.raises(Refused, match="counts"):
        pack(counts, indices=[[0, 1], [0]])
    with pytest.raises(Refused, match="counts|packed"):
        unpack(counts, [3, 2])


def unpack(counts, dims):
    return library().unpack_rows(
        packed=tf.zeros([16]),
        counts=tf.constant(counts, tf.int64),
        dtypes=[tf.float32, tf.float32],
        num_indices=2,
        wire=[tf.float32, tf.float32],
        dims=dims,
    )


@pytest.mark.parametrize("dims", [[0, 2], [-1, 2], [INT32_MAX, 2], [3], []], ids=str)
def test_dims_of_rows(dims):
    with pytest.raises(Refused):
        unpack([[1, 1]], dims)
    with pytest.raises(Refused):
        pack([[2, 1]], rows=((2, 0), (1, 2)))


def test_ids_of_impossible_tables_and_ranks():
    for attrs in (
        {"num_ranks": HUGE},
        {"num_ranks": 2**31},
        {"num_rows": [2**63 - 1, 4]},
        {"num_rows": [-2, 4]},
        {"home_ranks": [2, 0]},
        {"home_ranks": [0]},
        {"spreads": []},
        {"combiners": ["sum"]},
        {"table_of_feature": [0, 2]},
        {"table_of_feature": []},
    ):
        with pytest.raises(Refused):
            route(**attrs)
    with pytest.raises(Refused):
        library().key_owners(keys=tf.constant([1], tf.int64), num_ranks=HUGE)


def read_requests(messages, splits, **attrs):
    return library().read_requests(
        messages=messages,
        splits=splits,
        **{
            "num_groups": 1,
            "group_of_table": [0, 0],
            "num_rows": [5, 4],
            "table_of_feature": [0, 1],
            "table_names": ["item", "user"],
            "feature_names": ["clicks", "users"],
            "description": "",
            **attrs,
        },
    )


def test_messages_of_other_ranks():
    messages, splits = route(num_ranks=1)[:2]
    length = int(splits[0])
    for wrong in ([-4, length + 4], [length + 1], [-1], [2**31 - 1], [[length]], length):
        with pytest.raises(Refused):
            read_requests(messages, tf.constant(wrong, tf.int32))
    for position in range(length):
        for word in (-1, HUGE, 2**63 - 1, -(2**63)):
            changed = tf.tensor_scatter_nd_update(messages, [[position]], [word])
            if position in (2, 3):  # where a fault is, of which there is none
                continue
            try:
                read_requests(changed, splits)
            except Refused:
                continue
            assert position in (1, *range(8, length)), position  # of ids anything is read
    for attrs in ({"group_of_table": [0, 1]}, {"table_of_feature": [0, 2]}, {"table_names": []}):
        with pytest.raises(Refused):
            read_requests(messages, splits, **attrs)


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
