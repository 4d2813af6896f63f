"""`Model`: a Keras model whose `fit` compiles the dense part of each step."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from group_embedding.keras_compat import IS_KERAS_3, keras
from group_embedding.ranks.exchange.active import current
from group_embedding.training.compiled_step import CompiledStep
from group_embedding.training.iterator_steps import IteratorSteps
from group_embedding.training.steps_ahead import StepsAhead

# Keras's class of functional models, which `keras.Model(inputs, outputs)` makes.
if IS_KERAS_3:
    _Functional = keras.models.clone_model.__globals__["Functional"]
else:
    _Functional = keras.Sequential.__bases__[0]


class _CompiledFit:
    """Mixed into a class of models: `fit` cuts the training step into XLA programs."""

    train_function: Any

    @property
    def _allow_non_tensor_positional_args(self):
        """True: Keras 3 takes RoutedIds, which are no tensor, as inputs of the model."""
        return True

    @_allow_non_tensor_positional_args.setter
    def _allow_non_tensor_positional_args(self, allow):
        pass

    def make_train_function(self, force: bool = False) -> Any:
        """Keras's function of a training step; `fit` calls it."""
        if "train_step" not in vars(self):
            # Bound before: a `train_step` of a subclass is compiled as well.
            step = getattr(self, "train_step")  # noqa: B009, a method of the class mixed in
            object.__setattr__(self, "train_step", CompiledStep(step))
        if self.train_function is None or force:
            super().make_train_function(force)  # type: ignore[misc]
            is_eager = self.run_eagerly or tf.config.functions_run_eagerly()  # type: ignore[attr-defined]
            # Keras's own function has the layer refuse an explicit jit_compile=True.
            if not is_eager and not self.jit_compile:  # type: ignore[attr-defined]
                self.train_function = _TrainFunction(self, self.train_function)
        return self.train_function


class _TrainFunction:
    """Keras's function of training steps on the next batches of an iterator.

    Where ranks go ahead, each batch is routed while the one before it trains: see `StepsAhead`.

    Args:
        model: the model.
        own: Keras's function, for other iterators than those of datasets in host memory.
    """

    def __init__(self, model, own):
        self._model, self._own, self._is_ahead = model, own, current().ahead
        if self._is_ahead:
            self._steps = StepsAhead(model.train_step, lambda data: ((data,), {}), self._count)
        else:
            self._steps = IteratorSteps(self._step)

    def __call__(self, iterator):
        if self._is_ahead:
            return self._steps.take(iterator, self._steps_per_execution())[-1]
        if not _is_in_host_memory(iterator):
            return self._own(iterator)
        logs = self._steps.take(iterator, self._steps_per_execution())
        self._model.train_tf_function = self._steps.function  # for Keras 2's TensorBoard
        return logs

    def _step(self, batch):
        return self._count(self._model.train_step(_without_optionals(batch)))

    def _count(self, logs):
        if not IS_KERAS_3:
            with tf.control_dependencies(tf.nest.flatten(logs)):
                self._model._train_counter.assign_add(1)
        return logs

    def _steps_per_execution(self):
        if IS_KERAS_3:
            return self._model.steps_per_execution
        return int(self._model._steps_per_execution)


def _without_optionals(batch):
    """A batch of Keras 3, which has an optional in the place of absent weights."""

    def value_of(leaf):
        return None if isinstance(leaf, tf.experimental.Optional) else leaf

    return tf.nest.map_structure(value_of, batch)


def _is_in_host_memory(iterator):
    is_of_dataset = isinstance(iterator, tf.data.Iterator)
    return is_of_dataset and "GPU" not in iterator._iterator_resource.device


@keras.utils.register_keras_serializable(package="group_embedding")
class Model(_CompiledFit, keras.Model):
    """A `tf.keras.Model` whose `fit` compiles the dense part of each step: see `make_step`.

    Used as `tf.keras.Model` is: `Model(inputs, outputs)` is a functional model, and a subclass with
    a `call` another one. `compile`, `fit`, callbacks, `evaluate`, `predict`, saving and exporting
    are Keras's own; only the training step differs. The embeddings are `ge.layers.GroupEmbedding`
    layers, or lookups by `ge.group_embedding_lookup_sparse` in `call`.

    `compile` takes an optimizer that `ge.optimizers.wrap` wrapped.

    Example:

    >>> features = [ge.FeatureConfig("item", ge.TableConfig("items", num_rows=100, dim=4))]
    >>> item = tf.keras.Input([2], dtype=tf.int64, name="item")
    >>> vectors = ge.layers.GroupEmbedding(features)({"item": item})["item"]
    >>> model = ge.training.Model({"item": item}, tf.keras.layers.Dense(1)(vectors))
    >>> model.compile(ge.optimizers.wrap(tf.keras.optimizers.Adagrad(0.1)), "mse")
    >>> history = model.fit({"item": tf.ones([8, 2], tf.int64)}, tf.ones([8]), verbose=0)
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        if cls is Model and _are_functional(args, kwargs):
            return FunctionalModel(*args, **kwargs)
        return super().__new__(cls, *args, **kwargs)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if not _are_functional(args, kwargs):
            super().__init__(*args, **kwargs)
            return
        # A subclass hands inputs and outputs over: Keras changes its base in the same case.
        _make_functional(type(self))
        FunctionalModel.__init__(self, *args, **kwargs)


@keras.utils.register_keras_serializable(package="group_embedding")
class FunctionalModel(_CompiledFit, _Functional):  # type: ignore[valid-type, misc]
    """The class of a functional `Model(inputs, outputs)`."""


def _are_functional(args, kwargs):
    return (
        len(args) >= 2
        or (len(args) == 1 and "outputs" in kwargs)
        or ("inputs" in kwargs and "outputs" in kwargs)
    )


def _make_functional(cls):
    """Has a subclass of `Model` derive from `FunctionalModel` in its place."""
    if cls is Model or Model not in cls.__mro__:
        return
    for base in cls.__bases__:
        _make_functional(base)
    cls.__bases__ = tuple(FunctionalModel if base is Model else base for base in cls.__bases__)
