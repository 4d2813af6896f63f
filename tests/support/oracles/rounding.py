"""The random bits of stochastic rounding, cc/optimizer/rounding.h, in NumPy."""

import numpy as np

DRAW_OF_ROW, MAX_DIM = 3, 4096


def random_bits(key, rows, columns, draw):
    """Bits 0 to 15, as uint32, in the shape that the arguments broadcast to.

    Args:
        key: of the step, uint32.
        rows: numbers of rows, or keys of a table of keys: int64.
        columns: below MAX_DIM.
        draw: the slot that is rounded, or DRAW_OF_ROW.
    """
    key, rows = np.asarray(key, np.uint64), np.asarray(rows, np.int64).view(np.uint64)
    with np.errstate(over="ignore"):
        state = rows + key * np.uint64(0x9E3779B97F4A7C15)
        state = (state ^ state >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ state >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
        state = state ^ state >> np.uint64(31)
        low, high = state.astype(np.uint32), (state >> np.uint64(32)).astype(np.uint32)
        x = np.asarray(columns, np.uint32) + low + np.uint32(draw // 2 * MAX_DIM)
        x = (x ^ x >> np.uint32(16)) * np.uint32(0x7FEB352D) + high
        x = (x ^ x >> np.uint32(15)) * np.uint32(0x846CA68B)
        x = x ^ x >> np.uint32(16)
    return x & np.uint32(0xFFFF) if draw % 2 == 0 else x >> np.uint32(16)


def round_to_bfloat16(values, bits):
    """The bits, uint16, of finite float32 values moved to neighbours in bfloat16 at random."""
    return ((np.asarray(values, np.float32).view(np.uint32) + bits) >> np.uint32(16)).astype(
        np.uint16
    )
