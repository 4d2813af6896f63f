"""EmbeddingVariables in checkpoints of DeepRec.

Each is saved as tensors of the same number of rows: `NAME-keys`, `NAME-values`, `NAME-freqs` and
`NAME-versions`; a partitioned one as `NAME/part_0-keys` and so on. Keys that a filter has not
admitted are in `NAME-keys_filtered`; they have no rows. Slots of optimizers are EmbeddingVariables
with a name of their own, `NAME/Adagrad`.
"""

from __future__ import annotations

import collections
import re

from group_embedding.compat.convert.checkpoint_tensors import checkpoint_tensors
from group_embedding.compat.convert.rows import Part, SavedTable, table_of_parts

_KEYS = re.compile(r"(?P<name>.*?)(?:/part_\d+(?P<slot>/[^/]+)?)?-keys$")


def tables(path: str) -> list[SavedTable]:
    """The tables of a checkpoint, and those of slots under names of their own.

    Args:
        path: the prefix of a checkpoint, or a folder, whose newest one is meant.
    """
    tensors = checkpoint_tensors(path)
    parts = collections.defaultdict(list)
    for keys_name in sorted(tensors):
        match = _KEYS.match(keys_name)
        stem = keys_name.removesuffix("-keys")
        if match is not None and f"{stem}-values" in tensors:
            counts, versions = tensors.get(f"{stem}-freqs"), tensors.get(f"{stem}-versions")
            part = Part(tensors[keys_name], tensors[f"{stem}-values"], counts, versions)
            parts[match["name"] + (match["slot"] or "")].append(part)
    return [table_of_parts(name, of) for name, of in parts.items()]
