"""Optimizers whose rules for tables have no stock twin.

Each is made as the surroundings need it: in a graph of TensorFlow 1, such as an Estimator's, a
`tf.compat.v1.train.Optimizer`, elsewhere a Keras optimizer.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from group_embedding.annotations import Hyperparameter, Optimizer
from group_embedding.optimizers.bases import KERAS
from group_embedding.optimizers.own_keras import Lamb as KerasLamb
from group_embedding.optimizers.own_keras import RowwiseAdagrad as KerasRowwiseAdagrad
from group_embedding.optimizers.own_keras import RowwiseAdam as KerasRowwiseAdam
from group_embedding.optimizers.own_v1 import LambV1, RowwiseAdagradV1, RowwiseAdamV1
from group_embedding.optimizers.trained_tables import Settings
from group_embedding.optimizers.wrap import wrap


def LazyAdam(  # noqa: N802
    learning_rate: Hyperparameter = 0.001,
    beta_1: float = 0.9,
    beta_2: float = 0.999,
    epsilon: float = 1e-7,
    name: str = "Adam",
    *,
    skip_nonfinite: bool = False,
    stochastic_rounding_seed: int | None = None,
    **kwargs: Any,
) -> Optimizer:
    """Adam whose moments move only for rows that were looked up: a wrapped stock Adam.

    Args:
        learning_rate, beta_1, beta_2, epsilon, name: as in the stock optimizer.
        skip_nonfinite, stochastic_rounding_seed: see `wrap`.
        **kwargs: of the Keras optimizer, such as `amsgrad` or `clipnorm`.

    Returns:
        A `tf.keras.optimizers.Adam`, or in a graph of TensorFlow 1 a
        `tf.compat.v1.train.AdamOptimizer`.

    Raises:
        TypeError: `kwargs` in a graph of TensorFlow 1.

    Example:

    >>> optimizer = ge.optimizers.LazyAdam(0.01, amsgrad=True)
    """
    if _in_v1_graph():
        stock = tf.compat.v1.train.AdamOptimizer(
            learning_rate, beta_1, beta_2, epsilon, name=name, **kwargs
        )
    else:
        stock = KERAS.Adam(learning_rate, beta_1, beta_2, epsilon, name=name, **kwargs)
    return wrap(
        stock, skip_nonfinite=skip_nonfinite, stochastic_rounding_seed=stochastic_rounding_seed
    )


def RowwiseAdagrad(  # noqa: N802
    learning_rate: Hyperparameter = 0.001,
    initial_accumulator_value: float = 0.1,
    epsilon: float = 1e-7,
    name: str = "RowwiseAdagrad",
    *,
    skip_nonfinite: bool = False,
    stochastic_rounding_seed: int | None = None,
    **kwargs: Any,
) -> Optimizer:
    """Adagrad with one accumulator per row, of the mean square of the row's gradient.

    Its state is a `dim`-th of Adagrad's. With a the accumulator of a row x and g its gradient:

        a <- a + mean(g^2);  x <- x - learning_rate g / (sqrt(a) + epsilon)

    All variables of shape [rows, dim] have accumulators of shape [rows, 1], others one per element.

    Args:
        learning_rate: a number, a schedule or a tensor.
        initial_accumulator_value: of the accumulators; positive in a graph of TensorFlow 1.
        epsilon: added to the root.
        name: of the optimizer.
        skip_nonfinite, stochastic_rounding_seed: see `wrap`.
        **kwargs: of the Keras optimizer, such as `weight_decay` or `clipnorm`.

    Returns:
        A Keras optimizer, or in a graph of TensorFlow 1 a `tf.compat.v1.train.Optimizer`.

    Raises:
        TypeError: `kwargs` in a graph of TensorFlow 1.

    Example:

    >>> table = tf.Variable(tf.zeros([3, 2]))
    >>> optimizer = ge.optimizers.RowwiseAdagrad(1.0, initial_accumulator_value=3.0)
    >>> gradient = tf.IndexedSlices(tf.constant([[1., 1.]]), tf.constant([2]))
    >>> _ = optimizer.apply_gradients([(gradient, table)])
    >>> table.numpy().tolist()
    [[0.0, 0.0], [0.0, 0.0], [-0.5, -0.5]]
    """
    settings = Settings(skip_nonfinite, stochastic_rounding_seed)
    if _in_v1_graph():
        return RowwiseAdagradV1(
            learning_rate, initial_accumulator_value, epsilon, name, settings, **kwargs
        )
    return KerasRowwiseAdagrad(
        learning_rate,
        initial_accumulator_value=initial_accumulator_value,
        epsilon=epsilon,
        name=name,
        **settings._asdict(),
        **kwargs,
    )


def RowwiseAdam(  # noqa: N802
    learning_rate: Hyperparameter = 0.001,
    beta_1: float = 0.9,
    beta_2: float = 0.999,
    epsilon: float = 1e-7,
    name: str = "RowwiseAdam",
    *,
    skip_nonfinite: bool = False,
    stochastic_rounding_seed: int | None = None,
    **kwargs: Any,
) -> Optimizer:
    """Adam whose second moment is one number per row, as FBGEMM's partial row-wise Adam.

    Its state is little more than half of Adam's. Moments move only for rows that were looked up.
    With m and v those of a row x, g its gradient and t the step:

        m <- beta_1 m + (1 - beta_1) g;  v <- beta_2 v + (1 - beta_2) mean(g^2)
        x <- x - learning_rate sqrt(1 - beta_2^t) / (1 - beta_1^t) m / (sqrt(v) + epsilon)

    All variables of shape [rows, dim] have a v of shape [rows, 1], others one per element.

    Args:
        learning_rate: a number, a schedule or a tensor.
        beta_1, beta_2, epsilon: as in Adam.
        name: of the optimizer.
        skip_nonfinite, stochastic_rounding_seed: see `wrap`.
        **kwargs: of the Keras optimizer, such as `weight_decay` or `clipnorm`.

    Returns:
        A Keras optimizer, or in a graph of TensorFlow 1 a `tf.compat.v1.train.Optimizer`.

    Raises:
        TypeError: `kwargs` in a graph of TensorFlow 1.

    Example:

    >>> table = tf.Variable(tf.zeros([3, 2]))
    >>> optimizer = ge.optimizers.RowwiseAdam(0.5)
    >>> gradient = tf.IndexedSlices(tf.constant([[3., 3.]]), tf.constant([2]))
    >>> _ = optimizer.apply_gradients([(gradient, table)])
    >>> table.numpy().round(3).tolist()
    [[0.0, 0.0], [0.0, 0.0], [-0.5, -0.5]]
    """
    settings = Settings(skip_nonfinite, stochastic_rounding_seed)
    if _in_v1_graph():
        return RowwiseAdamV1(learning_rate, beta_1, beta_2, epsilon, name, settings, **kwargs)
    return KerasRowwiseAdam(
        learning_rate,
        beta_1=beta_1,
        beta_2=beta_2,
        epsilon=epsilon,
        name=name,
        **settings._asdict(),
        **kwargs,
    )


def Lamb(  # noqa: N802
    learning_rate: Hyperparameter = 0.001,
    beta_1: float = 0.9,
    beta_2: float = 0.999,
    epsilon: float = 1e-6,
    weight_decay: float = 0.0,
    name: str = "Lamb",
    *,
    skip_nonfinite: bool = False,
    stochastic_rounding_seed: int | None = None,
    **kwargs: Any,
) -> Optimizer:
    """LAMB (You et al. 2020): Adam's direction, as long as what it changes.

    Each looked-up row of a table is a layer of its own, with its own trust ratio, and so is each
    other variable as a whole. With x the layer, m and v Adam's moments (moving only for rows that
    were looked up) and t the step:

        r = m / (1 - beta_1^t) / (sqrt(v / (1 - beta_2^t)) + epsilon) + weight_decay x
        x <- x - learning_rate |x| / |r| r      (a ratio of 1 where either norm is 0)

    Args:
        learning_rate: a number, a schedule or a tensor.
        beta_1, beta_2, epsilon: as in Adam.
        weight_decay: see above.
        name: of the optimizer.
        skip_nonfinite, stochastic_rounding_seed: see `wrap`.
        **kwargs: of the Keras optimizer, such as `clipnorm`.

    Returns:
        A Keras optimizer, or in a graph of TensorFlow 1 a `tf.compat.v1.train.Optimizer`.

    Raises:
        TypeError: `kwargs` in a graph of TensorFlow 1.

    Example:

    >>> table = tf.Variable([[3., 4.], [6., 8.]])
    >>> optimizer = ge.optimizers.Lamb(0.1)
    >>> gradient = tf.IndexedSlices(tf.constant([[1., 0.]]), tf.constant([1]))
    >>> _ = optimizer.apply_gradients([(gradient, table)])
    >>> table.numpy().round(3).tolist()
    [[3.0, 4.0], [5.0, 8.0]]
    """
    settings = Settings(skip_nonfinite, stochastic_rounding_seed)
    if _in_v1_graph():
        return LambV1(
            learning_rate, beta_1, beta_2, epsilon, weight_decay, name, settings, **kwargs
        )
    return KerasLamb(
        learning_rate,
        weight_decay,
        beta_1=beta_1,
        beta_2=beta_2,
        epsilon=epsilon,
        name=name,
        **settings._asdict(),
        **kwargs,
    )


def _in_v1_graph():
    return not tf.compat.v1.executing_eagerly_outside_functions()
