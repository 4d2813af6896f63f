"""The files of keyed tables that belong to a checkpoint."""

import glob
import re
from pathlib import Path

import tensorflow as tf

_MAGIC = b"\x89GEMAN\r\n"
# Ours begin with a letter where those of TensorFlow have five digits.
_SUFFIX = re.compile(r"\.data-[rc][0-9a-z]{4}-of-[0-9a-z]{5}(\.tmp)?$")


def manifests(prefix):
    """{name of a table's entry: its manifest, bytes} of a checkpoint."""
    reader = tf.train.load_checkpoint(prefix)
    names = [
        name
        for name, dtype in reader.get_variable_to_dtype_map().items()
        if dtype == tf.string and name.endswith(("-rows", "/.ROWS"))
    ]
    found = {name: reader.get_tensor(name) for name in sorted(names)}
    return {name: manifest for name, manifest in found.items() if manifest.startswith(_MAGIC)}


def tables(prefix):
    """[{table, step, files: [{path, changes_only, bytes, crc}]}] of a checkpoint.

    Raises:
        RuntimeError: an entry is damaged.
    """
    from group_embedding import _core

    found = []
    for name, manifest in manifests(prefix).items():
        table = _core.decode_manifest(manifest, name)
        for file in table["files"]:
            file["path"] = f"{prefix}.{file['suffix']}"
        found.append(table)
    return found


def files_of(manifest, name):
    """The files of a table, [{suffix, changes_only, bytes, crc}], by its manifest.

    Raises:
        RuntimeError: the manifest is damaged; the message names the table `name`.
    """
    from group_embedding import _core

    return _core.decode_manifest(manifest, name)["files"]


def present(prefix):
    """The paths of files of keyed tables beside a checkpoint, whether it names them or not."""
    paths = glob.glob(glob.escape(str(prefix)) + ".data-*")
    return [path for path in sorted(paths) if _SUFFIX.match(path[len(str(prefix)) :])]


def remove_unnamed(prefix):
    """Removes what earlier saves left beside a checkpoint that is about to be written again. What
    the checkpoint names that is there now stays, as it is valid until the new one is complete."""
    paths = present(prefix)
    if not paths:
        return
    named = set()
    if Path(f"{prefix}.index").exists():
        named = {file["path"] for table in tables(prefix) for file in table["files"]}
    for path in paths:
        if path not in named:
            Path(path).unlink(missing_ok=True)
