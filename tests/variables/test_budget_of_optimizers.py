"""Tables with a budget, trained by each optimizer: a key that comes again after its eviction is a
new one."""

import numpy as np
import pytest
import tensorflow as tf
from checkpoint.checkpoint_cases import content
from support.oracles.budget import zipf_batches
from variables.budget_tables import DIM, IN_TIERS, make

import group_embedding as ge
from group_embedding.keras_compat import keras

of_keras = keras.optimizers
OPTIMIZERS = {
    "sgd": lambda: ge.optimizers.wrap(of_keras.SGD(0.1)),
    "momentum": lambda: ge.optimizers.wrap(of_keras.SGD(0.1, momentum=0.9, nesterov=True)),
    "adagrad": lambda: ge.optimizers.wrap(of_keras.Adagrad(0.1)),
    "adam": lambda: ge.optimizers.wrap(of_keras.Adam(0.01)),
    "amsgrad": lambda: ge.optimizers.wrap(of_keras.Adam(0.01, amsgrad=True)),
    "adamw": lambda: ge.optimizers.wrap(of_keras.AdamW(0.01, weight_decay=0.1)),
    "adamax": lambda: ge.optimizers.wrap(of_keras.Adamax(0.01)),
    "adadelta": lambda: ge.optimizers.wrap(of_keras.Adadelta(0.5)),
    "ftrl": lambda: ge.optimizers.wrap(of_keras.Ftrl(0.1, l1_regularization_strength=0.01)),
    "rmsprop": lambda: ge.optimizers.wrap(of_keras.RMSprop(0.01, momentum=0.9, centered=True)),
    "lazy_adam": lambda: ge.optimizers.LazyAdam(0.01),
    "rowwise_adagrad": lambda: ge.optimizers.RowwiseAdagrad(0.1),
    "rowwise_adam": lambda: ge.optimizers.RowwiseAdam(0.01),
    "lamb": lambda: ge.optimizers.Lamb(0.01),
}
MAX_KEYS, ANEW = 80, 2**50  # ANEW: what is added to a key each time that it was evicted


def rows_of(path, name):
    """{key: (count, values, slots)} of a checkpoint; values and slots as bytes."""
    saved = content(path)[0][name]
    return {key: (count, values, slots) for key, (count, _, values, slots) in saved.items()}


@pytest.mark.parametrize("tiers", IN_TIERS)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_keys_that_come_again_are_new_keys(name, tiers, tmp_path):
    # Given a table with a budget, and one without it in the memory of the first tier, in which a
    # key has another name after each eviction
    small = {"tier_bytes": [24 * 96]} if tiers == ("dram", "disk") else {}
    table = make(
        "budgeted", tiers, max_keys=MAX_KEYS, budget_of="rank", keep_share=0.8,
        evict="least_frequent", hand_out="keys", **small,
    )  # fmt: skip
    plain = make("plain", tiers[:1])
    optimizer = OPTIMIZERS[name]()
    num_evictions, was_there = {}, set()

    def name_of(key):
        return key + ANEW * num_evictions.get(key, 0)

    # When both train the same batches, whose loss depends on the rows
    steps = zipf_batches(seed=11, num_batches=20, size=20, num_keys=200, exponent=0.8)
    targets = np.random.default_rng(11).normal(size=[len(steps), DIM]).astype(np.float32)
    for target, batch in zip(targets, steps):
        names = [name_of(key) for key in batch.tolist()]
        with tf.GradientTape() as tape:
            rows = ge.lookup([table, plain], [tf.constant(batch), tf.constant(names)])
            loss = tf.add_n([tf.reduce_sum((of - target) ** 2) for of in rows])
        optimizer.apply_gradients(zip(tape.gradient(loss, [table, plain]), [table, plain]))
        was_there.update(names)
        for key in table.take_evicted().keys.numpy().tolist():
            num_evictions[key] = num_evictions.get(key, 0) + 1

        # Then they read the same
        np.testing.assert_array_equal(*rows)

    # And the keys that are left have the same counts, rows and slots, to the last bit
    path = tf.train.Checkpoint(tables=[table, plain]).save(str(tmp_path / "save"))
    found, expected = rows_of(path, "budgeted"), rows_of(path, "plain")
    assert found == {key: expected[name_of(key)] for key in found}
    # And some of them were never evicted, others were, and came again
    never = [key for key in found if key not in num_evictions]
    assert len(never) > 10 and len(found) - len(never) > 10
    assert int(table.budget_counts().without_place) == 0
    assert len(was_there) == len(expected) > 2 * MAX_KEYS
    # And some lie in each tier
    assert set(table.lookup_tier(list(found)).numpy()) == set(range(len(tiers)))
