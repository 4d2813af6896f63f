"""SOK version 1's Keras layers: `DistributedEmbedding` and `All2AllDenseEmbedding`."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tensorflow.python.eager import record

from group_embedding.compat.sok.lookup import all2all_dense_embedding, lookup_sparse
from group_embedding.compat.sok.sok_tables import mark_table, to_initializer
from group_embedding.config import COMBINERS, TABLE_DTYPES, check_choice
from group_embedding.lookups import tf_variable
from group_embedding.placement import DISTRIBUTED
from group_embedding.ranks import exchange
from group_embedding.ranks.sharding import assign_rows, gather_rows, make_table
from group_embedding.types import DTypeLike, Initializer
from group_embedding.variables import (
    KEY_DTYPES,
    KeyedOptions,
    NotForXla,
    add_weight_as_it_is,
    check_dtype,
    keyed_variables,
    refuse_xla_trace,
    track_weight,
    widened,
)

_register = tf.keras.utils.register_keras_serializable("group_embedding")
_MAX_INITIAL_ROWS = 4096


class _Embedding(NotForXla, tf.keras.layers.Layer):
    """One table, which all slots share."""

    def __init__(
        self,
        max_vocabulary_size_per_gpu,
        embedding_vec_size,
        slot_num,
        use_hashtable=True,
        key_dtype=None,
        embedding_initializer=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.max_vocabulary_size_per_gpu = max_vocabulary_size_per_gpu
        self.embedding_vec_size = embedding_vec_size
        self.slot_num = slot_num
        self.use_hashtable = use_hashtable
        self.key_dtype = check_dtype(self.name, "key_dtype", key_dtype or tf.int64, KEY_DTYPES)
        self.embedding_initializer = embedding_initializer
        for argument in ("max_vocabulary_size_per_gpu", "embedding_vec_size", "slot_num"):
            self._check_count(argument)
        self._table = mark_table(self._make_table())
        track_weight(self, self._table, "table")

    @property
    def embedding_variable(self) -> Any:
        """The table, or what of it this rank has."""
        return self._table

    def get_config(self):
        initializer = self.embedding_initializer
        if initializer is not None and not isinstance(initializer, str):
            initializer = tf.keras.initializers.serialize(initializer)
        return {
            **super().get_config(),
            "max_vocabulary_size_per_gpu": self.max_vocabulary_size_per_gpu,
            "embedding_vec_size": self.embedding_vec_size,
            "slot_num": self.slot_num,
            "use_hashtable": self.use_hashtable,
            "key_dtype": self.key_dtype.name,
            "embedding_initializer": initializer,
        }

    def save_own_variables(self, store):
        """The whole table, on each rank. One that is found by key says that it has no array."""
        store["0"] = gather_rows(tf_variable(self._table)).numpy()

    def load_own_variables(self, store):
        assign_rows(self._table, store["0"][...])

    def _make_table(self):
        owner = f"layer '{self.name}'"
        dtype = check_choice(owner, "dtype", self.variable_dtype, TABLE_DTYPES)
        start = to_initializer(owner, self.embedding_initializer)
        num_rows = self.max_vocabulary_size_per_gpu * exchange.current().num_ranks
        dim = self.embedding_vec_size

        def create(shape, initializer):
            return add_weight_as_it_is(
                self, name="table", shape=shape, dtype=dtype, initializer=initializer
            )

        if not self.use_hashtable:
            return make_table((num_rows, dim), start, create, DISTRIBUTED)
        options = KeyedOptions(num_initial_rows=min(num_rows, _MAX_INITIAL_ROWS))
        with keyed_variables(
            embedding_dim=dim,
            key_dtype=self.key_dtype,
            value_dtype=tf.as_dtype(dtype),
            initializer=start,
            ev_option=options,
            placement=DISTRIBUTED,
        ):
            return create((0, dim), "zeros")

    def _look_up(self, look_up, ids, training, **kwargs):
        refuse_xla_trace(self.name)
        ids = widened(ids, self.key_dtype)
        if ids.dtype != self.key_dtype:
            raise TypeError(
                f"layer '{self.name}': expected keys of {self.key_dtype.name}, its key_dtype, got "
                f"{ids.dtype.name}"
            )
        table = tf_variable(self._table)
        if training is not False:
            return tf.cast(look_up(table, ids, **kwargs), self.compute_dtype)
        with record.stop_recording():
            rows = look_up(table, ids, **kwargs)
        return tf.stop_gradient(tf.cast(rows, self.compute_dtype))

    def _check_count(self, argument):
        count = getattr(self, argument)
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise ValueError(
                f"layer '{self.name}': expected {argument} to be a positive int, got {count!r}"
            )


@_register
class DistributedEmbedding(_Embedding):
    """Looks up sparse keys of many slots in one table and combines those of each slot.

    Gradients are sums over the ranks, as of `sok.lookup_sparse`. Where Keras has a policy of mixed
    precision, rows are kept in its variable type and returned in its compute type.

    Args:
        combiner: 'mean', 'sum' or 'sqrtn', in upper or lower case.
        max_vocabulary_size_per_gpu: rows on each rank. With a hash table there is no bound: key k
            starts as row `k % n` of the n rows that the initializer draws, which are as many as
            this times the number of ranks, and at most 4,096.
        embedding_vec_size: length of a row, 1 to 4096.
        slot_num: how many rows of the input make a sample.
        max_nnz: the most columns that inputs may have; those whose shape says more are refused.
        max_feature_num: 1 or `slot_num * max_nnz`: nothing is laid out for it.
        use_hashtable: True: any integer of `key_dtype` is a key, and gets a row only when it is
            trained. False: keys are numbers of rows, below `max_vocabulary_size_per_gpu` times the
            number of ranks; others are errors, and negative ones left out.
        key_dtype: int64, uint32, int32 or uint64. None: int64.
        embedding_initializer: of TensorFlow or Keras, or its name. None: uniform between -0.05 and
            0.05.
        **kwargs: of `tf.keras.layers.Layer`.

    Call with a SparseTensor [batch * slot_num, max_nnz] of keys: returns [batch, slot_num,
    embedding_vec_size]. With `training=False` keys get no rows and there is no gradient.

    Raises:
        TypeError: inputs that are not sparse, or keys of another type.
        ValueError: an argument or an input of another form.

    Example:

    >>> layer = ge.sok.DistributedEmbedding("Mean", 100, 4, slot_num=2, max_nnz=3,
    ...                                     embedding_initializer="ones")
    >>> keys = tf.sparse.from_dense(tf.constant([[7, 8, 0], [9, 0, 0]], tf.int64))
    >>> layer(keys).shape.as_list()
    [1, 2, 4]
    """

    def __init__(
        self,
        combiner: str,
        max_vocabulary_size_per_gpu: int,
        embedding_vec_size: int,
        slot_num: int,
        max_nnz: int,
        max_feature_num: int = 1,
        use_hashtable: bool = True,
        key_dtype: DTypeLike | None = None,
        embedding_initializer: Initializer = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            max_vocabulary_size_per_gpu,
            embedding_vec_size,
            slot_num,
            use_hashtable,
            key_dtype,
            embedding_initializer,
            **kwargs,
        )
        owner = f"layer '{self.name}'"
        self.combiner = check_choice(owner, "combiner", str(combiner).lower(), COMBINERS)
        self.max_nnz = max_nnz
        self._check_count("max_nnz")
        if max_feature_num not in (1, slot_num * max_nnz):
            raise ValueError(
                f"{owner}: expected max_feature_num to be 1 or slot_num * max_nnz = "
                f"{slot_num * max_nnz}, as nothing is laid out for it; leave it out, got "
                f"{max_feature_num!r}"
            )
        self.max_feature_num = max_feature_num

    def get_config(self) -> dict[str, Any]:
        own = ("combiner", "max_nnz", "max_feature_num")
        return {**super().get_config(), **{name: getattr(self, name) for name in own}}

    def call(self, inputs: Any, training: bool = True) -> tf.Tensor:
        if not isinstance(inputs, tf.SparseTensor):
            raise TypeError(
                f"layer '{self.name}': expected a SparseTensor, got {type(inputs).__name__}"
            )
        rows, columns = inputs.shape
        if columns is not None and columns > self.max_nnz:
            raise ValueError(
                f"layer '{self.name}': expected at most max_nnz = {self.max_nnz} columns, got "
                f"{columns}"
            )
        if rows is not None and rows % self.slot_num:
            raise ValueError(
                f"layer '{self.name}': expected a multiple of slot_num = {self.slot_num} rows, "
                f"got {rows}"
            )
        vectors = self._look_up(lookup_sparse, inputs, training, combiners=self.combiner)
        return tf.reshape(vectors, [-1, self.slot_num, self.embedding_vec_size])

    def compute_output_shape(self, input_shape: Any) -> Any:
        rows = input_shape[0]
        batch = None if rows is None else rows // self.slot_num
        return (batch, self.slot_num, self.embedding_vec_size)


@_register
class All2AllDenseEmbedding(_Embedding):
    """Looks up dense keys of many slots in one table, each by itself.

    Gradients, mixed precision and `training` are as of `DistributedEmbedding`.

    Args:
        max_vocabulary_size_per_gpu, embedding_vec_size, slot_num: see `DistributedEmbedding`.
        use_hashtable, key_dtype, embedding_initializer, **kwargs: see `DistributedEmbedding`.
        nnz_per_slot: how many keys each slot of a sample has.
        dynamic_input: True: inputs are any number of keys.

    Call with keys [batch, slot_num, nnz_per_slot], or of another shape with as many keys: returns
    [batch, slot_num, nnz_per_slot, embedding_vec_size]. With `dynamic_input`, with keys [n]:
    returns [n, embedding_vec_size].

    Raises:
        TypeError: keys of another type.
        ValueError: an argument or an input of another form.

    Example:

    >>> layer = ge.sok.All2AllDenseEmbedding(100, 4, slot_num=2, nnz_per_slot=1)
    >>> layer(tf.constant([[[7], [8]], [[9], [7]]], tf.int64)).shape.as_list()
    [2, 2, 1, 4]
    """

    def __init__(
        self,
        max_vocabulary_size_per_gpu: int,
        embedding_vec_size: int,
        slot_num: int,
        nnz_per_slot: int,
        dynamic_input: bool = False,
        use_hashtable: bool = True,
        key_dtype: DTypeLike | None = None,
        embedding_initializer: Initializer = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            max_vocabulary_size_per_gpu,
            embedding_vec_size,
            slot_num,
            use_hashtable,
            key_dtype,
            embedding_initializer,
            **kwargs,
        )
        self.nnz_per_slot = nnz_per_slot
        self.dynamic_input = dynamic_input
        self._check_count("nnz_per_slot")

    def get_config(self) -> dict[str, Any]:
        own = ("nnz_per_slot", "dynamic_input")
        return {**super().get_config(), **{name: getattr(self, name) for name in own}}

    def call(self, inputs: Any, training: bool = True) -> tf.Tensor:
        keys = tf.convert_to_tensor(inputs)
        per_sample = self.slot_num * self.nnz_per_slot
        if self.dynamic_input:
            if keys.shape.rank not in (None, 1):
                raise ValueError(
                    f"layer '{self.name}': expected keys of rank 1, as dynamic_input says, got "
                    f"shape {keys.shape}"
                )
        elif keys.shape.num_elements() is not None and keys.shape.num_elements() % per_sample:
            raise ValueError(
                f"layer '{self.name}': expected slot_num * nnz_per_slot = {per_sample} keys for "
                f"each sample, got shape {keys.shape}"
            )
        else:
            keys = tf.reshape(keys, [-1, self.slot_num, self.nnz_per_slot])
        return self._look_up(all2all_dense_embedding, keys, training)

    def compute_output_shape(self, input_shape: Any) -> Any:
        if self.dynamic_input:
            return (input_shape[0], self.embedding_vec_size)
        return (input_shape[0], self.slot_num, self.nnz_per_slot, self.embedding_vec_size)
