"""The op that updates many variables: what it refuses, and what it computes on a GPU."""

import numpy as np
import pytest
import tensorflow as tf

from group_embedding.ops._library import library
from group_embedding.ops.dense_update import OPERATIONS, dense_update, trace
from group_embedding.optimizers import dense_formulas as formulas

PROGRAM = trace(formulas.momentum, 1, ("learning_rate", "momentum"))
NUMBERS = [0.5, 0.25]


def call(variables, slots, grads, program=PROGRAM, numbers=NUMBERS):
    dense_update(variables, slots, grads, program, tf.constant(numbers, tf.float32))


def make(shape=(3,), dtype=tf.float32):
    return tf.Variable(tf.ones(shape, dtype)), tf.Variable(tf.zeros(shape, dtype))


REFUSED = {
    "a gradient of another shape": (
        lambda v, s: ([v, v], [s, s], [tf.ones([3]), tf.ones([4])]),
        "expected its gradient to have its shape",
    ),
    "a slot of another shape": (
        lambda v, s: ([v], [tf.Variable(tf.zeros([4]))], [tf.ones([3])]),
        "expected its slot to have its shape",
    ),
    "a slot of another type": (
        lambda v, s: ([v], [tf.Variable(tf.zeros([3], tf.float16))], [tf.ones([3])]),
        "expected float, got half",
    ),
    "a variable twice": (
        lambda v, s: ([v, v], [s, make()[1]], [tf.ones([3])] * 2),
        "comes twice",
    ),
    "a slot too few": (
        lambda v, s: ([v, make()[0]], [s], [tf.ones([3])] * 2),
        "2 variables and 2 slots",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_nothing_is_written_where_something_is_wrong(name):
    # Given a variable that is right, and inputs that are not
    variable, slot = make()
    inputs, message = REFUSED[name]
    # When the op is given them, then it says what it expected, and has written nothing
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        call(*inputs(variable, slot))
    np.testing.assert_array_equal([variable, slot], [np.ones(3), np.zeros(3)])


def test_a_variable_without_a_value_is_named():
    variable, slot = make()
    empty = tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[3], shared_name="nobody")
    with pytest.raises(tf.errors.FailedPreconditionError, match="'embedding'.*initializers"):
        library().dense_update(
            variables=[variable.handle, empty],
            slots=[slot.handle, slot.handle],
            grads=[tf.ones([3])] * 2,
            numbers=tf.constant(NUMBERS),
            program=PROGRAM.steps,
            results=PROGRAM.results,
            names=["dense", "embedding"],
        )


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"program": [len(OPERATIONS), 0, 0]}, "no such operation"),
        ({"program": [0, 0, 99]}, "no such operation or register"),
        ({"program": [0, 0, 5]}, "written later, or never"),
        ({"program": [0, 0]}, "steps of 3 numbers"),
        ({"program": [0, 0, 0] * 41}, "up to 40 steps"),
        ({"results": [0, 17]}, "never written"),
        ({"results": [-1, 0]}, "no such register"),
        ({"results": [2, 0]}, "old value of another"),
        ({"results": []}, "expected 1 to 4 registers"),
        ({"numbers": tf.zeros([17])}, r"expected shape \[n\], n <= 16"),
        ({"numbers": 1.0}, "expected shape"),
        ({"names": ["a", "b"]}, "expected 2 variables"),
    ],
)
def test_programs_are_checked(changes, message):
    variable, slot = make()
    call = {
        "variables": [variable.handle],
        "slots": [slot.handle],
        "grads": [tf.ones([3])],
        "numbers": tf.constant(NUMBERS),
        "program": PROGRAM.steps,
        "results": PROGRAM.results,
        "names": ["a"],
    }
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        library().dense_update(**(call | changes))


def test_many_threads_update_large_variables():
    # Given variables larger than what one thread takes, between small ones
    shapes = [(1,), (3, 100_000), (7,), (0,), (40_001,)]
    values = [np.random.default_rng(0).normal(size=s).astype(np.float32) for s in shapes]
    variables, slots = map(list, zip(*map(make, shapes)))
    # When they are updated
    call(variables, slots, values)
    # Then each element has had its own gradient
    for variable, slot, gradient in zip(variables, slots, values):
        np.testing.assert_array_equal(slot, -(gradient * np.float32(0.5)))
        np.testing.assert_array_equal(variable, 1 + slot.numpy())


FORMULAS = {
    "nesterov": (1, ("learning_rate", "momentum")),
    "adagrad": (1, ("learning_rate", "epsilon")),
    "amsgrad": (3, ("alpha", "1 - beta_1", "1 - beta_2", "epsilon")),
    "adamax": (2, ("learning_rate", "1 - beta_1", "beta_2", "1 - beta_1_power", "epsilon")),
    "ftrl": (2, ("learning_rate", "2 l2_shrinkage", "2 l2", "-l1", "l1")),
}


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [tf.float32, tf.float16, tf.bfloat16])
@pytest.mark.parametrize("name", FORMULAS)
def test_a_gpu_computes_what_a_cpu_does(name, dtype):
    # Given more variables than one launch takes, on both devices
    num_slots, names = FORMULAS[name]
    program = trace(getattr(formulas, name), num_slots, names)
    numbers = [0.25, 0.5, 0.125, -0.25, 0.25][: len(names)]
    data = np.random.default_rng(0)
    shapes = [(5003,), (), (0,), (300, 77), *[(n + 1,) for n in range(130)]]
    with tf.device("CPU:0"):  # devices round float64 to float16 in different ways
        values = [
            [tf.cast(abs(data.normal(size=s)), dtype) for s in shapes] for _ in range(2 + num_slots)
        ]
    results = {}
    for device in ("CPU:0", "GPU:0"):
        with tf.device(device):
            variables = [tf.Variable(value) for value in values[0]]
            slots = [tf.Variable(of) for of_variable in zip(*values[2:]) for of in of_variable]
            # When each updates them several times
            for _ in range(3):
                dense_update(variables, slots, values[1], program, tf.constant(numbers))
            results[device] = [tf.cast(v, tf.float32).numpy() for v in (*variables, *slots)]
    # Then they agree to the bit
    for on_gpu, on_cpu in zip(results["GPU:0"], results["CPU:0"]):
        np.testing.assert_allclose(on_gpu, on_cpu, rtol=0)


@pytest.mark.gpu
def test_fit_on_a_gpu_updates_dense_variables_in_one_op():
    # Given a model on a GPU
    import group_embedding as ge

    data = np.random.default_rng(0)
    inputs, targets = data.normal(size=[64, 5]), data.normal(size=[64, 1])

    def losses(wrapped):
        tf.keras.utils.set_random_seed(1)
        layers = [tf.keras.layers.Dense(width, activation="relu") for width in (16, 16)]
        model = tf.keras.Sequential([*layers, tf.keras.layers.Dense(1)])
        optimizer = tf.keras.optimizers.Adam(0.01)
        optimizer = ge.optimizers.wrap(optimizer) if wrapped else optimizer
        model.compile(optimizer, "mse", jit_compile=False)
        return model.fit(inputs, targets, epochs=5, verbose=0, shuffle=False).history["loss"]

    # When it is trained with a stock optimizer and a wrapped one, then both learn the same
    np.testing.assert_allclose(losses(wrapped=True), losses(wrapped=False), rtol=1e-4)
