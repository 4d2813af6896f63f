"""The three classes of embedding columns of TensorFlow, each as a member of a group.

A column joins a group by being given another class, a subclass of its own: everything that the
stock class does stays as it is, except for the methods here, which ask the group for the result.
Each group has its own such classes. So membership is part of the type, and stays with a column
however it is copied: `deepcopy`, `_replace`, `tf.nest`, the tuple wrapper of Keras.
"""

import contextlib
import copy
import dataclasses

import tensorflow as tf
from tensorflow.python.feature_column import feature_column as fc_v1
from tensorflow.python.feature_column import feature_column_v2 as fc_v2
from tensorflow.python.feature_column import utils as fc_utils

from group_embedding.feature_column import input_layer
from group_embedding.feature_column.group import Request
from group_embedding.feature_column.variable import (
    as_table,
    make_table,
    restore_table,
    table_shape,
)

_SEQUENCE = (fc_v2.SequenceCategoricalColumn, fc_v1._SequenceCategoricalColumn)


def join(column, group):
    """Makes a stock column, just constructed, a member of `group`."""
    grouped = GROUPED.get(type(column))  # Subclasses that others derived are left alone.
    if grouped is not None:
        column.__class__ = group.member_class(grouped)
        group.add_table(column._table_name, column._num_rows, column._dim)


class _Member:
    """What the grouped classes share: who else is in the call, and copying."""

    _group = None  # Set in the classes of one group, see `Group.member_class`.
    _stock = None  # The class of TensorFlow.

    @property
    def _table_name(self):
        return self.name

    @property
    def _num_rows(self):
        return self.categorical_column._num_buckets

    @property
    def _dim(self):
        return self.dimension

    @property
    def _placement(self):
        """Where the rows of this column's table are, over several ranks."""
        return self._group.placement_of(self._table_name)

    @property
    def _is_sequence(self):
        return isinstance(self.categorical_column, _SEQUENCE)

    def _fellows(self, columns, kind):
        """The members of this group among `columns` that can be looked up beside this one."""
        return [
            column
            for column in columns
            if isinstance(column, kind)
            and column._group is self._group
            and column._is_sequence == self._is_sequence
        ]

    def __copy__(self):
        return self._make(self)

    def __deepcopy__(self, memo):
        return self._make(copy.deepcopy(field, memo) for field in self)

    def __reduce_ex__(self, protocol):
        # A pickle holds the stock column, so that reading it takes nothing but TensorFlow.
        return self._stock, tuple(self)


class _LayerMember(_Member):
    """The part asked by Keras layers, through a cache and a state manager."""

    def get_dense_tensor(self, transformation_cache, state_manager):
        if self._is_sequence:  # An error, which the stock method explains.
            return super().get_dense_tensor(transformation_cache, state_manager)
        return self._output(transformation_cache, state_manager)[0]

    def get_sequence_dense_tensor(self, transformation_cache, state_manager):
        if not self._is_sequence:  # The same.
            return super().get_sequence_dense_tensor(transformation_cache, state_manager)
        tensor, request = self._output(transformation_cache, state_manager)
        length = fc_utils.sequence_length_from_sparse_tensor(request.ids)
        return self.TensorSequenceLengthPair(dense_tensor=tensor, sequence_length=length)

    def _output(self, transformation_cache, state_manager):
        def gather(alone):
            requests = [self._request(transformation_cache, state_manager)]
            columns = [] if alone else input_layer.columns_of_layer(state_manager)
            for column in self._fellows(columns, _LayerMember):
                if column.name != self.name:
                    with _name_scope_of(column):
                        requests.append(column._request(transformation_cache, state_manager))
            return requests

        return self._group.serve(transformation_cache, self, gather)

    def _request(self, transformation_cache, state_manager):
        sparse = self.categorical_column.get_sparse_tensors(transformation_cache, state_manager)
        table = as_table(self._variable(state_manager))
        return Request(self, table, sparse.id_tensor, sparse.weight_tensor)


class _InputLayerMember(_Member):
    """The part asked by `input_layer`, through a `_LazyBuilder`.

    `_get_sequence_dense_tensor` of the same kind, which TensorFlow no longer calls, stays stock.
    """

    def _get_dense_tensor(self, inputs, weight_collections=None, trainable=None):
        if self._is_sequence:  # An error, which the stock method explains.
            return super()._get_dense_tensor(inputs, weight_collections, trainable)
        arguments = (inputs, weight_collections, trainable)

        def gather(alone):
            requests = [self._request_v1(*arguments)]
            columns = [] if alone else input_layer.columns_of_input_layer(inputs)
            later = input_layer.columns_after(self, columns)
            fellows = {column.name for column in self._fellows(later, _InputLayerMember)}
            # Closed also when a column raises, since variable scopes are open inside.
            ahead = input_layer.variable_scopes_ahead(self, later if fellows else [])
            with contextlib.closing(ahead):
                for column in ahead:
                    if column.name in fellows:
                        requests.append(column._request_ahead_v1(*arguments))
            return requests

        tensor, request = self._group.serve(inputs, self, gather)
        input_layer.add_to_collections(request.held)
        return tensor

    def _request_ahead_v1(self, builder, weight_collections, trainable):
        held = {}
        shared = getattr(self, "shared_embedding_collection_name", None)
        with _name_scope_of(self), input_layer.collections_held_back(held, keep=shared):
            request = self._request_v1(builder, weight_collections, trainable)
        return dataclasses.replace(request, held=held)

    def _request_v1(self, builder, weight_collections, trainable):
        sparse = self.categorical_column._get_sparse_tensors(builder, weight_collections, trainable)
        table = as_table(self._variable_v1(weight_collections, trainable))
        return Request(self, table, sparse.id_tensor, sparse.weight_tensor)


class GroupedEmbeddingColumn(_InputLayerMember, _LayerMember, fc_v2.EmbeddingColumn):
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

        make_table((self._num_rows, self._dim), self.initializer, create, self._placement)

    def _variable(self, state_manager):
        return _restored(self, state_manager.get_variable(self, name="embedding_weights"))

    def _variable_v1(self, weight_collections, trainable):
        if weight_collections and tf.compat.v1.GraphKeys.GLOBAL_VARIABLES not in weight_collections:
            weight_collections.append(tf.compat.v1.GraphKeys.GLOBAL_VARIABLES)
        return _restored(self, _get_variable_v1(self, weight_collections, trainable))


class GroupedSharedEmbeddingColumn(_LayerMember, fc_v2.SharedEmbeddingColumn):
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
            variable = make_table(shape, creator._initializer, create, self._placement)
            if creator._ckpt_to_load_from is not None:
                restore_table(variable, creator._ckpt_to_load_from, creator._tensor_name_in_ckpt)
            variables[graph] = variable
        return variables[graph]


class GroupedSharedEmbeddingColumnV1(_InputLayerMember, fc_v1._SharedEmbeddingColumn):
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
        if table_shape(variable) != expected:
            raise ValueError(
                f"collection {self.shared_embedding_collection_name!r}: expected a variable of "
                f"shape {expected} for the shared embedding column {self.name!r}, got "
                f"{variable.name!r} of shape {table_shape(variable)}. Give the columns "
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
    return make_table(shape, column.initializer, create, column._placement)


def _restored(column, variable):
    if column.ckpt_to_load_from is not None:
        restore_table(variable, column.ckpt_to_load_from, column.tensor_name_in_ckpt)
    return variable


def _name_scope_of(column):
    """Names the ops of one column when they are made while another one is asked."""
    return tf.name_scope(fc_v2._sanitize_column_name_for_variable_scope(column.name))
