"""`make_step`: a training step whose dense part is one XLA program."""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from group_embedding.ops.deferred import deferring
from group_embedding.optimizers.loss_scale import let_loss_scales_ask
from group_embedding.ranks.exchange.active import current
from group_embedding.training.deferred_lookup import defer_lookup
from group_embedding.training.one_thread import OnOneThread
from group_embedding.training.split_step import SplitStep
from group_embedding.training.steps_ahead import StepsAhead


def make_step(step: Callable[..., Any]) -> Callable[..., Any]:
    """Compiles a training step: all that is dense in it becomes one XLA program.

    Lookups of tables stay the fused op that they are, and so does the update of the tables. What
    lies between is compiled: the forward pass, the loss, the backward pass, clipping by value,
    metrics, and the optimizer's update of dense variables. At small batches a step then waits for
    two or three launches instead of hundreds.

    The step is an ordinary one: a Python function as `tf.function` takes it, with a gradient tape
    and an optimizer of Keras that `ge.optimizers.wrap` wrapped. It gives what it gives without
    compilation, up to the order in which XLA adds numbers up. Random numbers, such as those of
    dropout, are others.

    An op that XLA cannot compile may stand before the lookups (a vocabulary, a hash of strings,
    packing) and at the end (a summary, a print); between dense ops it is an error. XLA compiles
    anew for each batch size, so that a dataset had better drop its last, smaller batch.

    Where functions run eagerly (`tf.config.run_functions_eagerly`, `run_eagerly` of Keras), nothing
    is compiled.

    A loop of the dense part needs `maximum_iterations`, if a gradient passes through it.

    Over several ranks the step has two programs, with the average of dense gradients between them.
    So it has where the norm of all gradients limits them (`clipnorm`, `global_clipnorm`). With a
    LossScaleOptimizer, one program computes the gradients, and they are applied without another.

    Args:
        step: a function of tensors (ragged and sparse ones and `RoutedIds` too), and of other
            values, that returns tensors. Variables that it makes, it makes in its first call.

    Returns:
        A function that takes and returns the same, and is a method where the step is one. Called by
        itself it is a `tf.function`; in another function its ops are among those of that function.
        Its `over(data)` yields what it returns on each batch of a dataset or another iterable: a
        tuple of its arguments, a dict of them by name, or its one argument. Over ranks, with
        `ge.enable_distributed_strategy(ahead=True)`, it takes each batch from `data` a step early,
        and fetches its rows while the step before trains.

    Raises:
        ValueError: when the step is called first: an op that XLA cannot compile is between lookup
            and update, a lookup is in a branch or a loop, a table is no variable, or the step runs
            under a `tf.distribute` strategy.

    Example:

    >>> table = tf.Variable(tf.ones([10, 4]))
    >>> kernel = tf.Variable(tf.ones([4, 1]))
    >>> optimizer = ge.optimizers.wrap(tf.keras.optimizers.SGD(0.1))
    >>> @ge.training.make_step
    ... def step(ids, labels):
    ...     with tf.GradientTape() as tape:
    ...         (vectors,) = ge.group_embedding_lookup_sparse([table], [ids], "sum")
    ...         loss = tf.reduce_mean((vectors @ kernel - labels) ** 2)
    ...     gradients = tape.gradient(loss, [table, kernel])
    ...     optimizer.apply_gradients(zip(gradients, [table, kernel]))
    ...     return loss
    >>> ids = tf.ragged.constant([[1, 2], [3]], dtype=tf.int64)
    >>> [round(float(step(ids, tf.zeros([2, 1]))), 1) for _ in range(2)]
    [40.0, 4.2]
    """
    compiled = CompiledStep(step)
    function = tf.function(_with_signature(step, compiled), autograph=False, reduce_retracing=True)

    on_one_thread = OnOneThread(function, "GPU")

    def choose(*args, **kwargs):
        if tf.inside_function():
            return compiled(*args, **kwargs)
        return (on_one_thread if _only_launches() else function)(*args, **kwargs)

    call = tf.autograph.experimental.do_not_convert(_with_signature(step, choose))
    call.get_concrete_function = function.get_concrete_function
    call.over = functools.partial(_over, call, StepsAhead(compiled, _arguments_of))
    return call


def _only_launches():
    """Returns whether a step launches kernels: TensorFlow sees a GPU, and no op waits for ranks."""
    return current().num_ranks == 1 and bool(tf.config.list_logical_devices("GPU"))


def _over(step, steps_ahead, data, steps_per_call=1):
    """Yields a step's outputs on each batch of `data`, an iterable."""
    if current().ahead and not tf.config.functions_run_eagerly():
        return steps_ahead.over(data, steps_per_call)
    return (step(*args, **kwargs) for args, kwargs in map(_arguments_of, data))


def _arguments_of(element):
    """A tuple is the step's positional arguments, a dict its arguments by name."""
    if isinstance(element, tuple):
        return element, {}
    return ((), element) if isinstance(element, dict) else ((element,), {})


def _with_signature(step, function):
    """A function with the name, the docstring and the parameters of a step."""

    @functools.wraps(step)
    def call(*args, **kwargs):
        return function(*args, **kwargs)

    call.__signature__ = inspect.signature(step)
    return call


class CompiledStep:
    """A step that is cut into XLA programs where it is traced: called in a graph or a function.

    Args:
        step: as of `make_step`.
    """

    def __init__(self, step):
        self._step = step
        self._name = f"step '{getattr(step, '__name__', type(step).__name__)}'"
        self._splits = []  # (signature, SplitStep); kept as long as functions that call them

    @property
    def num_programs(self) -> int:
        """How many XLA programs the step of the last signature has."""
        return self._splits[-1][1].num_programs

    @property
    def not_ahead(self) -> dict[str, str]:
        """{name of a lookup that cannot be routed ahead: the op for which it cannot}."""
        return self._splits[-1][1].not_ahead

    def __call__(self, *args, **kwargs):
        self._check_strategy()
        if tf.executing_eagerly():  # as somebody who looks for an error has functions run
            return self._step(*args, **kwargs)
        return self._find_split((args, kwargs))(_tensors_of((args, kwargs)))

    def _check_strategy(self):
        if tf.distribute.has_strategy():
            raise ValueError(
                f"{self._name}: expected no tf.distribute strategy around a compiled step, got "
                f"{type(tf.distribute.get_strategy()).__name__}; ranks are processes that "
                "horovodrun launches, with ge.DistributedOptimizer"
            )

    def route(self, arguments):
        """Does of a step what can be done a step ahead.

        Args:
            arguments: `(args, kwargs)` of the step, of a batch to come.

        Returns:
            A structure of tensors, for `call_routed` of the same batch.
        """
        return self._find_split(arguments).route(_tensors_of(arguments))

    def call_routed(self, arguments, routed, next_arguments=None):
        """Takes the step on a batch that was routed, and routes the next batch meanwhile.

        Args:
            arguments: `(args, kwargs)` of the step.
            routed: what `route` or the step before returned for them.
            next_arguments: those of the next batch; None: there is none.

        Returns:
            What the step returns, and the next batch's `routed`.
        """
        routed_next = []

        def route_next():
            if next_arguments is not None:
                routed_next.extend(self.route(next_arguments))

        split = self._find_split(arguments)
        outputs = split(_tensors_of(arguments), routed, route_next)
        return outputs, routed_next

    def _find_split(self, arguments):
        self._check_strategy()
        signature = _Signature(arguments)
        split = next((split for known, split in self._splits if known == signature), None)
        if split is None or split.closes_over_graph:
            split = self._split(arguments)
            self._splits.append((signature, split))
        return split

    def _split(self, arguments):
        let_loss_scales_ask()  # they are deferred as a whole
        traces = {}

        # Composite tensors and plain values are arguments of the trace, too: one per leaf.
        def traced(*leaves):
            args, kwargs = tf.nest.pack_sequence_as(arguments, leaves)
            with deferring(defer_lookup) as trace:
                outputs = self._step(*args, **kwargs)
            traces[id(trace.graph)] = trace
            return outputs

        specs = [_spec_of(leaf) for leaf in tf.nest.flatten(arguments)]
        # Not in an init_scope, which would pause the step's gradient tapes.
        concrete = tf.function(traced).get_concrete_function(*specs)
        return SplitStep(self._name, concrete, traces[id(concrete.graph)])


def _tensors_of(arguments):
    leaves = tf.nest.flatten(arguments, expand_composites=True)
    return [leaf for leaf in leaves if tf.is_tensor(leaf)]


class _Signature:
    """The graph that the ops of a split go into, and the types of its arguments.

    Several steps in one function have one split, so that its XLA programs are compiled once."""

    def __init__(self, arguments):
        self._graph = weakref.ref(tf.compat.v1.get_default_graph())
        self._structure = tf.nest.map_structure(lambda _: None, arguments)
        self._specs = [_spec_of(leaf) for leaf in tf.nest.flatten(arguments)]

    def __eq__(self, other):
        if self._graph() is not other._graph() or self._structure != other._structure:
            return False
        return all(map(_are_equal, self._specs, other._specs))


def _spec_of(leaf):
    is_tensor = tf.is_tensor(leaf) or isinstance(leaf, tf.__internal__.CompositeTensor)
    return tf.type_spec_from_value(leaf) if is_tensor else leaf


def _are_equal(spec, other):
    """Returns whether two specs, or values that are no tensors, are the same; arrays are never."""
    if isinstance(spec, (tf.TypeSpec, int, float, str)):
        return type(spec) is type(other) and spec == other
    return spec is other
