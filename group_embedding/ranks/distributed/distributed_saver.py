"""`Saver`: all ranks write one checkpoint, which looks as if one process had written it.

Each rank writes its range of every sharded table, or its columns, and rank 0 everything else, into
a part of its own; rank 0 then merges the parts. A table is one tensor of shape [num_rows, dim]
under the name of its variable, whatever the number of ranks, and any number of ranks, or stock
TensorFlow, restores it. For an EmbeddingVariable, each rank writes its keys to a file beside the
checkpoint, and rank 0 the one manifest of these files (checkpoint/README.md).
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tensorflow.python.training import saver as tf_saver

from group_embedding.checkpoint.by_name import SavedByName
from group_embedding.checkpoint.shared_folder import check_shared
from group_embedding.ranks.distributed.row_ranges import from_range, rows_written_by, to_range
from group_embedding.ranks.exchange.active import current
from group_embedding.ranks.sharding.sharded_table import sharded_table


class Saver(tf.compat.v1.train.Saver):
    """A `tf.compat.v1.train.Saver` for the ranks of a job. With one rank it is that.

    Every rank makes it of the same variables, and calls `save` and `restore` at the same steps,
    with the same path on a file system that all ranks share. Only rank 0 writes the meta graph and
    the state file `checkpoint`, and deletes old checkpoints. A `save` ends on all ranks when the
    checkpoint is complete.

    In graphs with sharded tables, `MonitoredTrainingSession` and Estimators find one by themselves,
    in the collection `tf.compat.v1.GraphKeys.SAVERS`. Have them save by steps
    (`save_checkpoints_steps`): the clocks of ranks differ. A stock Saver would write the rows of
    one rank alone.

    Args: see `tf.compat.v1.train.Saver`, except `builder` and `saver_def`, which are its own.

    >>> import tempfile
    >>> with tf.Graph().as_default(), tf.compat.v1.Session() as session:
    ...     table = tf.compat.v1.get_variable("table", [4, 2])
    ...     saver = ge.Saver()
    ...     session.run(table.initializer)
    ...     path = saver.save(session, tempfile.mkdtemp() + "/model", global_step=100)
    >>> tf.train.list_variables(path)
    [('table', [4, 2])]
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._exchange = current()
        if self._exchange.num_ranks > 1:
            for name in ("builder", "saver_def"):
                if kwargs.get(name) is not None:
                    raise ValueError(f"Saver: expected no {name}, as it has its own")
            kwargs["builder"] = _RanksSaverBuilder(self._exchange)
        self._when_saved = None
        super().__init__(*args, **kwargs)

    @property
    def num_ranks(self) -> int:
        """How many ranks save and restore together."""
        return self._exchange.num_ranks

    def save(self, sess: Any, save_path: str, *args: Any, **kwargs: Any) -> Any:
        if self._exchange.num_ranks == 1:
            return super().save(sess, save_path, *args, **kwargs)
        if self._exchange.rank > 0:
            kwargs = {**kwargs, "write_meta_graph": False, "write_state": False}
        path = super().save(sess, save_path, *args, **kwargs)
        if tf.executing_eagerly():
            self._exchange.barrier("saved")
        else:
            sess.run(self._when_saved)
        return path

    def _build(self, checkpoint_path, build_save, build_restore):
        if self._exchange.num_ranks == 1:
            super()._build(checkpoint_path, build_save, build_restore)
            return
        given = self._var_list
        if given is None:
            given = tf_saver.variables._all_saveable_objects()
        try:
            self._var_list = _with_shards(given)
            super()._build(checkpoint_path, build_save, build_restore)
        finally:
            self._var_list = given
        if not tf.executing_eagerly():
            with tf.name_scope(self._name or "save"):
                self._when_saved = self._exchange.barrier("saved")


def install_saver():
    """Makes a `Saver` of all variables the saver of the current graph, unless the graph has one."""
    if tf.executing_eagerly() or tf.compat.v1.get_default_graph().building_function:
        return
    savers = tf.compat.v1.get_collection_ref(tf.compat.v1.GraphKeys.SAVERS)
    if not savers:
        savers.append(Saver(sharded=True, allow_empty=True, defer_build=True))


def _with_shards(variables):
    """The list or dict of variables with a saveable in place of each sharded one."""
    if isinstance(variables, dict):
        return {name: _saveable(variable, name) for name, variable in variables.items()}
    return [_saveable(variable) for variable in variables]


def _saveable(variable, name=None):
    shard = sharded_table(variable)
    return variable if shard is None else _ShardSaveable(shard, name or shard.name)


class _ShardSaveable(tf_saver.BaseSaverBuilder.SaveableObject):
    """This rank's range of a sharded table, or its columns."""

    def __init__(self, shard, name):
        self.shard = shard
        self.rows = rows_written_by(shard, shard.exchange.rank)
        begin, end = self.rows
        columns = shard.columns
        spec = tf_saver.BaseSaverBuilder.SaveSpec(
            self._read,
            f"{shard.num_rows} {shard.dim} "
            f"{begin},{end - begin}:{columns.start},{columns.stop - columns.start}",
            name,
            dtype=shard.dtype,
            device="/CPU:0",
        )
        super().__init__(shard.variable, [spec], name)

    @property
    def is_empty(self):
        return self.rows[0] == self.rows[1]

    def _read(self):
        return to_range(self.shard, "save_" + self.name.replace("/", "_"))

    def restore(self, restored_tensors, restored_shapes):
        del restored_shapes
        (rows,) = restored_tensors
        local = from_range(self.shard, rows, "restore_" + self.name.replace("/", "_"))
        return self.shard.variable.assign(local, read_value=False)


class _RanksSaverBuilder(tf_saver.BulkSaverBuilder):
    """Writes and reads a checkpoint on all ranks."""

    def __init__(self, exchange):
        super().__init__()
        self._exchange = exchange

    def _AddShardedSaveOps(self, filename_tensor, per_device):  # noqa: N802
        return self._AddSaveOps(filename_tensor, [s for _, group in per_device for s in group])

    def _AddSaveOps(self, filename_tensor, saveables):  # noqa: N802
        rank = self._exchange.rank
        shards = [s for s in saveables if isinstance(s, _ShardSaveable)]
        keyed = [s for s in saveables if isinstance(s, SavedByName)]
        others = [s for s in saveables if not isinstance(s, (_ShardSaveable, SavedByName))]
        rows_of = [(shard, shard.specs[0].tensor) for shard in shards]
        manifests = [(spec, spec.tensor) for table in keyed for spec in table.specs]
        contents = [
            (shard.specs[0].name, shard.specs[0].slice_spec, rows)
            for shard, rows in rows_of
            if not shard.is_empty
        ]
        if rank == 0:
            contents += [(x.name, x.slice_spec, x.tensor) for s in others for x in s.specs]
            contents += [(spec.name, spec.slice_spec, tensor) for spec, tensor in manifests]
        parts = {
            r: tf.strings.join([filename_tensor, f"_temp/part-{r:05d}"])
            for r in self._ranks_that_write(shards, others + keyed)
        }
        with tf.device("/CPU:0"):
            written = [_write(contents, parts[rank])] if contents else []
            # Ranks with nothing to write take part in the exchange too.
            exchanged = [tensor for _, tensor in rows_of + manifests]
            with tf.control_dependencies(written + exchanged):
                all_written = self._exchange.barrier("written")
            with tf.control_dependencies([all_written]):
                seen = self._check_shared(parts)
            with tf.control_dependencies(seen):
                merged = [_merge(list(parts.values()), filename_tensor)] if rank == 0 else []
            with tf.control_dependencies([*seen, *merged]):
                return tf.identity(filename_tensor)

    def _check_shared(self, parts):
        """A list of an op that fails if a rank does not see the parts, {rank: prefix}, of all."""
        ranks = range(self._exchange.num_ranks)
        prefixes = tf.stack([parts.get(rank, "") for rank in ranks])
        wrote = [rank in parts for rank in ranks]
        checked = check_shared(
            self._exchange, wrote, prefixes, tf.fill(tf.shape(prefixes), ""), "saved_parts"
        )
        return [] if checked is None else [checked]

    def _ranks_that_write(self, shards, others):
        num_ranks = self._exchange.num_ranks

        def writes(rank):
            sizes = (rows_written_by(s.shard, rank) for s in shards)
            return (rank == 0 and others) or any(begin < end for begin, end in sizes)

        return [rank for rank in range(num_ranks) if writes(rank)]

    def _AddShardedRestoreOps(  # noqa: N802
        self, filename_tensor, per_device, restore_sequentially, reshape
    ):
        saveables = [s for _, group in per_device for s in group]
        return self._AddRestoreOps(filename_tensor, saveables, restore_sequentially, reshape)

    def bulk_restore(self, filename_tensor, saveables, preferred_shard, restore_sequentially):
        del preferred_shard, restore_sequentially
        specs = [(spec, getattr(s, "is_empty", False), s) for s in saveables for spec in s.specs]
        read = [spec for spec, is_empty, _ in specs if not is_empty]
        tensors = []
        if read:
            with tf.device("/CPU:0"):
                tensors = tf.raw_ops.RestoreV2(
                    prefix=filename_tensor,
                    tensor_names=[spec.name for spec in read],
                    shape_and_slices=[spec.slice_spec for spec in read],
                    dtypes=[spec.dtype for spec in read],
                )
        tensor_of = iter(tensors)
        return [
            tf.zeros([0, s.shard.dim], spec.dtype) if is_empty else next(tensor_of)
            for spec, is_empty, s in specs
        ]


def _write(contents, prefix):
    names, slices, tensors = zip(*contents)
    return tf.raw_ops.SaveV2(
        prefix=prefix, tensor_names=names, shape_and_slices=slices, tensors=tensors
    )


def _merge(parts, prefix):
    return tf.raw_ops.MergeV2Checkpoints(
        checkpoint_prefixes=parts, destination_prefix=prefix, delete_old_dirs=True
    )
