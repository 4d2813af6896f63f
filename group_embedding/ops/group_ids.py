"""The op that packs the ids of a group of features into one batch, and its gradient."""

from typing import Any, NamedTuple, Optional

import tensorflow as tf

from group_embedding.ops._library import library


class FeatureIds(NamedTuple):
    """The tensors of one feature, as the op takes them."""

    name: str
    layout: str  # 'sparse', 'ragged', 'dense' or 'single': see the op
    values: tf.Tensor
    partition: tf.Tensor
    dense_shape: tf.Tensor
    weights: Optional[tf.Tensor] = None  # float32, one per id
    weight_partition: Optional[tf.Tensor] = None


class Batch(NamedTuple):
    """What GroupIds makes of a group: one buffer, and its sizes in host memory."""

    buffer: tf.Tensor  # float32 [words]: row splits and ids (as pairs of floats), weights
    sizes: tf.Tensor  # int64 [features, 2]: samples and ids of each feature
    weighted: bool


def group_ids(features) -> Batch:
    """Packs the ids, row splits and weights of `features` (a list of FeatureIds)."""
    weighted = [i for i, feature in enumerate(features) if feature.weights is not None]
    with tf.device(_device_of(features)):
        buffer, sizes = library().group_ids(
            values=[feature.values for feature in features],
            partitions=[feature.partition for feature in features],
            dense_shapes=[feature.dense_shape for feature in features],
            weights=[features[i].weights for i in weighted],
            weight_partitions=[features[i].weight_partition for i in weighted],
            layouts=[feature.layout for feature in features],
            weighted_features=weighted,
            feature_names=[feature.name for feature in features],
        )
    return Batch(buffer, sizes, bool(weighted))


def _device_of(features) -> Any:
    """The CPU, so that ids in host memory cross to a GPU in one copy, already packed; but ids that
    are known to be on a GPU are packed there."""
    on_gpu = any("GPU" in (feature.values.device or "") for feature in features)
    return None if on_gpu else "/CPU:0"


@tf.RegisterGradient("GroupIds")
def _group_ids_grad(op, weight_grad, _):
    """`weight_grad` is the gradient of the weights part of the buffer, one float per id."""
    num_features = op.get_attr("num_features")
    num_weighted = op.get_attr("num_weighted")
    others = [None] * (3 * num_features)
    if num_weighted == 0:
        return others
    sizes = op.outputs[1]
    per_feature = tf.split(weight_grad, sizes[:, 1], num=num_features)
    weights = op.inputs[3 * num_features : 3 * num_features + num_weighted]
    grads = [
        per_feature[feature] if weight.shape.rank == 1 else tf.reshape(per_feature[feature], tf.shape(weight))
        for feature, weight in zip(op.get_attr("weighted_features"), weights)
    ]
    return others + grads + [None] * num_weighted
