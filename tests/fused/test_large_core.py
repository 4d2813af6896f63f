"""The core past 2^32: elements of a table, of an output and of a gradient, rows of a group."""

import pytest
from support.cases.core_runner import core, on_gpu

torch = pytest.importorskip("torch")

FREE_BYTES = torch.cuda.mem_get_info()[0] if torch.cuda.is_available() else 0
pytestmark = [
    *on_gpu,
    pytest.mark.skipif(FREE_BYTES < 40 << 30, reason="needs 40 GB of GPU memory"),
]


def numbered_rows(num_rows, dim):
    """Row r is filled with r % 1021: exact in float16, and no power of two apart from another."""
    rows = torch.empty(num_rows, dim, dtype=torch.half, device="cuda")
    for begin in range(0, num_rows, 1 << 30):  # torch.arange itself goes wrong past 2^32
        part = rows[begin : begin + (1 << 30)]
        part[:] = ((begin + torch.arange(len(part), device="cuda")) % 1021)[:, None]
    return rows


def make_group(tables, outputs, ids, row_splits):
    return core.Group(
        tables=tables, outputs=outputs, ids=ids, row_splits=row_splits, dtype="float16",
        table_of_feature=list(range(len(tables))), combiners=["sum"] * len(tables),
        max_norms=[0.0] * len(tables),
        allocate=lambda n: torch.empty(n, dtype=torch.uint8, device="cuda"))  # fmt: skip


def reduce_rows(group, dims):
    group.sort_rows()
    first = group.num_unique()
    counts = [b - a for a, b in zip(first, first[1:])]
    indices = [torch.empty(n, dtype=torch.int64, device="cuda") for n in counts]
    values = [torch.empty(n, d, dtype=torch.half, device="cuda") for n, d in zip(counts, dims)]
    group.reduce_rows(indices, values)
    return indices, values


def test_table_output_and_gradient_past_2_32_elements():
    # Given a table of 2^32 + 1280 elements, and as many samples, in reverse
    num_rows, dim = 2**26 + 20, 64
    table = numbered_rows(num_rows, dim)
    ids = torch.arange(num_rows, device="cuda").flip(0)
    row_splits = torch.arange(num_rows + 1, device="cuda")
    output = torch.full_like(table, float("nan"))
    group = make_group([table], [output], ids, row_splits)
    # When it is looked up
    group.lookup()
    group.check()
    # Then the output is the table in reverse
    assert torch.equal(output, table.flip(0))
    # And when that is the gradient of the output, the rows' gradient is the table itself
    indices, values = reduce_rows(group, [dim])
    assert torch.equal(indices[0], torch.arange(num_rows, device="cuda"))
    assert torch.equal(values[0], table)


def test_group_of_more_than_2_32_rows():
    # Given a table of more than 2^32 rows beside a small one
    num_rows = 2**32 + 100
    tables = [numbered_rows(5, 3), numbered_rows(num_rows, 1)]
    small = torch.tensor([4, 0, 4], device="cuda")
    large = torch.tensor([2**32 + 99, 2**31, 7, 2**32 + 7, 7], device="cuda")
    row_splits = torch.arange(9, device="cuda")
    outputs = [
        torch.full((n, d), float("nan"), dtype=torch.half, device="cuda")
        for n, d in [(3, 3), (5, 1)]
    ]
    group = make_group(tables, outputs, torch.cat([small, large]), row_splits)
    # When it is looked up, then the rows are the right ones
    group.lookup()
    group.check()
    assert torch.equal(outputs[0], tables[0][small])
    assert torch.equal(outputs[1][:, 0], (large % 1021).half())
    # And the gradient knows which rows are one
    for output in outputs:
        output.fill_(1)
    indices, values = reduce_rows(group, [3, 1])
    assert indices[0].tolist() == [0, 4] and values[0][:, 0].tolist() == [1, 2]
    assert indices[1].tolist() == [7, 2**31, 2**32 + 7, 2**32 + 99]
    assert values[1][:, 0].tolist() == [2, 1, 1, 1]
