"""Variables with a dense gradient are updated to the bits of the stock optimizer, those of Keras
optimizers by one op."""

import contextlib

import numpy as np
import pytest
import tensorflow as tf

import group_embedding as ge
from group_embedding.keras_compat import IS_KERAS_3
from group_embedding.optimizers.bases import legacy_optimizers
from group_embedding.optimizers.dense_variables import update_together

KERAS, LEGACY, V1 = tf.keras.optimizers, legacy_optimizers(), tf.compat.v1.train
# Keras 3 cannot update variables without elements.
SHAPES = [(5003,), (), (7,), (64, 70), (3, 2, 1), *([] if IS_KERAS_3 else [(0, 3)])]
STEPS = 20

RULES = {
    "sgd": lambda module: module.SGD(0.1),
    "momentum": lambda module: module.SGD(0.1, momentum=0.9),
    "nesterov": lambda module: module.SGD(0.1, momentum=0.9, nesterov=True),
    "adagrad": lambda module: module.Adagrad(0.1),
    "adam": lambda module: module.Adam(0.01),
    "amsgrad": lambda module: module.Adam(0.01, amsgrad=True),
    "rmsprop": lambda module: module.RMSprop(0.01),
    "centered": lambda module: module.RMSprop(0.01, centered=True),
    "rmsprop with momentum": lambda module: module.RMSprop(0.01, momentum=0.9, centered=True),
    "adadelta": lambda module: module.Adadelta(0.1),
    "adamax": lambda module: module.Adamax(0.01),
}
FTRL = {"l1_regularization_strength": 0.01, "l2_regularization_strength": 0.01}
SHRINKAGE = {**FTRL, "l2_shrinkage_regularization_strength": 0.01}
OF_KERAS = {
    **{name: lambda make=make: make(KERAS) for name, make in RULES.items()},
    "adamw": lambda: KERAS.AdamW(0.01, weight_decay=0.01),
    "decay of sgd": lambda: KERAS.SGD(0.1, momentum=0.9, weight_decay=0.01),
    "clipvalue": lambda: KERAS.Adam(0.01, clipvalue=0.5),
    "clipnorm": lambda: KERAS.Adam(0.01, clipnorm=0.5),
    "global_clipnorm": lambda: KERAS.Adam(0.01, global_clipnorm=0.5),
    "use_ema": lambda: KERAS.Adam(0.01, use_ema=True, ema_overwrite_frequency=7),
    "schedule": lambda: KERAS.Adam(KERAS.schedules.ExponentialDecay(0.1, 5, 0.5)),
}
OF_V1 = {
    "sgd": lambda: V1.GradientDescentOptimizer(0.1),
    "momentum": lambda: V1.MomentumOptimizer(0.1, 0.9),
    "nesterov": lambda: V1.MomentumOptimizer(0.1, 0.9, use_nesterov=True),
    "adagrad": lambda: V1.AdagradOptimizer(0.1),
    "adam": lambda: V1.AdamOptimizer(0.01),
    "rmsprop": lambda: V1.RMSPropOptimizer(0.01, momentum=0.9),
    "centered": lambda: V1.RMSPropOptimizer(0.01, centered=True),
    "adadelta": lambda: V1.AdadeltaOptimizer(0.1),
    "ftrl": lambda: V1.FtrlOptimizer(0.1, **FTRL),
    "ftrl with shrinkage": lambda: V1.FtrlOptimizer(0.1, **SHRINKAGE),
}


@pytest.fixture(autouse=True)
def on_cpu():
    """Bits are those of the CPU: on a GPU stock's own depend on XLA."""
    with tf.device("/CPU:0"):
        yield


def without_xla(optimizer):
    """Keras 2 compiles its updates where there is a GPU, whatever device they run on."""
    if hasattr(optimizer, "jit_compile"):
        optimizer.jit_compile = False
    return optimizer


def has_formula(name):
    """Returns whether one op has the rule of a name of OF_KERAS, with this Keras."""
    return IS_KERAS_3 or name not in ("rmsprop", "centered", "rmsprop with momentum")


@contextlib.contextmanager
def formulas_as_written():
    """Inside, TensorFlow's graph optimizer leaves stock's formulas alone: else it makes of
    a / sqrt(b) the less exact a * rsqrt(b), and multiplies in another order."""
    options = tf.config.optimizer.get_experimental_options()
    tf.config.optimizer.set_experimental_options({"arithmetic_optimization": False})
    try:
        yield
    finally:
        arithmetic = options.get("arithmetic_optimization", True)
        tf.config.optimizer.set_experimental_options({"arithmetic_optimization": arithmetic})


def make_variables(dtype=tf.float32, shapes=SHAPES):
    start = np.random.default_rng(1)
    return [tf.Variable(tf.cast(start.normal(size=s), dtype), name=f"w{len(s)}") for s in shapes]


def train(make, dtype=tf.float32, traced=True, wrapped=False, steps=STEPS):
    """Returns the values of variables and of the optimizer's own after some steps, and the types of
    the ops of a traced step."""
    variables, data = make_variables(dtype), np.random.default_rng(2)
    optimizer = without_xla(make())
    optimizer = ge.optimizers.wrap(optimizer) if wrapped else optimizer
    if hasattr(optimizer, "build"):
        optimizer.build(variables)

    def step(*gradients):
        optimizer.apply_gradients(zip(gradients, variables))

    run = tf.function(step) if traced else step
    for _ in range(steps):
        gradients = [tf.cast(data.normal(size=shape), dtype) for shape in SHAPES]
        run(*gradients)
    kinds = []
    if traced:
        kinds = [op.type for op in run.get_concrete_function(*gradients).graph.get_operations()]
    of_optimizer = optimizer.variables
    slots = of_optimizer() if callable(of_optimizer) else of_optimizer
    if isinstance(optimizer, V1.Optimizer):  # in the order of its slots, which is another
        slots = sorted(slots, key=lambda slot: (slot.name, slot.shape.as_list()))
    values = [tf.convert_to_tensor(v) for v in (*variables, *slots)]
    return [tf.cast(value, tf.float64).numpy() for value in values], kinds


def assert_same_bits(values, expected):
    assert len(values) == len(expected)
    for value, other in zip(values, expected):
        np.testing.assert_array_equal(value, other)


@pytest.mark.parametrize(
    "name, traced",
    [*((name, True) for name in OF_KERAS), ("adagrad", False), ("rmsprop with momentum", False)],
)
def test_keras_to_the_bit(name, traced):
    # Given a stock optimizer of Keras and the same wrapped
    make = OF_KERAS[name]

    # When both train variables of many shapes
    with formulas_as_written():
        expected, _ = train(make, traced=traced)
        values, kinds = train(make, traced=traced, wrapped=True)

    # Then variables and slots are the same, by one op
    assert_same_bits(values, expected)
    assert kinds.count("GroupEmbedding>DenseUpdate") == (traced and has_formula(name))


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16])
@pytest.mark.parametrize("name", ["momentum", "adagrad", "adamw", "rmsprop"])
def test_types_of_16_bits(name, dtype):
    with formulas_as_written():
        expected, _ = train(OF_KERAS[name], dtype)
        values, kinds = train(OF_KERAS[name], dtype, wrapped=True)

    assert_same_bits(values, expected)
    assert kinds.count("GroupEmbedding>DenseUpdate") == has_formula(name)


@pytest.mark.skipif(LEGACY is None, reason="needs legacy optimizers of Keras")
@pytest.mark.parametrize("name", RULES)
def test_legacy_to_the_bit(name):
    def make():
        return RULES[name](LEGACY)

    expected, _ = train(make)
    values, kinds = train(make, wrapped=True)

    assert_same_bits(values, expected)
    assert kinds.count("GroupEmbedding>DenseUpdate") == 0


def test_ftrl_to_the_bit():
    """The graph optimizer takes the power of 1/2 as a root, as the formula does."""

    def make():
        return KERAS.Ftrl(0.1, **SHRINKAGE)

    expected, _ = train(make)
    values, kinds = train(make, wrapped=True)

    assert_same_bits(values, expected)
    assert kinds.count("GroupEmbedding>DenseUpdate") == 1


@pytest.mark.parametrize(
    "name, use_resource", [*((name, True) for name in OF_V1), ("sgd", False), ("adam", False)]
)
def test_v1_to_the_bit(name, use_resource):
    def run(wrapped):
        no_gpu = tf.compat.v1.ConfigProto(device_count={"GPU": 0})
        with tf.Graph().as_default() as graph, tf.compat.v1.Session(config=no_gpu) as session:
            data = np.random.default_rng(2)
            variables = [
                tf.compat.v1.get_variable(
                    f"w{i}", initializer=v.astype(np.float32), use_resource=use_resource
                )
                for i, v in enumerate(np.asarray(data.normal(size=shape)) for shape in SHAPES)
            ]
            gradients = [tf.compat.v1.placeholder(tf.float32, shape) for shape in SHAPES]
            optimizer = OF_V1[name]()
            optimizer = ge.optimizers.wrap(optimizer) if wrapped else optimizer
            step = optimizer.apply_gradients(zip(gradients, variables))
            session.run(tf.compat.v1.global_variables_initializer())
            for _ in range(STEPS):
                session.run(step, {g: data.normal(size=g.shape) for g in gradients})
            kinds = [op.type for op in graph.get_operations()]
            return session.run({v.name: v for v in tf.compat.v1.global_variables()}), kinds

    expected, _ = run(wrapped=False)
    values, kinds = run(wrapped=True)

    assert values.keys() == expected.keys()
    assert_same_bits(list(values.values()), [expected[variable] for variable in values])
    assert not [kind for kind in kinds if "DenseUpdate" in kind]


def test_v1_constraints_are_stocks():
    """Stock applies a constraint right after its update of that variable."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        ones = np.ones([2, 3], np.float32)
        free = tf.compat.v1.get_variable("free", initializer=ones, use_resource=True)
        held = tf.compat.v1.get_variable(
            "held", initializer=ones, use_resource=True, constraint=lambda w: tf.maximum(w, 0.0)
        )
        optimizer = ge.optimizers.wrap(V1.GradientDescentOptimizer(1.0))
        step = optimizer.apply_gradients([(tf.fill([2, 3], 5.0), free), (2 * held, held)])
        session.run(tf.compat.v1.global_variables_initializer())
        session.run(step)
        np.testing.assert_array_equal(session.run([free, held]), [-4 * ones, 0 * ones])


def ops_of_step(optimizer, variables, **options):
    @tf.function(**options)
    def step(*gradients):
        optimizer.apply_gradients(zip(gradients, variables))

    gradients = [tf.ones_like(variable) for variable in variables]
    step(*gradients)
    graph = step.get_concrete_function(*gradients).graph
    return [op for op in graph.get_operations() if "DenseUpdate" in op.type]


def test_variables_of_each_dtype_have_one_op():
    # Given variables of two types
    variables = [*make_variables(shapes=[(3,), (2, 2)]), *make_variables(tf.bfloat16, [(4,)])]
    # When a wrapped optimizer updates them, some with weight decay
    optimizer = ge.optimizers.wrap(KERAS.AdamW(0.1, weight_decay=0.1))
    optimizer.exclude_from_weight_decay([variables[0]])
    ops = ops_of_step(optimizer, variables)
    # Then those of one type, decayed or not, are updated together
    of_ops = sorted((op.get_attr("dtype").name, len(op.get_attr("names"))) for op in ops)
    assert of_ops == [("bfloat16", 1), ("float32", 1), ("float32", 1)]


def test_what_is_excluded_does_not_decay():
    def run(wrapped):
        variables = make_variables(shapes=[(3,), (2, 2)])
        optimizer = without_xla(KERAS.SGD(0.5, weight_decay=0.25))
        optimizer = ge.optimizers.wrap(optimizer) if wrapped else optimizer
        optimizer.exclude_from_weight_decay([variables[1]])
        optimizer.apply_gradients((tf.ones_like(v), v) for v in variables)
        return [variable.numpy() for variable in variables]

    assert_same_bits(run(wrapped=True), run(wrapped=False))


@pytest.mark.parametrize(
    "make, options",
    [
        (lambda: KERAS.Ftrl(0.1, learning_rate_power=-0.3), {}),
        (lambda: KERAS.Adam(0.1), {"jit_compile": True}),
    ],
    ids=["a power that is no root", "XLA"],
)
def test_the_rest_is_stocks(make, options):
    # Given an optimizer that no formula states, or a step in which no native op can be
    variables = make_variables(shapes=[(3,), (2, 2)])
    expected = make_variables(shapes=[(3,), (2, 2)])
    # When it is wrapped
    assert not ops_of_step(ge.optimizers.wrap(make()), variables, **options)
    ops_of_step(make(), expected, **options)
    # Then stock updates all variables
    assert_same_bits([v.numpy() for v in variables], [v.numpy() for v in expected])


def test_a_variable_that_comes_twice_is_stocks():
    (once, twice), (g, h) = make_variables(shapes=[(3,), (3,)]), tf.ones([2, 3])
    pairs = [(g, once), (g, twice), (h, twice)]

    left = update_together(
        lambda dtype: ge.optimizers.wrap(KERAS.SGD(0.5))._ge_dense_rule(dtype),
        pairs,
        lambda name, variable: tf.Variable(tf.zeros_like(variable)),
    )

    assert [variable is twice for _, variable in left] == [True, True]


def test_what_was_read_before_keeps_its_value():
    # Given the value of a variable, which is its gradient too, and another that shares its buffer
    variable, other = tf.Variable([1.0, 2.0]), tf.Variable([0.0, 0.0])
    value = variable.read_value()
    other.assign(value)

    # When it is updated
    ge.optimizers.wrap(KERAS.SGD(1.0)).apply_gradients([(value, variable)])

    # Then only it has changed
    np.testing.assert_array_equal(variable, [0.0, 0.0])
    np.testing.assert_array_equal([value, other], [[1.0, 2.0], [1.0, 2.0]])


def test_slots_restore_into_a_stock_optimizer(tmp_path):
    # Given a wrapped optimizer that was saved in the middle of training
    def step(optimizer, variables, value):
        optimizer.apply_gradients((tf.fill(v.shape, value), v) for v in variables)

    variables, others = make_variables(), make_variables()
    wrapped, stock = ge.optimizers.wrap(KERAS.Adam(0.01)), without_xla(KERAS.Adam(0.01))
    step(wrapped, variables, 0.5)
    saved = tf.train.Checkpoint(variables=variables, optimizer=wrapped).save(str(tmp_path / "c"))
    # When a stock one restores it, and both go on
    stock.build(others)
    tf.train.Checkpoint(variables=others, optimizer=stock).restore(saved).assert_consumed()
    step(wrapped, variables, -0.25)
    step(stock, others, -0.25)
    # Then they agree
    assert_same_bits([v.numpy() for v in variables], [v.numpy() for v in others])


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16", "mixed_float16"])
def test_fit_to_the_bit(policy):
    # Given a model, whose policy may cast variables and scale the loss
    inputs = np.random.default_rng(0).normal(size=[64, 5]).astype(np.float32)

    def fit(optimizer):
        tf.keras.utils.set_random_seed(1)
        hidden = tf.keras.layers.Dense(8, activation="relu", dtype=policy)
        model = tf.keras.Sequential([hidden, tf.keras.layers.Dense(1, dtype=policy)])
        model.compile(optimizer, "mse", jit_compile=False)
        model.fit(inputs, inputs[:, :1], epochs=4, verbose=0, shuffle=False)
        return model.get_weights()

    # When it is fit with a stock Adam and a wrapped one, then weights are the same
    stock, wrapped = (without_xla(KERAS.Adam(0.01)) for _ in range(2))
    wrapped = ge.optimizers.wrap(wrapped)
    assert_same_bits(fit(wrapped), fit(stock))
