"""DLRM as the model_fn of a tf.estimator.Estimator."""

import tensorflow as tf

from dlrm.columns import embedding_columns, numeric_columns
from dlrm.model import DIM, INITIAL_ACCUMULATOR, LEARNING_RATE, dlrm

estimator = tf.compat.v1.estimator
v1 = tf.compat.v1


def model_fn(features, labels, mode, params):
    """params: the Schema and the Ranks, as `schema` and `ranks`."""
    schema, ranks = params["schema"], params["ranks"]
    with ranks.column_scope():
        embeddings = embedding_columns(schema, DIM, ranks.column_of_keys)
    numbers = v1.feature_column.input_layer(features, numeric_columns(schema))
    embedded = v1.feature_column.input_layer(features, embeddings)
    logits = dlrm(numbers, embedded)
    probability = tf.sigmoid(logits)

    if mode == estimator.ModeKeys.PREDICT:
        outputs = {"probability": probability}
        serving = {
            tf.saved_model.DEFAULT_SERVING_SIGNATURE_DEF_KEY: estimator.export.PredictOutput(
                outputs
            )
        }
        return estimator.EstimatorSpec(mode, predictions=outputs, export_outputs=serving)

    losses = tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits)
    loss = tf.reduce_mean(losses)
    if mode == estimator.ModeKeys.EVAL:
        metrics = {
            "auc": v1.metrics.auc(
                labels, probability, num_thresholds=1000, summation_method="careful_interpolation"
            ),
            "log_loss": v1.metrics.mean(losses),
        }
        return estimator.EstimatorSpec(mode, loss=loss, eval_metric_ops=metrics)

    v1.summary.scalar("mean_probability", tf.reduce_mean(probability))
    v1.summary.histogram("logits", logits)
    adagrad = v1.train.AdagradOptimizer(LEARNING_RATE, INITIAL_ACCUMULATOR)
    optimizer = ranks.wrap_optimizer(adagrad)
    train_op = optimizer.minimize(loss, v1.train.get_or_create_global_step())
    return estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)
