"""`fit` of `ge.training.Model` on datasets: several steps a call, ends of data, many features."""

import threading

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.eager import context

import group_embedding as ge
from group_embedding.keras_compat import IS_KERAS_3, keras
from group_embedding.training.iterator_steps import IteratorSteps

SAMPLES = 4


def numbers(count, known=True):
    """A dataset of 1, 2, ..., whose size TensorFlow knows or does not."""
    data = tf.data.Dataset.range(1, count + 1)
    return data if known else data.filter(lambda _: True)


class Summing:
    """A step that adds numbers up, and notes in which order they came."""

    def __init__(self):
        self.order, self.num_traces = tf.Variable(""), 0

    def __call__(self, number):
        self.num_traces += 1
        word = tf.strings.as_string(tf.cast(number, tf.int64))
        self.order.assign(tf.strings.join([self.order, word], " "))
        return tf.identity(self.order)

    def taken(self):
        return [int(word) for word in self.order.numpy().decode().split()]


@pytest.mark.parametrize("most", [1, 3, 40])  # 40: more than one function takes
def test_each_batch_is_taken_once_and_in_order(most):
    # Given 50 batches, whose number is no multiple of the steps of a call
    step = Summing()
    steps, iterator = IteratorSteps(step), iter(numbers(50, known=False))

    # When steps are taken until there is no batch left
    calls = 0
    with pytest.raises(tf.errors.OutOfRangeError):
        while calls < 100:
            last = steps.take(iterator, most)
            calls += 1

    # Then each was taken once, in order, and the last call returned what its last step did
    assert step.taken() == list(range(1, 51))
    assert calls == -(-50 // most)
    assert last.numpy() == step.order.numpy()


def test_iterators_of_one_structure_share_functions():
    # Given steps, three to a call
    step = Summing()
    steps = IteratorSteps(step)

    # When they are taken on two iterators of one structure, by turns, and on one of another
    first, second = iter(numbers(9)), iter(numbers(6))
    for iterator in (first, second, first, second, first):
        steps.take(iterator, 3)
    traces = step.num_traces
    steps.take(iter(tf.data.Dataset.from_tensor_slices([7, 8, 9])), 3)  # int32, and not int64

    # Then each iterator went on where it was, and only the new structure was traced
    assert step.taken() == [1, 2, 3, 1, 2, 3, 4, 5, 6, 4, 5, 6, 7, 8, 9, 7, 8, 9]
    assert traces == 3 and step.num_traces == 6


def test_one_thread_takes_batches_that_python_makes():
    # Given a dataset whose batches another thread makes, which needs Python's lock
    step = Summing()
    steps = IteratorSteps(step)
    spec = tf.TensorSpec([], tf.int64)
    iterator = iter(tf.data.Dataset.from_generator(lambda: range(1, 15), output_signature=spec))

    # When steps are taken, three a call, by the thread that makes the first calls and by another
    for _ in range(2):
        steps.take(iterator, 3)
    ((_, functions),) = steps._functions
    next_batches, executors = functions.next_batches._function, []

    def note_executor(*args):
        executors.append(context.context().function_call_options.executor_type)
        return next_batches(*args)

    functions.next_batches._function = note_executor
    thread = threading.Thread(target=steps.take, args=(iterator, 3))
    thread.start()
    thread.join(timeout=60)
    for _ in range(2):
        steps.take(iterator, 3)

    # Then all were taken, in order, and no thread was woken for each batch
    assert step.taken() == list(range(1, 15))
    assert executors == 3 * ["SINGLE_THREADED_EXECUTOR"]


def test_an_error_of_a_batch_comes_in_its_step():
    # Given a dataset whose third batch cannot be read
    step = Summing()
    data = numbers(5).map(lambda n: tf.debugging.check_numerics(6 / (n - 3), "third"))
    steps, iterator = IteratorSteps(step), iter(data)

    # When steps are taken, one a call
    for _ in range(2):
        steps.take(iterator)
    with pytest.raises(tf.errors.InvalidArgumentError):
        steps.take(iterator)

    # Then the two before it have been taken, and those after it can be
    steps.take(iterator)
    assert step.taken() == [-3, -6, 6]


def features():
    uniform = keras.initializers.RandomUniform(seed=1)
    words = ge.TableConfig("words", num_rows=50, dim=4, initializer=uniform)
    keys = ge.TableConfig("keys", num_rows=None, dim=2, initializer=uniform)
    return [
        ge.FeatureConfig("sparse", words, "sum"),
        ge.FeatureConfig("ragged", keys, "mean", weights_feature="seconds"),
        ge.FeatureConfig("padded", words, "mean"),
        ge.FeatureConfig("item", keys),
    ]


def batches(count=7):
    """Batches of all kinds of ids, with weights of ids and of samples; the last one is smaller."""
    rng = np.random.default_rng(5)
    for b in range(count):
        samples = SAMPLES if b + 1 < count else SAMPLES - 1
        lengths = rng.integers(0, 4, samples)
        ragged = tf.RaggedTensor.from_row_lengths(rng.integers(0, 30, lengths.sum()), lengths)
        padded = rng.integers(-1, 50, [samples, 3])
        inputs = {
            "sparse": tf.sparse.from_dense(rng.integers(0, 50, [samples, 4])),
            "ragged": ragged,
            "seconds": ragged.with_values(rng.random(lengths.sum()).astype("float32")),
            "padded": tf.constant(padded),
            "item": tf.constant(rng.integers(0, 30, samples)),
        }
        labels = rng.normal(size=[samples, 1]).astype("float32")
        yield inputs, tf.constant(labels), tf.constant(rng.random(samples).astype("float32"))


def dataset():
    """The batches as a dataset."""
    every = list(batches())
    spec = tf.nest.map_structure(of_any_size, every[0])
    data = tf.data.Dataset.from_generator(lambda: iter(every), output_signature=spec)
    return data.apply(tf.data.experimental.assert_cardinality(len(every)))


def of_any_size(tensor):
    if isinstance(tensor, tf.SparseTensor):
        return tf.SparseTensorSpec([None, 4], tensor.dtype)
    if isinstance(tensor, tf.RaggedTensor):
        return tf.RaggedTensorSpec([None, None], tensor.dtype)
    return tf.TensorSpec([None, *tensor.shape[1:]], tensor.dtype)


def make_model(base, **options):
    class Twice(base):
        """Looks one layer up twice, and reads two features beside it."""

        def __init__(self):
            super().__init__()
            self.embeddings = ge.layers.GroupEmbedding(features(), concat=True)
            start = keras.initializers.GlorotUniform(seed=2)
            self.head = keras.layers.Dense(1, kernel_initializer=start)

        def call(self, inputs):
            once = self.embeddings(inputs)
            again = self.embeddings({**inputs, "item": inputs["item"] + 1})
            beside = tf.cast(inputs["padded"], tf.float32) / 50.0
            count = tf.cast(inputs["ragged"].row_lengths(), tf.float32)[:, None]
            return self.head(tf.concat([once, again, beside, count], axis=-1))

    model = Twice()
    optimizer = ge.optimizers.wrap(keras.optimizers.Adagrad(0.1))
    model.compile(optimizer, "mse", metrics=["mae"], jit_compile=False, **options)
    return model


@pytest.mark.parametrize("steps_per_execution", [1, 3])
def test_fit_of_a_dataset_trains_as_without_compilation(steps_per_execution):
    # Given two models that look one layer up twice and read some of its features beside
    plain = make_model(keras.Model)
    model = make_model(ge.training.Model, steps_per_execution=steps_per_execution)

    # When both are fitted on seven batches of which the last is smaller; one several steps a call
    expected = plain.fit(dataset(), epochs=2, verbose=0).history
    found = model.fit(dataset(), epochs=2, verbose=0).history

    # Then losses, metrics, steps and rows are the same
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, atol=2e-6, err_msg=name)
    assert int(model.optimizer.iterations) == 14
    inputs = next(batches())[0]
    np.testing.assert_allclose(model(inputs), plain(inputs), atol=2e-6)


def test_fit_goes_on_with_an_iterator_in_its_next_epoch():
    # Given a dataset without an end
    plain, model = make_model(keras.Model), make_model(ge.training.Model, steps_per_execution=2)

    # When both take epochs of three steps, which do not begin where the data does
    expected = plain.fit(dataset().repeat(), epochs=3, steps_per_epoch=4, verbose=0).history
    found = model.fit(dataset().repeat(), epochs=3, steps_per_epoch=4, verbose=0).history

    # Then losses are the same
    np.testing.assert_allclose(found["loss"], expected["loss"], atol=2e-6)


def test_an_explicit_jit_compile_is_refused():
    # Given a model
    model = make_model(ge.training.Model)

    # When it is fitted as one XLA program, Then the layer says that XLA cannot compile it
    with pytest.raises((TypeError, ValueError), match="jit_compile"):
        model.compile(ge.optimizers.wrap(keras.optimizers.Adagrad(0.1)), "mse", jit_compile=True)
        model.fit(dataset(), verbose=0)


def test_train_on_batch_trains_as_fit():
    # Given two models of the same start
    fitted, single = make_model(ge.training.Model), make_model(ge.training.Model)

    # When one takes a whole dataset, and the other its batches one by one
    fitted.fit(dataset(), verbose=0)
    for inputs, labels, weights in batches():
        single.train_on_batch(inputs, labels, weights)

    # Then both predict the same
    inputs = next(batches())[0]
    np.testing.assert_allclose(single(inputs), fitted(inputs), atol=2e-6)


@pytest.mark.skipif(IS_KERAS_3, reason="Keras 3 writes the graph of no function of its own making")
def test_tensorboard_has_the_graph_of_the_training_step(tmp_path):
    # Given a model
    model = make_model(ge.training.Model)

    # When it is fitted with Keras's callback
    callback = keras.callbacks.TensorBoard(str(tmp_path), write_steps_per_second=True)
    model.fit(dataset(), verbose=0, callbacks=[callback])

    # Then an event file has the ops of the step
    (path,) = (tmp_path / "train").glob("events*")
    assert b"IteratorGetNext" in path.read_bytes()
