"""Base of the grouped columns. TensorFlow asks a column for its tensor through one of two
interfaces, and the column asks its group."""

import contextlib
import copy
import dataclasses

import tensorflow as tf
from tensorflow.python.feature_column import feature_column as fc_v1
from tensorflow.python.feature_column import feature_column_v2 as fc_v2
from tensorflow.python.feature_column import utils as fc_utils

from group_embedding.feature_column import input_layer
from group_embedding.feature_column.group import Request
from group_embedding.feature_column.variable import as_table

_SEQUENCE = (fc_v2.SequenceCategoricalColumn, fc_v1._SequenceCategoricalColumn)


class Member:
    """Base of the grouped column classes: the columns of one call, and copying."""

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
        """The placement of this column's table over several ranks."""
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

    def _ask(self, table, sparse):
        """The Request for the rows that an IdWeightPair names."""
        ids, weights = sparse.id_tensor, sparse.weight_tensor
        if self._is_sequence and ids.shape.rank is None:
            shape = tf.ensure_shape(ids.dense_shape, [3])  # [batch, time, ids]
            ids = tf.SparseTensor(ids.indices, ids.values, shape)
        return Request(self, table, ids, weights_of(ids, weights))

    def __copy__(self):
        return self._make(self)

    def __deepcopy__(self, memo):
        return self._make(copy.deepcopy(field, memo) for field in self)

    def __reduce_ex__(self, protocol):
        # A pickle holds the stock column, so that reading it takes nothing but TensorFlow.
        return self._stock, tuple(self)


class LayerMember(Member):
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
            for column in self._fellows(columns, LayerMember):
                if column.name != self.name:
                    with _name_scope_of(column):
                        requests.append(column._request(transformation_cache, state_manager))
            return requests

        return self._group.serve(transformation_cache, self, gather)

    def _request(self, transformation_cache, state_manager):
        sparse = self.categorical_column.get_sparse_tensors(transformation_cache, state_manager)
        table = as_table(self._variable(state_manager))
        return self._ask(table, sparse)


class InputLayerMember(Member):
    """The part asked by `input_layer`, through a `_LazyBuilder`."""

    def _get_dense_tensor(self, inputs, weight_collections=None, trainable=None):
        if self._is_sequence:  # An error, which the stock method explains.
            return super()._get_dense_tensor(inputs, weight_collections, trainable)
        arguments = (inputs, weight_collections, trainable)

        def gather(alone):
            requests = [self._request_v1(*arguments)]
            columns = [] if alone else input_layer.columns_of_input_layer(inputs)
            later = input_layer.columns_after(self, columns)
            fellows = {column.name for column in self._fellows(later, InputLayerMember)}
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

    def _get_sequence_dense_tensor(self, inputs, weight_collections=None, trainable=None):
        """The method that `tf.contrib.feature_column.sequence_input_layer` calls."""
        if not self._is_sequence:  # An error, which the stock method explains.
            return super()._get_sequence_dense_tensor(inputs, weight_collections, trainable)

        def gather(alone):
            del alone
            return [self._request_v1(inputs, weight_collections, trainable)]

        tensor, request = self._group.serve(inputs, self, gather)
        length = fc_utils.sequence_length_from_sparse_tensor(request.ids)
        return self.TensorSequenceLengthPair(dense_tensor=tensor, sequence_length=length)

    def _request_ahead_v1(self, builder, weight_collections, trainable):
        held = {}
        shared = getattr(self, "shared_embedding_collection_name", None)
        with _name_scope_of(self), input_layer.collections_held_back(held, keep=shared):
            request = self._request_v1(builder, weight_collections, trainable)
        return dataclasses.replace(request, held=held)

    def _request_v1(self, builder, weight_collections, trainable):
        sparse = self.categorical_column._get_sparse_tensors(builder, weight_collections, trainable)
        table = as_table(self._variable_v1(weight_collections, trainable))
        return self._ask(table, sparse)


def _name_scope_of(column):
    """Names the ops of one column when they are made while another one is asked."""
    return tf.name_scope(fc_v2._sanitize_column_name_for_variable_scope(column.name))


def weights_of(ids, weights):
    """Weights like `ids`. Those that came as a list, [ids, 1], belong to the ids in their order, as
    stock lookups take them."""
    if weights is None:
        return None
    is_list = weights.shape.rank == 2 and tf.compat.dimension_value(weights.shape[1]) == 1
    if is_list or not weights.shape.is_compatible_with(ids.shape):
        return tf.SparseTensor(ids.indices, weights.values, ids.dense_shape)
    return weights
