"""Averages of keyed tables (`use_ema`) whose keys are spread over ranks, beside one process."""

import numpy as np
import pytest
import tensorflow as tf

import group_embedding as ge
from group_embedding import exchange
from group_embedding.distributed import enable_distributed_strategy

STEPS, SAMPLES, DIMS = 6, 4, {"users": 3, "items": 5}


def batch_of(step, rank):
    """Ids of one rank's samples: some keys of both ranks, some of one, in some steps alone."""
    rng = np.random.default_rng([step, rank])
    return {name: rng.integers(0, 8 + rank, (SAMPLES, 2)) for name in DIMS}


def train(batches, num_ranks):
    """Trains on the samples of all ranks or of this one; returns rows and averages by table."""
    tables = {
        name: ge.get_embedding_variable(
            f"averaged_{name}", dim, initializer=tf.keras.initializers.Constant(0.5)
        )
        for name, dim in DIMS.items()
    }
    optimizer = ge.optimizers.wrap(tf.keras.optimizers.SGD(0.25, use_ema=True, ema_momentum=0.75))
    if num_ranks > 1:
        optimizer = ge.DistributedOptimizer(optimizer)
    variables = list(tables.values())
    for batch in batches:
        with tf.GradientTape() as tape:
            vectors = ge.group_embedding_lookup_sparse(
                variables, [tf.RaggedTensor.from_tensor(batch[name]) for name in DIMS], "sum"
            )
            loss = tf.add_n([tf.reduce_mean(tf.reduce_sum(v**2, axis=-1)) for v in vectors])
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
    rows = {name: content(table) for name, table in tables.items()}
    optimizer.finalize_variable_values(variables)
    return rows, {name: content(table) for name, table in tables.items()}


def content(table):
    keys, values = (part.numpy() for part in table.export(gather=True)[:2])
    return dict(zip(keys.tolist(), values))


def train_on_rank():
    enable_distributed_strategy()
    rank = exchange.current().rank
    return train([batch_of(step, rank) for step in range(STEPS)], 2)


@pytest.fixture
def alone():
    both = [[batch_of(step, rank) for rank in range(2)] for step in range(STEPS)]
    return train([{n: np.concatenate([a[n], b[n]]) for n in DIMS} for a, b in both], 1)


def test_two_ranks_average_as_one_process(two_ranks, alone):
    # Given two ranks, each with half of the samples

    for results in two_ranks.run(train_on_rank):
        # When they train and write the averages back, Then rows and averages are one process's
        for got, expected in zip(results, alone):
            for name in DIMS:
                assert got[name].keys() == expected[name].keys()
                for key, row in expected[name].items():
                    np.testing.assert_allclose(got[name][key], row, rtol=1e-5)
    assert not np.allclose(alone[0]["users"][1], alone[1]["users"][1])
