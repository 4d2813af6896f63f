"""Grouped columns in the stock `tf.compat.v1.feature_column.input_layer`."""

import numpy as np
import pytest
import tensorflow as tf

from group_embedding.feature_column import group_embedding_column_scope

fc_v1 = tf.compat.v1.feature_column


def shared(make, **kwargs):
    a, c = make.identity("a"), make.identity("c")
    kwargs.setdefault("initializer", make.fixed(9))
    return fc_v1.shared_embedding_columns([c, a], 4, **kwargs)


CASES = {
    "several dims and combiners": lambda make: [
        make.c(16, combiner="sum"),
        make.a(4, combiner="mean"),
        make.b(3, combiner="sqrtn"),
    ],
    "one column": lambda make: [make.a()],
    "weighted": lambda make: [make.a(), make.d(5, combiner="mean"), make.b()],
    "weighted by sum": lambda make: [make.a(), make.d(5, combiner="sum")],
    "max_norm": lambda make: [make.a(max_norm=0.5), make.b(max_norm=1.0), make.c()],
    "not trainable": lambda make: [make.a(trainable=False), make.b()],
    "shared": lambda make: [*shared(make), make.b()],
    "shared, with max_norm, not trainable": lambda make: [
        *shared(make, max_norm=0.7, trainable=False, combiner="sum"),
        make.b(),
    ],
    "not safe": lambda make: [make.c(use_safe_embedding_lookup=False), make.a()],
}


@pytest.mark.parametrize("case", CASES)
def test_is_one_op_and_all_else_is_as_without_the_scope(build, make, assert_same, case):
    # given the same columns without the scope
    expected = build(lambda: CASES[case](make), grouped=False)
    # when they are made inside it
    actual = build(lambda: CASES[case](make), grouped=True)
    # then nothing that a user sees has changed, and one op looks up all of them
    assert_same(actual, expected)
    assert (actual.num_fused, actual.num_stock) == (1, 0)
    assert (expected.num_fused, expected.num_stock > 0) == (0, True)


def test_columns_of_no_group_and_of_two_groups_mix(build, make, assert_same):
    # given
    expected = build(lambda: [make.a(), make.b(), make.c(), make.d(), make.price()], grouped=False)

    # when two columns are of one group, one of another, and two of none
    def columns():
        outside = [make.d(), make.price()]
        with group_embedding_column_scope():
            one = [make.a(), make.c()]
        with group_embedding_column_scope():
            another = [make.b()]
        return outside + one + another

    actual = build(columns, grouped=False)
    # then
    assert_same(actual, expected)
    assert actual.num_fused == 2
    assert 0 < actual.num_stock < expected.num_stock


def test_columns_that_are_not_part_of_a_call_are_neither_made_nor_fed(build, make, assert_same):
    # given two towers that share column b
    def towers(features, columns, cols_to_vars):
        a, b, c = columns
        del features["d"]
        with tf.compat.v1.variable_scope("wide"):
            wide = fc_v1.input_layer(features, [b, a], cols_to_vars=cols_to_vars)
        with tf.compat.v1.variable_scope("deep"):
            del features["a"]
            deep = fc_v1.input_layer(features, [c, b])
        return tf.concat([wide, deep], 1)

    def columns():
        make.d()  # in the group, and in no tower
        return [make.a(), make.b(), make.c()]

    # when
    expected, actual = (build(columns, towers, grouped=grouped) for grouped in (False, True))
    # then each tower has one op for its columns alone
    assert_same(actual, expected)
    assert (actual.num_fused, actual.num_stock) == (2, 0)
    assert len(actual.variables) == 4


def test_variables_are_reused_by_a_second_call(build, make, assert_same):
    # given one input used twice, by scope and by template
    def twice(features, columns, cols_to_vars):
        outputs = []
        for _ in range(2):
            with tf.compat.v1.variable_scope("model", reuse=tf.compat.v1.AUTO_REUSE):
                outputs.append(fc_v1.input_layer(features, columns))
        layer = tf.compat.v1.make_template("template", fc_v1.input_layer)
        outputs += [layer(features, columns) for _ in range(2)]
        return tf.concat(outputs, 1)

    # when
    expected, actual = (
        build(lambda: [make.a(), make.b()], twice, grouped=grouped) for grouped in (False, True)
    )
    # then
    assert_same(actual, expected)
    assert (actual.num_fused, actual.num_stock) == (4, 0)
    assert len(actual.variables) == 4


def test_names_that_are_alike_are_numbered_as_ever(build, make, assert_same):
    # given two pairs of shared columns under one name, columns of no group among them, and a second
    # input beside the first
    def columns():
        first = shared(make, shared_embedding_collection_name="b_embedding")
        return [*first, make.b(), make.price()]

    def beside(features, columns, cols_to_vars):
        first = fc_v1.input_layer(features, columns, cols_to_vars=cols_to_vars)
        second = fc_v1.input_layer(features, columns)
        return tf.concat([first, second], 1)

    # when
    expected, actual = (build(columns, beside, grouped=grouped) for grouped in (False, True))
    # then
    assert_same(actual, expected)
    assert "input_layer/b_embedding_1/embedding_weights:0" in actual.variables
    assert "input_layer_1/b_embedding_1/embedding_weights:0" in actual.variables


def test_names_count_columns_of_no_group(build, make, assert_same):
    # given a column of no group that takes the name of a later one of the group
    def foreign():
        return fc_v1.shared_embedding_columns(
            [make.identity("c")],
            4,
            initializer=make.fixed(5),
            shared_embedding_collection_name="d_weighted_by_d_weights_embedding",
        )

    def columns():
        outside = foreign()
        with group_embedding_column_scope():
            return [make.b(), make.d(), *outside]

    # when
    expected = build(lambda: [make.b(), make.d(), *foreign()], grouped=False)
    actual = build(columns, grouped=False)
    # then
    assert_same(actual, expected)
    assert actual.num_fused == 1
    assert "input_layer/d_weighted_by_d_weights_embedding_1/embedding_weights:0" in actual.variables


@pytest.mark.parametrize(
    "num_parts, num_fused", [(1, 1), (2, 1)], ids=["in one part", "in several parts"]
)
def test_partitioner(build, make, assert_same, num_parts, num_fused):
    # given a partitioner that cuts tables of 8 rows or more
    def partitioner(shape, dtype):
        del dtype
        return [num_parts if shape[0] >= 8 else 1, 1]

    def partitioned(features, columns, cols_to_vars):
        with tf.compat.v1.variable_scope("model", partitioner=partitioner):
            return fc_v1.input_layer(features, columns, cols_to_vars=cols_to_vars)

    # when (each part is drawn by itself, from the seed of the initializer)
    expected, actual = (
        build(lambda: [make.a(), make.b()], partitioned, grouped=grouped)
        for grouped in (False, True)
    )
    # then a table in parts is looked up by stock ops
    assert_same(actual, expected)
    assert actual.num_fused == num_fused
    assert (actual.num_stock == 0) == (num_parts == 1)
    assert "model/input_layer/a_embedding/embedding_weights/part_0:0" in actual.variables


def test_not_safe_with_weights_keeps_weights_that_a_safe_lookup_prunes(build, make, assert_same):
    # given
    def columns():
        return [make.d(use_safe_embedding_lookup=False, combiner="mean"), make.a()]

    # when
    expected, actual = (build(columns, grouped=grouped) for grouped in (False, True))
    # then
    assert_same(actual, expected)
    assert actual.num_fused == 1


def test_what_the_fused_op_does_not_take_is_looked_up_as_ever(build, make, assert_same):
    # given
    def columns():
        return [make.a(dim=4097), make.b()]

    # when
    expected, actual = (build(columns, grouped=grouped) for grouped in (False, True))
    # then
    assert_same(actual, expected)
    assert actual.num_fused == 1
    assert actual.num_stock > 0


def test_checkpoint_written_without_the_scope_is_restored_with_it(build, make, tmp_path):
    # given
    written = build(
        lambda: [make.a(), make.b(), *shared(make)], grouped=False, save_to=str(tmp_path / "model")
    )

    # when restored into columns that start from other values
    def others():
        zeros = tf.compat.v1.zeros_initializer()
        return [make.a(initializer=zeros), make.b(initializer=zeros), *shared(make)]

    restored = build(others, grouped=True, checkpoint=str(tmp_path / "model"))
    # then
    np.testing.assert_allclose(restored.output, written.output, rtol=1e-6)


def test_ckpt_to_load_from(build, make, assert_same, tmp_path):
    # given a checkpoint of one column
    path = str(tmp_path / "model")
    build(lambda: [make.a()], grouped=False, save_to=path)

    # when other columns are to start from it
    def columns():
        source = {
            "ckpt_to_load_from": path,
            "tensor_name_in_ckpt": "input_layer/a_embedding/embedding_weights",
        }
        return [
            make.embedding(make.identity("c"), 4, **source),
            make.b(),
            *fc_v1.shared_embedding_columns(
                [make.identity("a"), make.identity("price")], 4, **source
            )[:1],
        ]

    expected, actual = (build(columns, grouped=grouped) for grouped in (False, True))
    # then
    assert_same(actual, expected)
    first, *_ = actual.variables.values()
    np.testing.assert_array_equal(first, actual.variables[list(actual.variables)[0]])


def test_collections_and_trainable_of_the_call(build, make, assert_same):
    # given
    def use(features, columns, cols_to_vars):
        output = fc_v1.input_layer(features, columns, weight_collections=["mine"], trainable=False)
        variable = tf.compat.v1.get_variable("scale", initializer=2.0)
        return output * variable

    # when
    expected, actual = (
        build(lambda: [make.a(), *shared(make)], use, grouped=grouped) for grouped in (False, True)
    )
    # then
    assert_same(actual, expected)
    assert len(actual.collections["mine"]) == 2


def test_settings_of_the_surrounding_variable_scope_reach_every_variable(build, make, assert_same):
    # given a scope with a getter, a regularizer and ref variables
    def use(features, columns, cols_to_vars):
        def rename(getter, name, *args, **kwargs):
            return getter(name + "_mine", *args, **kwargs)

        with tf.compat.v1.variable_scope(
            "model",
            custom_getter=rename,
            regularizer=lambda value: tf.reduce_sum(tf.square(value)),
            use_resource=False,
        ):
            return fc_v1.input_layer(features, columns)

    # when
    expected, actual = (
        build(lambda: [make.a(), make.b(), make.c()], use, grouped=grouped)
        for grouped in (False, True)
    )
    # then
    losses = tf.compat.v1.GraphKeys.REGULARIZATION_LOSSES
    assert len(actual.collections[losses]) == 3
    assert_same(actual, expected)
    assert actual.num_fused == 1


def test_linear_model_takes_grouped_columns_one_by_one(build, make, assert_same):
    # given a consumer that gives each column a layer of its own
    def use(features, columns, cols_to_vars):
        return fc_v1.linear_model(features, columns)

    # when
    expected, actual = (
        build(lambda: [make.a(), make.b()], use, grouped=grouped) for grouped in (False, True)
    )
    # then
    assert_same(actual, expected)
    assert (actual.num_fused, actual.num_stock) == (2, 0)


def test_a_column_asked_twice_by_one_builder_is_looked_up_twice(make):
    # given a caller of its own kind, whose frame tells nothing
    from tensorflow.python.feature_column import feature_column

    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        with group_embedding_column_scope():
            column = make.a()
        builder_of_mine = feature_column._LazyBuilder(make.features())
        # when
        with tf.compat.v1.variable_scope("mine", reuse=tf.compat.v1.AUTO_REUSE):
            one, two = (column._get_dense_tensor(builder_of_mine, None, True) for _ in range(2))
        # then
        session.run(tf.compat.v1.global_variables_initializer())
        np.testing.assert_array_equal(*session.run([one, two]))
        assert one is not two


def test_a_missing_feature_raises_the_stock_error_and_leaves_no_scope_open(build, make):
    # given
    def use(features, columns, cols_to_vars):
        del features["c"]
        try:
            return fc_v1.input_layer(features, columns)
        finally:
            assert tf.compat.v1.get_variable_scope().name == ""
            assert tf.compat.v1.get_default_graph().get_name_scope() == ""

    # when / then
    for grouped in (False, True):
        with pytest.raises(ValueError, match="Feature c is not in features dictionary"):
            build(lambda: [make.a(), make.b(), make.c()], use, grouped=grouped)


def test_a_collection_with_a_foreign_variable_is_explained(build, make):
    # given a collection that holds a variable of another shape, or two
    def use(num_variables):
        def _use(features, columns, cols_to_vars):
            for index in range(num_variables):
                variable = tf.compat.v1.get_variable(f"foreign{index}", [2, 2])
                tf.compat.v1.add_to_collection("mine", variable)
            return fc_v1.input_layer(features, columns)

        return _use

    def columns():
        return shared(make, shared_embedding_collection_name="mine")

    # when / then
    for grouped in (False, True):
        with pytest.raises(ValueError, match="(?i)collection.*mine.*shape"):
            build(columns, use(1), grouped=grouped)
        with pytest.raises(ValueError, match="(?i)collection .* one variable"):
            build(columns, use(2), grouped=grouped)


def test_sequence_column_in_input_layer_raises_the_stock_error(build, make):
    # given
    def columns():
        sequence = tf.feature_column.sequence_categorical_column_with_identity("a", 8)
        return [make.embedding(sequence, 4), make.b()]

    # when / then
    for grouped in (False, True):
        with pytest.raises(ValueError, match="must not be of type _SequenceCategoricalColumn"):
            build(columns, grouped=grouped)


def test_eagerly_and_in_a_wrapped_function(make, count_ops):
    # given
    expected = fc_v1.input_layer(make.features(), [make.a(), make.c()])
    with group_embedding_column_scope():
        columns = [make.a(), make.c()]
    # when
    eager = fc_v1.input_layer(make.features(), columns)
    wrapped = tf.compat.v1.wrap_function(lambda: fc_v1.input_layer(make.features(), columns), [])
    # then
    np.testing.assert_allclose(eager, expected, rtol=1e-6)
    np.testing.assert_allclose(wrapped(), expected, rtol=1e-6)
    assert count_ops(wrapped.graph) == (1, 0)
