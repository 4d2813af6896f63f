"""Tables whose owners send sums of rows: what ranks do with them, and one process."""

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
from group_embedding.ranks.sharding.sharded_table import gather_rows
from group_embedding.training.compiled_step import CompiledStep

v1 = tf.compat.v1
NUM_STEPS = 3
KEYS = np.array([-5, 0, 3, 1 << 40, -(1 << 62), 77, 78, 79])
# name: rows, dim, placement
TABLES = {
    "user": (50, 4, "distributed:sums"),
    "item": (7, 16, "localized:1:sums"),
    "shop": (20, 8, "distributed"),
}
# table, combiner; the keyed table is 'keys'
FEATURES = [
    ("user", "mean"),
    ("user", "sum"),
    ("item", "sqrtn"),
    ("shop", "mean"),
    ("keys", "mean"),
    ("keys", "sum"),
]
OPTIMIZERS = {
    "adagrad": lambda: tf.keras.optimizers.Adagrad(0.1),
    "adam": lambda: tf.keras.optimizers.Adam(0.05),
}
WEIGHTED = {"adagrad": False, "adam": True}  # whether each trains with weights


def whole_tables():
    rng = np.random.default_rng(1)
    return {
        name: rng.normal(size=(rows, dim)).astype(np.float32)
        for name, (rows, dim, _) in TABLES.items()
    }


def whole_batch(weighted, step=0):
    """Per feature the ids of each sample, and their weights or None."""
    rng = np.random.default_rng(10 + step)
    ids, weights = [], []
    for table, _ in FEATURES:
        counts = rng.integers(0, 7, NUM_SAMPLES)
        known = KEYS if table == "keys" else np.arange(-1, TABLES[table][0])  # -1 is left out
        ids.append([rng.choice(known, n).tolist() for n in counts])
        drawn = [rng.choice([-1.0, 0.0, 0.5, 2.0], n).tolist() for n in counts]
        weights.append(drawn if weighted and table != "shop" else None)
    return ids, weights


def exact_sums(feature, ids, weights):
    """A feature's outputs in float64, and the sums of the sizes of what they add up."""
    name, combiner = feature
    outputs, sizes = [], []
    for s, of_sample in enumerate(ids):
        rows = [exact_row(name, i) for i in of_sample]
        given = np.array([1.0] * len(rows) if weights is None else weights[s])
        counts = np.array([name == "keys" or i >= 0 for i in of_sample], bool)
        if combiner != "sum":
            counts &= given > 0
        used, given = np.array(rows).reshape(-1, dim_of(name))[counts], given[counts]
        factor = {"sum": 1.0, "mean": given.sum(), "sqrtn": np.sqrt((given**2).sum())}[combiner]
        products = given[:, None] * used / (factor or 1.0)
        outputs.append(products.sum(0))
        sizes.append(np.abs(products).sum(0))
    return np.array(outputs), np.array(sizes)


def dim_of(name):
    return 3 if name == "keys" else TABLES[name][1]


def exact_row(name, row):
    if name == "keys":
        return keyed_row(row)
    return whole_tables()[name][row].astype(np.float64)


def keyed_row(key):
    """Row `key % 4` of the matrix from which keys start."""
    return initial_rows()[key % 4].astype(np.float64)


def initial_rows():
    return np.random.default_rng(5).normal(size=(4, 3)).astype(np.float32)


def make_tables(suffix, placement=lambda word: word):
    tables = {}
    for name, value in whole_tables().items():
        tables[name] = make_rows(f"{name}_{suffix}", value, placement(TABLES[name][2]))
    tables["keys"] = ge.get_embedding_variable(
        f"keys_{suffix}",
        3,
        initializer=tf.constant_initializer(initial_rows()),
        ev_option=ge.EmbeddingVariableOption(init_option=ge.InitializerOption(
            tf.constant_initializer(initial_rows()), default_value_dim=4)),
        placement=placement("distributed:sums"),
    )  # fmt: skip
    return tables


def my_batch(weighted, step=0):
    ids, weights = whole_batch(weighted, step)
    part = my_samples()
    ragged = [as_ragged(of_feature[part], tf.int64) for of_feature in ids]
    given = [None if w is None else as_ragged(w[part], tf.float32) for w in weights]
    return ragged, given if weighted else None


def look_up(tables, ids, weights):
    params = [tables[name] for name, _ in FEATURES]
    combiners = [combiner for _, combiner in FEATURES]
    return ge.group_embedding_lookup_sparse(params, ids, combiners, sp_weights=weights)


def look_up_routed(tables, ids, weights):
    params = [tables[name] for name, _ in FEATURES]
    combiners = [combiner for _, combiner in FEATURES]
    routed = ge.route_ids(params, ids, combiners, sp_weights=weights)
    return ge.group_embedding_lookup_sparse(params, routed, combiners)


def outputs(tables):
    """{way: {weighted: the outputs of this rank}}"""
    ways = {
        "eager": look_up,
        "function": tf.function(look_up),
        "routed": tf.function(look_up_routed),
    }
    found = {
        way: {
            weighted: [out.numpy() for out in call(tables, *my_batch(weighted))]
            for weighted in (False, True)
        }
        for way, call in ways.items()
    }
    exchange.current().ahead = True  # of which sums have no part
    found["ahead"] = {
        weighted: [out.numpy() for out in ways["routed"](tables, *my_batch(weighted))]
        for weighted in (False, True)
    }
    exchange.current().ahead = False
    found["session"] = {weighted: in_session(weighted) for weighted in (False, True)}
    return found


def in_session(weighted):
    with tf.Graph().as_default(), v1.Session() as session:
        tables = make_tables(f"session_{weighted}")
        results = look_up(tables, *my_batch(weighted))
        session.run(v1.global_variables_initializer())
        return session.run(results)


def train(kind, weighted, make=as_function):
    tables = make_tables(f"{kind}_{weighted}_{make.__name__}")
    tables["keys"].step = tf.Variable(0, dtype=tf.int64)
    optimizer = ge.DistributedOptimizer(ge.optimizers.wrap(OPTIMIZERS[kind]()))
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
        tables["keys"].step.assign(number)
        step(*my_batch(weighted, number))
    return {
        "rows": {name: gather_rows(tables[name]).numpy() for name in TABLES},
        "keys": content(tables["keys"]),
    }


def content(table):
    found = table.export(gather=False)
    counts = zip(found.values.numpy(), found.versions.numpy(), found.freqs.numpy())
    return {int(k): (row, int(v), int(f)) for k, (row, v, f) in zip(found.keys.numpy(), counts)}


def max_norm():
    """Each rank looks the same samples up; the gradient is their mean."""
    table = make_rows("scaled", whole_tables()["user"], "distributed:sums")
    with tf.GradientTape() as tape:
        (output,) = ge.group_embedding_lookup_sparse(
            [table], [tf.ragged.constant([[1, 2, 9], [], [1]])], "mean", max_norm=1.0
        )
        loss = tf.reduce_sum(output**2)
    gradient = tf.convert_to_tensor(tape.gradient(loss, table))
    return {"output": output.numpy(), "gradient": whole_gradient(table, gradient)}


def partial():
    """A step of Adam in which one of two features of a table has no gradient."""
    table = make_rows("partial", whole_tables()["user"], "distributed:sums")
    optimizer = ge.DistributedOptimizer(ge.optimizers.wrap(tf.keras.optimizers.Adam(0.1)))
    for ids in ([[3, 4]], [[1, 2]]):
        with tf.GradientTape() as tape:
            trained, _ = ge.group_embedding_lookup_sparse(
                [table] * 2, [tf.ragged.constant([[1, 2]]), tf.ragged.constant([*ids, [5]])], "sum"
            )
            loss = tf.reduce_sum(trained)
        optimizer.apply_gradients([(tape.gradient(loss, table), table)])
    return gather_rows(table).numpy()


def half():
    value = tf.cast(whole_tables()["user"], tf.bfloat16)
    table = make_rows("half", value, "distributed:sums")
    (output,) = ge.group_embedding_lookup_sparse(
        [table], [tf.ragged.constant([[1, 2, 9, 30], [4]])], "sum"
    )
    rows = tf.cast(value, tf.float64).numpy()
    return {
        "output": tf.cast(output, tf.float64).numpy(),
        "exact": np.stack([rows[[1, 2, 9, 30]].sum(0), rows[4]]),
        "sizes": np.stack([np.abs(rows[[1, 2, 9, 30]]).sum(0), np.abs(rows[4])]),
    }


def crossings_and_bytes():
    """How many collective ops a step of two tables has, and how many bytes it sends."""
    crossings, sent = {}, {}
    words = {"sums": ":sums", "rows": ""}
    rng = np.random.default_rng(3)
    ids = [tf.RaggedTensor.from_tensor(rng.integers(0, 4000, (40, 30))) for _ in range(2)]
    for name, suffix in words.items():
        value = np.zeros([4000, 16], np.float32)
        tables = [make_rows(f"wide_{name}_{i}", value, "distributed" + suffix) for i in range(2)]

        @tf.function
        def step(tables=tables):
            with tf.GradientTape() as tape:
                found = ge.group_embedding_lookup_sparse(tables, ids, "sum")
                loss = tf.add_n([tf.reduce_sum(out) for out in found])
            return [tf.convert_to_tensor(g) for g in tape.gradient(loss, tables)]

        graph = step.get_concrete_function().graph
        crossings[name] = sum(op.type.startswith("GroupEmbedding>Host") for op in
                              graph.get_operations())  # fmt: skip
        before = sum(exchange.current().use().sent_bytes)
        step()
        sent[name] = sum(exchange.current().use().sent_bytes) - before
    return {"crossings": crossings, "bytes": sent}


def bad_ids(table):
    rank = exchange.current().rank
    try:
        ge.group_embedding_lookup_sparse(
            [table],
            [tf.ragged.constant([[99 if rank == 1 else 1]], dtype=tf.int64)],
            "sum",
            feature_names=["clicks"],
        )
    except tf.errors.InvalidArgumentError as error:
        return str(error)
    return "no error"


def weight_gradient(table):
    weights = tf.ragged.constant([[1.0, 2.0]])
    with tf.GradientTape() as tape:
        tape.watch(weights.flat_values)
        (output,) = ge.group_embedding_lookup_sparse(
            [table], [tf.ragged.constant([[1, 2]])], "mean", sp_weights=[weights]
        )
    try:
        tape.gradient(output, weights.flat_values)
    except ValueError as error:
        return str(error)
    return "no error"


def run_all():
    found = {
        "trained": {kind: train(kind, weighted) for kind, weighted in WEIGHTED.items()},
        "max_norm": max_norm(),
    }
    return found


def run_on_rank():
    ge.enable_distributed_strategy()
    tables, rank = make_tables("looked_up"), exchange.current().rank
    found = {"outputs": outputs(tables), **run_all()}
    found["ignored"] = ge.group_embedding_lookup_sparse(
        [tables["user"]], [tf.ragged.constant([[rank, 99]])], "mean", invalid_ids="ignore"
    )[0].numpy()
    found["compiled"] = {kind: train(kind, w, CompiledStep) for kind, w in WEIGHTED.items()}
    with packed_sums():
        found["packed"] = train("adam", True, packed)
    found["error"] = bad_ids(tables["user"])
    found["dense"] = ge.group_embedding_lookup(
        [tables["user"]], [tf.constant([[3, rank], [3, 3]])]
    )[0].numpy()
    found["half"] = half()
    found["weight_gradient"] = weight_gradient(tables["user"])
    found["partial"] = partial()
    return {**found, **crossings_and_bytes()}


def disagree():
    ge.enable_distributed_strategy()
    word = ["distributed:sums", "distributed"][exchange.current().rank]
    table = make_rows("disagreed", whole_tables()["user"], word)
    try:
        ge.group_embedding_lookup_sparse([table], [tf.ragged.constant([[1]])], "sum")
    except tf.errors.InvalidArgumentError as error:
        return str(error)
    return "no error"


def table_on_a_gpu(monkeypatch, **how):
    """A table that says it is on a GPU, with a placement of rows."""
    source = SimpleNamespace(placement=ge.placement.Placement("mod", **how))
    monkeypatch.setattr(Table, "exchange", property(lambda self: exchange.current()))
    monkeypatch.setattr(Table, "device_type", property(lambda self: "GPU"))
    table = lookup_table(tf.Variable(tf.zeros([2, 2]), name="on_gpu"), None, 0)
    return table.with_source(source, tf.float32)
