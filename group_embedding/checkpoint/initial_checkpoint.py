"""Tables that start from the rows of a checkpoint."""

import tensorflow as tf

from group_embedding.checkpoint import checkpoint_files as files
from group_embedding.ops import save_table, table_keys
from group_embedding.ops._library import core
from group_embedding.ops.route_ids import key_owners

_ROWS_AT_A_TIME = 1 << 20


def find_start(table, prefix, name, dim, dtype):
    """The rows of `name` in a checkpoint.

    Args:
        table: the name of the table that starts from them, for messages.
        prefix: of the checkpoint, or the folder whose newest one is meant.
        name: of a keyed table, or of a variable of shape [rows, dim], whose row numbers become
            keys. In object-based checkpoints the path of the object, such as "model/user".
        dim, dtype: of the table.

    Raises:
        ValueError: there is no such checkpoint, or it has no such rows.
    """
    prefix = _checkpoint(table, prefix)
    manifest = _manifest(prefix, name)
    if manifest is not None:
        return KeyedRows(prefix, manifest)
    reader = files.reader(prefix)
    shapes = reader.get_variable_to_shape_map()
    for tensor in (name, f"{name}/.ATTRIBUTES/VARIABLE_VALUE"):
        shape = shapes.get(tensor)
        if shape is not None and len(shape) == 2 and shape[1] == dim and shape[0] > 0:
            return Matrix(prefix, tensor, shape, reader.get_variable_to_dtype_map()[tensor], dtype)
    raise ValueError(
        f"table '{table}': expected checkpoint '{prefix}' to have rows of dim {dim} named "
        f"'{name}', it has {_rows_in(prefix, shapes)}"
    )


def _checkpoint(table, prefix):
    found = files.find(prefix)
    if found is None or not tf.io.gfile.exists(f"{found}.index"):
        raise ValueError(
            f"table '{table}': expected ckpt_to_load_from to be the prefix of a checkpoint, or a "
            f"folder with one, got {prefix!r}"
        )
    return found


def _manifest(prefix, name):
    """The manifest of the keyed table of this name in the checkpoint, by its own name or as an
    object; None if there is none."""
    manifests = files.manifests(prefix)
    for entry in (f"{name}-rows", f"{name}/table/.ROWS", f"{name}/.ROWS"):
        if entry in manifests:
            return manifests[entry]
    named = [entry for entry, table in _tables(manifests) if table == name]
    return manifests[named[0]] if len(named) == 1 else None


def _tables(manifests):
    return [
        (entry, core().decode_manifest(manifest, entry)["table"])
        for entry, manifest in manifests.items()
    ]


def _rows_in(prefix, shapes):
    keyed = {table: "keyed" for _, table in _tables(files.manifests(prefix))}
    return {**keyed, **{name: shape for name, shape in sorted(shapes.items()) if len(shape) == 2}}


class KeyedRows:
    """A saved keyed table as a start: values, counts and versions, and the counts of its filter."""

    def __init__(self, prefix, manifest):
        self._prefix = prefix
        self._manifest = manifest
        # The save's: versions of keys lie before it.
        self.step = max(0, core().decode_manifest(manifest, prefix)["step"])

    def verify(self, handle, part, num_parts):
        """An op that fails if a file is missing or damaged, or of another dim."""
        return save_table.verify_table(
            handle, self._prefix, self._manifest, part, num_parts, as_start=True
        )

    def load(self, handle, part, num_parts):
        """An op that gives an empty table, of rank `part` of `num_parts`, the rows."""
        return save_table.restore_table(
            handle, self._prefix, self._manifest, part, num_parts, as_start=True
        )


class Matrix:
    """A variable of shape [rows, dim]."""

    step = 0

    def __init__(self, prefix, tensor, shape, saved_dtype, dtype):
        self._prefix = prefix
        self._tensor = tensor
        self._shape = shape
        self._saved_dtype = saved_dtype
        self._dtype = dtype

    def verify(self, handle, part, num_parts):
        """Does nothing: the constructor has read and checked the checkpoint."""
        del handle, part, num_parts
        return tf.no_op()

    def load(self, handle, part, num_parts):
        """Loads this part's rows into the table, as KeyedRows.load does."""
        loaded = []
        for begin in range(0, self._shape[0], _ROWS_AT_A_TIME):
            # One after the other, so that one part at a time is in memory.
            with tf.control_dependencies(loaded):
                loaded = [self._load_rows(handle, begin, part, num_parts)]
        return tf.group(loaded)

    def _load_rows(self, handle, begin, part, num_parts):
        num_rows, dim = self._shape
        count = min(_ROWS_AT_A_TIME, num_rows - begin)
        with tf.device("/CPU:0"):
            (values,) = tf.raw_ops.RestoreV2(
                prefix=self._prefix,
                tensor_names=[self._tensor],
                shape_and_slices=[f"{num_rows} {dim} {begin},{count}:-"],
                dtypes=[self._saved_dtype],
            )
            keys = tf.range(begin, begin + count, dtype=tf.int64)
            none = tf.zeros([0], tf.int64)
            values = tf.cast(tf.ensure_shape(values, [count, dim]), self._dtype)
            if num_parts > 1:
                is_own = tf.equal(key_owners(keys, num_parts), part)
                keys, values = tf.boolean_mask(keys, is_own), tf.boolean_mask(values, is_own)
        with tf.device(handle.device):
            return table_keys.insert_keys(handle, keys, values, none, none)
