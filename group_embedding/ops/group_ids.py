"""The op that packs the ids of a group of features into one batch, and its gradient."""

from typing import Any, NamedTuple, Optional

import tensorflow as tf

from group_embedding.ops._library import library


class FeatureIds(NamedTuple):
    """The tensors of one feature, as the op takes them."""

    name: str
    layout: str  # 'sparse', 'ragged', 'dense' or 'single': see the op
    values: tf.Tensor
    partition: Optional[tf.Tensor] = None  # of 'sparse' and 'ragged'
    dense_shape: Optional[tf.Tensor] = None  # of 'sparse'
    weights: Optional[tf.Tensor] = None  # float32, one per id
    weight_partition: Optional[tf.Tensor] = None

    @property
    def weighted(self):
        """True if the feature has weights."""
        return self.weights is not None


class Batch(NamedTuple):
    """The result of GroupIds: the batch of a group in one buffer, and its sizes in host memory."""

    buffer: tf.Tensor  # float32 [words]: row splits and ids (as pairs of floats), weights
    sizes: tf.Tensor  # int64 [features, 2]: samples and ids of each feature
    weighted: bool
    constant_weights: bool = False  # whether its weights have no gradient


def group_ids(features, keyed=()) -> Batch:
    """Packs the ids, row splits and weights of `features` (a list of FeatureIds).

    Args:
        keyed: indices of the features whose ids are keys, of which every bit counts.
    """
    weighted = [i for i, feature in enumerate(features) if feature.weighted]
    with tf.device(_device_of(features)):
        buffer, sizes = library().group_ids(
            values=[feature.values for feature in features],
            partitions=_given(feature.partition for feature in features),
            dense_shapes=_given(feature.dense_shape for feature in features),
            weights=[features[i].weights for i in weighted],
            weight_partitions=_given(features[i].weight_partition for i in weighted),
            num_features=len(features),
            layouts=[feature.layout for feature in features],
            weighted_features=weighted,
            feature_names=[feature.name for feature in features],
            keyed_features=keyed,
        )
    return Batch(buffer, sizes, bool(weighted))


def _given(tensors):
    return [tensor for tensor in tensors if tensor is not None]


def _device_of(features) -> Any:
    """The CPU, so that ids in host memory cross to a GPU in one copy, already packed; but ids that
    are known to be on a GPU are packed there."""
    on_gpu = any("GPU" in (feature.values.device or "") for feature in features)
    return None if on_gpu else "/CPU:0"


@tf.RegisterGradient("GroupEmbedding>GroupIds")
def _group_ids_grad(op, weight_grad, _):
    """`weight_grad` is the gradient of the weights part of the buffer, one float per id."""
    num_features, num_weighted = op.get_attr("num_features"), op.get_attr("num_weighted")
    grads = [None] * len(op.inputs)
    if num_weighted == 0:
        return grads
    per_feature = tf.split(weight_grad, op.outputs[1][:, 1], num=num_features)
    first = num_features + len(op.get_attr("partition_types")) + op.get_attr("num_sparse")
    for i, feature in enumerate(op.get_attr("weighted_features"), first):
        weights = op.inputs[i]
        grads[i] = per_feature[feature]
        if weights.shape.rank != 1:  # of dense ids
            grads[i] = tf.reshape(grads[i], tf.shape(weights))
    return grads
