"""A step that a bad id ends changes nothing: neither values, keys, counts, filters nor versions of
any table of the call."""

import numpy as np
import pytest
import tensorflow as tf

import group_embedding as ge

NUM_ROWS, DIM = 5, 2
BAD = NUM_ROWS + 2
FILTERS = {
    "users": None,
    "items": ge.CounterFilter(filter_freq=3),
    "words": ge.CBFFilter(filter_freq=3, max_element_size=100, false_positive_probability=0.01),
}


class Model:
    """Three keyed tables and two by row, of two dtypes, trained by Adagrad."""

    def __init__(self, name):
        self.keyed = [
            ge.get_embedding_variable(
                f"{name}_{table}",
                DIM,
                initializer=tf.ones_initializer(),
                ev_option=ge.EmbeddingVariableOption(filter_option=filter_option),
            )
            for table, filter_option in FILTERS.items()
        ]
        self.by_row = [
            tf.Variable(tf.ones([NUM_ROWS, DIM], dtype), name=f"{name}_{dtype.name}")
            for dtype in (tf.float32, tf.bfloat16)
        ]
        self.optimizer = ge.optimizers.wrap(tf.keras.optimizers.Adagrad(0.1))
        self.tables = [*self.keyed, *self.by_row]
        for table in self.keyed:
            table.step = self.optimizer.iterations

    def step(self, keys, rows, rows16):
        """Keys of all keyed tables, [B]; rows of each by-row table, [B]."""
        ids = [keys, keys, keys, rows, rows16]
        sparse = [tf.RaggedTensor.from_row_splits(i, tf.range(tf.size(i) + 1)) for i in ids]
        with tf.GradientTape() as tape:
            found = ge.group_embedding_lookup_sparse(self.tables, sparse, "sum")
            loss = tf.add_n([tf.reduce_sum(tf.cast(rows, tf.float32)) for rows in found])
        self.optimizer.apply_gradients(zip(tape.gradient(loss, self.tables), self.tables))

    def state(self, keys):
        """All that a step may change, as bytes and numbers."""
        of_keys = [
            [part.numpy().tolist() for part in table.export()]
            + [table.get_frequency(keys).numpy().tolist(), table.get_version(keys).numpy().tolist()]
            for table in self.keyed
        ]
        slots = [v for v in self.optimizer.variables if v.shape == (NUM_ROWS, DIM)]
        plain = [tf.cast(v, tf.float32).numpy().tolist() for v in [*slots, *self.by_row]]
        return of_keys, plain


def eager(model):
    return model.step


def function(model):
    return tf.function(model.step)


@pytest.mark.parametrize("bad", ["rows", "rows16"])
@pytest.mark.parametrize("run", [eager, function])
def test_a_refused_step_changes_nothing(run, bad):
    # Given tables that were trained, with keys in filters that are not admitted yet
    model = Model(f"refused_{run.__name__}_{bad}")
    step, keys = run(model), tf.constant([7, 8, 2**40], tf.int64)
    rows = {"rows": tf.constant([0, 1, 2]), "rows16": tf.constant([2, 2, 4])}
    step(keys, **rows)
    seen = tf.constant([7, 8, 2**40, -1, 99], tf.int64)
    before = model.state(seen)
    # When a step has an id outside of one table, beside known and unknown keys
    new_keys = tf.constant([7, -1, 99], tf.int64)
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"id {BAD} of sample 2 is outside"):
        step(new_keys, **{**rows, bad: tf.constant([0, 1, BAD])})
    # Then nothing has changed, and the next step trains both
    assert model.state(seen) == before
    step(new_keys, **rows)
    assert model.keyed[0].get_frequency(seen).numpy().tolist() == [2, 1, 1, 1, 1]


def test_a_refused_step_of_a_session_changes_nothing():
    # Given a graph of TensorFlow 1 with two keyed tables and one by row
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        keyed = [ge.get_embedding_variable(f"session_{n}", DIM) for n in "ab"]
        table = tf.compat.v1.get_variable("rows", [NUM_ROWS, DIM], use_resource=True)
        keys, rows = (tf.compat.v1.placeholder(tf.int64, [None]) for _ in range(2))
        found = ge.group_embedding_lookup([*keyed, table], [keys, keys, rows])
        optimizer = ge.optimizers.wrap(tf.compat.v1.train.AdagradOptimizer(0.1))
        train = optimizer.minimize(tf.add_n([tf.reduce_sum(f) for f in found]))
        counts = [t.total_count() for t in keyed]
        session.run(tf.compat.v1.global_variables_initializer())
        session.run(train, {keys: [1, 2], rows: [0, 1]})
        before = session.run([*counts, table])
        # When a step is refused
        with pytest.raises(tf.errors.InvalidArgumentError, match="outside the table"):
            session.run(train, {keys: [3, 4], rows: [0, BAD]})
        # Then keys and rows are as they were
        for now, then in zip(session.run([*counts, table]), before):
            np.testing.assert_array_equal(now, then)


def test_a_dataset_refuses_ids_as_it_packs_them():
    # Given a dataset that packs the ids of a keyed table and of one by row
    keyed = ge.get_embedding_variable("packed", DIM)
    tables = [keyed, tf.Variable(tf.ones([NUM_ROWS, DIM]))]

    def pack(keys, rows):
        return ge.route_ids(tables, [keys, rows])

    dataset = tf.data.Dataset.from_tensor_slices(([1, 2], [0, BAD])).batch(1).map(pack)
    # When its batches train
    trained = []
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"id {BAD}"):
        for routed in dataset:
            with tf.GradientTape():
                ge.group_embedding_lookup(tables, routed)
            trained.append(int(keyed.total_count()))
    # Then the first has inserted its key, and the second none
    assert trained == [1] and int(keyed.total_count()) == 1


def test_ids_that_no_lookup_refuses_are_not_refused():
    # Given weights of which one leaves a bad id out, and negative ids, which are left out
    keyed = ge.get_embedding_variable("pruned", DIM, initializer=tf.ones_initializer())
    table = tf.Variable(tf.ones([NUM_ROWS, DIM]))
    keys = tf.ragged.constant([[3], [4]], dtype=tf.int64)
    ids = tf.ragged.constant([[0, BAD], [-1]], dtype=tf.int64)
    weights = tf.ragged.constant([[1.0, 0.0], [1.0]])
    # When they are looked up beside keys
    found = ge.group_embedding_lookup_sparse(
        [keyed, table], [keys, ids], "mean", sp_weights=[None, weights]
    )
    # Then the others are read
    np.testing.assert_array_equal(found[1], [[1, 1], [0, 0]])
    ignored = ge.group_embedding_lookup_sparse(
        [keyed, table], [keys, ids], "sum", invalid_ids="ignore"
    )
    np.testing.assert_array_equal(ignored[1], [[1, 1], [0, 0]])
