"""Every wrapped optimizer against the stock one, over 40 steps.

Stock Keras, and stock Adam everywhere, move the moments of all rows at every step; they are
compared on batches that look up every row. test_lazy_rules.py has the other batches.
"""

import re
import sys
from pathlib import Path

import pytest
import tensorflow as tf
from support.cases import optimizer_cases as cases
from support.session.tiers import by_day

import group_embedding as ge
from group_embedding.optimizers.rules import ROW_RULES, SMALL_SLOT_RULES

STEPS = 40
v1, keras = tf.compat.v1.train, tf.keras.optimizers
SKEWED, EVERY_ROW = False, True

V1 = {
    "sgd": (SKEWED, lambda: v1.GradientDescentOptimizer(0.05)),
    "momentum": (SKEWED, lambda: v1.MomentumOptimizer(0.02, 0.9)),
    "nesterov": (SKEWED, lambda: v1.MomentumOptimizer(0.02, 0.9, use_nesterov=True)),
    "adagrad": (SKEWED, lambda: v1.AdagradOptimizer(0.1)),
    "ftrl": (SKEWED, lambda: v1.FtrlOptimizer(0.1, l1_regularization_strength=0.01)),
    "ftrl_shrinkage": (
        SKEWED,
        lambda: v1.FtrlOptimizer(
            0.1,
            learning_rate_power=-0.6,
            l2_regularization_strength=0.02,
            l2_shrinkage_regularization_strength=0.03,
            beta=0.1,
        ),
    ),
    "rmsprop": (SKEWED, lambda: v1.RMSPropOptimizer(0.01, momentum=0.5)),
    "rmsprop_centered": (SKEWED, lambda: v1.RMSPropOptimizer(0.01, centered=True)),
    "adam": (EVERY_ROW, lambda: v1.AdamOptimizer(0.01)),
    "adadelta": (SKEWED, lambda: v1.AdadeltaOptimizer(0.5, epsilon=1e-4)),
}
KERAS = {
    "sgd": (SKEWED, lambda: keras.SGD(0.05)),
    "sgd_clipvalue": (SKEWED, lambda: keras.SGD(0.05, clipvalue=0.05)),
    "sgd_clipnorm": (SKEWED, lambda: keras.SGD(0.05, clipnorm=0.2)),
    "sgd_global_clipnorm": (SKEWED, lambda: keras.SGD(0.05, global_clipnorm=0.2)),
    "momentum": (EVERY_ROW, lambda: keras.SGD(0.02, momentum=0.9)),
    "nesterov": (EVERY_ROW, lambda: keras.SGD(0.02, momentum=0.9, nesterov=True)),
    "adagrad": (SKEWED, lambda: keras.Adagrad(0.1)),
    "adam": (EVERY_ROW, lambda: keras.Adam(0.01)),
    "amsgrad": (EVERY_ROW, lambda: keras.Adam(0.01, amsgrad=True)),
    "adamw": (EVERY_ROW, lambda: keras.AdamW(0.01, weight_decay=0.1)),
    "adamax": (EVERY_ROW, lambda: keras.Adamax(0.01)),
    "adadelta": (EVERY_ROW, lambda: keras.Adadelta(0.5, epsilon=1e-4)),
    "ftrl": (
        EVERY_ROW,
        lambda: keras.Ftrl(
            0.1,
            beta=0.1,
            l1_regularization_strength=0.01,
            l2_regularization_strength=0.02,
            l2_shrinkage_regularization_strength=0.03,
        ),
    ),
    "rmsprop": (EVERY_ROW, lambda: keras.RMSprop(0.01)),
    "rmsprop_all": (EVERY_ROW, lambda: keras.RMSprop(0.01, momentum=0.5, centered=True)),
    "schedule": (
        SKEWED,
        lambda: keras.Adagrad(keras.schedules.ExponentialDecay(0.1, 10, 0.7)),
    ),
    "ema": (SKEWED, lambda: keras.Adagrad(0.1, use_ema=True, ema_overwrite_frequency=30)),
}
if hasattr(keras, "legacy") and hasattr(keras.Optimizer, "_deduplicate_sparse_grad"):
    legacy = keras.legacy
    KERAS.update(
        {
            "legacy_sgd": (SKEWED, lambda: legacy.SGD(0.05, clipvalue=0.05, decay=0.01)),
            "legacy_momentum": (SKEWED, lambda: legacy.SGD(0.02, momentum=0.9)),
            "legacy_nesterov": (SKEWED, lambda: legacy.SGD(0.02, momentum=0.9, nesterov=True)),
            "legacy_clipnorm": (SKEWED, lambda: legacy.SGD(0.05, clipnorm=0.2)),
            "legacy_adagrad": (SKEWED, lambda: legacy.Adagrad(0.1)),
            "legacy_adam": (EVERY_ROW, lambda: legacy.Adam(0.01)),
            "legacy_amsgrad": (EVERY_ROW, lambda: legacy.Adam(0.01, amsgrad=True)),
            "legacy_adamax": (SKEWED, lambda: legacy.Adamax(0.01)),
            "legacy_adadelta": (SKEWED, lambda: legacy.Adadelta(0.5, epsilon=1e-4)),
            "legacy_ftrl": (
                SKEWED,
                lambda: legacy.Ftrl(0.1, beta=0.1, l2_shrinkage_regularization_strength=0.03),
            ),
            "legacy_rmsprop": (EVERY_ROW, lambda: legacy.RMSprop(0.01, centered=True)),
            "legacy_rmsprop_momentum": (SKEWED, lambda: legacy.RMSprop(0.01, momentum=0.5)),
        }
    )
# TensorFlow has ResourceSparseApplyRMSProp for CPUs alone.
STOCK_FOR_CPUS_ALONE = ["legacy_rmsprop_momentum"]


@pytest.mark.parametrize("name", V1)
def test_v1_optimizer_equals_stock(name):
    every_row, make = V1[name]
    batches = cases.make_batches(STEPS, every_row)
    # Given what the stock optimizer makes of the model in 40 steps
    expected = cases.train_session(make, batches)
    # When the wrapped one trains it in a Session, with either kind of variable, and in a function
    results = {
        "session": cases.train_session(lambda: ge.optimizers.wrap(make()), batches),
        "references": cases.train_session(lambda: ge.optimizers.wrap(make()), batches, False),
        "function": cases.train_function(ge.optimizers.wrap(make()), batches),
    }
    # Then all agree
    for values in results.values():
        cases.assert_close(values, expected)


@pytest.mark.parametrize(
    "name", by_day(KERAS, [name for name in KERAS if not name.startswith("legacy")])
)
def test_keras_optimizer_equals_stock(name):
    every_row, make = KERAS[name]
    batches = cases.make_batches(STEPS, every_row)
    # Given what the stock optimizer makes of the model in 40 steps
    stock = make()
    with tf.device("CPU" if name in STOCK_FOR_CPUS_ALONE else None):
        expected = cases.train_function(stock, batches)
    # When the wrapped one trains it
    wrapped = ge.optimizers.wrap(make())
    values = cases.train_function(wrapped, batches)
    # Then variables and slots agree (of SGD, Keras 2 writes momenta that it never uses)
    cases.assert_close(values, expected)
    if "sgd" not in name:
        cases.assert_close(cases.slots_of(wrapped), cases.slots_of(stock), 3e-5)


def names_in(code):
    """The names of the functions in a code object."""
    yield code.co_name
    for constant in code.co_consts:
        if hasattr(constant, "co_consts"):
            yield from names_in(constant)


WRAPPED = {"v1": V1["adam"]}
if "legacy_adam" in KERAS:
    WRAPPED["legacy"] = KERAS["legacy_adam"]


@pytest.mark.parametrize("kind", WRAPPED)
def test_autograph_converts_no_function_of_a_wrapped_optimizer(kind):
    # Given a function of a user that AutoGraph converts, when a wrapped optimizer trains in it
    batches, variables = cases.make_batches(1), cases.make_variables()
    optimizer = ge.optimizers.wrap(WRAPPED[kind][1]())

    @tf.function
    def step(i):
        cases.take_step(optimizer, batches, variables, i)

    step(tf.constant(0))
    # Then it has converted that one, and none of the optimizer, each of which takes 0.1 s
    modules = [module for name, module in [*sys.modules.items()] if "__autograph_gen" in name]
    converted = {name for of in modules for name in names_in(of.outer_factory.__code__)}
    assert "tf__take_step" in converted
    assert not converted & {"tf__claim_tables", "tf__check_keyed"}


@pytest.mark.parametrize("cases_of, name", [(V1, "adam"), (V1, "ftrl"), (KERAS, "amsgrad")])
def test_eager_steps(cases_of, name):
    # Given some steps in a function
    every_row, make = cases_of[name]
    batches = cases.make_batches(10, every_row)
    expected = cases.train_function(ge.optimizers.wrap(make()), batches)
    # When they are taken eagerly, where no op is seen and gradients are applied as they are
    values = cases.train_eager(ge.optimizers.wrap(make()), batches)
    # Then the model is the same
    cases.assert_close(values, expected, 1e-6)


@pytest.mark.parametrize("name", V1)
def test_fused_and_slices_give_the_same_bits(name):
    # Given gradients that the optimizer sees the producer of, and the same behind an Identity
    batches = cases.make_batches(5)
    _, make = V1[name]

    def hide(gradients):
        return [
            tf.IndexedSlices(tf.identity(g.values), g.indices, g.dense_shape)
            if isinstance(g, tf.IndexedSlices)
            else g
            for g in gradients
        ]

    # When both are trained
    fused = cases.train_function(ge.optimizers.wrap(make()), batches)
    slices = cases.train_function(ge.optimizers.wrap(make()), batches, change=hide)
    # Then the tables are the same, bit for bit
    cases.assert_same_bits(slices[:2], fused[:2])


@pytest.mark.parametrize("name", [name for name in KERAS if name.endswith("clipnorm")])
def test_norm_of_a_table_that_two_calls_look_up(name):
    # Given stock's step with dense gradients of two tables, one of which two calls look up
    _, make = KERAS[name]
    ids = tf.ragged.constant([[1], [0, 1]], dtype=tf.int64)
    start = [tf.ones([3, 2]), 2 * tf.ones([3, 2])]

    def train(optimizer, look_up):
        tables = [tf.Variable(values) for values in start]
        with tf.GradientTape() as tape:
            loss = tf.add_n([tf.reduce_sum(look_up(tables[t])) for t in (0, 0, 1)])
        gradients = tape.gradient(loss, tables)
        if look_up is not look_up_group:
            gradients = [tf.convert_to_tensor(gradient) for gradient in gradients]
        optimizer.apply_gradients(zip(gradients, tables))
        return tables

    def look_up_group(table):
        return ge.group_embedding_lookup_sparse([table], [ids], "sum")[0]

    def gather(table):
        return tf.gather(table, ids.values)

    expected = train(make(), gather)
    # When the wrapped optimizer clips the gradients of both calls
    actual = train(ge.optimizers.wrap(make()), look_up_group)
    # Then their norm is that of the table's dense gradient
    cases.assert_close(actual, expected, 1e-6)


def test_rules_of_whole_rows_are_those_that_add_up_a_row():
    text = (Path(__file__).parents[2] / "cc/optimizer/rules.h").read_text()
    structs = {re.search(r'kName\[\] = "(\w+)"', part): part for part in text.split("\nstruct ")}

    found = {name[1] for name, part in structs.items() if name and "kNeedsRow = true" in part}
    assert found == ROW_RULES


def test_rules_whose_slots_may_be_small_are_those_of_the_kernels():
    # Given the list of structs in C++, and the name of each
    folder = Path(__file__).parents[2] / "cc" / "optimizer"
    listed = re.search(r"SmallSlotRules = RuleList<(.*?)>", (folder / "update.h").read_text())[1]
    rules = (folder / "rules.h").read_text()
    # When they are put together, Then Python takes the same
    names = {
        re.search(rf'struct {struct}\b.*?kName\[\] = "(\w+)"', rules, re.S)[1]
        for struct in listed.split(", ")
    }
    assert names == SMALL_SLOT_RULES
