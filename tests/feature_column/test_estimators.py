"""Grouped columns in the canned Estimators: trained with and without the scope, all is the same."""

import contextlib

import numpy as np
import pytest
import tensorflow as tf
from support.session.tiers import by_day

import group_embedding as ge
from group_embedding.feature_column import group_embedding_column_scope

try:
    tf.estimator.Estimator  # noqa: B018
except AttributeError:
    pytest.skip(f"TensorFlow {tf.__version__} has no Estimators", allow_module_level=True)


def scope(grouped):
    return group_embedding_column_scope() if grouped else contextlib.nullcontext()


class CountOps(tf.estimator.SessionRunHook):
    """Counts the lookups in a training graph."""

    def __init__(self, count_ops):
        self._count_ops = count_ops
        self.counts = None

    def begin(self):
        self.counts = self._count_ops(tf.compat.v1.get_default_graph())


def shared(make):
    with tf.Graph().as_default():  # They refuse to be made eagerly, though they are of no graph.
        return tf.compat.v1.feature_column.shared_embedding_columns(
            [make.identity("c"), make.identity("e")], 4, initializer=make.fixed(5)
        )


ESTIMATORS = {
    # name: (class, arguments that hold columns, sums of linear columns, looked up by stock ops)
    "DNNClassifier": (
        tf.estimator.DNNClassifier,
        lambda make: {"feature_columns": [make.a(), make.b(), make.d(), make.price()]},
        0,
    ),
    "compat.v1 DNNClassifier": (
        tf.compat.v1.estimator.DNNClassifier,
        lambda make: {"feature_columns": [make.a(), make.b(), make.d(), make.price()]},
        0,
    ),
    "compat.v1 DNNClassifier, shared": (
        tf.compat.v1.estimator.DNNClassifier,
        lambda make: {"feature_columns": [make.a(), make.b(), *shared(make)]},
        0,
    ),
    "DNNLinearCombinedClassifier": (
        tf.estimator.DNNLinearCombinedClassifier,
        lambda make: {
            "dnn_feature_columns": [make.a(), make.b()],
            "linear_feature_columns": [make.identity("c"), make.price()],
        },
        1,
    ),
    "compat.v1 DNNLinearCombinedClassifier": (
        tf.compat.v1.estimator.DNNLinearCombinedClassifier,
        lambda make: {
            "dnn_feature_columns": [make.a(), make.b()],
            "linear_feature_columns": [make.identity("c"), make.price()],
        },
        1,
    ),
}

ESTIMATORS_BY_DAY = ["compat.v1 DNNLinearCombinedClassifier"]


@pytest.mark.parametrize("name", by_day(ESTIMATORS, ESTIMATORS_BY_DAY))
def test_three_steps_from_one_checkpoint_give_the_same_weights(make, count_ops, tmp_path, name):
    # given an Estimator without the scope, and the checkpoint of its start
    estimator_class, columns, num_linear = ESTIMATORS[name]

    def estimator(grouped, folder, warm_start_from=None):
        with scope(grouped):
            arguments = columns(make)
        return estimator_class(
            **arguments,
            **{"dnn_hidden_units" if "Linear" in name else "hidden_units": [8]},
            model_dir=str(tmp_path / folder),
            warm_start_from=warm_start_from,
        )

    def inputs():
        features = {**make.features(), "e": tf.constant([[5], [6], [7], [5]], tf.int64)}
        labels = tf.constant([[0], [1], [1], [0]])
        return tf.data.Dataset.from_tensors((features, labels)).repeat()

    estimator(False, "start").train(inputs, steps=1)
    # when both are trained from there
    hook = CountOps(count_ops)
    stock, grouped = (
        estimator(is_grouped, folder, str(tmp_path / "start"))
        for is_grouped, folder in ((False, "stock"), (True, "grouped"))
    )
    stock.train(inputs, steps=3)
    grouped.train(inputs, steps=3, hooks=[hook])
    # then
    assert grouped.get_variable_names() == stock.get_variable_names()
    for variable in stock.get_variable_names():
        np.testing.assert_allclose(
            grouped.get_variable_value(variable),
            stock.get_variable_value(variable),
            rtol=1e-5,
            atol=1e-6,
            err_msg=variable,
        )
    num_fused, num_stock = hook.counts
    assert num_fused == 1
    assert (num_stock > 0) == (num_linear > 0)


@pytest.mark.covering(1)
@pytest.mark.parametrize(
    "root, make_optimizer",
    [
        (tf, lambda: tf.keras.optimizers.legacy.Adagrad(0.5)),
        (tf.compat.v1, lambda: tf.compat.v1.train.AdagradOptimizer(0.5)),
    ],
    ids=["v2", "v1"],
)
@pytest.mark.parametrize("grouped", [False, True], ids=["stock", "grouped"])
def test_a_canned_estimator_trains_tables_found_by_key(grouped, root, make_optimizer, tmp_path):
    # Given columns of keys, which the v1 Estimator puts into a scope that cuts variables
    def inputs():
        features = {"user": tf.constant([[2**40], [-7], [5]], tf.int64)}
        return tf.data.Dataset.from_tensors((features, tf.constant([[0], [1], [1]]))).repeat()

    with scope(grouped):
        user = ge.categorical_column_with_embedding("user", tf.int64)
        column = tf.feature_column.embedding_column(user, 4)
    estimator = root.estimator.DNNClassifier(
        [32],  # so many that some are above zero for each user
        [column],
        str(tmp_path / "model"),
        optimizer=lambda: ge.optimizers.wrap(make_optimizer()),
    )
    # When it is trained
    first = estimator.train(inputs, steps=1).evaluate(inputs, steps=1)["loss"]
    last = estimator.train(inputs, steps=30).evaluate(inputs, steps=1)["loss"]
    # Then it learns
    assert last < first / 2


def test_evaluation_prediction_and_export(make, tmp_path):
    # given an Estimator trained without the scope
    def estimator(grouped):
        with scope(grouped):
            columns = [make.c(), make.b()]
        return tf.estimator.DNNClassifier([8], columns, str(tmp_path / "model"))

    def features():
        return {key: value for key, value in make.features().items() if key in "bc"}

    def inputs():
        return tf.data.Dataset.from_tensors((features(), tf.constant([[0], [1], [1], [0]])))

    stock = estimator(False).train(inputs)
    # when it goes on with it
    grouped = estimator(True)
    # then
    expected = stock.evaluate(inputs)
    for key, value in grouped.evaluate(inputs).items():
        assert value == pytest.approx(expected[key], rel=1e-5)
    expected = [prediction["logits"] for prediction in stock.predict(inputs)]
    actual = [prediction["logits"] for prediction in grouped.predict(inputs)]
    np.testing.assert_allclose(actual, expected, rtol=1e-5)
    # and what it exports gives the same
    receiver = tf.estimator.export.build_raw_serving_input_receiver_fn(features())
    path = grouped.export_saved_model(str(tmp_path / "export"), receiver)
    loaded = tf.saved_model.load(path.decode())
    served = loaded.signatures["predict"](**features())["logits"]
    np.testing.assert_allclose(served, expected, rtol=1e-5)


def test_a_model_function_and_params_that_are_copied(make, count_ops, tmp_path):
    # given columns in the params of an Estimator, which it copies deeply
    def model_fn(features, labels, mode, params):
        hidden = tf.compat.v1.feature_column.input_layer(features, params["columns"])
        logits = tf.reduce_sum(hidden, 1, keepdims=True)
        loss = tf.compat.v1.losses.mean_squared_error(labels, logits)
        train_op = tf.compat.v1.train.AdagradOptimizer(0.1).minimize(
            loss, tf.compat.v1.train.get_or_create_global_step()
        )
        return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)

    def inputs():
        labels = tf.constant([[0.0], [1.0], [1.0], [0.0]])
        return tf.data.Dataset.from_tensors((make.features(), labels)).repeat()

    # when
    hook = CountOps(count_ops)
    trained = []
    for grouped in (False, True):
        with scope(grouped):
            columns = [make.a(), make.b(), make.c()]
        estimator = tf.estimator.Estimator(
            model_fn, str(tmp_path / str(grouped)), params={"columns": columns}
        )
        trained.append(estimator.train(inputs, steps=3, hooks=[hook]))
    # then
    assert hook.counts == (1, 0)
    stock, grouped = trained
    assert grouped.get_variable_names() == stock.get_variable_names()
    for variable in stock.get_variable_names():
        np.testing.assert_allclose(
            grouped.get_variable_value(variable), stock.get_variable_value(variable), rtol=1e-5
        )
