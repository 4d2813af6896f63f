"""`Model`: a Keras model whose `fit` compiles the dense part of each step.

Its `fit`, `evaluate` and `predict` take batches by the handle of their iterator.
"""

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


class _CompiledSteps:
    """Mixed into a class of models: `fit` cuts the training step into XLA programs; `fit`,
    `evaluate` and `predict` hand over the handle of their iterator."""

    train_function: Any
    test_function: Any
    predict_function: Any

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
            if self._calls_functions():
                self.train_function = _TrainFunction(self, self.train_function)
        return self.train_function

    def make_test_function(self, force: bool = False) -> Any:
        """Keras's function of an evaluation step; `evaluate` calls it."""
        if self.test_function is None or force:
            super().make_test_function(force)  # type: ignore[misc]
            if self._calls_functions():
                self.test_function = _StepFunction(self, self.test_function, "test")
        return self.test_function

    def make_predict_function(self, force: bool = False) -> Any:
        """Keras's function of a step of `predict`, which calls it."""
        if self.predict_function is None or force:
            super().make_predict_function(force)  # type: ignore[misc]
            if self._calls_functions():
                self.predict_function = _PredictFunction(self, self.predict_function)
        return self.predict_function

    def predict(self, x: Any, *args: Any, **kwargs: Any) -> Any:
        """Returns predictions, as `tf.keras.Model.predict` does."""
        self.make_predict_function()
        if IS_KERAS_3 and isinstance(x, tf.data.Dataset) and self._takes_optionals(x):
            # Keras takes the batches out of the iterator: as one tensor each.
            x = x.map(lambda *batch: tf.experimental.Optional.from_value(_batch_of(batch)))
        return super().predict(x, *args, **kwargs)  # type: ignore[misc]

    def _takes_optionals(self, data):
        with self.distribute_strategy.scope():
            is_spread = tf.distribute.has_strategy()
        is_own = not isinstance(self.predict_function, _PredictFunction)
        return not is_own and not is_spread and _is_in_host_memory(data)

    def _calls_functions(self):
        """Returns whether steps run in functions that are not one XLA program each. In those, which
        Keras makes, the layer refuses to be compiled."""
        is_eager = self.run_eagerly or tf.config.functions_run_eagerly()
        return not is_eager and not self.jit_compile


class _StepFunction:
    """Keras's function of steps on the next batches of an iterator.

    Args:
        model: the model.
        own: Keras's function, for other iterators than those of datasets in host memory.
        kind: "train", "test" or "predict".
        combine: of what the steps of a call return, a list, makes what the call returns.
    """

    def __init__(self, model, own, kind, combine=lambda outputs: outputs[-1]):
        self._model, self._own, self._kind = model, own, kind
        self._steps = IteratorSteps(self._step, combine)

    def __call__(self, iterator):
        if not _is_in_host_memory(iterator):
            return self._own(iterator)
        outputs = self._steps.take(iterator, self._steps_per_execution())
        if self._kind == "train":
            self._model.train_tf_function = self._steps.function  # for Keras 2's TensorBoard
        return outputs

    def _step(self, batch):
        step = getattr(self._model, f"{self._kind}_step")
        return self._count(step(_without_optionals(batch)))

    def _count(self, outputs):
        if not IS_KERAS_3:
            tensors = filter(tf.is_tensor, tf.nest.flatten(outputs, expand_composites=True))
            with tf.control_dependencies(list(tensors)):
                getattr(self._model, f"_{self._kind}_counter").assign_add(1)
        return outputs

    def _steps_per_execution(self):
        if IS_KERAS_3:
            return self._model.steps_per_execution
        steps = self._model._steps_per_execution
        return 1 if steps is None else int(steps)


class _TrainFunction(_StepFunction):
    """The function of training steps. Where ranks go ahead, each batch is routed while the one
    before it trains: see `StepsAhead`."""

    def __init__(self, model, own):
        super().__init__(model, own, "train")
        self._ahead = None
        if current().ahead:
            self._ahead = StepsAhead(model.train_step, lambda data: ((data,), {}), self._count)

    def __call__(self, iterator):
        if self._ahead is not None:
            return self._ahead.take(iterator, self._steps_per_execution())[-1]
        return super().__call__(iterator)


class _PredictFunction(_StepFunction):
    """The function of steps of `predict`, which returns the outputs of all samples of a call."""

    def __init__(self, model, own):
        super().__init__(model, own, "predict", _concatenated)

    def __call__(self, batches):
        """Takes what Keras hands over: Keras 2 an iterator, Keras 3 a list of batches."""
        if isinstance(batches, list) and isinstance(batches[0], tf.experimental.Optional):
            return self._steps.take_batches(batches, self._steps_per_execution())
        return super().__call__(batches)


def _concatenated(outputs):
    """The outputs of several steps as those of one with all their samples."""

    def concatenate(*parts):
        if isinstance(parts[0], tf.SparseTensor):
            return tf.sparse.concat(0, parts)
        return tf.concat([part[None] if part.shape.rank == 0 else part for part in parts], 0)

    return outputs[0] if len(outputs) == 1 else tf.nest.map_structure(concatenate, *outputs)


def _batch_of(batch):
    """The element of a dataset of which `map` has handed over the parts."""
    return batch[0] if len(batch) == 1 else batch


def _without_optionals(batch):
    """A batch of Keras 3, which has an optional in the place of absent weights."""

    def value_of(leaf):
        return None if isinstance(leaf, tf.experimental.Optional) else leaf

    return tf.nest.map_structure(value_of, batch)


def _is_in_host_memory(data):
    """Returns whether data is a dataset, or an iterator of one, with batches in host memory."""
    if isinstance(data, tf.data.Dataset):
        return "GPU" not in data._variant_tensor.device
    return isinstance(data, tf.data.Iterator) and "GPU" not in data._iterator_resource.device


@keras.utils.register_keras_serializable(package="group_embedding")
class Model(_CompiledSteps, keras.Model):
    """A `tf.keras.Model` whose `fit` compiles the dense part of each step: see `make_step`.

    Used as `tf.keras.Model` is: `Model(inputs, outputs)` is a functional model, and a subclass with
    a `call` another one. `compile`, `fit`, callbacks, `evaluate`, `predict`, saving and exporting
    are Keras's own; only the training step differs, and how the functions of steps are handed their
    batches. The embeddings are `ge.layers.GroupEmbedding` layers, or lookups by
    `ge.group_embedding_lookup_sparse` in `call`.

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
class FunctionalModel(_CompiledSteps, _Functional):  # type: ignore[valid-type, misc]
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
