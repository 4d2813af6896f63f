"""Tables whose columns are spread over ranks: what ranks do with them, and one process."""

from types import SimpleNamespace

import numpy as np
import tensorflow as tf
from support.cases.placed_rows import (
    NUM_SAMPLES,
    as_function,
    as_ragged,
    make_rows,
    my_samples,
    packed,
    packed_sums,
    whole_gradient,
)

import group_embedding as ge
from group_embedding import exchange
from group_embedding.lookups.lookup_table import Table
from group_embedding.lookups.lookup_table import make_table as lookup_table
from group_embedding.ranks.sharding.make_sharded_table import restore_table
from group_embedding.ranks.sharding.sharded_table import gather_rows, sharded_table
from group_embedding.serving.publish.shard_rows import ShardRows
from group_embedding.training.compiled_step import CompiledStep

v1 = tf.compat.v1
NUM_STEPS = 3
# name: rows, dim (a multiple of 2 and 3), placement
TABLES = {
    "user": (50, 12, "columns"),
    "item": (7, 24, "columns:sums"),
    "shop": (20, 8, "distributed"),
    "day": (9, 6, "columns"),
    "page": (30, 4, "distributed:sums"),
}
# table, combiner
FEATURES = [
    ("user", "mean"),
    ("user", "sum"),
    ("item", "sqrtn"),
    ("item", "mean"),
    ("shop", "mean"),
    ("day", "sqrtn"),
    ("page", "sum"),
]
OPTIMIZERS = {
    "adagrad": lambda **clip: tf.keras.optimizers.Adagrad(0.1, **clip),
    "adam": lambda **clip: tf.keras.optimizers.Adam(0.05, **clip),
}
WEIGHTED = {"adagrad": False, "adam": True}  # whether each trains with weights
ROW_OPTIMIZERS = {
    "RowwiseAdagrad": lambda: ge.optimizers.RowwiseAdagrad(0.1),
    "RowwiseAdam": lambda: ge.optimizers.RowwiseAdam(0.1),
    "Lamb": lambda: ge.optimizers.Lamb(0.1),
}


def whole_tables():
    rng = np.random.default_rng(1)
    return {
        name: rng.normal(size=(rows, dim)).astype(np.float32)
        for name, (rows, dim, _) in TABLES.items()
    }


def make_tables(suffix):
    return {
        name: make_rows(f"{name}_{suffix}", value, TABLES[name][2])
        for name, value in whole_tables().items()
    }


def my_batch(weighted, step=0):
    """This rank's part of a batch: per feature its ids, and weights or None."""
    rng = np.random.default_rng(10 + step)
    ids, weights = [], []
    for table, _ in FEATURES:
        counts = rng.integers(0, 7, NUM_SAMPLES)
        drawn = [rng.integers(-1, TABLES[table][0], n).tolist() for n in counts]  # -1 is left out
        given = [rng.choice([-1.0, 0.0, 0.5, 2.0], n).tolist() for n in counts]
        ids.append(as_ragged(drawn[my_samples()], tf.int64))
        has_weights = weighted and table not in ("shop", "day")
        weights.append(as_ragged(given[my_samples()], tf.float32) if has_weights else None)
    return ids, weights if weighted else None


def look_up(tables, ids, weights):
    params = [tables[name] for name, _ in FEATURES]
    combiners = [combiner for _, combiner in FEATURES]
    return ge.group_embedding_lookup_sparse(params, ids, combiners, sp_weights=weights)


def look_up_routed(tables, ids, weights):
    params = [tables[name] for name, _ in FEATURES]
    combiners = [combiner for _, combiner in FEATURES]
    routed = ge.route_ids(params, ids, combiners, sp_weights=weights)
    return ge.group_embedding_lookup_sparse(params, routed, combiners)


def outputs():
    """{(way, weighted): the outputs of this rank}"""
    tables = make_tables("looked_up")
    ways = {"eager": look_up, "function": tf.function(look_up), "routed": look_up_routed}
    found = {
        (way, weighted): [out.numpy() for out in call(tables, *my_batch(weighted))]
        for way, call in ways.items()
        for weighted in (False, True)
    }
    for weighted in (False, True):
        with tf.Graph().as_default(), v1.Session() as session:
            results = look_up(make_tables("session"), *my_batch(weighted))
            session.run(v1.global_variables_initializer())
            found["session", weighted] = session.run(results)
    return found


def train(kind, weighted, make=as_function, clip=None):
    """The tables after some steps, in which tables are looked up twice each."""
    suffix = f"{kind}_{weighted}_{make.__name__}_{bool(clip)}"
    tables = make_tables(suffix)
    optimizer = ge.DistributedOptimizer(ge.optimizers.wrap(OPTIMIZERS[kind](**(clip or {}))))
    variables = list(tables.values())

    def step(ids, weights):
        with tf.GradientTape() as tape:
            results = look_up(tables, ids, weights)
            loss = tf.add_n([tf.reduce_sum(out * out) for out in results])
            loss *= exchange.current().num_ranks  # of whose losses the mean is trained
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        return loss

    step = make(step)
    for number in range(NUM_STEPS):
        step(*my_batch(weighted, number))
    return {name: gather_rows(table).numpy() for name, table in tables.items()}


def train_ahead():
    """Two tables of one dtype by columns, whose rows go ahead of the step."""
    whole = whole_tables()
    tables = [make_rows(f"{name}_ahead", whole[name], "columns") for name in ("user", "day")]
    optimizer = ge.DistributedOptimizer(ge.optimizers.wrap(tf.keras.optimizers.Adam(0.05)))
    batches = [my_batch(False, step)[0] for step in range(NUM_STEPS)]
    batches = [[ids[0], ids[5]] for ids in batches]

    def route(ids):
        return ge.route_ids(tables, ids, "sum")

    exchange.current().ahead = exchange.current().num_ranks > 1
    try:
        routed = route(batches[0])
        for step in range(NUM_STEPS):
            with tf.GradientTape() as tape:
                results = ge.group_embedding_lookup_sparse(tables, routed, "sum")
                loss = tf.add_n([tf.reduce_sum(out * out) for out in results])
                loss *= exchange.current().num_ranks
            routed = route(batches[(step + 1) % NUM_STEPS])
            optimizer.apply_gradients(zip(tape.gradient(loss, tables), tables))
    finally:
        exchange.current().ahead = False
    return [gather_rows(table).numpy() for table in tables]


def gradients():
    """The gradients of rows that are scaled to max_norm, and of weights. All ranks look the same
    samples up; the gradient of a table is their mean."""
    table = make_rows("scaled", whole_tables()["user"], "columns")
    weights = tf.ragged.constant([[1.0, 2.0, 0.5], [], [3.0]])
    with tf.GradientTape() as tape:
        tape.watch(weights.flat_values)
        (output,) = ge.group_embedding_lookup_sparse(
            [table],
            [tf.ragged.constant([[1, 2, 9], [], [1]])],
            "mean",
            sp_weights=[weights],
            max_norm=1.0,
        )
        loss = tf.reduce_sum(output**3)
    of_rows, of_weights = tape.gradient(loss, [table, weights.flat_values])
    rows = whole_gradient(table, tf.convert_to_tensor(of_rows))
    return {"output": output.numpy(), "rows": rows, "weights": of_weights.numpy()}


def partial(word):
    """A step of Adam in which one of two features of a table has no gradient."""
    name = f"partial_{word.replace(':', '_')}"
    table = make_rows(name, whole_tables()["user"], word)
    optimizer = ge.DistributedOptimizer(ge.optimizers.wrap(tf.keras.optimizers.Adam(0.1)))
    for ids in ([[3, 4]], [[1, 2]]):
        with tf.GradientTape() as tape:
            trained, _ = ge.group_embedding_lookup_sparse(
                [table] * 2, [tf.ragged.constant([[1, 2]]), tf.ragged.constant([*ids, [5]])], "sum"
            )
            loss = tf.reduce_sum(trained)
        optimizer.apply_gradients([(tape.gradient(loss, table), table)])
    return gather_rows(table).numpy()


def dense():
    """Ids of a dense lookup, and rows in bfloat16."""
    whole, rank = whole_tables()["item"], exchange.current().rank
    table = make_rows("dense", whole, "columns:sums")
    half = make_rows("half", tf.cast(whole, tf.bfloat16), "columns")
    found = ge.group_embedding_lookup([table, half], [tf.constant([[3, rank], [3, 3]])] * 2)
    return [tf.cast(rows, tf.float32).numpy() for rows in found]


def crossings_and_loads():
    """How many collective ops a step of all tables has; and of a table whose ids all lie on rank 0,
    the bytes that this rank sends by rows and by columns."""

    @tf.function
    def step(tables, ids):
        with tf.GradientTape() as tape:
            found = ge.group_embedding_lookup_sparse(tables, ids, "sum")
            loss = tf.add_n([tf.reduce_sum(out) for out in found])
        return [tf.convert_to_tensor(g) for g in tape.gradient(loss, tables)]

    num_ranks, sent = exchange.current().num_ranks, {}
    skewed = tf.RaggedTensor.from_tensor(num_ranks * tf.range(200)[:, None])
    for word in ("distributed", "columns"):
        tables = [make_rows(f"skewed_{word}", np.zeros([200 * num_ranks, 96], np.float32), word)]
        step(tables, [skewed])
        before = sum(exchange.current().use().sent_bytes)
        step(tables, [skewed])
        sent[word] = sum(exchange.current().use().sent_bytes) - before
    tables = make_tables("crossing")
    params = [tables[name] for name, _ in FEATURES]
    graph = tf.function(lambda: step.python_function(params, my_batch(False)[0]))
    ops = graph.get_concrete_function().graph.get_operations()
    crossings = sum(op.type.startswith("GroupEmbedding>Host") for op in ops)
    return {"crossings": crossings, "sent": sent}


def error_of(call):
    try:
        call()
    except (ValueError, tf.errors.InvalidArgumentError) as error:
        return str(error)
    return "no error"


def errors():
    """{what was asked for: the message}"""
    rank, whole = exchange.current().rank, whole_tables()
    table = make_rows("refusing", whole["user"], "columns")
    sums_table = make_rows("refusing_sums", whole["user"], "columns:sums")

    def look_up(table, row=1, **options):
        ids = [tf.ragged.constant([[row]], dtype=tf.int64)]
        return ge.group_embedding_lookup_sparse(
            [table], ids, "sum", feature_names=["clicks"], **options
        )

    def train(make):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(look_up(table)[0])
        optimizer = ge.DistributedOptimizer(make())
        optimizer.apply_gradients([(tape.gradient(loss, table), table)])

    calls = {
        "dim": lambda: make_rows("odd", np.zeros([5, 7], np.float32), "columns"),
        "keys": lambda: ge.get_embedding_variable("keys_by_columns", 4, placement="columns:sums"),
        "max_norm": lambda: look_up(sums_table, max_norm=1.0),
        "owner_of": lambda: ge.owner_of(table, [1]),
        "export": lambda: ge.sok.export(table),
        "publish": lambda: ShardRows("refusing", sharded_table(table), table.numpy),
        "assign": lambda: ge.sok.assign(table, [1], np.zeros([1, 12], np.float32)),
        "id": lambda: look_up(table, 99 if rank == 1 else 1),
        "id of sums": lambda: look_up(sums_table, 99 if rank == 1 else 1),
        **{name: lambda make=make: train(make) for name, make in ROW_OPTIMIZERS.items()},
    }
    return {what: error_of(call) for what, call in calls.items()}


def run_all():
    return {
        "outputs": outputs(),
        "trained": {kind: train(kind, weighted) for kind, weighted in WEIGHTED.items()},
        "clipped": {
            name: train("adam", False, clip={name: 0.5}) for name in ("clipnorm", "global_clipnorm")
        },
        "compiled": train("adam", True, CompiledStep),
        "ahead": train_ahead(),
        "gradients": gradients(),
        "dense": dense(),
    }


def run_on_rank():
    ge.enable_distributed_strategy()
    found = run_all()
    with packed_sums():
        found["packed"] = train("adam", True, packed)
    found["partial"] = {word: partial(word) for word in ("columns", "columns:sums")}
    found["held"] = {name: tuple(t.shape) for name, t in make_tables("held").items()}
    found["errors"] = errors()
    return {**found, **crossings_and_loads()}


def train_and_save(folder):
    """Trains tables in a graph, and saves them: the path, and the whole tables and slots."""
    ge.enable_distributed_strategy()
    with tf.Graph().as_default(), v1.Session() as session:
        train_op, saver = trained_graph()
        session.run(v1.global_variables_initializer())
        for _ in range(NUM_STEPS):
            session.run(train_op)
        return saver.save(session, f"{folder}/model")


def restore_and_train(path):
    """The whole tables as restored, and after another step."""
    ge.enable_distributed_strategy()
    with tf.Graph().as_default(), v1.Session() as session:
        train_op, saver = trained_graph()
        variables = sorted(v1.global_variables(), key=lambda variable: variable.name)
        whole = {variable.name: gather_rows(variable) for variable in variables}
        saver.restore(session, path)
        before = session.run(whole)
        session.run(train_op)
        return before, session.run(whole)


def restore_one(path):
    """A table that starts from that of a checkpoint, as a whole."""
    ge.enable_distributed_strategy()
    table = make_rows("started", np.zeros_like(whole_tables()["item"]), "columns:sums")
    restore_table(table, path, "item_saved")
    return gather_rows(table).numpy()


def trained_graph():
    tables = make_tables("saved")
    results = look_up(tables, *my_batch(True))
    loss = tf.add_n([tf.reduce_sum(out * out) for out in results]) * exchange.current().num_ranks
    adam = ge.optimizers.wrap(v1.train.AdamOptimizer(0.1))
    train_op = ge.DistributedOptimizer(adam).minimize(loss, var_list=list(tables.values()))
    return train_op, ge.Saver()


def save_objects(folder):
    """Saves a table, and the optimizer's slots, as objects; each rank to a path of its own."""
    table, optimizer = _stepped()
    return tf.train.Checkpoint(table=table, optimizer=optimizer).write(
        f"{folder}/{exchange.current().rank}/model"
    ), gather_rows(table).numpy()


def restore_objects(path):
    """The table as restored, and after a step with the slots restored."""
    table, optimizer = _stepped()
    tf.train.Checkpoint(table=table, optimizer=optimizer).restore(path).expect_partial()
    restored = gather_rows(table).numpy()
    _step(table, optimizer)
    return restored, gather_rows(table).numpy()


def _stepped():
    ge.enable_distributed_strategy()
    table = make_rows("saved_object", whole_tables()["user"], "columns")
    optimizer = ge.optimizers.wrap(tf.keras.optimizers.Adam(0.1))
    _step(table, ge.DistributedOptimizer(optimizer))
    return table, optimizer


def _step(table, optimizer):
    with tf.GradientTape() as tape:
        ids = tf.ragged.constant([[1, 2], [5]])
        (out,) = ge.group_embedding_lookup_sparse([table], [ids], "sum")
        loss = tf.reduce_sum(out**2)
    optimizer.apply_gradients([(tape.gradient(loss, table), table)])


def disagree():
    ge.enable_distributed_strategy()
    word = "columns" if exchange.current().rank else "columns:sums"
    table = make_rows("disagreed", whole_tables()["user"], word)
    return error_of(
        lambda: ge.group_embedding_lookup_sparse([table], [tf.ragged.constant([[1]])], "sum")
    )


def table_on_a_gpu(monkeypatch):
    """A table by columns that says it is on a GPU."""
    source = SimpleNamespace(placement=ge.placement.Placement("columns"))
    monkeypatch.setattr(Table, "exchange", property(lambda self: exchange.current()))
    monkeypatch.setattr(Table, "device_type", property(lambda self: "GPU"))
    table = lookup_table(tf.Variable(tf.zeros([2, 2]), name="on_gpu"), None, 0)
    return table.with_source(source, tf.float32)
