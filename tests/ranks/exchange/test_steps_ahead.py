"""Steps whose next batch is routed, and its rows fetched, while they train: the same bits."""

import contextlib
import warnings

import numpy as np
import pytest
import tensorflow as tf
from support.session.tiers import by_day

import group_embedding as ge
from group_embedding import exchange
from group_embedding.distributed import enable_distributed_strategy
from group_embedding.keras_compat import keras
from group_embedding.ranks.sharding.make_sharded_table import make_table
from group_embedding.ranks.sharding.sharded_table import gather_rows

STEPS, ROWS, DIMS = 7, 600, (3, 16)
BATCHES = {
    "overlapping": lambda step, draw, n: draw.integers(0, 40, n),
    "disjoint": lambda step, draw, n: 80 * step + draw.integers(0, 80, n),
}


@contextlib.contextmanager
def rows_ahead(are_ahead):
    exchange.current().ahead = are_ahead
    try:
        yield
    finally:
        exchange.current().ahead = False


def batches_of(kind):
    """This rank's batches. Each has another number of ids, and one has none. Only disjoint batches
    differ in size, too: XLA compiles the dense part for each size."""
    rank, batches = exchange.current().rank, []
    for step in range(STEPS):
        draw = np.random.default_rng([11, step, rank])
        size = 5 + (step % 2 if kind == "disjoint" else 0)
        lengths = draw.integers(0, 4, size) * (step != 3)
        ids = [BATCHES[kind](step, draw, lengths.sum()) for _ in range(3)]
        ragged = [tf.RaggedTensor.from_row_lengths(i.astype(np.int64), lengths) for i in ids]
        batches.append((*ragged, tf.constant(draw.normal(size=(len(lengths), 1)), tf.float32)))
    return batches


class Trainer:
    """Two tables by row, one of which is looked up twice, one by key, and a dense kernel."""

    def __init__(self, name, kind, optimizer):
        rng, dims = np.random.default_rng(4), (*DIMS, DIMS[0])
        self.plain = [
            make_table(
                (ROWS, dim),
                lambda shape, dtype=None: tf.constant(rng.normal(size=shape), tf.float32),
                lambda shape, initializer: tf.Variable(initializer(shape)),
            )
            for dim in DIMS
        ]
        uniform = keras.initializers.RandomUniform(seed=3)
        self.keyed = ge.get_embedding_variable(f"keyed_{name}", DIMS[0], initializer=uniform)
        self.kernel = tf.Variable(rng.normal(size=(sum(dims), 1)).astype("float32"))
        self.optimizer = ge.DistributedOptimizer(ge.optimizers.wrap(optimizer))
        self.batches = batches_of(kind)
        self.step = ge.training.make_step(self._step)
        self.steps_per_call = 1
        self.between = []
        self.after_step = {}  # {number of a step: what is called after it}

    @property
    def tables(self):
        return [*self.plain, self.keyed]

    def _step(self, first, second, keys, labels):
        variables = [*self.tables, self.kernel]
        with tf.GradientTape() as tape:
            vectors = ge.group_embedding_lookup_sparse(self.tables, [first, second, keys], "mean")
            loss = tf.reduce_mean((tf.concat(vectors, -1) @ self.kernel - labels) ** 2)
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        return loss

    def train(self):
        losses = []
        for number, loss in enumerate(self.step.over(self.batches, self.steps_per_call)):
            losses.append(loss.numpy())
            self.after_step.get(number, lambda: None)()
        return losses

    def content(self):
        keys, rows, *counts = map(np.asarray, self.keyed.export(gather=True))
        order = np.argsort(keys)
        whole = [gather_rows(table).numpy() for table in self.plain]
        return [*whole, self.kernel.numpy(), *(part[order] for part in (keys, rows, *counts))]


def train_twice_on_rank(kind, optimizer, change=None):
    """[what was trained without rows ahead, what was trained with them]"""
    enable_distributed_strategy()
    results = []
    for are_ahead in (False, True):
        name = f"{kind}_{optimizer}_{getattr(change, '__name__', None)}_{are_ahead}"
        trainer = Trainer(name, kind, keras.optimizers.get(optimizer))
        if change is not None:
            change(trainer)
        with rows_ahead(are_ahead):
            losses = trainer.train()
        results.append([losses, *trainer.content(), *trainer.between])
    return results


def assert_same(ranks):
    for without, ahead in ranks:
        for expected, got in zip(without, ahead, strict=True):
            np.testing.assert_array_equal(got, expected)


def keep_content_between(trainer):
    """Keeps the content of a checkpoint between two steps: rows, keys, counts and versions."""
    trainer.after_step[3] = lambda: trainer.between.extend(trainer.content())


# Between two steps tables know nothing of the next batch, of whose keys they have none.
CHANGES = {"overlapping": None, "disjoint": keep_content_between}


@pytest.mark.parametrize("optimizer", by_day(["Adagrad", "Adam"], ["Adam"]))
@pytest.mark.parametrize("kind", BATCHES)
def test_ranks_train_the_same_bits(several_ranks, kind, optimizer):
    assert_same(several_ranks.run(train_twice_on_rank, kind, optimizer, CHANGES[kind]))


def assign_between(trainer):
    """Between two steps, while rows of the next are there, all rows change, and keys go."""

    def change():
        trainer.plain[0].assign(2.0 * trainer.plain[0])
        keys = trainer.keyed.export()[0]
        trainer.keyed.erase(keys[: len(keys) // 2])

    trainer.after_step[2] = change


def test_tables_that_change_between_steps(two_ranks):
    ranks = two_ranks.run(train_twice_on_rank, "overlapping", "Adagrad", assign_between)
    assert_same(ranks)


def three_steps_a_call(trainer):
    trainer.steps_per_call = 3  # of seven steps


def test_several_steps_in_one_call(two_ranks):
    ranks = two_ranks.run(train_twice_on_rank, "overlapping", "Adam", three_steps_a_call)
    assert_same(ranks)


def ids_of_a_variable(trainer):
    """A second lookup of the step, whose ids depend on a variable that each step changes."""
    offset, step = tf.Variable(0, dtype=tf.int64), trainer._step

    def with_another(first, second, keys, labels):
        of_both = tf.concat([first.values, second.values], 0) + offset
        rows = ge.group_embedding_lookup(trainer.plain[:1], [of_both % ROWS])[0]
        loss = step(first, second, keys, labels) + tf.reduce_sum(rows)
        offset.assign_add(7)
        return loss

    trainer.step = ge.training.make_step(with_another)


def warnings_on_rank():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        results = train_twice_on_rank("overlapping", "Adagrad", ids_of_a_variable)
    return results, [str(w.message) for w in caught if "ahead of the step" in str(w.message)]


def test_a_lookup_whose_ids_depend_on_a_variable_is_named(two_ranks):
    # Given a step with a lookup that can go ahead, and one whose ids a variable decides
    # When two ranks train it over a dataset
    ranks = two_ranks.run(warnings_on_rank)

    # Then the values are those of steps without rows ahead, and one warning says which lookup
    # waits, and for what
    assert_same([results for results, _ in ranks])
    for _, (message,) in ranks:
        assert "the lookup of 'ids[0]' waits for 'add/ReadVariableOp'" in message


def fit_twice_on_rank(steps_per_execution):
    """[what was fitted without rows ahead, what was fitted with them]"""
    enable_distributed_strategy()
    return [fit_on_rank(are_ahead, steps_per_execution) for are_ahead in (False, True)]


def fit_on_rank(are_ahead, steps_per_execution):
    rank = exchange.current().rank
    draw = np.random.default_rng([5, rank])
    inputs = {"item": draw.integers(0, 50, (40, 2)), "user": draw.integers(0, 30, 40)}
    labels = draw.normal(size=(40, 1)).astype("float32")
    uniform = keras.initializers.RandomUniform(seed=1)
    name = f"fit_{are_ahead}_{steps_per_execution}"
    features = [
        ge.FeatureConfig("item", ge.TableConfig(f"{name}_item", 50, 8, uniform)),
        ge.FeatureConfig("user", ge.TableConfig(f"{name}_user", None, 4, uniform)),
    ]
    item = keras.Input([2], dtype="int64", name="item")
    user = keras.Input([], dtype="int64", name="user")
    vectors = ge.layers.GroupEmbedding(features, concat=True)({"item": item, "user": user})
    start = keras.initializers.GlorotUniform(seed=2)
    outputs = keras.layers.Dense(1, kernel_initializer=start)(vectors)
    model = ge.training.Model({"item": item, "user": user}, outputs)
    adagrad = ge.optimizers.wrap(keras.optimizers.Adagrad(0.1))
    model.compile(ge.DistributedOptimizer(adagrad), "mse", steps_per_execution=steps_per_execution)
    data = tf.data.Dataset.from_tensor_slices((inputs, labels)).batch(8)
    endless = data.repeat()
    with rows_ahead(are_ahead):
        history = model.fit(data, epochs=2, verbose=0, validation_data=data).history
        more = model.fit(endless, epochs=2, steps_per_epoch=3, verbose=0).history
    return [*history.values(), *more.values(), int(model.optimizer.iterations)]


@pytest.mark.parametrize("steps_per_execution", by_day([1, 2], [2]))
def test_fit_goes_ahead(two_ranks, steps_per_execution):
    for without, ahead in two_ranks.run(fit_twice_on_rank, steps_per_execution):
        np.testing.assert_array_equal(ahead[-1], without[-1])
        for one, other in zip(without[:-1], ahead[:-1]):
            np.testing.assert_array_equal(other, one)
