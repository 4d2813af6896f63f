"""Files of the keys that tables have evicted."""

from __future__ import annotations

import io
import os
import re

import numpy as np
import tensorflow as tf

from group_embedding.ranks.exchange.active import current


class EvictedFiles:
    """Writes evicted keys into files of a folder, each of them whole or not there.

    A call writes `<folder>/<table>/rank<rank>-<number>.npz`, an archive of NumPy with the arrays

        keys      [n], of the table's key type
        values    [n, dim], float32 or float16 (bfloat16 as float32); [0, dim] with hand_out="keys"
        versions  int64 [n]: the step in which each key was trained last; -1: no step was known
        freqs     int64 [n]: how often each key was trained

    under another name, and renames it. Numbers of a rank count from 1, on from those in the folder.
    What a path would take for something else than a name is written as in URLs: of the table
    `../50%`, `%2E%2E/50%25` is the folder.

    Args:
        folder: local, or of any file system that TensorFlow has.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._folder = os.fspath(folder)
        self._last: dict[str, int] = {}  # number, by table

    def __call__(self, table: str, evicted) -> None:
        folder, rank = f"{self._folder}/{_inner_path(table)}", current().rank
        if table not in self._last:
            tf.io.gfile.makedirs(folder)
            self._last[table] = _last_number(folder, rank)
        number = self._last[table] + 1
        path = f"{folder}/rank{rank}-{number:09d}.npz"
        with tf.io.gfile.GFile(f"{path}.writing", "wb") as file:
            file.write(_archive(evicted))
        tf.io.gfile.rename(f"{path}.writing", path, overwrite=True)
        self._last[table] = number


_NO_NAMES = {"": "%2F", ".": "%2E", "..": "%2E%2E"}


def _inner_path(table):
    """The path of a table's folder, another one for each name, and never out of where it starts."""
    parts = table.replace("%", "%25").split("/")
    return "/".join(_NO_NAMES.get(part, part) for part in parts)


def _last_number(folder, rank):
    names = tf.io.gfile.listdir(folder)
    found = [re.fullmatch(rf"rank{rank}-(\d+)\.npz", name) for name in names]
    return max((int(name[1]) for name in found if name), default=0)


def _archive(evicted):
    arrays = evicted._asdict()
    if arrays["values"].dtype == tf.bfloat16.as_numpy_dtype:
        arrays["values"] = arrays["values"].astype(np.float32)
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()
