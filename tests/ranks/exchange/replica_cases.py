"""Programs that test_replicas.py runs in a process of several devices.

They are in a module of their own, since a started process finds functions by module name.
"""

import numpy as np
import tensorflow as tf
from ranks.exchange import test_exchange

import group_embedding as ge
from group_embedding import exchange, sok
from group_embedding.lookups.lookup_table import tf_variable

NUM_DEVICES = 4
NUM_KEYS, DIM, SLOTS, NNZ, BATCH = 50, 4, 3, 3, 12
COMBINERS = ["mean", "sum", "sqrtn"]
RULES = {  # by whose name tables of keys know their slots
    "sgd": lambda: tf.keras.optimizers.SGD(0.5, name="sgd"),
    "adagrad": lambda: tf.keras.optimizers.Adagrad(0.1, name="adagrad"),
    "adam": lambda: tf.keras.optimizers.Adam(0.01, name="adam"),
}


_names = []


def start_devices(kind):
    """Must come before anything else of TensorFlow in the process. `kind`: CPU or GPU, of which
    there are parts of the first where there are fewer."""
    physical = tf.config.list_physical_devices(kind)
    if len(physical) < NUM_DEVICES:
        megabytes = 2048 if kind == "GPU" else None
        parts = [tf.config.LogicalDeviceConfiguration(memory_limit=megabytes)] * NUM_DEVICES
        tf.config.set_logical_device_configuration(physical[0], parts)
    _names.extend(device.name for device in tf.config.list_logical_devices(kind))


def strategy_of(num_replicas):
    # Collectives of TensorFlow itself are of as many devices as the first of a process.
    return tf.distribute.MirroredStrategy(
        _names[:num_replicas],
        cross_device_ops=tf.distribute.ReductionToOneDevice(),
    )


class Model(tf.Module):
    """A table for each combiner, of rows or of keys, and a dense variable."""

    def __init__(self, rule, kind):
        start = np.random.default_rng(1).normal(size=[NUM_KEYS, DIM]).astype(np.float32)
        if kind == "rows":
            self.tables = [sok.Variable(start, name=combiner) for combiner in COMBINERS]
        else:
            self.layers = [
                sok.DistributedEmbedding(combiner, NUM_KEYS, DIM, SLOTS, NNZ, name=combiner)
                for combiner in COMBINERS
            ]
            self.tables = [layer.embedding_variable for layer in self.layers]
            for table in self.tables:
                sok.Saver().load_embedding_values(table, start)
        self.kind = kind
        width = len(COMBINERS) * SLOTS * DIM
        self.dense = tf.Variable(np.linspace([-1], [1], width, dtype=np.float32))
        self.for_tables = ge.DistributedOptimizer(ge.optimizers.wrap(RULES[rule]()))
        self.for_dense = RULES[rule]()
        self.for_dense.build([self.dense])  # Keras 3 cannot in a function of a strategy

    def look_up(self, keys):
        if self.kind == "keys":
            return [layer(keys) for layer in self.layers]
        return sok.lookup_sparse(self.tables, [keys] * len(COMBINERS), combiners=COMBINERS)

    def step(self, keys, labels):
        with tf.GradientTape() as tape:
            vectors = [tf.reshape(v, [-1, SLOTS * DIM]) for v in self.look_up(keys)]
            error = tf.concat(vectors, axis=-1) @ self.dense - labels
            loss = tf.reduce_sum(error**2) / BATCH
        of_tables, of_dense = tape.gradient(loss, [list(self.tables), [self.dense]])
        self.for_tables.apply_gradients(zip(of_tables, self.tables))
        self.for_dense.apply_gradients(zip(of_dense, [self.dense]))
        return loss

    def values(self):
        """The rows of all keys of each table, and the dense variable."""
        rows = [sok.export(table)[1].numpy()[:NUM_KEYS] for table in self.tables]
        return [*rows, self.dense.numpy()]


def batch_of(step):
    """Keys [BATCH * SLOTS, NNZ], -1 where there is none, and labels."""
    rng = np.random.default_rng(step)
    keys = rng.integers(0, NUM_KEYS, [BATCH * SLOTS, NNZ])
    keys[rng.random(keys.shape) < 0.4] = -1
    return keys, rng.normal(size=[BATCH, 1]).astype(np.float32)


def to_sparse(keys):
    present = keys >= 0
    return tf.SparseTensor(np.argwhere(present), keys[present], keys.shape)


def train(model, steps):
    step = tf.function(model.step, reduce_retracing=True)
    for i in steps:
        keys, labels = batch_of(i)
        step(to_sparse(keys), tf.constant(labels))
    return model


def train_over_replicas(strategy, model, steps):
    """With parts of the batch of different sizes."""

    @tf.function(reduce_retracing=True)
    def step(keys, labels):
        return strategy.run(model.step, (keys, labels))

    for i in steps:
        parts = parts_of_batch(*batch_of(i), strategy.num_replicas_in_sync)
        step(*(spread(strategy, values) for values in zip(*parts)))
    return model


def parts_of_batch(keys, labels, num_parts):
    """Cuts a batch into parts of random sizes, some of them 0."""
    rng = np.random.default_rng(np.uint32(keys.sum()))
    ends = [0, *np.sort(rng.integers(0, BATCH + 1, num_parts - 1)), BATCH]
    return [
        (to_sparse(keys[begin * SLOTS : end * SLOTS]), tf.constant(labels[begin:end]))
        for begin, end in zip(ends, ends[1:])
    ]


def spread(strategy, values):
    """One value for each replica."""
    return strategy.experimental_distribute_values_from_function(
        lambda context: values[context.replica_id_in_sync_group]
    )


def make(num_replicas, rule, kind):
    """A strategy and a model in it; of no replicas: one of one process."""
    if num_replicas == 0:
        with exchange.unsharded():
            return None, Model(rule, kind)
    strategy = strategy_of(num_replicas)
    with strategy.scope():
        sok.Init(global_batch_size=BATCH * num_replicas)
        return strategy, Model(rule, kind)


def go_on(strategy, model, steps):
    if strategy is None:
        return train(model, steps)
    return train_over_replicas(strategy, model, steps)


def values_after_training(num_replicas, rule, kind, num_steps):
    return go_on(*make(num_replicas, rule, kind), range(num_steps)).values()


def look_up_routed(num_replicas, kind):
    """Each replica's results of a lookup of ids, and of ids routed in an earlier run."""
    strategy, model = make(num_replicas, "sgd", kind)
    params = model.tables

    def look_up(ids):
        ids = ids if isinstance(ids, ge.RoutedIds) else [ids] * len(params)
        return ge.group_embedding_lookup_sparse(params, ids, COMBINERS, concat=True)

    def route(ids):
        return ge.route_ids(params, [ids] * len(params), COMBINERS)

    keys = [ids for ids, _ in parts_of_batch(*batch_of(0), num_replicas)]
    ids = spread(strategy, keys)
    run = tf.function(lambda function, ids: strategy.run(function, (ids,)))
    found = [run(look_up, ids), run(look_up, run(route, ids))]
    return [[v.numpy() for v in strategy.experimental_local_results(values)] for values in found]


def checkpoint_of(model):
    # Variables of Keras 3 save nothing but an array.
    tables = [tf_variable(table) for table in model.tables]
    return tf.train.Checkpoint(
        tables=tables, dense=model.dense, optimizers=[model.for_tables, model.for_dense]
    )


def train_and_save(num_replicas, kind, prefix):
    """The values after 10 steps, saved after 5."""
    strategy, model = make(num_replicas, "adagrad", kind)
    go_on(strategy, model, range(5))
    checkpoint_of(model).write(prefix)
    return go_on(strategy, model, range(5, 10)).values()


def restore_and_train(num_replicas, kind, prefix):
    strategy, model = make(num_replicas, "adagrad", kind)
    model.for_tables.build(model.tables)
    checkpoint_of(model).read(prefix).assert_existing_objects_matched()
    return go_on(strategy, model, range(5, 10)).values()


def first_values(num_replicas, num_rows):
    """Values of 4 * num_rows keys in the first replica; their initial rows are those of a matrix of
    `num_rows`."""
    strategy = strategy_of(num_replicas)
    matrix = ge.InitializerOption(default_value_dim=num_rows)
    with strategy.scope():
        sok.Init(global_batch_size=BATCH)
        option = ge.EmbeddingVariableOption(init_option=matrix)
        table = ge.get_embedding_variable("items", DIM, ev_option=option)
    num_keys = 4 * num_rows
    one_each = [[key, 0] for key in range(num_keys)]
    keys = tf.SparseTensor(one_each, tf.range(num_keys, dtype=tf.int64), [num_keys, 1])

    @tf.function
    def look_up():
        return strategy.run(lambda: sok.lookup_sparse([table], [keys], combiners=["sum"])[0])

    return strategy.experimental_local_results(look_up())[0].numpy()


def documented_loop(num_replicas):
    """The custom loop of SOK version 1's documents, with stock optimizers: the losses."""
    strategy = strategy_of(num_replicas)
    with strategy.scope():
        sok.Init(global_batch_size=BATCH)
        layer = sok.All2AllDenseEmbedding(
            NUM_KEYS, DIM, SLOTS, NNZ, use_hashtable=False, embedding_initializer="ones"
        )
        dense = tf.keras.layers.Dense(1, kernel_initializer="ones")
        dense.build([None, SLOTS * NNZ * DIM])
        embedding_optimizer = tf.keras.optimizers.Adam(0.1)
        dense_optimizer = tf.keras.optimizers.Adam(0.1)
        dense_optimizer.build(dense.trainable_variables)

    def train_step(keys, labels):
        with tf.GradientTape() as tape:
            vectors = tf.reshape(layer(keys), [-1, SLOTS * NNZ * DIM])
            errors = (dense(vectors) - labels) ** 2
            loss = tf.nn.compute_average_loss(errors, global_batch_size=BATCH)
        variables = [*layer.trainable_variables, *dense.trainable_variables]
        tables, others = sok.split_embedding_variable_from_others(variables)
        of_tables, of_others = tape.gradient(loss, [tables, others])
        with sok.OptimizerScope(tables):
            embedding_optimizer.apply_gradients(
                zip(of_tables, tables), experimental_aggregate_gradients=False
            )
        dense_optimizer.apply_gradients(zip(of_others, others))
        return loss

    @tf.function
    def step(keys, labels):
        losses = strategy.run(train_step, (keys, labels))
        return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)

    rng = np.random.default_rng(0)
    keys = rng.integers(0, NUM_KEYS, [10 * BATCH, SLOTS, NNZ])
    labels = rng.normal(size=[10 * BATCH, 1]).astype(np.float32)
    dataset = tf.data.Dataset.from_tensor_slices((keys, labels)).batch(BATCH)
    batches = strategy.experimental_distribute_dataset(dataset)
    stock = tf.keras.optimizers.Optimizer.apply_gradients
    losses = [float(step(*batch)) for batch in batches]
    assert tf.keras.optimizers.Optimizer.apply_gradients is stock
    return losses


def updates_of_step(num_replicas):
    """The types of the ops that update tables."""
    strategy, model = make(num_replicas, "adagrad", "rows")
    keys, labels = batch_of(0)

    @tf.function
    def step():
        return strategy.run(model.step, (to_sparse(keys), tf.constant(labels)))

    types = [op.type for op in step.get_concrete_function().graph.get_operations()]
    return [name for name in types if name.startswith("GroupEmbedding>GroupUpdate")]


def overflow(num_replicas):
    """The rows of a table after a step, one in which a gradient overflows on the last replica,
    and a third; and what the second multiplied the scale of the loss by."""
    strategy = strategy_of(num_replicas)
    with strategy.scope():
        sok.Init()
        table = sok.Variable(np.ones([12, DIM], np.float32), name="scaled")
        optimizer = ge.DistributedOptimizer(ge.optimizers.wrap(tf.keras.optimizers.SGD(0.5)))
        optimizer = tf.keras.mixed_precision.LossScaleOptimizer(optimizer)
        optimizer.build([table])

    def train(ids, factor):
        with tf.GradientTape() as tape:
            loss = factor * tf.reduce_sum(ge.group_embedding_lookup([table], [ids])[0])
            scaled = (getattr(optimizer, "get_scaled_loss", None) or optimizer.scale_loss)(loss)
        gradients = tape.gradient(scaled, [table])
        gradients = getattr(optimizer, "get_unscaled_gradients", list)(gradients)
        optimizer.apply_gradients(zip(gradients, [table]))

    step = tf.function(lambda *args: strategy.run(train, args), reduce_retracing=True)
    # Rows of its own: no other replica sees the infinity.
    ids = [tf.range(rank, 12, num_replicas, dtype=tf.int64) for rank in range(num_replicas)]
    rows, scales = [], []
    for last in (1.0, np.inf, 1.0):
        factors = [tf.constant(1.0)] * (num_replicas - 1) + [tf.constant(last)]
        step(spread(strategy, ids), spread(strategy, factors))
        rows.append(sok.export(table)[1].numpy())
        scale = (
            optimizer.loss_scale if hasattr(optimizer, "loss_scale") else optimizer.dynamic_scale
        )
        scales.append(float(tf.convert_to_tensor(scale)))
    return rows, scales[1] / scales[0]


def conform(num_replicas):
    """The suite that all implementations pass, as far as it is eager: functions and sessions of one
    rank alone do not meet those of others. What each replica passed it with."""
    strategy, ranks = ranks_of(num_replicas)

    def check():
        here = this_rank(ranks)
        test_exchange.check_alltoall(here, lambda function: function, test_exchange.DTYPES)
        test_exchange.check_reductions(here, lambda function: function)
        test_exchange.check_barrier(here, lambda function: function)

    strategy.run(check)
    return [(type(rank).__name__, rank.rank, rank.num_ranks) for rank in ranks]


def ranks_of(num_replicas):
    strategy = strategy_of(num_replicas)
    with strategy.scope():
        sok.Init()
    return strategy, exchange.current().of_this_process


def this_rank(ranks):
    rank = tf.distribute.get_replica_context().replica_id_in_sync_group
    return ranks[int(tf.get_static_value(rank))]


def sent_around(num_replicas, in_function):
    """The data that each replica receives, and the gradient of the data that it sent."""
    strategy, ranks = ranks_of(num_replicas)

    def send():
        here = this_rank(ranks)
        tensor = 10.0 * here.rank + tf.range(6.0)
        with tf.GradientTape() as tape:
            tape.watch(tensor)
            received, splits = here.alltoall(tensor, tf.constant([1, 2, 3]), "send")
            total = tf.reduce_sum(received * (here.rank + 1))
        return received, splits, tape.gradient(total, tensor)

    sent = strategy.run(tf.function(send) if in_function else send)
    return [[v.numpy().tolist() for v in strategy.experimental_local_results(s)] for s in sent]
