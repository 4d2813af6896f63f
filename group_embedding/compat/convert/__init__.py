"""Trained tables of other libraries: TFRA, DeepRec, SOK, HugeCTR, TorchRec, and vectors as text.
Also of checkpoints of this package, whose types they convert."""

from __future__ import annotations

from typing import Any

from group_embedding.compat.convert import (
    deeprec,
    hugectr,
    own,
    sok_dump,
    tfra,
    torchrec,
    word_vectors,
)
from group_embedding.compat.convert.change_types import change_types
from group_embedding.compat.convert.hugectr_dense import load_hugectr_dense
from group_embedding.compat.convert.load_table import load_table
from group_embedding.compat.convert.rows import Rows, SavedTable
from group_embedding.compat.convert.write_checkpoint import write_checkpoint

_TABLES_OF = {
    "checkpoint": own.tables,
    "deeprec": deeprec.tables,
    "hugectr": hugectr.tables,
    "sok": sok_dump.tables,
    "text": word_vectors.tables,
    "tfra": tfra.tables,
    "torchrec": torchrec.tables,
}
FORMATS = tuple(_TABLES_OF)

__all__ = [
    "FORMATS",
    "Rows",
    "SavedTable",
    "change_types",
    "load_hugectr_dense",
    "load_table",
    "open_tables",
    "write_checkpoint",
]


def open_tables(format: str, path: str, **options: Any) -> list[SavedTable]:
    """The tables in files of another library, or of this package. Their rows are read when they are
    asked for.

    Args:
        format: who wrote them, one of `FORMATS`.
        path: "checkpoint": the prefix of a checkpoint of this package, a folder with checkpoints,
            or a SavedModel. "deeprec": the prefix of a checkpoint, or a folder with checkpoints;
            slots of optimizers are tables of their own. "tfra": such a checkpoint, or a folder of
            `save_to_file_system`. "sok": a folder of `sok.dump`. "hugectr": the folder of a sparse
            model, with `key` and `emb_vector`, or a folder with several. "torchrec": a file of
            `torch.save(model.state_dict(), path)`; torch is not needed. "text": a file with a word
            and its numbers in each line, as word2vec writes it. All on this machine's file system.
        **options: "hugectr" takes `key_dtype="int64"`, or "uint32". "tfra" takes
            `key_dtype="int64"` and `value_dtype="float32"` for folders, whose files do not say.
            "text" takes `keys`: "integers", words are integers; "lines", keys are
            line numbers; "hashes", keys are `tf.strings.to_hash_bucket_fast` of words into
            `2**63 - 1` buckets.

    Returns:
        A list of `SavedTable`.

    Raises:
        ValueError: another format; the files are damaged, or have no table.
        OSError: a file cannot be read.
    """
    if format not in _TABLES_OF:
        raise ValueError(f"format: expected one of {', '.join(FORMATS)}, got '{format}'")
    found = _TABLES_OF[format](path, **options)
    if not found:
        raise ValueError(f"{path}: expected tables of {format}, got none")
    return found
