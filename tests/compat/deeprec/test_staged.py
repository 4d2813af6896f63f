"""`staged`: every element comes once, made ahead of the step that takes it."""

import threading
import time

import numpy as np
import pytest
import tensorflow as tf

import group_embedding as ge

v1 = tf.compat.v1


@pytest.fixture(autouse=True)
def graph():
    with tf.Graph().as_default():
        yield


def element_of(dataset):
    return v1.data.make_one_shot_iterator(dataset).get_next()


def numbers(count):
    return element_of(tf.data.Dataset.range(count))


def train(fetches, **options):
    """The values that a training session fetches until the data end."""
    fetched = []
    with v1.train.MonitoredSession(hooks=[ge.make_prefetch_hook()], **options) as session:
        while not session.should_stop():
            fetched.append(session.run(fetches))
    return fetched


@pytest.mark.parametrize("num_threads, capacity", [(1, 1), (1, 40), (4, 3)])
def test_every_element_comes_once(num_threads, capacity):
    # Given fifty elements, and more threads than elements fit into the queue
    number = ge.staged(numbers(50), num_threads=num_threads, capacity=capacity)
    # When they are taken until they end
    fetched = train(number)
    # Then each came once, and of one thread in order
    assert sorted(fetched) == list(range(50))
    assert num_threads > 1 or fetched == sorted(fetched)


def test_structures_keep_their_form_and_shapes():
    # Given features of every kind, of which one is absent
    dense = tf.reshape(tf.cast(numbers(3), tf.float32), [1, 1]) * tf.ones([2, 3])
    features = {
        "dense": dense,
        "absent": None,
        "sparse": tf.sparse.from_dense(tf.cast(dense, tf.int64)),
        "ragged": (tf.RaggedTensor.from_row_lengths(tf.strings.as_string([5, 6]), [0, 2]),),
    }
    # When they are staged
    taken = ge.staged(features, capacity=2)
    fetched = train({name: one for name, one in taken.items() if one is not None})
    # Then the structure, the values and what is known of the shapes are those of the features
    assert taken["absent"] is None and taken["dense"].shape == [2, 3]
    assert taken["sparse"].indices.shape.as_list() == [None, 2]
    assert [one["dense"][0, 0] for one in fetched] == [0, 1, 2]
    np.testing.assert_array_equal(fetched[2]["sparse"].values, [2] * 6)
    assert fetched[1]["ragged"][0].to_list() == [[], [b"5", b"6"]]


def test_elements_are_made_ahead():
    # Given a source that tells how many elements it has made
    made = []

    def source():
        for i in range(100):
            made.append(i)
            yield i

    dataset = tf.data.Dataset.from_generator(source, output_signature=tf.TensorSpec([], tf.int64))
    number = ge.staged(element_of(dataset), capacity=5)
    with v1.train.MonitoredSession(hooks=[ge.make_prefetch_hook()]) as session:
        # When one element has been taken, and none since
        session.run(number)
        deadline = time.monotonic() + 30
        while len(made) < 6 and time.monotonic() < deadline:
            time.sleep(0.01)
        # Then the queue has been filled meanwhile
        assert len(made) >= 6


def test_two_sessions_over_one_graph():
    # Given a graph whose data are chosen when a session starts, as for training and evaluation
    iterator = v1.data.Iterator.from_structure(tf.int64, tf.TensorShape([]))
    starts = [iterator.make_initializer(tf.data.Dataset.range(n)) for n in (7, 4)]
    number = ge.staged(iterator.get_next(), num_threads=2, capacity=3)
    # When one session follows the other
    fetched = [
        train(number, session_creator=v1.train.ChiefSessionCreator(v1.train.Scaffold(init_op=s)))
        for s in starts
    ]
    # Then each has its own data, and no thread is left
    assert [sorted(of) for of in fetched] == [list(range(7)), list(range(4))]
    assert not [t for t in threading.enumerate() if "_fill" in t.name and t.is_alive()]


def test_sessions_that_end_early_leave_no_thread():
    # Given more elements than are taken
    before = set(threading.enumerate())
    number = ge.staged(numbers(10**6), num_threads=3, capacity=2)
    with v1.train.MonitoredSession(hooks=[ge.make_prefetch_hook()]) as session:
        # When the session ends with threads that wait for the queue
        session.run(number)
    # Then they end
    for thread in set(threading.enumerate()) - before:
        thread.join(timeout=30)
        assert not thread.is_alive()


@pytest.mark.parametrize("num_threads", [1, 3])
def test_an_error_of_the_source_reaches_the_step(num_threads):
    # Given data of which one is bad
    number = numbers(10)
    with tf.control_dependencies([v1.assert_less(number, tf.constant(4, tf.int64), message="bad")]):
        number = ge.staged(tf.identity(number), num_threads=num_threads)
    # When a thread comes to it, then training fails with its message
    with pytest.raises(tf.errors.InvalidArgumentError, match="bad"):
        train(number)


@pytest.mark.parametrize("kinds", [[tf.errors.INVALID_ARGUMENT], [tf.errors.InvalidArgumentError]])
def test_ignored_and_closing_errors(kinds):
    # Given data of which every third is bad
    number = numbers(10)
    check = v1.assert_positive(number % 3)
    with tf.control_dependencies([check]):
        good = tf.identity(number)
    # When such an error is ignored, then the others come; when it closes, those before
    assert train(ge.staged(good, ignored_exception_types=kinds)) == [1, 2, 4, 5, 7, 8]


def test_an_error_may_close():
    number = numbers(10)
    with tf.control_dependencies([v1.assert_less(number, tf.constant(4, tf.int64))]):
        good = tf.identity(number)
    kinds = [tf.errors.OUT_OF_RANGE, tf.errors.INVALID_ARGUMENT]
    assert train(ge.staged(good, closed_exception_types=kinds)) == [0, 1, 2, 3]


def test_feeds():
    # Given features of placeholders, which tensors feed
    dense, sparse = v1.placeholder(tf.int64, []), v1.sparse_placeholder(tf.int64, [1])
    number = numbers(3)
    value = v1.SparseTensorValue([[0]], tf.reshape(number * 10, [1]), [1])
    features = dense + tf.sparse.reduce_sum(sparse)
    # When they are staged, then each element has the feeds of its own
    assert train(ge.staged(features, feed_dict={dense: number, sparse: value})) == [0, 11, 22]


def test_joined_sources():
    # Given two sources of other sizes and static shapes
    sources = [
        {"x": element_of(tf.data.Dataset.range(10 * i, 10 * i + count).batch(2))}
        for i, count in enumerate((6, 4))
    ]
    sources[0]["x"].set_shape([2])
    # When each has a thread
    taken = ge.prefetch_join(sources, capacity=4)
    # Then all elements come
    assert taken["x"].shape.as_list() == [None]
    assert sorted(np.concatenate([e["x"] for e in train(taken)])) == [*range(6), *range(10, 14)]


def test_a_graph_with_staged_features_is_exported(caplog):
    # Given a graph that stages
    number = ge.staged(numbers(3))
    # When its meta graph is written, as with every checkpoint
    meta_graph = v1.train.export_meta_graph()
    # Then it is whole, and nothing in it is complained of
    assert number.op.name in [node.name for node in meta_graph.graph_def.node]
    assert "serializing" not in caplog.text


def test_without_the_hook_a_step_says_so():
    number = ge.staged(numbers(3))
    wrong = pytest.raises(tf.errors.InvalidArgumentError, match="make_prefetch_hook")
    with v1.Session() as session, wrong:
        session.run(number)


def test_an_element_that_takes_too_long():
    # Given a queue that no step empties, and a short time
    number = ge.staged(numbers(100), timeout_millis=200)
    hooks, wrong = [ge.make_prefetch_hook()], pytest.raises(tf.errors.DeadlineExceededError)
    with wrong, v1.train.MonitoredSession(hooks=hooks) as session:
        # When training pauses for longer, then it fails rather than to wait for ever
        session.run(number)
        time.sleep(2)
        while True:
            session.run(number)


def test_refusals(caplog):
    number = numbers(3)
    for argument in ("capacity", "num_threads", "num_clients", "timeout_millis"):
        with pytest.raises(ValueError, match=f"{argument}: expected a positive number, got 0"):
            ge.staged(number, **{argument: 0})
    with pytest.raises(ValueError, match="features of one thread or more"):
        ge.prefetch_join([])
    with pytest.raises(ValueError):
        ge.prefetch_join([{"a": number}, {"b": number}])
    ge.staged(number, stage_subgraph_stream_id=2)
    assert "stage_subgraph_stream_id" in caplog.text


def test_eager_code_is_refused():
    function = tf.function(lambda: ge.staged(tf.constant(1)))
    with pytest.raises(RuntimeError, match="graph of TensorFlow 1"):
        function.get_concrete_function()
