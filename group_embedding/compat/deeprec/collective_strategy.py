"""`CollectiveStrategy`: DeepRec's way of saying what `enable_distributed_strategy` and its
companions say."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

from group_embedding.compat.deeprec.export import export_checkpoint
from group_embedding.feature_column import group_embedding_column_scope
from group_embedding.ranks import exchange
from group_embedding.ranks.distributed import (
    distribute_new_optimizers,
    enable_distributed_strategy,
    export_by_first_rank,
)


class CollectiveStrategy:
    """The ranks that `horovodrun` launched, training one model; a process by itself is one rank.

    Embedding columns made in `embedding_scope`, tables of `ge.layers.GroupEmbedding` and
    EmbeddingVariables are spread over the ranks; all else is data-parallel.

    Example, run with `horovodrun -np 2 python train.py`:

    ```python
    strategy = ge.CollectiveStrategy()
    with strategy.scope(), tf.Graph().as_default():
        with strategy.embedding_scope():
            columns = [tf.feature_column.embedding_column(category, dimension=16)]
        inputs = tf.compat.v1.feature_column.input_layer(features, columns)
        ...
        train_op = tf.compat.v1.train.AdagradOptimizer(0.1).minimize(loss, global_step)
        with tf.compat.v1.train.MonitoredTrainingSession(folder, save_checkpoint_steps=100): ...
    ```

    Args:
      **options: Of `ge.enable_distributed_strategy`, which this calls: placement, comm_dtype,
        timeout_seconds.

    Raises:
      ImportError, ValueError: See `ge.enable_distributed_strategy`.
    """

    def __init__(self, **options: Any) -> None:
        enable_distributed_strategy("collective", **options)
        self._exchange = exchange.current()

    @property
    def world_size(self) -> int:
        """How many ranks train, on all hosts: an int, which may be called, too: `world_size()`."""
        return _Number(self._exchange.num_ranks)

    @property
    def rank(self) -> int:
        """This process among all, 0 to world_size - 1: an int, which may be called, too."""
        return _Number(self._exchange.rank)

    @property
    def local_rank(self) -> int:
        """The index of this process among those of its host, which share its GPUs."""
        return self._exchange.local_rank

    @contextlib.contextmanager
    def scope(self) -> Iterator[CollectiveStrategy]:
        """Inside, in any thread, each optimizer that is made is a `ge.DistributedOptimizer`."""
        with distribute_new_optimizers():
            yield self

    def embedding_scope(
        self, name: str | None = None, placement: str | Mapping[str, str] | None = None
    ) -> AbstractContextManager[None]:
        """`ge.group_embedding_column_scope`: columns made inside are looked up together, and their
        tables are spread over the ranks."""
        return group_embedding_column_scope(name, placement)

    def estimator(
        self,
        model_fn: Callable[..., Any],
        model_dir: str | None = None,
        config: Any = None,
        params: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> Any:
        """A `tf.estimator.Estimator` whose methods every rank calls alike.

        `model_fn` runs inside `scope`. The first rank writes summaries, and all of them one
        checkpoint, by steps (RunConfig's `save_checkpoints_steps`). One process by itself trains on
        while `ge.checkpoint.CheckpointSaverHook` writes it; several ranks wait for it. Give each
        rank its part of the training data, as many batches each, and all ranks the same data to
        evaluate: then all find the same figures. Its further method
        `train_and_evaluate` is that of `tf.estimator`.

        Args:
          model_fn, params, **kwargs: See `tf.estimator.Estimator`.
          model_dir: On a file system that all ranks share.
          config: A RunConfig that saves by steps; one that is not told when to save, which means
            every 600 seconds in TensorFlow, saves every 1,000 steps, and so does None.

        Raises:
          ImportError: This TensorFlow has no Estimators.
          ValueError: There is no model_dir, or `config` saves by other seconds.
        """
        from group_embedding.compat.deeprec.estimator import (
            make_estimator,  # not in TensorFlow 2.21
        )

        return make_estimator(self, model_fn, model_dir, config, params, **kwargs)

    def export_saved_model(
        self,
        savedmodel_dir: str,
        checkpoint_dir: str | None = None,
        signature_def_fn: Callable[[], Any] | None = None,
        assets_extra: Mapping[str, str] | None = None,
        as_text: bool = False,
        clear_devices: bool = True,
        strip_default_attrs: bool = True,
    ) -> str:
        """Writes a SavedModel that one process serves, with the rows of all ranks.

        Every rank calls it; the first one builds the model anew, whole, and restores it.

        Args:
          savedmodel_dir: The folder to write, which is not there yet.
          checkpoint_dir: The checkpoint, such as `tf.train.latest_checkpoint(folder)`, or a folder,
            whose newest one is taken.
          signature_def_fn: A function without arguments that builds the serving model in the
            default graph and returns what it serves: a SignatureDef
            (`tf.compat.v1.saved_model.predict_signature_def`), a dict of them by name, or
            `(inputs, outputs)`, of each a dict of tensors by name.
          assets_extra: A dict from paths in the SavedModel's folder `assets.extra` to files that
            are copied there.
          as_text: Whether the graph is written as text.
          clear_devices: Whether devices are left out of the graph.
          strip_default_attrs: Whether attributes that have their default are left out of it.

        Returns:
          `savedmodel_dir`, on all ranks, when it is written.

        Raises:
          TypeError, ValueError: There is no checkpoint, or no function.
        """

        def export():
            return export_checkpoint(
                savedmodel_dir,
                checkpoint_dir,
                signature_def_fn,
                assets_extra,
                as_text,
                clear_devices=clear_devices,
                strip_default_attrs=strip_default_attrs,
            )

        return export_by_first_rank(self._exchange, export)


class _Number(int):
    """An int that is also what a call of it returns."""

    def __call__(self):
        return int(self)
