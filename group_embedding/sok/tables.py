"""`Variable` and `DynamicVariable`: tables with a number of rows, and tables found by key."""

import itertools

import tensorflow as tf
from tensorflow.python.saved_model import registration

from group_embedding import exchange
from group_embedding.config import TABLE_DTYPES
from group_embedding.placement import DISTRIBUTED, localized_rank
from group_embedding.tables import tf_variable
from group_embedding.variables import (
    EmbeddingVariable,
    EmbeddingVariableOption,
    StorageOption,
    StorageType,
)
from group_embedding.variables.get_variable import KEY_DTYPES, check_dim, check_dtype

_MARK = "_group_embedding_sok"
_STORAGE = {
    None: StorageType.DRAM,
    "hbm": StorageType.HBM,
    "hybrid": StorageType.HBM_DRAM,
}
_numbers = {"sok_variable": itertools.count(), "sok_dynamic_Variable": itertools.count()}


def Variable(  # noqa: N802
    initial_value=None,
    trainable=True,
    name=None,
    dtype=None,
    shape=None,
    initializer=None,
    mode=DISTRIBUTED,
):
    """Makes a table of shape [rows, dim] whose rows are spread over the ranks.

    Give either `initial_value`, or `shape` and `initializer`; the same on all ranks.

    Args:
        initial_value: the whole table: an array, a tensor, or a callable that returns one.
        trainable: whether tapes watch it.
        name: of the table; None: a number of its own. Dumps know tables by it.
        dtype: None: that of `initial_value`, or float32.
        shape: of the whole table.
        initializer: of the whole table: one of TensorFlow or Keras, or its name.
        mode: 'distributed': rank r holds the rows r, r + N, ...; 'localized:<rank>': that one holds
            them all. None means 'distributed'.

    Returns:
        A tf.Variable with the rows of this rank. With one rank: all of them.

    Raises:
        ValueError: both ways at once or neither, a table that is not [rows, dim], another mode, or
            a rank that does not exist.

    Example:

    >>> table = ge.sok.Variable(np.arange(6).reshape(3, 2), dtype=tf.float32)
    >>> ids = tf.ragged.constant([[0, 2], []], dtype=tf.int64)
    >>> ge.sok.lookup_sparse(table, ids, combiners="sum").numpy().tolist()
    [[4.0, 6.0], [0.0, 0.0]]
    """
    name = name or _next_name("sok_variable")
    owner = f"table '{name}'"
    is_given = initial_value is not None
    if is_given == (initializer is not None) or (shape is None and not is_given):
        raise ValueError(
            f"{owner}: expected either initial_value, or shape and initializer, got "
            f"initial_value={initial_value!r}, shape={shape!r}, initializer={initializer!r}"
        )
    if is_given:
        initial_value = initial_value() if callable(initial_value) else initial_value
        start = tf.convert_to_tensor(initial_value, dtype)
        dtype = start.dtype
    else:
        start, dtype = tf.keras.initializers.get(initializer), dtype or tf.float32
    whole = tf.TensorShape(start.shape if is_given else shape)
    if whole.rank != 2 or not whole.is_fully_defined():
        raise ValueError(f"{owner}: expected shape [rows, dim], got {whole}")
    if shape is not None and not whole.is_compatible_with(shape):
        raise ValueError(f"{owner}: expected shape {shape}, got an initial_value of {whole}")

    def create(local_shape, rows):
        value = (lambda: rows(local_shape, dtype=dtype)) if callable(rows) else rows
        return tf.Variable(value, trainable=trainable, name=name, dtype=dtype)

    return mark_table(exchange.make_table(whole, start, create, check_mode(owner, mode)))


@registration.register_serializable(package="group_embedding")
class DynamicVariable(EmbeddingVariable):
    """A table with a row for every key that was trained: an EmbeddingVariable.

    Trained by `OptimizerWrapper`. Every integer of `key_type` is a key: none is kept back, and a
    key may come twice in a batch. Keys that are looked up and not trained read what they would
    start from, and take no memory; SOK inserts them. A key's version is the time, in microseconds
    since 1970, at which it was trained or assigned last.

    Args:
        dimension: length of a row, 1 to 4096.
        initializer: what rows start as: one of TensorFlow or Keras; a number, also as a string;
            'random' or None: uniform between -0.05 and 0.05. It draws 4,096 rows once; key k starts
            as row `k % 4096` of them.
        var_type: None: rows lie in host memory; 'hbm': in a GPU's; 'hybrid': in both.
        name: of the table; None: a number of its own. Dumps know tables by it.
        constraint: must be None.
        trainable: whether training changes the table.
        key_type: int64, int32, uint64 or uint32. None: int64. Lookups take ids of a narrower
            integer type too.
        dtype: of the rows: float32, float16 or bfloat16. None: float32.
        mode: 'distributed': keys are spread over the ranks; 'localized:<rank>': all are on that
            one. None means 'distributed'.
        **config: of a 'hybrid' table, `init_capacity` and `max_capacity`: the larger says for how
            many rows, without what optimizers keep of them, there is room in the GPU's memory;
            further ones lie in the host's. Others of SOK's are refused, as a table grows with its
            keys.

    Raises:
        TypeError, ValueError: an argument is not as above; the message names the table.

    Example:

    >>> table = ge.sok.DynamicVariable(dimension=2, initializer="13")
    >>> tf.nn.embedding_lookup(table, [7, 2**40]).numpy().tolist()
    [[13.0, 13.0], [13.0, 13.0]]
    >>> ge.sok.assign(table, [7], [[1., 2.]])
    >>> table.size.numpy().tolist()
    [1, 2]
    """

    def __init__(
        self,
        dimension,
        initializer=None,
        var_type=None,
        name=None,
        constraint=None,
        trainable=True,
        key_type=None,
        dtype=None,
        mode=None,
        **config,
    ):
        name = name or _next_name("sok_dynamic_Variable")
        owner = f"table '{name}'"
        if constraint is not None:
            raise ValueError(f"{owner}: expected no constraint, which no update of rows asks for")
        self.mode = check_mode(owner, mode)
        dtype = check_dtype(name, "dtype", dtype or tf.float32, TABLE_DTYPES)
        row_bytes = check_dim(name, dimension) * dtype.size
        super().__init__(
            name,
            dimension,
            check_dtype(name, "key_type", key_type or tf.int64, KEY_DTYPES),
            dtype,
            to_initializer(owner, initializer),
            trainable,
            ev_option=EmbeddingVariableOption(
                storage_option=storage_option(owner, var_type, row_bytes, **config)
            ),
            placement=self.mode,
        )
        # All ranks must give a checkpoint the same step, and their clocks differ.
        self.rows.current_step = lambda: None

    @property
    def dimension(self):
        """The length of a row."""
        return self.shape[1]

    @property
    def key_type(self):
        """The type of keys."""
        return self.key_dtype

    @property
    def size(self):
        """int64 [2]: how many keys have a row on this rank, and the length of a row."""
        return tf.stack([tf.cast(self.total_count(), tf.int64), self.dimension])

    def current_step(self):
        """Now, in microseconds since 1970."""
        with tf.device("/CPU:0"):
            return tf.cast(tf.timestamp() * 1e6, tf.int64)

    def sparse_read(self, indices, name=None):
        """The rows of keys, [..., dim]: what `tf.nn.embedding_lookup` calls. Over several ranks
        every rank must call it, with keys of its own."""
        from group_embedding.sok.lookup import all2all_dense_embedding  # which takes this class

        with tf.name_scope(name or "sparse_read"):
            return all2all_dense_embedding(self, indices)


def filter_variables(vars):
    """Splits variables into tables and all others, each in the order given.

    Tables are those of `Variable`, `DynamicVariable` and SOK's layers, EmbeddingVariables, and
    whatever else is spread over ranks: their gradients need no reduction.

    Args:
        vars: a list of variables, of TensorFlow or Keras.

    Returns:
        Two lists.

    Example:

    >>> dense, table = tf.Variable([1.]), ge.sok.Variable([[1., 2.]])
    >>> tables, others = ge.sok.filter_variables([dense, table])
    >>> len(tables), tables[0] is table, others[0] is dense
    (1, True, True)
    """
    tables, others = [], []
    for variable in vars:
        (tables if is_table(variable) else others).append(variable)
    return tables, others


def is_table(variable):
    """Whether `filter_variables` takes it for a table."""
    inner = tf_variable(variable)
    is_marked = isinstance(inner, EmbeddingVariable) or hasattr(inner, _MARK)
    return is_marked or exchange.exchange_of(variable) is not None


def mark_table(variable):
    """Has `is_table` know a tf.Variable, or one of Keras, which may be whole. Returns it."""
    setattr(tf_variable(variable), _MARK, True)
    return variable


def name_of(table):
    """The name under which a table is dumped."""
    shard = exchange.sharded_table(table)
    return shard.name if shard else tf_variable(table).name.partition(":")[0]


def check_mode(owner, mode):
    """The placement that a mode stands for."""
    mode = mode or DISTRIBUTED
    if mode == DISTRIBUTED or localized_rank(mode) is not None:
        return mode
    raise ValueError(
        f"{owner}: expected mode to be 'distributed' or 'localized:<rank>', got {mode!r}"
    )


def to_initializer(owner, initializer):
    """What SOK calls an initializer -> one of Keras."""
    if initializer is None or (isinstance(initializer, str) and initializer in ("", "random")):
        return tf.keras.initializers.RandomUniform(-0.05, 0.05)
    try:
        return tf.keras.initializers.Constant(float(initializer))
    except (TypeError, ValueError):
        pass
    try:
        return tf.keras.initializers.get(initializer)
    except ValueError as error:
        raise ValueError(
            f"{owner}: expected initializer to be 'random', a number, or an initializer of "
            f"TensorFlow or Keras, got {initializer!r}"
        ) from error


def storage_option(owner, var_type, row_bytes, init_capacity=None, max_capacity=None, **others):
    """The StorageOption of a DynamicVariable's var_type and configuration."""
    if var_type not in _STORAGE:
        raise ValueError(f"{owner}: expected var_type None, 'hbm' or 'hybrid', got {var_type!r}")
    capacities = {"init_capacity": init_capacity, "max_capacity": max_capacity}
    given = {name: rows for name, rows in capacities.items() if rows is not None}
    if var_type != "hybrid":
        others, given = {**given, **others}, {}
    if others:
        raise ValueError(
            f"{owner}: expected no {', '.join(others)}, as a table grows with its keys and chooses "
            "its parts itself; leave it out"
        )
    sizes = [int(max(given.values())) * row_bytes] if given else None
    return StorageOption(_STORAGE[var_type], storage_size=sizes)


def _next_name(prefix):
    return f"{prefix}_{next(_numbers[prefix])}"
