"""Hashes of the rows of a variable: which rows changed since the last publish."""

import math

import numpy as np

_ROWS_AT_A_TIME = 1 << 16


class RowHashes:
    """Two 64-bit multilinear hashes of each row, with secret odd factors.

    Two different rows have the same hashes with a probability of less than 2^-60 (Lemire and Kaser,
    "Strongly universal string hashing is fast", 2014, for one hash).

    Args:
        values: `[rows, ...]`, of a type with a size.
    """

    _factors: dict[int, np.ndarray] = {}  # by words of a row; of this process

    def __init__(self, values: np.ndarray) -> None:
        self._hashes = self._of(values)

    def changed(self, values: np.ndarray) -> tuple[np.ndarray, "RowHashes"]:
        """The numbers of the rows that are different in `values`, int64, and its hashes."""
        new = RowHashes(values)
        return np.flatnonzero(self.differs(new)).astype(np.int64), new

    def differs(self, other: "RowHashes") -> np.ndarray:
        """Bool [rows]: True where a row is different."""
        return np.any(self._hashes != other._hashes, axis=1)

    @classmethod
    def _of(cls, values):
        rows = len(values)
        data = (
            np.ascontiguousarray(values).reshape(rows, math.prod(values.shape[1:])).view(np.uint8)
        )
        num_words = -(-data.shape[1] // 4)
        if num_words not in cls._factors:
            drawn = np.random.default_rng().integers(0, 2**64, [num_words, 2], np.uint64)
            cls._factors[num_words] = drawn | np.uint64(1)
        hashes = np.empty([rows, 2], np.uint64)
        for begin in range(0, rows, _ROWS_AT_A_TIME):
            block = data[begin : begin + _ROWS_AT_A_TIME]
            words = np.zeros([len(block), 4 * num_words], np.uint8)
            words[:, : block.shape[1]] = block
            hashes[begin : begin + len(block)] = (
                words.view("<u4").astype(np.uint64) @ (cls._factors[num_words])
            )
        return hashes
