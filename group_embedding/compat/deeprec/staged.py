"""Batches made ahead by threads, in graphs of TensorFlow 1: DeepRec's `tf.staged`."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from group_embedding.arguments import check_positive

v1 = tf.compat.v1
_RUNNERS = "_group_embedding_prefetch_runners"  # an attribute of a graph that has some
_OUT_OF_RANGE = (tf.errors.OUT_OF_RANGE,)
_log = logging.getLogger(__name__)


def staged(
    features: Any,
    feed_dict: Mapping[Any, Any] | None = None,
    capacity: int = 1,
    num_threads: int = 1,
    num_clients: int = 1,
    timeout_millis: int = 300000,
    closed_exception_types: Sequence[Any] = _OUT_OF_RANGE,
    ignored_exception_types: Sequence[Any] = (),
    use_stage_subgraph_thread_pool: bool = False,
    stage_subgraph_thread_pool_id: int = 0,
    stage_subgraph_stream_id: int = 0,
    name: str | None = None,
) -> Any:
    """Has threads compute `features` ahead of the steps that use them.

    The threads run while a session with a hook of `make_prefetch_hook` is open, and put what they
    compute into a queue. A step takes the oldest element. With several threads elements come in
    the order in which threads finish them.

    Args:
        features: any structure of tensors, SparseTensors, RaggedTensors and None in a graph.
        feed_dict: a dict from placeholders that `features` depend on to tensors, whose values are
            fed for each element.
        capacity: how many elements the queue holds at most.
        num_threads: how many threads compute elements.
        num_clients: how many steps may take elements at once. The queue serves any number, so that
            this is checked alone.
        timeout_millis: how long one element may take, and wait for the queue to have space;
            longer, it is a DeadlineExceededError.
        closed_exception_types: error codes (`tf.errors.OUT_OF_RANGE`) or exception classes that
            end a thread. When all have ended and the queue is empty, a step raises
            OutOfRangeError.
        ignored_exception_types: likewise, those after which a thread goes on with the next element.
        use_stage_subgraph_thread_pool, stage_subgraph_thread_pool_id, stage_subgraph_stream_id:
            of DeepRec's runtime. A warning says that they change nothing here, unless they are
            DeepRec's defaults.
        name: of the queue.

    Returns:
        The structure of `features`, with the tensors of the oldest element.

    Raises:
        RuntimeError: outside a graph of TensorFlow 1.
        ValueError: a number is not positive.

    Example:

    >>> with tf.Graph().as_default():
    ...     dataset = tf.compat.v1.data.Dataset.range(3)
    ...     element = tf.compat.v1.data.make_one_shot_iterator(dataset).get_next()
    ...     element = ge.staged(element, num_threads=1, capacity=2)
    ...     hooks = [ge.make_prefetch_hook()]
    ...     with tf.compat.v1.train.MonitoredSession(hooks=hooks) as session:
    ...         while not session.should_stop():
    ...             print(session.run(element))
    0
    1
    2
    """
    check_positive("staged: num_threads", num_threads)
    settings = {
        "use_stage_subgraph_thread_pool": use_stage_subgraph_thread_pool,
        "stage_subgraph_thread_pool_id": stage_subgraph_thread_pool_id,
        "stage_subgraph_stream_id": stage_subgraph_stream_id,
    }
    changed = [argument for argument, value in settings.items() if value]
    if changed:
        _log.warning("staged: %s change nothing: TensorFlow's own threads run it", changed)
    return prefetch_join(
        [features] * num_threads,
        feed_dict,
        capacity,
        num_clients,
        timeout_millis,
        closed_exception_types,
        ignored_exception_types,
        name,
    )


def prefetch_join(
    thread_to_features: Sequence[Any],
    feed_dict: Mapping[Any, Any] | None = None,
    capacity: int = 1,
    num_clients: int = 1,
    timeout_millis: int = 300000,
    closed_exception_types: Sequence[Any] = _OUT_OF_RANGE,
    ignored_exception_types: Sequence[Any] = (),
    name: str | None = None,
) -> Any:
    """Has one thread for each source compute elements ahead, all into one queue.

    Args:
        thread_to_features: a list with the features of each source; all of one structure.
        feed_dict, capacity, num_clients, timeout_millis: see `staged`.
        closed_exception_types, ignored_exception_types, name: see `staged`.

    Returns:
        The structure of the features of one source, with the tensors of the oldest element.

    Raises:
        RuntimeError: outside a graph of TensorFlow 1.
        ValueError: there is no source, their structures differ, or a number is not positive.
    """
    if tf.executing_eagerly() or tf.inside_function():
        raise RuntimeError(
            "staged: expected a graph of TensorFlow 1, got eager code or a tf.function, where "
            "tf.data.Dataset.prefetch does the same"
        )
    if not thread_to_features:
        raise ValueError("prefetch_join: expected the features of one thread or more, got none")
    check_positive("staged: capacity", capacity)
    check_positive("staged: num_clients", num_clients)
    check_positive("staged: timeout_millis", timeout_millis)
    first = thread_to_features[0]
    for features in thread_to_features[1:]:
        tf.nest.assert_same_structure(first, features, expand_composites=True)
    sources = [
        [t for t in tf.nest.flatten(features, expand_composites=True) if t is not None]
        for features in thread_to_features
    ]
    # A control dependency of the caller's would have each step read the data that threads read.
    without = tf.control_dependencies(None)
    with without, v1.name_scope(name or "prefetch"), tf.device("/device:CPU:0"):
        queue = tf.queue.FIFOQueue(capacity, [t.dtype for t in sources[0]], name="elements")
        is_prefetching = v1.Variable(
            True, trainable=False, collections=[], use_resource=True, name="is_prefetching"
        )
        runner = _Runner(
            queue,
            [queue.enqueue(source) for source in sources],
            is_prefetching.initializer,
            feed_dict or {},
            timeout_millis,
            tuple(closed_exception_types),
            tuple(ignored_exception_types),
        )
        taken = _take(queue, is_prefetching, sources)
    graph = v1.get_default_graph()
    setattr(graph, _RUNNERS, [*getattr(graph, _RUNNERS, ()), runner])
    taken = iter(taken)
    leaves = tf.nest.flatten(first, expand_composites=True)
    leaves = [None if leaf is None else next(taken) for leaf in leaves]
    return tf.nest.pack_sequence_as(first, leaves, expand_composites=True)


def _take(queue, is_prefetching, sources):
    """The tensors of the oldest element, with the static shapes that all sources have."""
    message = (
        "staged: nothing computes features: expected a hook of make_prefetch_hook() among the "
        "hooks of the session"
    )
    has_hook = v1.is_variable_initialized(is_prefetching)
    with tf.control_dependencies([v1.Assert(has_hook, [message])]):
        taken = queue.dequeue()
    taken = taken if isinstance(taken, list) else [taken]
    for i, tensor in enumerate(taken):
        shape = sources[0][i].shape
        for source in sources[1:]:
            shape = shape.most_specific_compatible_shape(source[i].shape)
        tensor.set_shape(shape)
    return taken


def make_prefetch_hook() -> Any:
    """A hook that runs the threads of the graph's `staged` while its session is open.

    Returns:
        A `tf.compat.v1.train.SessionRunHook`, for the `hooks` of a MonitoredSession, of a
        MonitoredTrainingSession or of an Estimator's methods.

    Example:

    >>> hook = ge.make_prefetch_hook()
    """
    return _PrefetchHook()


class _PrefetchHook(tf.compat.v1.train.SessionRunHook):
    def after_create_session(self, session, coord):
        for runner in getattr(session.graph, _RUNNERS, ()):
            runner.start(session, coord)


class _Runner:
    """The threads that fill one queue, in any number of sessions, one after the other."""

    def __init__(self, queue, enqueue_ops, started, feed_dict, timeout_millis, closing, ignored):
        self._enqueue_ops, self._started = enqueue_ops, started
        self._placeholders = list(feed_dict)
        self._feeds = tf.nest.map_structure(tf.convert_to_tensor, list(feed_dict.values()))
        self._close = queue.close()
        self._cancel = queue.close(cancel_pending_enqueues=True)
        self._options = v1.RunOptions(timeout_in_ms=timeout_millis)
        self._closing, self._ignored = closing, ignored

    def start(self, session, coord):
        session.run(self._started)
        running = _Countdown(len(self._enqueue_ops))
        targets = [(self._fill, (session, coord, op, running)) for op in self._enqueue_ops]
        targets.append((self._cancel_on_stop, (session, coord)))
        for target, arguments in targets:
            thread = threading.Thread(target=target, args=arguments, daemon=True)
            coord.register_thread(thread)
            thread.start()

    def _fill(self, session, coord, enqueue_op, running):
        try:
            while not coord.should_stop():
                try:
                    feeds = session.run(self._feeds) if self._feeds else []
                    feeds = dict(zip(self._placeholders, feeds))
                    session.run(enqueue_op, feed_dict=feeds, options=self._options)
                except Exception as error:
                    if not _is_one_of(error, self._ignored):
                        raise
            return
        except Exception as error:
            if coord.should_stop():  # the session is closed: the error is of that
                return
            if not _is_one_of(error, self._closing):
                coord.request_stop(error)
                return
        if running.is_last():
            session.run(self._close)

    def _cancel_on_stop(self, session, coord):
        coord.wait_for_stop()
        try:
            session.run(self._cancel)
        except Exception as error:
            _log.debug("staged: a session that is closed has no queue to cancel: %s", error)


class _Countdown:
    """Tells the last of some threads that it is that."""

    def __init__(self, count):
        self._count, self._lock = count, threading.Lock()

    def is_last(self):
        with self._lock:
            self._count -= 1
            return self._count == 0


def _is_one_of(error, kinds):
    """`kinds`: exception classes, or codes of `tf.errors`."""
    for kind in kinds:
        if isinstance(kind, type):
            if isinstance(error, kind):
                return True
        elif getattr(error, "error_code", None) == kind:
            return True
    return False
