"""`LazyAdam`: a wrapped stock Adam."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from group_embedding.annotations import Hyperparameter, Optimizer
from group_embedding.optimizers.bases import KERAS
from group_embedding.optimizers.own import in_v1_graph
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
    if in_v1_graph():
        stock = tf.compat.v1.train.AdamOptimizer(
            learning_rate, beta_1, beta_2, epsilon, name=name, **kwargs
        )
    else:
        stock = KERAS.Adam(learning_rate, beta_1, beta_2, epsilon, name=name, **kwargs)
    return wrap(
        stock, skip_nonfinite=skip_nonfinite, stochastic_rounding_seed=stochastic_rounding_seed
    )
