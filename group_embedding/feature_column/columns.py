"""The three classes of embedding columns of TensorFlow, each as a member of a group.

A column joins a group by being given another class, a subclass of its own: everything that the
stock class does stays as it is, except for the methods here, which ask the group for the result.
Each group has its own such classes. So membership is part of the type, and stays with a column
however it is copied: `deepcopy`, `_replace`, `tf.nest`, the tuple wrapper of Keras.
"""

import tensorflow as tf
from tensorflow.python.feature_column import feature_column as fc_v1
from tensorflow.python.feature_column import feature_column_v2 as fc_v2

from group_embedding.config import check_max_norm
from group_embedding.feature_column.member import InputLayerMember, LayerMember
from group_embedding.feature_column.variable import (
    column_table_shape,
    make_column_table,
    restore_column_table,
)


def join(column, group):
    """Makes a stock column, just constructed, a member of `group`."""
    grouped = GROUPED.get(type(column))  # Subclasses that others derived are left alone.
    if grouped is not None:
        check_max_norm(f"column '{column.name}'", column.max_norm)
        column.__class__ = group.member_class(grouped)
        group.add_table(column._table_name, column._num_rows, column._dim)


class GroupedEmbeddingColumn(InputLayerMember, LayerMember, fc_v2.EmbeddingColumn):
    """See `tf.feature_column.embedding_column`. Layers and `input_layer` both take it."""

    _stock = fc_v2.EmbeddingColumn

    @property
    def _num_rows(self):
        categorical = self.categorical_column
        return categorical.num_buckets if self._is_v2_column else categorical._num_buckets

    def create_state(self, state_manager):
        def create(shape, initializer):
            return state_manager.create_variable(
                self,
                name="embedding_weights",
                shape=shape,
                dtype=tf.float32,
                trainable=self.trainable,
                use_resource=True,
                initializer=initializer,
            )

        make_column_table((self._num_rows, self._dim), self.initializer, create, self._placement)

    def _variable(self, state_manager):
        return _restored(self, state_manager.get_variable(self, name="embedding_weights"))

    def _variable_v1(self, weight_collections, trainable):
        if weight_collections and tf.compat.v1.GraphKeys.GLOBAL_VARIABLES not in weight_collections:
            weight_collections.append(tf.compat.v1.GraphKeys.GLOBAL_VARIABLES)
        return _restored(self, _get_variable_v1(self, weight_collections, trainable))


class GroupedSharedEmbeddingColumn(LayerMember, fc_v2.SharedEmbeddingColumn):
    """See `tf.feature_column.shared_embeddings`; the variable is kept by the columns' creator."""

    _stock = fc_v2.SharedEmbeddingColumn

    @property
    def _table_name(self):
        return self.shared_embedding_column_creator._name

    @property
    def _num_rows(self):
        return self.shared_embedding_column_creator._num_buckets

    @property
    def _dim(self):
        return self.shared_embedding_column_creator._dimension

    def _variable(self, state_manager):
        del state_manager
        creator = self.shared_embedding_column_creator
        variables = creator._embedding_weights
        graph = tf.compat.v1.get_default_graph()._graph_key
        if graph not in variables:

            def create(shape, initializer):
                return tf.compat.v1.get_variable(
                    name=creator._name,
                    shape=shape,
                    dtype=tf.float32,
                    initializer=initializer,
                    trainable=creator._trainable,
                )

            shape = (self._num_rows, self._dim)
            variable = make_column_table(shape, creator._initializer, create, self._placement)
            if creator._ckpt_to_load_from is not None:
                restore_column_table(
                    variable, creator._ckpt_to_load_from, creator._tensor_name_in_ckpt
                )
            variables[graph] = variable
        return variables[graph]


class GroupedSharedEmbeddingColumnV1(InputLayerMember, fc_v1._SharedEmbeddingColumn):
    """See `tf.compat.v1.feature_column.shared_embedding_columns`.

    The variable is kept in a graph collection under the name that the columns share.
    """

    _stock = fc_v1._SharedEmbeddingColumn

    @property
    def _table_name(self):
        return self.shared_embedding_collection_name

    def _variable_v1(self, weight_collections, trainable):
        name = self.shared_embedding_collection_name
        shared = tf.compat.v1.get_collection(name)
        if len(shared) > 1:
            raise ValueError(
                f"collection {name!r}: expected the one variable that the shared embedding columns "
                f"keep there, got {len(shared)}: {shared}. Add nothing to it, or give the columns "
                f"another shared_embedding_collection_name."
            )
        if not shared:
            shared = [_get_variable_v1(self, weight_collections, trainable)]
            tf.compat.v1.add_to_collection(name, shared[0])
        self._check_shape(shared[0])
        return _restored(self, shared[0])

    def _check_shape(self, variable):
        expected = (self.categorical_column._num_buckets, self.dimension)
        if column_table_shape(variable) != expected:
            raise ValueError(
                f"collection {self.shared_embedding_collection_name!r}: expected a variable of "
                f"shape {expected} for the shared embedding column {self.name!r}, got "
                f"{variable.name!r} of shape {column_table_shape(variable)}. Give the columns "
                f"another shared_embedding_collection_name."
            )


GROUPED = {
    grouped._stock: grouped
    for grouped in (
        GroupedEmbeddingColumn,
        GroupedSharedEmbeddingColumn,
        GroupedSharedEmbeddingColumnV1,
    )
}


def _get_variable_v1(column, weight_collections, trainable):
    """The variable of a column in the variable scope that `input_layer` opened for it."""

    def create(shape, initializer):
        return tf.compat.v1.get_variable(
            name="embedding_weights",
            shape=shape,
            dtype=tf.float32,
            initializer=initializer,
            trainable=column.trainable and trainable,
            collections=weight_collections,
        )

    shape = (column._num_rows, column._dim)
    return make_column_table(shape, column.initializer, create, column._placement)


def _restored(column, variable):
    if column.ckpt_to_load_from is not None:
        restore_column_table(variable, column.ckpt_to_load_from, column.tensor_name_in_ckpt)
    return variable
