"""Histories of a sample, and the base of the models that compare them with other features."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import tensorflow as tf

from group_embedding.recommender.zoo.model_inputs import check_combined, check_known, with_sequences
from group_embedding.recommender.zoo.recommender import Recommender


class History(NamedTuple):
    """The vectors of histories and of their targets."""

    query: Any  # [batch, dim]: vectors of the targets, side by side
    keys: Any  # [batch, max_length, dim]: vectors of the histories, side by side
    mask: Any  # bool [batch, max_length]


class HistoryRecommender(Recommender):
    """The base of DIN, DIEN and BST, whose docstrings say what the arguments are. The features but
    the histories are `combined`."""

    def __init__(self, features, *, history, max_length, **kwargs):
        owner = type(self).__name__

        def plan(planned):
            return with_sequences(owner, planned, tuple(history), max_length)

        super().__init__(features, plan=plan, **kwargs)
        self.combined = plan_history(owner, self.features, history)
        self._history = tuple(history.items())

    @property
    def history_width(self) -> int:
        """The number of values that all histories have at one position."""
        names = dict(self._history)
        return sum(f.table.dim for f in self.features if f.name in names)

    def read_history(self, batch: Any) -> History:
        """The `History` of a batch."""
        history = dict(self._history)
        mask = batch.masks[next(iter(history))]
        for name in history:
            mask = mask & batch.masks[name]
        return History(
            tf.concat([batch.vectors[target] for target in history.values()], axis=-1),
            tf.concat([batch.vectors[name] for name in history], axis=-1),
            mask,
        )


def plan_history(model, features, history):
    """Returns the features apart from the histories, which must have the dims of their targets.

    Raises:
      TypeError, ValueError: `history` is no dict from names of features to names of features.
    """
    if not isinstance(history, Mapping) or not history:
        raise TypeError(
            f"{model}: expected history to be a dict from each history to its target, as in "
            f"{{'clicked_items': 'item'}}, got {history!r}"
        )
    check_known(model, features, [*history, *history.values()])
    by_name = {feature.name: feature for feature in features}
    for name, target in history.items():
        if by_name[name].table.dim != by_name[target].table.dim:
            raise ValueError(
                f"{model}: expected history '{name}' with the dim of its target '{target}', "
                f"{by_name[target].table.dim}, got {by_name[name].table.dim}"
            )
    others = tuple(feature for feature in features if feature.name not in history)
    check_combined(model, others)
    return others


def last_of(states, mask):
    """[batch, dim]: the state of the last position that has an id; zeros where none has."""
    following = tf.pad(mask[:, 1:], [[0, 0], [0, 1]])
    is_last = tf.cast(mask & ~following, states.dtype)
    return tf.einsum("bl,bld->bd", is_last, states)
