"""The files of keyed tables that belong to a checkpoint, on any file system that TensorFlow has."""

import contextlib
import os
import re

import tensorflow as tf

from group_embedding.config import distinct_names
from group_embedding.ops._library import core

_MAGIC = b"\x89GEMAN\r\n"
# Suffixes of this package begin with r or c, where TensorFlow's have five digits.
_SUFFIX = re.compile(r"\.data-[rc][0-9a-z]{4}-of-[0-9a-z]{5}$")


def reader(prefix):
    """A reader of a checkpoint's tensors. `tf.train.load_checkpoint` would first check whether the
    prefix is a folder; in `ram://` it is one, as names of files begin with it."""
    return tf.compat.v1.train.NewCheckpointReader(os.fspath(prefix))


def manifests(prefix):
    """{name of a table's entry: its manifest, bytes} of a checkpoint."""
    tensors = reader(prefix)
    names = [
        name
        for name, dtype in tensors.get_variable_to_dtype_map().items()
        if dtype == tf.string and name.endswith(("-rows", "/.ROWS"))
    ]
    found = {name: tensors.get_tensor(name) for name in sorted(names)}
    return {name: manifest for name, manifest in found.items() if manifest.startswith(_MAGIC)}


def tables(prefix):
    """[{table, name, entry, step, files: [{path, changes_only, bytes, crc, id}]}] of a checkpoint,
    in the order of their entries.

    `table` is the name in the files. `name` is for people: of several tables with one name, the
    second has "#2" behind it.

    Raises:
        RuntimeError: an entry is damaged.
    """
    found = []
    for entry, manifest in manifests(prefix).items():
        table = core().decode_manifest(manifest, entry)
        for file in table["files"]:
            file["path"] = f"{prefix}.{file['suffix']}"
        found.append({**table, "entry": entry})
    names = distinct_names(table["table"] for table in found)
    return [{**table, "name": name} for table, name in zip(found, names)]


def files_of(manifest, name):
    """The files of a table, [{suffix, changes_only, bytes, crc}], by its manifest.

    Raises:
        RuntimeError: the manifest is damaged; the message names the table `name`.
    """
    return core().decode_manifest(manifest, name)["files"]


def find(path):
    """The prefix of the checkpoint that `path` means: itself, also with `.index` behind it; or of a
    folder the newest one; of a SavedModel's folder its variables. None: the folder has none."""
    path = os.fspath(path)
    if tf.io.gfile.exists(f"{path}.index"):
        return path
    if not tf.io.gfile.isdir(path):
        return path.removesuffix(".index") if tf.io.gfile.exists(path) else path
    variables = os.path.join(path, "variables", "variables")
    newest = tf.train.latest_checkpoint(path)
    return variables if newest is None and tf.io.gfile.exists(f"{variables}.index") else newest


def table_file(path):
    """The rows of one file, block by block: `_native.TableFile`.

    Raises:
        RuntimeError: it cannot be opened, or is damaged.
    """
    return core().TableFile(path, open=_opener(path))


def verify_file(path, table, expected):
    """Reads a file to its end, and returns its description of its content.

    Args:
        path: of the file.
        table: the table's name in the checkpoint.
        expected: the checkpoint's entry for the file, one of `tables(...)[...]["files"]`.

    Raises:
        RuntimeError: the file is damaged, or is not the checkpoint's.
    """
    return core().verify_table_file(path, table, expected, open=_opener(path))


def _opener(path):
    """A function that opens `path` for the core; None: the core opens it, as a local file."""
    return (lambda path: tf.io.gfile.GFile(path, "rb")) if "://" in path else None


def present(prefix):
    """The paths of all files of keyed tables beside a checkpoint, including files that it does not
    name."""
    folder, name = os.path.split(str(prefix))
    if not tf.io.gfile.isdir(folder or "."):
        return []
    beside = [found for found in tf.io.gfile.listdir(folder or ".") if found.startswith(name)]
    return [os.path.join(folder, found) for found in sorted(beside) if _is_file(found, name)]


def _is_file(found, name):
    return _SUFFIX.match(found[len(name) :]) is not None


def remove_unnamed(prefix):
    """Removes files of earlier saves beside a checkpoint that is about to be written again. Files
    that the present checkpoint names stay, as it is valid until the new one is complete."""
    paths = present(prefix)
    if not paths:
        return
    named = set()
    if tf.io.gfile.exists(f"{prefix}.index"):
        named = {file["path"] for table in tables(prefix) for file in table["files"]}
    for path in paths:
        if path not in named:
            _remove(path)


def _remove(path):
    with contextlib.suppress(tf.errors.NotFoundError):  # somebody else may have done it
        tf.io.gfile.remove(path)
