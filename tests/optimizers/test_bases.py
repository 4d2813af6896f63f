"""A method of all optimizers is another, for a while."""

import functools

import pytest
import tensorflow as tf

from group_embedding.optimizers.bases import changed_method, optimizer_bases

STOCK = {
    "v1": lambda: tf.compat.v1.train.AdagradOptimizer(0.1),
    "keras": lambda: tf.keras.optimizers.Adagrad(0.1),
}
if len(optimizer_bases()) > 2:
    STOCK["legacy"] = lambda: tf.keras.optimizers.legacy.Adagrad(0.1)


def noting(made, init):
    @functools.wraps(init)
    def __init__(optimizer, *args, **kwargs):  # noqa: N807
        init(optimizer, *args, **kwargs)
        made.append(optimizer)

    return __init__


@pytest.mark.parametrize("kind", STOCK)
def test_the_method_of_each_kind_is_changed_once(kind):
    made = []

    with changed_method("__init__", functools.partial(noting, made)):
        optimizer = STOCK[kind]()

    assert made == [optimizer]


@pytest.mark.parametrize("kind", STOCK)
def test_it_is_stock_again_after_an_error(kind):
    made = []

    with (
        pytest.raises(KeyError),
        changed_method("__init__", functools.partial(noting, made)),
    ):
        raise KeyError
    STOCK[kind]()

    assert not made
