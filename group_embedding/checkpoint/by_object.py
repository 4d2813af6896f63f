"""Keyed tables in checkpoints of objects: tf.train.Checkpoint, CheckpointManager, Keras
`save_weights`, SavedModels.

TensorFlow lets a class register how it is saved: a function that is given the prefix of the
checkpoint and all such objects, and that writes a part of the checkpoint. Ours writes the rows
beside the checkpoint and, as that part, the manifests of their files.

Registered objects are restored last. So that no variable is changed when a table's file is damaged,
a table also has a child in the checkpoint that it does not know when it is restored: TensorFlow
hands over where it found it, before it restores anything, and the table verifies its files.
"""

import tensorflow as tf
from tensorflow.python.saved_model import registration
from tensorflow.python.trackable import data_structures

from group_embedding.checkpoint import checkpoint_files as files
from group_embedding.checkpoint.parts import prefix_of_all, restore_part, save_parts, verify_part
from group_embedding.checkpoint.snapshots import (
    any_thread_saves_changes_only,
    saves_changes_only,
    take_snapshots,
)
from group_embedding.ops import save_table

_PACKAGE, _NAME = "group_embedding", "EmbeddingTable"
_SUFFIX = f"-{_PACKAGE}.{_NAME}"  # what TensorFlow adds to the prefix that it gives us
_CHILD = "saved_rows"


class SavedRows(tf.train.experimental.PythonState, data_structures.TrackableDataStructure):
    """The child by which a table finds its checkpoint. Without a state of its own.

    The variables of a SavedModel have no such child. Keras loads them as a checkpoint all of whose
    objects must be found, but for data structures that hold nothing.
    """

    _values = ()

    def __init__(self):
        super().__init__()
        self._maybe_initialize_trackable()

    def serialize(self):
        return ""

    def deserialize(self, string_value):
        pass

    def _copy_trackable_to_cpu(self, object_map):
        pass


class TableInBackground:
    """Replaces a table in a save by a thread, which writes copies of all objects: for a table, a
    snapshot."""

    _is_embedding_table = True

    def __init__(self, table, snapshot):
        if getattr(table, "share", None) is not None:
            raise ValueError(
                f"table '{table.name}': expected a save that is waited for, as several ranks share "
                "it, got one in the background"
            )
        self._table = table
        self.snapshot = snapshot

    @property
    def resource_handle(self):
        return self._table.resource_handle


class SavedByObject(tf.saved_model.experimental.TrackableResource):
    """A resource that is a keyed table and saved as such."""

    def __init__(self, device=""):
        super().__init__(device=device)
        self._maybe_initialize_trackable()
        self._original = self
        self._saved_rows = SavedRows()

    def _trackable_children(self, save_type="checkpoint", **kwargs):
        children = dict(super()._trackable_children(save_type, **kwargs))
        if save_type == "checkpoint":
            children[_CHILD] = self._saved_rows
        return children

    def _copy_trackable_to_cpu(self, object_map):
        # Called for `CheckpointOptions(enable_async=True)`, first as it is, then in a graph that
        # TensorFlow makes of it; what the table's step is, Python knows each time.
        if self not in object_map:
            with tf.device("/CPU:0"):
                snapshot = tf.Variable(-1, dtype=tf.int64, trainable=False)
            object_map[self] = TableInBackground(self, snapshot)
        object_map[self].snapshot.assign(tf.py_function(self._take_snapshot, [], tf.int64))

    def _take_snapshot(self):
        return take_snapshots([self], any_thread_saves_changes_only())[0]

    def _lookup_dependency(self, name, *args, **kwargs):
        if name == _CHILD:
            return None
        return super()._lookup_dependency(name, *args, **kwargs)

    @property
    def _deferred_dependencies(self):
        return _VerifiedFirst(self, super()._deferred_dependencies)


class RowsOfParts(SavedByObject):
    """A table whose parts, TableResources, are all in this process: saved and restored as one."""

    def __init__(self, parts):
        super().__init__()
        self.parts = parts
        self.share = parts[0].share
        self.name = parts[0].name


class _VerifiedFirst(dict):
    """TensorFlow's dict of restored children that an object does not have (yet). It is asked for
    the list of children of a name, and appends to it."""

    def __init__(self, table, others):
        super().__init__(others)
        self._table = table
        self._others = others

    def setdefault(self, name, default=None):
        return self if name == _CHILD else self._others.setdefault(name, default)

    def get(self, name, default=None):
        return self._others.get(name, default)

    def pop(self, name, *default):
        return self._others.pop(name, *default)

    def append(self, position):
        checkpoint = position.checkpoint
        for node_id, found in checkpoint.object_by_proto_id.items():
            if found is self._table:
                saved_as = checkpoint.object_graph_proto.nodes[node_id].registered_saver.object_name
                for part in _parts_of(self._table):
                    _verify(part, saved_as, checkpoint.save_path_string)
        # There is nothing else to restore of it.
        position.bind_object(self._table._saved_rows)
        self._table._saved_rows._update_uid = checkpoint.restore_uid


def _verify(table, saved_as, prefix):
    if not tf.executing_eagerly():
        return
    if _always_starts(table):
        table.verify_start()
        return
    manifest = files.reader(prefix).get_tensor(_key(saved_as))
    verify_part(table, prefix, manifest)


def _always_starts(table):
    """Returns whether a table starts from its checkpoint whenever it is initialized, as one that
    was loaded from a SavedModel does."""
    return getattr(table, "always_starts", False)


def _originals(trackables):
    """Names and tables, also of those that are in parts. A SavedModel is made of copies of
    resources, but its functions of what was copied."""
    tables = [(name, part) for name, t in sorted(trackables.items()) for part in _parts_of(t)]
    return tuple(zip(*tables))


def _parts_of(table):
    original = getattr(table, "_original", table)
    return getattr(original, "parts", [original])


def mark_as_table(resource):
    """Marks a resource as a table. Resources loaded from a SavedModel have another class."""
    resource._is_embedding_table = True
    resource._original = resource


def _is_table(trackable):
    return isinstance(trackable, SavedByObject) or hasattr(trackable, "_is_embedding_table")


def _key(saved_as):
    return f"{saved_as}/.ROWS"


def _save(trackables, file_prefix):
    names, tables = _originals(trackables)
    prefix = tf.strings.substr(file_prefix, 0, tf.strings.length(file_prefix) - len(_SUFFIX))
    if tf.executing_eagerly():
        files.remove_unnamed(prefix.numpy().decode())
    prefix = prefix_of_all(tables, prefix)
    manifests = {}
    saved = save_parts(tables, prefix, _snapshots(names, tables), "save_objects")
    for name, manifest in zip(names, saved):
        manifests.setdefault(name, []).append(manifest)
    tf.raw_ops.SaveV2(
        prefix=file_prefix,
        tensor_names=[_key(name) for name in manifests],
        shape_and_slices=[""] * len(manifests),
        tensors=[_merged(parts) for parts in manifests.values()],
    )
    return file_prefix


def _merged(manifests):
    return manifests[0] if len(manifests) == 1 else save_table.merge_manifests(tf.stack(manifests))


def _snapshots(names, tables):
    """For each table the snapshot to write."""
    late = [n for n, t in zip(names, tables) if not isinstance(t, TableInBackground)]
    if len(late) == len(tables):
        is_in_parts = len(set(names)) < len(names)  # of such tables all rows are saved
        return take_snapshots(tables, False if is_in_parts else saves_changes_only())
    if late:
        raise ValueError(
            f"tables {late}: expected to be there when this tf.train.Checkpoint was first saved "
            "with enable_async=True, as what it copies was found out then; make another Checkpoint"
        )
    return [table.snapshot for table in tables]


def _restore(trackables, merged_prefix):
    in_v1_graph = not tf.compat.v1.executing_eagerly_outside_functions()
    names, tables = _originals(trackables)
    if in_v1_graph and not tf.compat.v1.get_default_graph().building_function:
        raise ValueError(
            "expected tf.compat.v1.train.Saver in a graph of TensorFlow 1, got an object-based "
            "checkpoint, which restores an EmbeddingVariable in eager code alone"
        )
    manifests = tf.raw_ops.RestoreV2(
        prefix=merged_prefix,
        tensor_names=[_key(name) for name in names],
        shape_and_slices=[""] * len(names),
        dtypes=[tf.string] * len(names),
    )
    restored = [saved for saved in zip(tables, manifests) if not _always_starts(saved[0])]
    for table, manifest in restored:
        verify_part(table, merged_prefix, manifest)
    for table in filter(_always_starts, tables):
        table.initialize()
    for table, manifest in restored:
        if hasattr(table, "_initialize"):
            table._initialize()  # where it is not, as in a SavedModel
        restore_part(table, merged_prefix, manifest)


registration.register_checkpoint_saver(
    package=_PACKAGE, name=_NAME, predicate=_is_table, save_fn=_save, restore_fn=_restore
)
