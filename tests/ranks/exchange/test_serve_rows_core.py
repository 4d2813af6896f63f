"""The rows that ranks ask one for, on a GPU: against NumPy."""

import numpy as np
import pytest
from support.cases.core_runner import GPU, core, on_gpu

pytestmark = [pytest.mark.gpu, *on_gpu]
DIMS, ROWS, COUNTS = [128, 8, 3, 1, 64, 5], [1000, 7, 300, 40, 1, 9], [2000, 33, 700, 0, 65, 1]


def of_type(values, name):
    """bfloat16 as the upper half of float32, which NumPy has no name for."""
    if name != "bfloat16":
        return values.astype(name)
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def as_float32(values, name):
    if name != "bfloat16":
        return values.astype(np.float32)
    return (values.astype(np.uint32) << 16).view(np.float32)


def draw_rows(random, dtype):
    return [of_type(random.standard_normal(shape), dtype) for shape in zip(ROWS, DIMS)]


def draw_requests(random):
    """Per table; some name no row."""
    requests = [random.integers(0, rows, count) for rows, count in zip(ROWS, COUNTS)]
    for rows, of_table in zip(ROWS, requests):
        of_table[::10] = -1
        of_table[5::10] = rows
    return requests


def expected_of(tables, requests, dtype, wire):
    served = []
    for table, rows in zip(tables, requests):
        is_there = (rows >= 0) & (rows < len(table))
        values = as_float32(table, dtype)[np.where(is_there, rows, 0)]
        served.append(of_type(np.where(is_there[:, None], values, 0), wire))
    return served


@pytest.mark.parametrize("wire", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_rows_are_copied_and_converted(dtype, wire):
    # Given tables of several dims, and row numbers of each, some of which it has not
    random = np.random.default_rng(21)
    tables, requests = draw_rows(random, dtype), draw_requests(random)
    expected = expected_of(tables, requests, dtype, wire)
    outputs = [GPU.to_device(np.full_like(one, 77)) for one in expected if one.size]
    tables, expected = zip(*[(t, e) for t, e in zip(tables, expected) if e.size])
    # When they are served
    on_device = [GPU.to_device(table) for table in tables]
    core.serve_rows(on_device, GPU.to_device(np.concatenate(requests)), outputs, dtype, wire)
    # Then each output has its rows, to the bit, and zeros where there is none
    for output, rows in zip(outputs, expected):
        np.testing.assert_array_equal(output.numpy(), rows)


def test_a_misaligned_table_is_served():
    # Given a table that begins between two vectors of 16 bytes
    values = np.arange(41, dtype=np.float32)
    table = GPU.columns(GPU.to_device(values[None]), 1, 41)
    rows = table.__cuda_array_interface__ | {"shape": (10, 4), "strides": None}
    table.__cuda_array_interface__ = rows
    output = GPU.to_device(np.zeros((3, 4), np.float32))
    # When rows of it are served
    core.serve_rows([table], GPU.to_device(np.array([9, 0, 4])), [output], "float32", "float32")
    # Then they are right
    np.testing.assert_array_equal(output.numpy(), values[1:].reshape(10, 4)[[9, 0, 4]])
