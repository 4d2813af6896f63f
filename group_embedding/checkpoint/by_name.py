"""Keyed tables in checkpoints of `tf.compat.v1.train.Saver`, whichever Saver it is.

A Saver asks each of its variables for tensors to write. Those of a keyed table are one string, the
manifest of the files that the op behind it writes beside the checkpoint: the op finds the
checkpoint's prefix in the graph that the Saver is building. So the checkpoint's index, which
TensorFlow writes last, is what makes rows and dense variables valid together.

A restore reads and verifies the files of all tables before TensorFlow reads the first variable.
"""

import tensorflow as tf
from tensorflow.python.training.saving import saveable_object

from group_embedding.checkpoint.parts import restore_part, save_parts, verify_part
from group_embedding.checkpoint.snapshots import Snapshots

_ATTRIBUTE = "_group_embedding_savers"


def manifest_name(table_name):
    """The name in the checkpoint under which a table's manifest stands."""
    return f"{table_name}-rows"


class SavedByName(saveable_object.SaveableObject):
    """An EmbeddingVariable as a Saver sees it. For classes with `name` and `rows`, a TableResource,
    that are a variable of shape [0, dim]."""

    optional_restore = False

    @property
    def specs(self):
        name = manifest_name(self.name.partition(":")[0])
        return [
            saveable_object.SaveSpec(self._save_rows, "", name, dtype=tf.string, device=self.device)
        ]

    def _save_rows(self):
        save = _graph_of_saver(self)
        return save.save(self.rows)

    def restore(self, restored_tensors, restored_shapes):
        del restored_shapes
        (manifest,) = restored_tensors
        restored = _graph_of_saver(self).restore(self.rows, self.specs[0].name, manifest)
        with tf.control_dependencies([restored]):
            nothing = tf.zeros([0, *self.shape[1:]], self.dtype)
            return self.assign(nothing, read_value=False)


def _graph_of_saver(variable):
    """The part of the default graph that a Saver is building."""
    graph = tf.compat.v1.get_default_graph()
    # Kept by the graph, as long as that: a collection would be written to its meta graph.
    if not hasattr(graph, _ATTRIBUTE):
        setattr(graph, _ATTRIBUTE, {})
    savers = getattr(graph, _ATTRIBUTE)
    scope, prefix = _scope_and_prefix(graph, variable.name)
    if scope not in savers:
        savers[scope] = _SaverGraph(graph, scope, prefix)
    return savers[scope]


def _scope_and_prefix(graph, name):
    """A Saver's name scope, and its tensor that is fed with the prefix of the checkpoint."""
    scope = graph.get_name_scope()
    while scope:
        try:
            operation = graph.get_operation_by_name(f"{scope}/Const")
        except KeyError:
            operation = None
        if operation is not None and operation.type == "PlaceholderWithDefault":
            return scope, operation.outputs[0]
        scope = scope.rpartition("/")[0]
    raise ValueError(
        f"table '{name}': expected to be saved by a tf.compat.v1.train.Saver or a subclass, in "
        "whose name scope there is a placeholder 'Const' of the checkpoint's prefix"
    )


class _SaverGraph:
    """State that the tables of one Saver share: one snapshot, and the order of a restore."""

    def __init__(self, graph, scope, prefix):
        self.graph = graph
        self.scope = scope
        self.prefix = prefix
        self._snapshots = None
        self._verified = []
        self._changes = []  # ops that change tables
        self._reads_of_manifests = set()

    def save(self, rows):
        """The manifest of a table's files, which are written when it is fetched."""
        is_first = self._snapshots is None
        if is_first:
            self._snapshots = Snapshots(self.scope)
        snapshot = self._snapshots.add(rows)
        name = manifest_name(rows.name)
        (manifest,) = save_parts([rows], self.prefix, [snapshot], name, is_shared=is_first)
        return manifest

    def restore(self, rows, name, manifest):
        """An op that restores a table, after all tables of the Saver were verified."""
        if rows.always_starts:
            verified = rows.verify_start()
            with tf.control_dependencies([*self._verified, verified]):
                return self._changed_after(verified, rows.initialize())
        with tf.device("/CPU:0"):
            (own_manifest,) = tf.raw_ops.RestoreV2(
                prefix=self.prefix,
                tensor_names=[name],
                shape_and_slices=[""],
                dtypes=[tf.string],
            )
        self._reads_of_manifests.add(own_manifest.op)
        verified = verify_part(rows, self.prefix, own_manifest)
        with tf.control_dependencies([*self._verified, verified]):
            made = rows.initialize_if_needed()
        with tf.control_dependencies([made]):
            restored = restore_part(rows, self.prefix, manifest)
        return self._changed_after(verified, made, restored)

    def _changed_after(self, verified, *changes):
        """The last of `changes`, ops that wait for all that was verified. What came before waits
        for `verified`."""
        for operation in [*self._changes, *self._reads()]:
            operation._add_control_input(verified)
        self._verified.append(verified)
        self._changes += changes
        return changes[-1]

    def _reads(self):
        """The ops by which this Saver reads variables."""
        return [
            operation
            for operation in self.graph.get_operations()
            if operation.type == "RestoreV2"
            and operation.name.startswith(self.scope + "/")
            and operation not in self._reads_of_manifests
        ]
