"""A group of plain and keyed tables, and what is done to it and to its single tables."""

import tensorflow as tf

import group_embedding as ge
from group_embedding.keras_compat import keras

ROWS, RATE, MOMENTUM = 2000, 0.25, 0.5
# {name: (dim, whether it is by key, whether it is trained)}
TABLES = {
    "first": (2, False, True),
    "second": (3, False, True),
    "frozen": (2, False, False),
    "last": (4, False, True),
    "keys": (2, True, True),
    "frozen_keys": (3, True, False),
}
TRAINED = [name for name, (_, _, is_trained) in TABLES.items() if is_trained]
PART = ["second", "frozen", "keys"]
ACTIONS = ["read", "write", "look_up", "train", "train_part"]
START = {name: 1.0 + t for t, name in enumerate(TABLES)}


class Group:
    """The tables, all rows of which are equal at any time, and what can be done to them: each of
    ACTIONS takes a number, and returns a list of tensors and ops.

    Args:
        optimizer: of SGD with momentum, of Keras or of TensorFlow 1.
        name: what tables' names begin with.
        keyed_name: what those of keyed tables begin with; None: the same.
        num_rows: of each table.
    """

    def __init__(self, optimizer, name, keyed_name=None, num_rows=ROWS):
        self.num_rows = num_rows
        self.names = {False: name, True: keyed_name or name}  # by whether tables are keyed
        self.ids = tf.RaggedTensor.from_row_splits(
            tf.range(num_rows, dtype=tf.int64), tf.range(num_rows + 1, dtype=tf.int64)
        )
        self.tables = {table: self._make(table) for table in TABLES}
        self.optimizer = ge.optimizers.wrap(optimizer)
        if hasattr(self.optimizer, "build"):
            self.optimizer.build([self.tables[name] for name in TRAINED])

    def _make(self, table):
        dim, is_keyed, is_trained = TABLES[table]
        start, name = keras.initializers.Constant(START[table]), f"{self.names[is_keyed]}_{table}"
        if is_keyed:
            return ge.get_embedding_variable(name, dim, trainable=is_trained, initializer=start)
        return tf.Variable(start([self.num_rows, dim]), trainable=is_trained, name=name)

    def read(self, _):
        """Reads each table by itself."""
        return [self._read(self.tables[name]) for name in TABLES]

    def _read(self, table):
        is_keyed = hasattr(table, "table_handle")
        return table.sparse_read(self.ids.values) if is_keyed else table.read_value()

    def write(self, number):
        """Writes a table as a whole, another one row by row, and a keyed one key by key."""
        first, last, keys = (self.tables[name] for name in ("first", "last", "keys"))
        rows = self.ids.values[:, None]
        return [
            first.assign(tf.fill([self.num_rows, 2], number)),
            last.scatter_nd_update(rows, tf.fill([self.num_rows, 4], number + 1)),
            keys.insert(self.ids.values, tf.fill([self.num_rows, 2], number + 2)),
        ]

    def look_up(self, _, names=tuple(TABLES)):
        """Looks a group of tables up."""
        tables = [self.tables[name] for name in names]
        return ge.group_embedding_lookup_sparse(tables, [self.ids] * len(tables), "sum")

    def train(self, _, names=tuple(TABLES)):
        """Looks a group of tables up, and trains each row towards 0."""
        trained = [self.tables[name] for name in names if name in TRAINED]
        with tf.GradientTape() as tape:
            vectors = self.look_up(_, names)
            loss = sum(tf.reduce_sum(v * v) for v in vectors) / 2
        applied = self.optimizer.apply_gradients(zip(tape.gradient(loss, trained), trained))
        return [*vectors, *([applied] if isinstance(applied, tf.Operation) else [])]

    def train_part(self, number):
        """Trains a group that shares tables with the other one."""
        return self.train(number, PART)


class Oracle:
    """The actions of a `Group` on one number for each table, which all its rows consist of."""

    def __init__(self):
        self.values, self.velocities = dict(START), dict.fromkeys(START, 0.0)

    def read(self, _):
        return list(self.values.values())

    def write(self, number):
        written = {"first": number, "last": number + 1, "keys": number + 2}
        self.values.update(written)
        self.velocities["keys"] = 0.0  # a key that is inserted starts with new slots
        return []

    def look_up(self, _, names=TABLES):
        return [self.values[name] for name in names]

    def train(self, _, names=TABLES):
        found = self.look_up(_, names)
        for name in set(names) & set(TRAINED):
            velocity = MOMENTUM * self.velocities[name] - RATE * self.values[name]
            self.velocities[name] = velocity
            self.values[name] += velocity
        return found

    def train_part(self, number):
        return self.train(number, PART)


def sgd():
    return keras.optimizers.SGD(RATE, momentum=MOMENTUM)


def actions_of(group):
    """{name: a function of a number}."""
    return {action: getattr(group, action) for action in ACTIONS}


def function_of(action):
    return tf.function(lambda number: tensors_of(action(number)))


def tensors_of(values):
    """Leaves operations out of a structure of lists."""
    if isinstance(values, list):
        return [tensors_of(value) for value in values if not isinstance(value, tf.Operation)]
    return values
