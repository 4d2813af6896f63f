"""Training with and without ids that are routed ahead: programs of ranks. A rank loads this file
alone, without other modules of the tests."""

import numpy as np
import tensorflow as tf
from tensorflow.python.ops.data_flow_ops import StagingArea

import group_embedding as ge
from group_embedding import exchange
from group_embedding.distributed import enable_distributed_strategy
from group_embedding.ranks.sharding.make_sharded_table import make_table

v1 = tf.compat.v1
NUM_STEPS, DIM = 6, 3
ROWS = {"user": 23, "item": 5, "local": 7}  # the last one's table is on each rank
COMBINERS = {"user": "mean", "item": "sum", "local": "sum", "keyed": "sqrtn"}
MAX_NORMS = [0.5, None, None, None]
APIS = ["eager", "function", "session"]


def arrays_of(step):
    """This rank's ids and how many each sample has, by feature: uneven, and every third step none
    but on one rank."""
    rank = exchange.current().rank
    rng = np.random.default_rng([step, rank])
    num_samples = rng.integers(1, 6) if step % 3 else 2 * (rank == 0)
    arrays = {}
    for name in COMBINERS:
        lengths = rng.integers(0, 3, num_samples)
        arrays[f"{name}_lengths"] = lengths.astype(np.int64)
        arrays[f"{name}_ids"] = rng.integers(0, 5, lengths.sum()).astype(np.int64)
    return arrays


def to_ids(arrays):
    """Ragged and sparse ids."""
    rows = [
        tf.RaggedTensor.from_row_lengths(arrays[f"{name}_ids"], arrays[f"{name}_lengths"])
        for name in COMBINERS
    ]
    return [rows[0], rows[1].to_sparse(), *rows[2:]]


def weights_of(ids, weighted):
    """Some of them 0; of the first feature alone, or of none."""
    if not weighted:
        return None
    return [ids[0].with_values(tf.cast(ids[0].values % 3, tf.float32)), None, None, None]


class Model:
    """Tables over the ranks by row and by key and one on each, and a dense variable.

    storage: of the keys, a StorageOption; None: host memory. weighted: whether ids have weights.
    """

    def __init__(self, create, storage=None, weighted=True):
        self.tables, self.weighted = [], weighted
        for name, num_rows in ROWS.items():
            value = np.random.default_rng(num_rows).normal(size=(num_rows, DIM))
            self.tables.append(
                make_table(
                    (num_rows, DIM),
                    lambda shape, dtype=None, value=value: tf.constant(value, tf.float32),
                    lambda shape, initializer, name=name: create(name, initializer(shape)),
                    "replicated" if name == "local" else None,
                )
            )
        initializer = tf.keras.initializers.RandomUniform(seed=3)
        option = ge.EmbeddingVariableOption(storage_option=storage or ge.StorageOption())
        self.keyed = ge.get_embedding_variable(
            "keyed", DIM, initializer=initializer, ev_option=option
        )
        self.tables.append(self.keyed)
        self.kernel = create("kernel", tf.ones([len(COMBINERS) * DIM, 1]))
        self.variables = [*self.tables, self.kernel]
        self._options = {
            "combiners": list(COMBINERS.values()),
            "max_norm": MAX_NORMS,
            "feature_names": list(COMBINERS),
        }

    def route(self, arrays):
        ids = to_ids(arrays)
        weights = weights_of(ids, self.weighted)
        return ge.route_ids(self.tables, ids, sp_weights=weights, **self._options)

    def route_packed(self, packed):
        return ge.route_ids(self.tables, packed, **self._options)

    def loss(self, batch):
        """The loss of a batch of arrays, or of the batch routed ahead."""
        weights = None
        if not isinstance(batch, ge.RoutedIds):
            batch = to_ids(batch)
            weights = weights_of(batch, self.weighted)
        vectors = ge.group_embedding_lookup_sparse(
            self.tables, batch, sp_weights=weights, concat=True, **self._options
        )
        return tf.reduce_sum(tf.tanh(vectors @ self.kernel) ** 2)


def eager_model(*of_model):
    return Model(lambda name, value: tf.Variable(value, name=name), *of_model)


def train_keras(ahead, in_function, *of_model):
    model = eager_model(*of_model)
    optimizer = ge.DistributedOptimizer(ge.optimizers.wrap(tf.keras.optimizers.Adagrad(0.3)))

    def step(batch, next_arrays):
        with tf.GradientTape() as tape:
            loss = model.loss(batch)
        routed_next = model.route(next_arrays) if ahead else None
        gradients = tape.gradient(loss, model.variables)
        optimizer.apply_gradients(zip(gradients, model.variables))
        return loss, routed_next

    if in_function:
        step = tf.function(step, reduce_retracing=True)
    of_steps = [to_tensors(arrays_of(i)) for i in range(NUM_STEPS + 1)]
    batch = model.route(of_steps[0]) if ahead else of_steps[0]
    losses = []
    for next_arrays in of_steps[1:]:
        loss, routed_next = step(batch, next_arrays)
        batch = routed_next if ahead else next_arrays
        losses.append(loss.numpy())
    return {
        "losses": losses,
        "values": [np.asarray(v) for v in model.variables if v is not model.keyed],
        "keyed": [part.numpy() for part in model.keyed.export()],
    }


def packed_by_a_dataset(model):
    """The batches of all steps as a dataset has them, whose threads pack several at once."""
    steps = tf.data.Dataset.range(NUM_STEPS + 1)
    names = sorted(arrays_of(0))

    def read(step):
        columns = tf.numpy_function(
            lambda step: [arrays_of(int(step))[name] for name in names],
            [step],
            [tf.int64] * len(names),
        )
        return {n: tf.ensure_shape(column, [None]) for n, column in zip(names, columns)}

    return steps.map(read).map(model.route, num_parallel_calls=3).prefetch(3)


def train_on_a_dataset(ahead, *of_model):
    """Trains as `train_keras` does in a function. The dataset packs ids; the step exchanges
    them, or with `ahead` those of the next batch, by `route_ids` of packed ids."""
    model = eager_model(*of_model)
    optimizer = ge.DistributedOptimizer(ge.optimizers.wrap(tf.keras.optimizers.Adagrad(0.3)))

    @tf.function
    def step(batch, next_batch):
        with tf.GradientTape() as tape:
            loss = model.loss(batch)
        routed_next = model.route_packed(next_batch) if ahead else next_batch
        gradients = tape.gradient(loss, model.variables)
        optimizer.apply_gradients(zip(gradients, model.variables))
        return loss, routed_next

    batches = iter(packed_by_a_dataset(model))
    batch, losses = next(batches), []
    if ahead:
        batch = model.route_packed(batch)
    for next_batch in batches:
        loss, batch = step(batch, next_batch)
        losses.append(loss.numpy())
    return {
        "losses": losses,
        "values": [np.asarray(v) for v in model.variables if v is not model.keyed],
        "keyed": [part.numpy() for part in model.keyed.export()],
        "traces": step.experimental_get_tracing_count(),
    }


def train_on_datasets(*of_model):
    """Beside the same training without packed ids, under False."""
    plain = train_keras(False, True, *of_model)
    return plain, [train_on_a_dataset(ahead, *of_model) for ahead in (False, True)]


def train_on_datasets_on_rank(weighted):
    enable_distributed_strategy()
    return train_on_datasets(None, weighted)


def to_tensors(arrays):
    return {name: tf.constant(array) for name, array in arrays.items()}


def train_in_session(ahead, *of_model):
    with tf.Graph().as_default(), v1.Session() as session:
        model = Model(lambda name, value: v1.get_variable(name, initializer=value), *of_model)
        arrays = {
            name: v1.placeholder(tf.int64, [None], f"in_{name}") for name in arrays_of(0)
        }  # of the next batch, when ids go ahead
        batch, routed_next = arrays, []
        if ahead:
            batch, routed_next = through_a_stage(model.route(arrays))
        loss = model.loss(batch)
        optimizer = ge.DistributedOptimizer(ge.optimizers.wrap(v1.train.AdagradOptimizer(0.3)))
        train_op = optimizer.minimize(loss, var_list=model.variables)
        session.run(v1.global_variables_initializer())

        def feed(step):
            return {arrays[name]: array for name, array in arrays_of(step).items()}

        if ahead:
            session.run(routed_next, feed(0))
        losses = [
            session.run([loss, train_op, routed_next], feed(step + ahead))[0]
            for step in range(NUM_STEPS)
        ]
        values = session.run([v for v in model.variables if v is not model.keyed])
        keyed = session.run(list(model.keyed.export()))
    return {"losses": losses, "values": values, "keyed": keyed}


def through_a_stage(routed):
    """The batch that was routed in the run before, and the op that keeps this one for the next
    run."""
    tensors = tf.nest.flatten(routed, expand_composites=True)
    stage = StagingArea([tensor.dtype for tensor in tensors], [tensor.shape for tensor in tensors])
    put = stage.put(tensors)
    return tf.nest.pack_sequence_as(routed, stage.get(), expand_composites=True), put


def train(api, *of_model):
    """{whether ids go ahead: what was trained}."""
    if api == "session":
        return {ahead: train_in_session(ahead, *of_model) for ahead in (False, True)}
    return {ahead: train_keras(ahead, api == "function", *of_model) for ahead in (False, True)}


def train_on_rank(api, *of_model):
    enable_distributed_strategy()
    return train(api, *of_model)


def train_with_rows_on_rank(api, *of_model):
    """Trains as `train_on_rank` does; rows go ahead where ids do."""
    enable_distributed_strategy()
    ranks = exchange.current()
    ranks.ahead = True
    try:
        return train(api, *of_model)
    finally:
        ranks.ahead = False


def assert_same(results):
    for name in ("losses", "values", "keyed"):
        for off, on in zip(results[False][name], results[True][name], strict=True):
            np.testing.assert_array_equal(on, off)


def assert_trained(results):
    assert np.any(results[True]["values"][-1] != 1)


def count_traces_on_rank():
    enable_distributed_strategy()
    model = eager_model()
    function = tf.function(model.loss)
    for step in range(4):
        function(model.route(to_tensors(arrays_of(step))))
    return function.experimental_get_tracing_count()


def graph_of_a_step(model):
    """The graph of a step that uses routed ids, and routes the next batch."""

    @tf.function
    def step(routed, next_arrays):
        with tf.GradientTape() as tape:
            loss = model.loss(routed)
        routed_next = model.route(next_arrays)
        gradients = tape.gradient(loss, model.variables)
        return loss, [tf.convert_to_tensor(gradient) for gradient in gradients], routed_next

    arrays = to_tensors(arrays_of(1))
    return step.get_concrete_function(model.route(arrays), arrays).graph


def types_of_ops_before_on_rank():
    """{type of an op: the types of all that such ops of a step wait for}."""
    enable_distributed_strategy()
    graph = graph_of_a_step(eager_model())
    return {of: types_of_ops_before(graph, of) for of in ("GroupEmbedding>ReadRequests", "MatMul")}


def types_of_ops_on_rank(*of_model):
    """The types of the ops of a step."""
    enable_distributed_strategy()
    operations = graph_of_a_step(eager_model(*of_model)).get_operations()
    return {operation.type for operation in operations}


def types_of_ops_before(graph, op_type):
    waiting, found = [op for op in graph.get_operations() if op.type == op_type], set()
    while waiting:
        op = waiting.pop()
        if op not in found:
            found.add(op)
            waiting += [*(tensor.op for tensor in op.inputs), *op.control_inputs]
    return {op.type for op in found}
