"""`TwoTower`: vectors of queries and of items, for retrieval."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from group_embedding.keras_compat import keras
from group_embedding.recommender.zoo.item_frequency import ItemFrequency
from group_embedding.recommender.zoo.mlp import MLP
from group_embedding.recommender.zoo.model_inputs import Dense, Features, chosen_features
from group_embedding.recommender.zoo.recommender import Recommender


@keras.utils.register_keras_serializable(package="group_embedding")
class TwoTower(Recommender):
    """Two towers for retrieval, trained with the batch's items as negatives: Yi et al.,
    https://doi.org/10.1145/3298689.3346996.

        features of the query --- one lookup --- MLP --- norm 1 ---+
                                                                   |-- dot product / temperature
        features of the item ---- one lookup --- MLP --- norm 1 ---+

    In training the model adds its own loss: each row of the batch is a query with the item it goes
    with, and a softmax over all items of the batch tells which. Items that are in many batches are
    negatives more often than others; `- log q` of an item's logits, q the share of batches that
    have it, corrects it. `compile` needs no other loss.

    Example:

    >>> features = [
    ...     ge.FeatureConfig("user", ge.TableConfig("users", num_rows=50, dim=8)),
    ...     ge.FeatureConfig("item", ge.TableConfig("items", num_rows=100, dim=8)),
    ... ]
    >>> model = ge.models.TwoTower(features, query=["user"], item=["item"], units=[16, 8])
    >>> batch = {"user": tf.constant([1, 2, 3]), "item": tf.constant([5, 7, 9])}
    >>> model(batch).shape, model.item_vectors({"item": tf.constant([5, 7])}).shape
    (TensorShape([3, 1]), TensorShape([2, 8]))

    Args:
      features: a `ge.data.Schema`, or `FeatureConfig`s.
      query: names of the features of the query.
      item: names of the features of the item. Features of neither are left out.
      query_dense: names of the query's dense inputs, or a dict from names to widths.
      item_dense: those of the item.
      dim: the length of rows, where a schema does not say it.
      units: units of the layers of both towers; the last is the length of their vectors.
      temperature: by which dot products are divided.
      item_id: the name of an input with the item's id, int `[batch]`, or of a feature, whose first
        id in a sample is the item's: an item that is in the batch twice is no negative of itself,
        and its q is estimated while the model trains.
      log_q: the name of an input, float `[batch]`: the natural logarithm of q, in the place of the
        estimate.
      num_buckets: into how many counts ids are hashed for the estimate.
      dropout: the share of outputs of a layer that are dropped in training.
      **kwargs: `name`, `dtype` and `trainable`, as for every Keras model.

    Returns:
      Called on a dict of inputs: the logits of each pair, `[batch, 1]`.

    Raises:
      TypeError, ValueError: An argument is not of the form above.
    """

    def __init__(
        self,
        features: Features,
        *,
        query: Sequence[str],
        item: Sequence[str],
        query_dense: Dense = (),
        item_dense: Dense = (),
        dim: int = 16,
        units: Sequence[int] = (128, 64),
        temperature: float = 0.05,
        item_id: str | None = None,
        log_q: str | None = None,
        num_buckets: int = 1 << 18,
        dropout: float = 0.0,
        **kwargs: Any,
    ) -> None:
        names = {"query": list(query), "item": list(item)}
        dense = {"query": _widths(query_dense), "item": _widths(item_dense)}
        both = set(names["query"]) & set(names["item"]) | set(dense["query"]) & set(dense["item"])
        if both or not names["query"] or not names["item"]:
            raise ValueError(
                "TwoTower: expected query and item to have one or more features each and none in "
                f"common, got query={names['query']}, item={names['item']}"
            )
        _check_other_inputs(item_id, log_q, names, dense)
        if temperature <= 0:
            raise ValueError(f"TwoTower: expected a temperature above 0, got {temperature}")
        super().__init__(
            features,
            dense={**dense["query"], **dense["item"]},
            dim=dim,
            plan=lambda planned: chosen_features(
                "TwoTower", planned, [*names["query"], *names["item"]]
            ),
            others=tuple(name for name in (item_id, log_q) if name is not None),
            **kwargs,
        )
        self._check_combined()
        self._check_units(units=units, num_buckets=[num_buckets])
        self._item_id, self._log_q, self._temperature = item_id, log_q, temperature
        self._towers = tuple((tower, tuple(names[tower]), tuple(dense[tower])) for tower in names)
        self._feature_names = frozenset(feature.name for feature in self.features)
        self.query_tower, self.item_tower = (
            MLP(units, last_activation="linear", dropout=dropout, dtype=self._policy)
            for _ in range(2)
        )
        self.frequency = None
        if item_id is not None and log_q is None:
            self.frequency = ItemFrequency(num_buckets, dtype="float32")

    def predict_logits(self, batch: Any, training: Any = None) -> Any:
        queries, items = (
            self._vectors(batch, "query", training),
            self._vectors(batch, "item", training),
        )
        if training:
            self.add_loss(self._batch_loss(batch, queries, items))
        elif not self.built and self.frequency is not None:
            self.frequency(tf.zeros([1], tf.int64))
        return tf.reduce_sum(queries * items, axis=-1, keepdims=True) / self._temperature

    def serving_signature(self) -> dict[str, tf.TensorSpec]:
        specs = super().serving_signature()
        dtypes = {self._item_id: tf.int64, self._log_q: tf.float32}
        others = {n: tf.TensorSpec([None], dtypes[n], n) for n in self._others}
        return {**others, **specs}  # a feature that is the item's id has the shape of a feature

    def query_vectors(self, inputs: Mapping[str, Any]) -> Any:
        """The vectors of queries: float32 `[batch, units]` of norm 1.

        Args:
          inputs: a dict with the inputs of the query alone.
        """
        return self._vectors_of(inputs, "query")

    def item_vectors(self, inputs: Mapping[str, Any]) -> Any:
        """The vectors of items: float32 `[batch, units]` of norm 1.

        Args:
          inputs: a dict with the inputs of the item alone.
        """
        return self._vectors_of(inputs, "item")

    def _other_of(self, inputs, name):
        """[batch]: of a feature, the first id of each sample; -1 where it has none."""
        if name not in inputs or name not in self._feature_names:
            return super()._other_of(inputs, name)
        ids = inputs[name]
        if isinstance(ids, tf.SparseTensor):
            ids = tf.RaggedTensor.from_sparse(ids)
        if isinstance(ids, tf.RaggedTensor):
            ids = ids.to_tensor(-1, shape=[None, 1])
        ids = tf.convert_to_tensor(ids)
        return ids if ids.shape.rank == 1 else ids[:, 0]

    def _names_of(self, tower):
        """(names of the tower's features, names of its dense inputs)"""
        return next((names, dense) for name, names, dense in self._towers if name == tower)

    def _vectors(self, batch, tower, training):
        names, dense_names = self._names_of(tower)
        columns = [batch.vectors[name] for name in names]
        dense = dict(zip(self.dense_widths, _split(batch.dense, self.dense_widths)))
        columns += [dense[name] for name in dense_names]
        layers = self.query_tower if tower == "query" else self.item_tower
        vectors = layers(tf.concat(columns, axis=-1), training=training)
        return tf.math.l2_normalize(tf.cast(vectors, tf.float32), axis=-1)

    def _vectors_of(self, inputs, tower):
        if not self.built:
            self.build()
        names, _ = self._names_of(tower)
        if not all(name in inputs for name in names):
            raise ValueError(
                f"model '{self.name}': expected the {tower}'s inputs {list(names)}, got "
                f"{', '.join(inputs)}"
            )
        # The other tower has no ids: its rows are zeros, and nothing is read for them.
        samples = _num_samples(inputs[names[0]])
        filled = {name: tf.zeros([samples, width]) for name, width in self.dense_widths.items()}
        filled.update(dict.fromkeys(self._others, tf.zeros([samples], tf.int64)))
        for feature in self.features:
            key_dtype = feature.table.key_dtype or "int64"
            filled[feature.name] = tf.RaggedTensor.from_row_lengths(
                tf.zeros([0], key_dtype), tf.zeros([samples], tf.int64), validate=False
            )
        return self._vectors(self._look_up({**filled, **inputs}), tower, training=False)

    def _batch_loss(self, batch, queries, items):
        """Equations 2 to 5: the mean of `-log softmax` of each row's item, among all items."""
        logits = tf.matmul(queries, items, transpose_b=True) / self._temperature
        if self._log_q is not None:
            logits -= tf.cast(tf.reshape(batch.others[self._log_q], [1, -1]), tf.float32)
        if self._item_id is not None:
            ids = tf.reshape(tf.cast(batch.others[self._item_id], tf.int64), [-1])
            if self.frequency is not None:
                logits -= self.frequency(ids, training=True)[None]
            is_itself = ids[:, None] == ids[None]
            is_pair = tf.eye(tf.shape(ids)[0], dtype=tf.bool)
            logits = tf.where(is_itself & ~is_pair, tf.constant(-1e9), logits)
        return -tf.reduce_mean(tf.linalg.diag_part(tf.nn.log_softmax(logits)))


def _check_other_inputs(item_id, log_q, names, dense):
    dense_names = [*dense["query"], *dense["item"]]
    if item_id is not None and item_id in (*names["query"], *dense_names):
        raise ValueError(
            "TwoTower: expected item_id to name an input with ids or one of the item's features "
            f"{names['item']}, got '{item_id}'"
        )
    if log_q is not None and log_q in (*names["query"], *names["item"], *dense_names):
        raise ValueError(
            f"TwoTower: expected log_q to name an input of its own, got '{log_q}', which is a "
            "feature or a dense input"
        )


def _widths(dense):
    if dense is None:
        return {}
    if isinstance(dense, Mapping):
        return dict(dense)
    return dict.fromkeys([dense] if isinstance(dense, str) else dense, 1)


def _split(dense, widths):
    return [] if dense is None else tf.split(dense, list(widths.values()), axis=-1)


def _num_samples(ids):
    if isinstance(ids, tf.SparseTensor):
        return ids.dense_shape[0]
    return ids.nrows() if isinstance(ids, tf.RaggedTensor) else tf.shape(ids, tf.int64)[0]
