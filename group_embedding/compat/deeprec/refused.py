"""DeepRec's embeddings of several tables in one, and what later versions of TensorFlow lack: what
to use instead."""

import tensorflow as tf

_INSTEAD = (
    "an EmbeddingVariable has a row for each key that it admits: use {instead}, with "
    "EmbeddingVariableOption(filter_option=CounterFilter(n)) where rare keys shall have no row"
)


# Names of TensorFlow 1 that a later TensorFlow has taken away -> why, and what to use.
GONE = {
    "estimator": (
        f"TensorFlow {tf.__version__} has no Estimators, which 2.15 is the last to have; use "
        "TensorFlow 2.15, or train in a tf.train.MonitoredTrainingSession, and export by "
        "CollectiveStrategy.export_saved_model"
    ),
}


def _refuse(name, why, instead):
    raise NotImplementedError(f"{name}: {why}; {_INSTEAD.format(instead=instead)}")


def categorical_column_with_adaptive_embedding(*args, **kwargs):
    """Raises NotImplementedError, which says what to use instead."""
    del args, kwargs
    _refuse(
        "categorical_column_with_adaptive_embedding",
        "adaptive embedding, which keeps rare keys in a second table of hash buckets, is not here",
        "tf.feature_column.categorical_column_with_embedding",
    )


def categorical_column_with_multihash(*args, **kwargs):
    """Raises NotImplementedError, which says what to use instead."""
    del args, kwargs
    _refuse(
        "categorical_column_with_multihash",
        "columns that combine rows of several hashed tables are not here",
        "tf.feature_column.categorical_column_with_embedding",
    )


def get_multihash_variable(*args, **kwargs):
    """Raises NotImplementedError, which says what to use instead."""
    del args, kwargs
    _refuse(
        "get_multihash_variable",
        "variables that combine rows of several hashed tables are not here",
        "tf.get_embedding_variable",
    )


def get_dynamic_dimension_embedding_variable(*args, **kwargs):
    """Raises NotImplementedError, which says what to use instead."""
    del args, kwargs
    _refuse(
        "get_dynamic_dimension_embedding_variable",
        "rows of several lengths in one table are not here",
        "tf.get_embedding_variable",
    )


class WorkQueue:
    """Raises NotImplementedError, which says what to use instead."""

    def __init__(self, works, *args, **kwargs):
        del args, kwargs
        raise NotImplementedError(
            f"WorkQueue: a queue of files that workers share, of {works}, is not here; give each "
            "rank its part of the files, as tf.data.Dataset.from_tensor_slices(files)"
            ".shard(strategy.world_size(), strategy.rank()) does (--workqueue false)"
        )
