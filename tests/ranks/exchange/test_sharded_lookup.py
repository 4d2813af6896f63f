"""Lookups of sharded tables on several ranks, against TensorFlow's own lookup in one process."""

import numpy as np
import pytest
import tensorflow as tf

import group_embedding as ge
from group_embedding import exchange
from group_embedding.distributed import enable_distributed_strategy
from group_embedding.ranks.sharding.make_sharded_table import make_table
from group_embedding.ranks.sharding.sharded_table import gather_rows

COMBINERS = ("mean", "sum", "sqrtn")
TABLES = {"user": (50, 4), "item": (7, 16), "tiny": (2, 1), "empty_on_two": (1, 3)}
# (table, combiner, weighted): tables repeat, features are mixed.
FEATURES = [
    *[("user", combiner, weighted) for combiner in COMBINERS for weighted in (False, True)],
    ("item", "sum", False),
    ("tiny", "mean", True),
    ("empty_on_two", "mean", False),
]
NUM_SAMPLES = 13


def whole_tables():
    rng = np.random.default_rng(1)
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in TABLES.items()}


def whole_batch():
    """Per feature: ids, weights and the gradient of the output, for NUM_SAMPLES samples."""
    rng = np.random.default_rng(2)
    batch = []
    for table, _, _ in FEATURES:
        num_rows, dim = TABLES[table]
        lengths = rng.integers(0, 5, NUM_SAMPLES)
        ids = [rng.integers(-1, num_rows, n).tolist() for n in lengths]  # -1 is left out
        weights = [rng.choice([-1.0, 0.0, 0.5, 2.0], n).tolist() for n in lengths]
        batch.append((ids, weights, rng.normal(size=(NUM_SAMPLES, dim)).astype(np.float32)))
    return batch


def part_of_batch(batch, samples):
    return [(ids[samples], weights[samples], grads[samples]) for ids, weights, grads in batch]


def samples_of_rank(rank, num_ranks):
    """Uneven: the last rank has none."""
    cuts = [0, *([10, NUM_SAMPLES] if num_ranks == 3 else [NUM_SAMPLES]), NUM_SAMPLES]
    return slice(cuts[rank], cuts[rank + 1])


def as_ids(rows, dtype=tf.int64):
    return tf.RaggedTensor.from_row_lengths(
        tf.constant([i for row in rows for i in row], dtype),
        tf.constant([len(row) for row in rows], tf.int64),
    )


def as_weights(ragged_ids, rows):
    return ragged_ids.with_flat_values(
        tf.constant([float(w) for row in rows for w in row], tf.float32)
    )


def look_up(tables, batch, grouped):
    """Outputs and the gradients of sum(output * gradient) by tables and weights."""
    ids = [as_ids(rows) for rows, _, _ in batch]
    weights = [as_weights(i, rows) for i, (_, rows, _) in zip(ids, batch)]
    flat_weights = [w.flat_values for w, (_, _, weighted) in zip(weights, FEATURES) if weighted]
    with tf.GradientTape() as tape:
        tape.watch(flat_weights)
        given = iter(flat_weights)
        used = [
            i.with_flat_values(next(given)) if weighted else None
            for i, (_, _, weighted) in zip(ids, FEATURES)
        ]
        params = [tables[table] for table, _, _ in FEATURES]
        combiners = [combiner for _, combiner, _ in FEATURES]
        if grouped:
            outputs = ge.group_embedding_lookup_sparse(params, ids, combiners, sp_weights=used)
        else:
            outputs = [
                tf.nn.safe_embedding_lookup_sparse(
                    [p], i.to_sparse(), None if w is None else w.to_sparse(), combiner=c
                )
                for p, i, w, c in zip(params, ids, used, combiners)
            ]
            outputs = [o[:NUM_SAMPLES] for o in outputs]
        loss = tf.add_n([tf.reduce_sum(o * g) for o, (_, _, g) in zip(outputs, batch)])
    variables = [tables[name] for name in TABLES]
    table_grads = tape.gradient(loss, [variables, flat_weights])
    return outputs, table_grads[0], table_grads[1]


def make_sharded(name, value):
    """Makes a table as a layer does, with the initializer of the whole table."""

    def create(shape, initializer):
        return tf.Variable(initializer(shape, tf.float32), name=name)

    return make_table(value.shape, lambda shape, dtype: tf.constant(value, dtype), create)


def to_numpy(values):
    return [np.asarray(tf.convert_to_tensor(value)) for value in values]


def look_up_on_rank():
    enable_distributed_strategy("collective")
    current = exchange.current()
    tables = {name: make_sharded(name, value) for name, value in whole_tables().items()}
    batch = part_of_batch(whole_batch(), samples_of_rank(current.rank, current.num_ranks))

    results = {"gathered": [gather_rows(t).numpy() for t in tables.values()]}
    eager = look_up(tables, batch, grouped=True)
    function = tf.function(lambda: look_up(tables, batch, grouped=True))()
    for mode, (outputs, table_grads, weight_grads) in [("eager", eager), ("function", function)]:
        results[mode] = {
            "outputs": to_numpy(outputs),
            "table_grads": to_numpy(table_grads),
            "indices": [grad.indices.numpy() for grad in table_grads],
            "weight_grads": to_numpy(weight_grads),
        }
    results["session"] = look_up_in_session(batch)
    results["errors"] = look_up_bad_ids(tables["item"], current.rank)
    results["ignored"] = ge.group_embedding_lookup_sparse(
        [tables["item"]], [as_ids([[current.rank, 99]])], "mean", invalid_ids="ignore"
    )[0].numpy()
    results["dense"] = ge.group_embedding_lookup(
        [tables["item"]], [tf.constant([[6, 0], [current.rank, 6]])]
    )[0].numpy()
    results["max_norm"] = ge.group_embedding_lookup_sparse(
        [tables["item"], tables["user"]],
        [as_ids([[1, 2]]), as_ids([[3]])],
        "sum",
        max_norm=[0.5, None],
        concat=True,
    ).numpy()
    results["row_splits"] = ge.group_embedding_lookup_sparse(
        [tables["item"], tables["user"]],
        [as_ids([[1, 2]]).with_row_splits_dtype(tf.int32), as_ids([[3]])],
        "sum",
        sp_weights=[tf.ragged.constant([[2.0, 0.5]]), None],
        max_norm=np.inf,
    )[0].numpy()
    return results


def look_up_in_session(batch):
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        tables = {}
        for name, value in whole_tables().items():

            def create(shape, initializer, name=name):
                return tf.compat.v1.get_variable(name, shape, tf.float32, initializer)

            init = tf.compat.v1.constant_initializer(value)
            tables[name] = make_table(value.shape, init, create)
        ids = [as_ids(rows) for rows, _, _ in batch]
        outputs = ge.group_embedding_lookup_sparse(
            [tables[table] for table, _, _ in FEATURES], ids, [c for _, c, _ in FEATURES]
        )
        loss = tf.add_n([tf.reduce_sum(o * g) for o, (_, _, g) in zip(outputs, batch)])
        gradients = tf.gradients(loss, list(tables.values()))
        gradients = [tf.convert_to_tensor(gradient) for gradient in gradients]
        session.run(tf.compat.v1.global_variables_initializer())
        for _ in range(3):
            outputs_now, gradients_now = session.run([outputs, gradients])
    return {"outputs": outputs_now, "table_grads": gradients_now}


def look_up_bad_ids(table, rank):
    """Only the ids of rank 1 are bad; every rank goes on afterwards."""
    messages = []
    for bad in (7, 2**62):
        ids = as_ids([[0], [bad if rank == 1 else 1]])
        try:
            ge.group_embedding_lookup_sparse([table], [ids], "sum", feature_names=["clicks"])
        except tf.errors.InvalidArgumentError as error:
            messages.append(error.message)
    return messages


@pytest.fixture(scope="module")
def ranks(several_ranks):
    """The results of each rank."""
    return several_ranks.run(look_up_on_rank)


@pytest.fixture(scope="module")
def expected():
    """The results of TensorFlow's own lookup in one process."""
    tables = {name: tf.Variable(value) for name, value in whole_tables().items()}
    return look_up(tables, whole_batch(), grouped=False)


def assert_close(actual, expected):
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("mode", ["eager", "function"])
def test_each_rank_gets_its_own_samples(ranks, expected, mode):
    for f, output in enumerate(to_numpy(expected[0])):
        assert_close(np.concatenate([r[mode]["outputs"][f] for r in ranks]), output)


@pytest.mark.parametrize("mode", ["eager", "function"])
def test_each_owner_gets_the_gradient_of_the_mean_of_the_ranks_losses(ranks, expected, mode):
    for t, gradient in enumerate(to_numpy(expected[1])):
        for rank, results in enumerate(ranks):
            mean = gradient[rank :: len(ranks)] / len(ranks)
            assert_close(results[mode]["table_grads"][t], mean)
            indices = results[mode]["indices"][t]
            assert (np.diff(indices) > 0).all()


def test_rows_pruned_on_every_rank_have_no_gradient(ranks):
    user = list(TABLES).index("user")
    touched = set()
    for (table, combiner, weighted), (ids, weights, _) in zip(FEATURES, whole_batch()):
        if table != "user":
            continue
        for id_row, weight_row in zip(ids, weights):
            for i, w in zip(id_row, weight_row):
                if i >= 0 and (w > 0 or combiner == "sum" or not weighted):
                    touched.add(i)

    found = set()
    for rank, results in enumerate(ranks):
        found |= {i * len(ranks) + rank for i in results["eager"]["indices"][user].tolist()}

    assert found == touched


@pytest.mark.parametrize("mode", ["eager", "function"])
def test_weights_get_their_gradient_on_the_rank_that_has_them(ranks, expected, mode):
    for w, gradient in enumerate(to_numpy(expected[2])):
        assert_close(np.concatenate([r[mode]["weight_grads"][w] for r in ranks]), gradient)


def test_in_a_session_as_without_weights(ranks):
    unweighted = [
        tf.nn.safe_embedding_lookup_sparse(
            [tf.constant(whole_tables()[table])], as_ids(ids).to_sparse(), combiner=combiner
        )
        for (table, combiner, _), (ids, _, _) in zip(FEATURES, whole_batch())
    ]
    for f, output in enumerate(to_numpy(unweighted)):
        actual = np.concatenate([r["session"]["outputs"][f] for r in ranks])
        assert_close(actual, output[:NUM_SAMPLES])
    assert all(np.isfinite(g).all() for r in ranks for g in r["session"]["table_grads"])


def test_the_rows_of_all_ranks_are_the_whole_table(ranks):
    for results in ranks:
        for actual, value in zip(results["gathered"], whole_tables().values()):
            np.testing.assert_array_equal(actual, value)


def test_a_bad_id_is_an_error_on_every_rank_that_names_the_one_that_has_it(ranks):
    for results in ranks:
        first, second = results["errors"]
        assert "rank 1: table 'item', feature 'clicks': id 7 of sample 1 is outside" in first
        assert "expected 0 <= id < 7" in first
        assert f"id {2**62} of sample 1" in second


def test_an_ignored_bad_id_reads_zeros(ranks):
    item = whole_tables()["item"]
    for rank, results in enumerate(ranks):
        assert_close(results["ignored"][0], item[rank] / 2)


def test_dense_ids(ranks):
    item = whole_tables()["item"]
    for rank, results in enumerate(ranks):
        np.testing.assert_array_equal(results["dense"], item[[[6, 0], [rank, 6]]])


def test_max_norm_and_concat(ranks):
    tables = whole_tables()
    clipped = tf.clip_by_norm(tf.constant(tables["item"][[1, 2]]), 0.5, axes=1)
    expected = np.concatenate([tf.reduce_sum(clipped, 0), tables["user"][3]])
    for results in ranks:
        assert_close(results["max_norm"][0], expected)


def test_row_splits_of_two_types_and_no_limit(ranks):
    item = whole_tables()["item"]
    for results in ranks:
        assert_close(results["row_splits"][0], 2 * item[1] + 0.5 * item[2])
