"""Vectors as text, as word2vec, GloVe and fastText write them: a word and its numbers a line.

A first line of two numbers, how many words and how many numbers each, may stand in front.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from group_embedding.compat.convert.array_files import size_of
from group_embedding.compat.convert.rows import Rows, SavedTable

KEYS = ("integers", "lines", "hashes")
_LINES_AT_A_TIME = 1 << 14
_NUM_HASHES = (1 << 63) - 1


def tables(path: str, keys: str = "integers") -> list[SavedTable]:
    """The one table of a text file, named as the file is without its ending.

    Args:
        path: of the file, UTF-8.
        keys: what becomes of a word. "integers": it is an integer, the key. "lines": the number of
            its line, from 0 on; `words` gives the words in this order. "hashes":
            `tf.strings.to_hash_bucket_fast` of it into 2**63 - 1 buckets.
    """
    if keys not in KEYS:
        raise ValueError(f"keys: expected one of {', '.join(KEYS)}, got '{keys}'")
    size_of(path)
    skip, num_rows, dim = _shape(path)
    if not num_rows:
        raise ValueError(f"{path}: expected lines of a word and its numbers, got none")
    name = os.path.splitext(os.path.basename(path))[0]
    blocks = functools.partial(_blocks, path, skip, dim, keys)
    return [SavedTable(name, dim, np.dtype("float32"), num_rows, blocks)]


def words(path: str) -> Iterator[str]:
    """The words of a text file, line by line: the vocabulary of keys "lines"."""
    for _, (word, _) in _lines(path, _shape(path)[0]):
        yield word


def _shape(path):
    """(whether the first line is one of sizes, rows, numbers of a row)."""
    lines = _lines(path, skip=False)
    first, second = next(lines, None), next(lines, None)
    if second is None:
        return False, int(first is not None), len(first[1][1]) if first else 0
    num_more, dim = 1 + sum(1 for _ in lines), len(second[1][1])
    word, numbers = first[1]
    if [word, *numbers] == [str(num_more), str(dim)]:
        return True, num_more, dim
    return False, num_more + 1, len(numbers)


def _lines(path, skip):
    """(line number, (word, its numbers as text)) of each line, or with `skip` of all but the
    first."""
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            word, *numbers = line.rstrip().split(" ")
            if (word or numbers) and not (skip and number == 1):
                yield number, (word, numbers)


def _blocks(path, skip, dim, keys):
    block, done = [], 0
    for line in _lines(path, skip):
        block.append(line)
        if len(block) == _LINES_AT_A_TIME:
            yield _rows(path, dim, keys, block, done)
            done += len(block)
            block = []
    if block:
        yield _rows(path, dim, keys, block, done)


def _rows(path, dim, keys, block, done):
    for number, (_, numbers) in block:
        if len(numbers) != dim:
            raise ValueError(
                f"{path}, line {number}: expected a word and {dim} numbers, got {len(numbers)}"
            )
    try:
        values = np.array([numbers for _, (_, numbers) in block], np.float32)
    except ValueError as error:
        raise ValueError(f"{path}, near line {block[0][0]}: expected numbers: {error}") from None
    return Rows(_keys_of(path, keys, block, done), values)


def _keys_of(path, keys, block, done):
    if keys == "lines":
        return np.arange(done, done + len(block), dtype=np.int64)
    if keys == "hashes":
        hashed = tf.strings.to_hash_bucket_fast([word for _, (word, _) in block], _NUM_HASHES)
        return hashed.numpy()
    for number, (word, _) in block:
        if not word.removeprefix("-").isdecimal():
            raise ValueError(
                f"{path}, line {number}: expected an integer in front, got '{word}'; keys may be "
                "'lines' or 'hashes' as well"
            )
    return np.array([int(word) for _, (word, _) in block], np.int64)
