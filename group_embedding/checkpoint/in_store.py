"""Keyed tables in the stores of Keras's files, `.keras` and `.weights.h5`.

A store keeps arrays. Those of a keyed table are the bytes of the files that a checkpoint would have
of it, and their manifest: so rows, slots, counts, versions and the keys that a filter has counted
and not admitted are all there, and are restored by any number of ranks.
"""

import shutil
import tempfile
from pathlib import Path

import numpy as np
import tensorflow as tf

from group_embedding.checkpoint import checkpoint_files as files
from group_embedding.checkpoint.parts import (
    prefix_of_all,
    restore_part,
    save_parts,
    share_of,
    verify_part,
)
from group_embedding.checkpoint.snapshots import take_snapshots
from group_embedding.ops import save_table

_PIECE_BYTES = 64 << 20  # of a file, in one array


def store_table(store, name, table):
    """Writes a table into a store, as arrays whose names begin with `name:`.

    Args:
        store: of a Keras file: a dict of arrays by name.
        table: an EmbeddingVariable or a KeyedReplicas. Where ranks share it, every rank must call
            this; each writes all keys into its own store.
    """
    parts = _parts_of(table)
    shares = [share for share in map(share_of, parts) if share is not None]
    with tempfile.TemporaryDirectory(prefix="group_embedding_") as folder:
        prefix = prefix_of_all(parts, tf.constant(f"{folder}/table")).numpy().decode()
        snapshots = take_snapshots(parts, False)
        manifests = save_parts(parts, prefix, snapshots, "keras_store", is_shared=False)
        manifest = _merged(manifests).numpy()
        store[f"{name}:manifest"] = np.frombuffer(manifest, np.uint8)
        for file, owner in zip(files.files_of(manifest, name), _owners(shares)):
            path = f"{prefix}.{file['suffix']}"
            for i, piece in enumerate(_pieces(path, file["bytes"], shares, owner)):
                store[f"{name}:{file['suffix']}:{i}"] = piece
    if shares:
        # The files of this rank lie in a folder that rank 0 named, on this rank's machine.
        shutil.rmtree(Path(prefix).parent, ignore_errors=True)
    if getattr(table, "trained_steps", None) is not None:
        store[f"{name}:step"] = table.trained_steps.numpy()


def has_table(store, name):
    return f"{name}:manifest" in store


def restore_table(store, name, table):
    """Sets a table to its stored content.

    Raises:
        tf.errors.DataLossError: the stored content is damaged, or of another table.
        tf.errors.InvalidArgumentError: its keys, values or dim are of another kind.
    """
    parts = _parts_of(table)
    manifest = np.asarray(store[f"{name}:manifest"]).tobytes()
    with tempfile.TemporaryDirectory(prefix="group_embedding_") as folder:
        prefix = f"{folder}/table"
        for file in files.files_of(manifest, name):
            with open(f"{prefix}.{file['suffix']}", "wb") as written:
                for i in range(_num_pieces(file["bytes"])):
                    written.write(np.asarray(store[f"{name}:{file['suffix']}:{i}"]).tobytes())
        restored = [part for part in parts if not part.always_starts]
        for part in restored:
            verify_part(part, prefix, manifest)
        for part in restored:
            restore_part(part, prefix, manifest)
    for part in parts:
        if part.always_starts:
            part.initialize()
    if getattr(table, "trained_steps", None) is not None and f"{name}:step" in store:
        table.trained_steps.assign(np.asarray(store[f"{name}:step"]))


def _parts_of(table):
    return getattr(table.rows, "parts", [table.rows])


def _merged(manifests):
    return manifests[0] if len(manifests) == 1 else save_table.merge_manifests(tf.stack(manifests))


def _owners(shares):
    """The ranks that wrote the files of a table, in the order of its manifest; None: this one."""
    if not shares or len(shares) > 1 or shares[0].exchange.num_ranks == 1:
        return [None] * max(1, len(shares))
    exchange = shares[0].exchange
    (has_part,) = exchange.allgather([tf.constant([shares[0].part is not None])], "keras_owners")
    return np.flatnonzero(has_part.numpy()).tolist()


def _num_pieces(num_bytes):
    return max(1, -(-num_bytes // _PIECE_BYTES))


def _pieces(path, num_bytes, shares, owner):
    """The bytes of a file, uint8 arrays, from the rank that has it; None: from this one."""
    for i in range(_num_pieces(num_bytes)):
        if owner is None:
            yield _read(path, i)
            continue
        exchange = shares[0].exchange
        mine = _read(path, i) if owner == exchange.rank else np.zeros([0], np.uint8)
        (piece,) = exchange.allgather([tf.constant(mine)], "keras_store")
        yield piece.numpy()


def _read(path, piece):
    return np.fromfile(path, np.uint8, _PIECE_BYTES, offset=piece * _PIECE_BYTES)
