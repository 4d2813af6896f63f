"""`wrap`: makes a stock optimizer update tables with native ops."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from group_embedding.annotations import Optimizer
from group_embedding.config import nearest
from group_embedding.keras_compat import IS_KERAS_3
from group_embedding.optimizers import rules
from group_embedding.optimizers.averages import let_callbacks_swap
from group_embedding.optimizers.bases import KERAS, legacy_optimizers
from group_embedding.optimizers.dense_formulas import DenseRule
from group_embedding.optimizers.keras import WrappedKeras2, WrappedKeras3
from group_embedding.optimizers.keras_legacy import WrappedKerasLegacy
from group_embedding.optimizers.registry import (
    STOCK_KERAS,
    STOCK_KERAS_LEGACY,
    STOCK_NAMES,
    STOCK_V1,
)
from group_embedding.optimizers.trained_tables import Settings, claim_tables
from group_embedding.optimizers.v1 import WrappedV1

WRAPPED = (WrappedV1, WrappedKerasLegacy, WrappedKeras2, WrappedKeras3)


def _supported():
    """For each stock class, a `_Support`."""
    return _supported_beside(legacy_optimizers())


@functools.cache
def _supported_beside(legacy):
    families = [
        ("tf.compat.v1.train", tf.compat.v1.train, WrappedV1, STOCK_V1),
        ("tf.keras.optimizers", KERAS, WrappedKeras3 if IS_KERAS_3 else WrappedKeras2, STOCK_KERAS),
    ]
    if legacy is not None:
        package = "tf_keras" if IS_KERAS_3 else "tf.keras"
        path = f"{package}.optimizers.legacy"
        families.append((path, legacy, WrappedKerasLegacy, STOCK_KERAS_LEGACY))
    return {
        getattr(module, name): _Support(f"{path}.{name}", mixin, *stock_rules)
        for path, module, mixin, stock in families
        for name, stock_rules in stock.items()
    }


class _Support(NamedTuple):
    """How optimizers of a stock class are wrapped: its name for people, what is mixed in, and its
    `StockRules`."""

    name: str
    mixin: type
    row: Callable[[Any], rules.RuleSpec]
    whole: DenseRule | None


def wrap(
    optimizer: Optimizer | str,
    *,
    skip_nonfinite: bool = False,
    stochastic_rounding_seed: int | None = None,
) -> Optimizer:
    """Makes `optimizer` update the tables of grouped lookups with native ops.

    A table is a variable of shape [rows, dim] whose gradient is a `tf.IndexedSlices`. All tables
    that were looked up in one group are updated in one pass from output gradients to rows; in eager
    code, and where the gradients went through other ops first (such as clipping by a norm, scaling
    by hand or accumulation), in one op for all tables, with the same result bit for bit. All other
    variables, and tables whose gradient is dense, are updated by the stock rule; by optimizers of
    tf.keras.optimizers those of one dtype in one op that rounds where stock rounds.
    docs/guides/optimizers.md says for which optimizers the bits are stock's, on a CPU.

    Only rows that were looked up change, and so do their slots: the moments of Adam, AMSGrad,
    RMSprop and Keras's momentum move, and weight decay acts, on those rows alone ("lazy"), where
    stock Keras moves all rows at every step. The sparse updates of tf.compat.v1.train's Momentum,
    Adagrad, Ftrl and RMSProp are such already, and wrapped ones equal them. A row's gradient is
    that of the whole step, summed before `clipvalue` limits it. A lookup whose result the loss does
    not depend on moves nothing.

    Slots are stock's, under stock's names: a checkpoint of a stock optimizer restores into a
    wrapped one and the other way round. Those of a table may have another type than its rows, see
    `set_slot_dtype`.

    Args:
        optimizer: a `tf.compat.v1.train` GradientDescent-, Momentum-, Adadelta-, Adagrad-, Adam-,
            Ftrl- or RMSPropOptimizer, or a `tf.keras.optimizers` SGD, Adadelta, Adagrad, Adam,
            AdamW, Adamax, Ftrl or RMSprop, of Keras 2 (legacy ones too) or Keras 3, or a legacy
            one of the package tf_keras, beside Keras 3. It is changed in place. A string, such as
            "adagrad", is taken as by `tf.keras.optimizers.get`. A LossScaleOptimizer goes around
            the wrapped one; that of Keras 3 has tables updated in the same one pass, divided by its
            scale, unless a step is skipped.
        skip_nonfinite: leave all tables as they are in a step in which a gradient of any of them,
            or of a lookup's output, is infinite or NaN. Other variables are not asked.
        stochastic_rounding_seed: None: rows in float16 and bfloat16 are rounded to nearest. An
            integer of 64 bits: up or down at random, the nearer the likelier, so that updates below
            half a unit count on average; the same seed gives the same bits.

    Returns:
        `optimizer`; of a string, the optimizer that it names.

    Raises:
        TypeError: it is none of those.
        ValueError: `wrap` has been called with it before, or the string names no optimizer.

    Example:

    >>> table = tf.Variable([[1.], [2.], [3.]])
    >>> ids = tf.ragged.constant([[0, 2], [2]], dtype=tf.int64)
    >>> optimizer = ge.optimizers.wrap(tf.keras.optimizers.SGD(0.5))
    >>> @tf.function
    ... def step():
    ...     with tf.GradientTape() as tape:
    ...         output, = ge.group_embedding_lookup_sparse([table], [ids], "sum")
    ...         loss = tf.reduce_sum(output)
    ...     optimizer.apply_gradients([(tape.gradient(loss, table), table)])
    >>> step()
    >>> table.numpy().tolist()
    [[0.5], [2.0], [2.0]]
    """
    settings = Settings(skip_nonfinite, stochastic_rounding_seed)
    optimizer = _made(optimizer)
    if isinstance(optimizer, WRAPPED):
        if getattr(optimizer, "_ge_keyed_alone", False):
            optimizer._ge_settings, optimizer._ge_keyed_alone = settings, False
            stock = next(kind for kind in type(optimizer).__mro__ if kind in _supported())
            support = _supported()[stock]
            optimizer._ge_rule_spec = functools.partial(support.row, optimizer)
            return optimizer
        raise ValueError(f"wrap: expected a stock optimizer, got a wrapped {_name_of(optimizer)}")
    supported = _supported()
    stock = stock_class(optimizer)
    if stock not in supported:
        raise TypeError(
            f"wrap: expected one of {', '.join(support.name for support in supported.values())}, "
            f"got {_name_of(optimizer)}; a subclass may update in a way of its own, and what wraps "
            "an optimizer goes around the wrapped one"
        )
    optimizer.__class__ = _wrapped_class(supported[stock], type(optimizer), settings)  # type: ignore[arg-type]
    claim_tables(getattr(optimizer, "_trainable_variables", ()))  # of Keras 3, built before
    let_callbacks_swap()
    return optimizer


def _made(optimizer):
    """The optimizer that a string names; a class is refused."""
    if isinstance(optimizer, str):
        return _named(optimizer)
    if isinstance(optimizer, type):
        raise TypeError(
            f"wrap: expected an optimizer, got the class {optimizer.__name__}; write "
            f"wrap({optimizer.__name__}(...))"
        )
    return optimizer


def _named(name):
    try:
        return tf.keras.optimizers.get(name)
    except (TypeError, ValueError):
        choices = sorted(STOCK_NAMES)
        raise ValueError(
            f"wrap: expected an optimizer, or the name of one: {', '.join(choices)}; got "
            f"{name!r}{nearest(name.lower(), choices)}"
        ) from None


def keyed_alone_class(optimizer_class, stock, row=None):
    """A class like `optimizer_class`, whose optimizers update EmbeddingVariables natively without
    `wrap`, and all other variables as stock does.

    Args:
        stock: the class of tf.compat.v1.train that it is, or derives from.
        row: the rule of a row, as of `StockRules`; None: that of `stock`.
    """
    support = _supported()[stock]
    support = support if row is None else support._replace(row=row)
    return _wrapped_class(support, optimizer_class, Settings(), keyed_alone=True)


def can_wrap(optimizer):
    """Returns whether `wrap` supports the optimizer: a stock optimizer whose rule is known, and
    that is not wrapped yet."""
    return not isinstance(optimizer, WRAPPED) and stock_class(optimizer) in _supported()


@functools.cache
def _wrapped_class(support, stock, settings, keyed_alone=False):
    """`stock` with one of WRAPPED mixed in."""
    # Under the stock name, which is what Keras writes when it serialises an optimizer.
    namespace = {
        "__module__": stock.__module__,
        "__doc__": stock.__doc__,
        "_ge_rule_spec": support.row,
        "_ge_dense_rule": support.whole,
        "_ge_settings": settings,
        "_ge_keyed_alone": keyed_alone,
    }
    return type(stock.__name__, (support.mixin, stock), namespace)


def stock_class(optimizer):
    """The optimizer's class, below the one that `DistributedOptimizer` gives it."""
    stock = type(optimizer)
    return stock.__bases__[-1] if hasattr(optimizer, "_ge_exchange") else stock


def _name_of(optimizer):
    return f"{type(optimizer).__module__}.{type(optimizer).__name__}"
