"""`SASRec` and `HSTU`: the next item of a sequence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from group_embedding.config import check_choice
from group_embedding.keras_compat import keras
from group_embedding.recommender.zoo.attention import HSTUBlock, TransformerBlock
from group_embedding.recommender.zoo.histories import last_of
from group_embedding.recommender.zoo.model_inputs import Features, check_known, with_sequences
from group_embedding.recommender.zoo.positions import PositionEmbedding
from group_embedding.recommender.zoo.recommender import Recommender


class _Sequential(Recommender):
    """States of a history, and their dot products with candidates. A subclass has the blocks."""

    def __init__(
        self,
        features: Features,
        *,
        history: str,
        targets: str | Sequence[str],
        positions: str = "last",
        max_length: int = 50,
        dim: int = 16,
        num_blocks: int = 2,
        num_heads: int = 1,
        dropout: float = 0.2,
        **kwargs: Any,
    ) -> None:
        owner = type(self).__name__
        targets = (targets,) if isinstance(targets, str) else tuple(targets)
        check_choice(owner, "positions", positions, ("last", "all"))
        if not targets or history in targets:
            raise ValueError(
                f"{owner}: expected targets to be features other than '{history}', got {targets}"
            )
        sequences = (history, *targets) if positions == "all" else (history,)

        def plan(planned):
            check_known(owner, planned, targets)
            kept = [f for f in planned if f.name == history or f.name in targets]
            return with_sequences(owner, kept, sequences, max_length)

        super().__init__(features, dense=(), dim=dim, plan=plan, **kwargs)
        width = self._one_dim()
        self._check_combined([f for f in self.features if f.name not in sequences])
        self._check_units(num_blocks=[num_blocks], num_heads=[num_heads])
        self._history, self._targets, self._of_all = history, targets, positions == "all"
        self.positions = PositionEmbedding(dtype=self._policy)
        self.drop = keras.layers.Dropout(dropout, dtype=self._policy)
        self.blocks = [self._make_block(num_heads, width, dropout) for _ in range(num_blocks)]
        self.norm = keras.layers.LayerNormalization(epsilon=1e-6, dtype=self._policy)

    def _make_block(self, num_heads, width, dropout):
        raise NotImplementedError

    def encode(self, batch: Any, training: Any = None) -> Any:
        """The states `[batch, max_length, dim]` of a batch that is looked up, zeros behind the end
        of a history."""
        mask = batch.masks[self._history]
        x = self.drop(self.positions(batch.vectors[self._history]), training=training)
        for block in self.blocks:
            x = block(x, mask, training=training)
        x = self.norm(x)
        return tf.where(mask[..., None], x, tf.zeros_like(x))

    def user_vectors(self, inputs: Any) -> Any:
        """The vectors that are compared with those of items, to search among all items.

        Args:
          inputs: As of a call.

        Returns:
          A float tensor `[batch, dim]`: the state of the last id of each history.
        """
        if not self.built:
            self.build()
        batch = self._look_up(inputs)
        return self._as_output(last_of(self.encode(batch), batch.masks[self._history]))

    def predict_logits(self, batch: Any, training: Any = None) -> Any:
        states, mask = self.encode(batch, training), batch.masks[self._history]
        if not self._of_all:
            last = last_of(states, mask)
            vectors = tf.stack([batch.vectors[name] for name in self._targets], axis=1)
            return tf.einsum("bd,btd->bt", last, vectors)
        vectors = tf.stack([batch.vectors[name] for name in self._targets], axis=2)
        logits = tf.einsum("bld,bltd->blt", states, vectors)
        for name in self._targets:
            mask = mask & batch.masks[name]
        logits._keras_mask = mask
        return logits


@keras.utils.register_keras_serializable(package="group_embedding")
class SASRec(_Sequential):
    """Self-attentive sequential recommendation: Kang and McAuley, https://arxiv.org/abs/1808.09781.

        history --- one lookup --- + positions --- causal transformer blocks --- state of an id --+
                                                                                                  |
        targets --- one lookup -------------------------------------------------- dot products ---+

    As in the paper, positions "all" trains each position of a history on the item that follows it:
    targets are the histories shifted by one, and as many items that did not follow. Labels
    `[batch, max_length, 2]` are then 1 and 0, and Keras's mask leaves out positions without ids.
    Positions "last" ranks items for a user.

    Example:

    >>> items = ge.TableConfig("items", num_rows=100, dim=8)
    >>> features = [ge.FeatureConfig("seen", items), ge.FeatureConfig("item", items)]
    >>> model = ge.models.SASRec(features, history="seen", targets="item", max_length=10)
    >>> model({"seen": tf.constant([[1, 2], [3, -1]]), "item": tf.constant([5, 7])}).shape
    TensorShape([2, 1])

    Args:
      features: a `ge.data.Schema`, or `FeatureConfig`s; features that are neither history nor
        targets are left out. Their tables have one dim.
      history: the name of the feature with the ids of a user, oldest first.
      targets: names of the features with the candidates.
      positions: "last": each target has one id, a candidate behind the whole history. "all": each
        target is as long as the history, with a candidate behind each of its ids.
      max_length: how many of the newest ids of a history are read, unless its `FeatureConfig` says
        so.
      dim: the length of rows, where a schema does not say it.
      num_blocks: how many transformer blocks.
      num_heads: heads of each; it divides dim.
      dropout: the share of outputs that are dropped in training.
      **kwargs: `name`, `dtype` and `trainable`, as for every Keras model.

    Returns:
      Called on a dict of inputs: logits `[batch, targets]`, or for all positions
      `[batch, max_length, targets]`.

    Raises:
      TypeError, ValueError: An argument is not of the form above.
    """

    def _make_block(self, num_heads, width, dropout):
        options = {"causal": True, "dropout": dropout, "dtype": self._policy}
        return TransformerBlock(num_heads, width, "pre", **options)


@keras.utils.register_keras_serializable(package="group_embedding")
class HSTU(_Sequential):
    """Hierarchical sequential transduction units: Zhai et al., https://arxiv.org/abs/2402.17152.

        history --- one lookup --- + positions --- HSTU blocks --- state of an id --+
                                                                                    |
        targets --- one lookup ------------------------------------ dot products ---+

    Attention without a softmax, weighted by a gate of the same input; relative positions have a
    bias. The paper's bias of the time between ids is left out. Histories, targets and positions are
    those of `SASRec`.

    Example:

    >>> items = ge.TableConfig("items", num_rows=100, dim=8)
    >>> features = [ge.FeatureConfig("seen", items), ge.FeatureConfig("item", items)]
    >>> model = ge.models.HSTU(features, history="seen", targets="item", max_length=10)
    >>> model({"seen": tf.constant([[1, 2], [3, -1]]), "item": tf.constant([5, 7])}).shape
    TensorShape([2, 1])

    Args:
      features, history, targets, positions, max_length, dim: As in `SASRec`.
      num_blocks: how many blocks.
      num_heads: heads of each; it divides dim.
      dropout: the share of outputs that are dropped in training.
      **kwargs: `name`, `dtype` and `trainable`, as for every Keras model.

    Returns:
      Called on a dict of inputs: logits as of `SASRec`.

    Raises:
      TypeError, ValueError: An argument is not of the form above.
    """

    def _make_block(self, num_heads, width, dropout):
        return HSTUBlock(num_heads, dropout, dtype=self._policy)
