"""SparseTensors, RaggedTensors and dense ids -> the tensors that the grouping op takes."""

import tensorflow as tf

from group_embedding.ops.group_ids import FeatureIds

ID_TYPES = (tf.int32, tf.int64, tf.uint32, tf.uint64)


def from_rows(name, ids, weights):
    """One feature of a sparse lookup.

    Args:
        name: of the feature, for messages.
        ids: SparseTensor of rank 2 or more (one whose rank is not known has 2), RaggedTensor of
            rank 2, or FeatureIds made before.
        weights: the same with one weight per id, or None.
    """
    if isinstance(ids, FeatureIds):
        return ids
    ids = _tensor_from_value(ids)
    if isinstance(ids, tf.SparseTensor):
        feature = _from_sparse(name, ids)
    elif isinstance(ids, tf.RaggedTensor):
        feature = _from_ragged(name, ids)
    else:
        raise TypeError(
            f"feature '{name}': sp_id is neither SparseTensor nor RaggedTensor: got {_kind(ids)}; "
            "dense ids are looked up one by one by group_embedding_lookup, or as the rows of a "
            "sample each by tf.RaggedTensor.from_tensor(ids)"
        )
    _check_id_type(feature)
    return feature if weights is None else _with_weights(feature, ids, weights)


def from_padded(name, ids, weights):
    """One feature whose samples are the rows of dense ids [samples, k] or [samples]; negative ids
    are padding. `weights`: None, or a tensor of the same shape."""
    feature = FeatureIds(name, "single" if ids.shape.rank == 1 else "dense", ids)
    _check_id_type(feature)
    return feature if weights is None else feature._replace(weights=tf.cast(weights, tf.float32))


def from_dense(name, ids):
    """One feature of a dense lookup: every id of the tensor is looked up by itself."""
    if isinstance(ids, (tf.SparseTensor, tf.RaggedTensor)):
        raise TypeError(
            f"feature '{name}': expected dense ids, got {_kind(ids)}; "
            "use group_embedding_lookup_sparse"
        )
    feature = FeatureIds(name, "single", tf.convert_to_tensor(ids))
    _check_id_type(feature)
    return feature


def sample_axes(ids):
    """The axes of the samples of `ids`, which become one vector each: int64 [axes], or None where
    it is one axis, as in a result."""
    ids = _tensor_from_value(ids)
    if isinstance(ids, tf.SparseTensor) and ids.shape.rank not in (None, 2):
        return ids.dense_shape[:-1]
    return None


def id_axes(ids):
    """The shape of the samples of dense ids, each of which becomes a vector; None for ids of rank
    1."""
    return None if ids.shape.rank == 1 else tf.shape(ids, out_type=tf.int64)


def restore_axes(output, axes):
    """[samples, width] -> the axes of the samples (None: as it is), then width."""
    if axes is None:
        return output
    width = output.shape[-1]
    output = tf.reshape(output, tf.concat([axes, [width]], axis=0))
    if axes.shape.is_fully_defined():
        output.set_shape([None] * axes.shape.num_elements() + [width])
    return output


def restore_sample_shape(output, ids):
    """[samples, width] -> the axes of `ids` but the last, then width."""
    if isinstance(ids, FeatureIds):
        samples = ids.values.shape[0]
        if ids.layout == "ragged":
            splits = ids.partition.shape[0]
            samples = None if splits is None else splits - 1
        output.set_shape([samples, None])
        return output
    output = restore_axes(output, sample_axes(ids))
    ids = _tensor_from_value(ids)
    if ids.shape.rank is not None:
        samples = ids.shape[:-1] if isinstance(ids, tf.SparseTensor) else ids.shape[:1]
        output.set_shape(samples + [output.shape[-1]])
    return output


def restore_id_shape(output, ids):
    """[ids, dim] -> the axes of `ids`, then dim."""
    output = restore_axes(output, id_axes(ids))
    if ids.shape.rank is not None:
        output.set_shape(ids.shape + [output.shape[-1]])
    return output


def _from_sparse(name, ids):
    rank = ids.shape.rank
    if rank is not None and rank < 2:
        raise ValueError(f"feature '{name}': expected ids of rank 2 or more, got rank {rank}")
    shape = ids.dense_shape
    if rank is None:  # samples are its rows then, as they are for tf.nn.embedding_lookup_sparse
        shape = tf.ensure_shape(shape, [2], name="rank_of_ids")
    return FeatureIds(name, "sparse", ids.values, ids.indices, _on_the_host(shape))


def _from_ragged(name, ids):
    if ids.ragged_rank != 1 or ids.flat_values.shape.rank != 1:
        raise ValueError(
            f"feature '{name}': expected a RaggedTensor of rank 2, got shape {ids.shape} with "
            f"ragged_rank {ids.ragged_rank}; merge its outer axes and reshape the result"
        )
    return FeatureIds(name, "ragged", ids.values, ids.row_splits)


def _on_the_host(shape):
    """The op reads shapes in host memory: a constant that lies there costs no copy from a GPU."""
    value = None if tf.executing_eagerly() else tf.get_static_value(shape)
    if value is None:
        return shape
    with tf.device("/CPU:0"):
        return tf.constant(value, tf.int64)


def _with_weights(feature, ids, weights):
    weights = _tensor_from_value(weights)
    if type(weights) is not type(ids):
        raise TypeError(
            f"feature '{feature.name}': expected sp_weights of the kind of sp_ids, "
            f"{_kind(ids)}, got {_kind(weights)}"
        )
    if not weights.dtype.is_floating:
        raise TypeError(
            f"feature '{feature.name}': expected floating sp_weights, got {weights.dtype.name}"
        )
    if not weights.shape.is_compatible_with(ids.shape):
        raise ValueError(
            f"feature '{feature.name}': expected sp_weights of shape {ids.shape}, as sp_ids, "
            f"got {weights.shape}"
        )
    is_sparse = isinstance(weights, tf.SparseTensor)
    partition = weights.indices if is_sparse else weights.row_splits
    if partition.dtype != feature.partition.dtype:  # row splits, which the op compares
        feature = feature._replace(partition=tf.cast(feature.partition, tf.int64))
        partition = tf.cast(partition, tf.int64)
    return feature._replace(weights=tf.cast(weights.values, tf.float32), weight_partition=partition)


def _check_id_type(feature):
    if feature.values.dtype not in ID_TYPES:
        raise TypeError(
            f"feature '{feature.name}': expected ids of {', '.join(t.name for t in ID_TYPES)}, "
            f"got {feature.values.dtype.name}"
        )


def _tensor_from_value(value):
    if isinstance(value, tf.compat.v1.SparseTensorValue):
        return tf.SparseTensor.from_value(value)
    if isinstance(value, tf.compat.v1.ragged.RaggedTensorValue):
        return tf.ragged.constant(value.to_list(), dtype=value.dtype)
    return value


def _kind(value):
    return (
        f"{type(value).__name__} of {value.dtype.name}" if hasattr(value, "dtype") else repr(value)
    )
