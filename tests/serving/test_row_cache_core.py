"""Rows of served tables in every format: lookups on the host and on a GPU with all rows or copies
of some, against NumPy."""

import numpy as np
import pytest
from support.cases.core_runner import GPU, core, on_gpu

FORMATS = ["float32", "bfloat16", "int8", "fp8"]
# Steps between the values that a row of [-1, 1] can have.
STEP = {"float32": 1e-6, "bfloat16": 2**-8, "int8": 2.1 / 255, "fp8": 2**-4}
DIMS = [1, 3, 4, 6, 8, 64, 130]


class Case:
    """Tables of several dims, each looked up by two features with samples of 0 to 4 ids."""

    def __init__(self, num_rows=500, num_samples=60, seed=1, weighted=False):
        draw = np.random.default_rng(seed)
        self.tables = [draw.uniform(-1, 1, [num_rows, dim]).astype(np.float32) for dim in DIMS]
        self.table_of_feature = list(range(len(DIMS))) * 2
        features = len(self.table_of_feature)
        self.combiners = (["sum", "mean", "sqrtn"] * features)[:features]
        self.num_samples, self.weighted = num_samples, weighted
        self.draw_ids(draw)

    def draw_ids(self, draw):
        lengths = draw.integers(0, 5, [len(self.table_of_feature), self.num_samples])
        self.splits = np.concatenate([[0], np.cumsum(lengths)])
        self.num_ids = lengths.sum(1).tolist()
        skewed = draw.zipf(1.3, self.splits[-1]) % len(self.tables[0])
        self.ids = skewed.astype(np.int64)
        self.weights = draw.uniform(0.5, 2, len(self.ids)).astype(np.float32)

    def outputs(self, tables):
        """The expected outputs, in float64."""
        weights = self.weights if self.weighted else np.ones(len(self.ids))
        found = []
        for f, t in enumerate(self.table_of_feature):
            output = np.zeros([self.num_samples, DIMS[t]])
            for s in range(self.num_samples):
                begin, end = self.splits[f * self.num_samples + s :][:2]
                w = weights[begin:end, None].astype(np.float64)
                total = (w * tables[t][self.ids[begin:end]]).sum(0)
                divisor = {"sum": 1, "mean": w.sum(), "sqrtn": np.sqrt((w**2).sum())}
                output[s] = total / divisor[self.combiners[f]] if end > begin else 0
            found.append(output)
        return found

    def look_up(self, rows, place=None):
        outputs = [
            np.full([self.num_samples, DIMS[t]], np.nan, np.float32) for t in self.table_of_feature
        ]
        device = place.to_device if place else lambda array: array
        on_device = [device(output) for output in outputs]
        rows.lookup(
            device(self.ids),
            num_ids=self.num_ids,
            row_splits=device(self.splits),
            weights=device(self.weights) if self.weighted else None,
            outputs=on_device,
            table_of_feature=self.table_of_feature,
            combiners=self.combiners,
        )
        return [output.numpy() if place else output for output in on_device]


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("format", FORMATS)
def test_the_host_reads_every_format(format, weighted):
    # Given rows in a format
    case = Case(weighted=weighted)
    rows = core.ServedRows(case.tables, format=format)
    # When they are looked up, Then sums are NumPy's, within the format's steps
    for output, expected in zip(case.look_up(rows), case.outputs(case.tables)):
        np.testing.assert_allclose(output, expected, atol=10 * STEP[format])


@pytest.mark.parametrize("copies_bytes", [1, 20_000, 10_000_000])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("place", [pytest.param(GPU, id="gpu", marks=on_gpu)])
def test_a_gpu_reads_what_the_host_reads(place, format, weighted, copies_bytes):
    # Given rows on the host, and on a GPU with space for hardly any copy, some, or all
    case = Case(weighted=weighted)
    host = core.ServedRows(case.tables, format=format)
    rows = core.ServedRows(
        case.tables, format=format, copies_bytes=copies_bytes, allocate=place.allocate
    )
    draw = np.random.default_rng(5)
    for _ in range(8):
        # When other ids are looked up in each call
        case.draw_ids(draw)
        # Then both read the same
        for output, expected in zip(case.look_up(rows, place), case.look_up(host)):
            np.testing.assert_allclose(output, expected, rtol=1e-5, atol=1e-5)
    # And copies were made, and read
    for t in range(len(DIMS)):
        counts = rows.counts(t)
        assert counts["kept"] > 0 and counts["found"] > 0 and counts["brought"] >= counts["kept"]
        assert copies_bytes < 10_000_000 or counts["found"] > counts["brought"]


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("place", [pytest.param(GPU, id="gpu", marks=on_gpu)])
def test_a_gpu_that_has_all_rows_reads_what_the_host_reads(place, format, weighted):
    # Given rows on the host and on a GPU, in tables of an odd number of bytes, and ids of the last
    # row and of no row
    case = Case(num_rows=501, weighted=weighted)
    case.ids[::7], case.ids[::5] = -1, 500
    host = core.ServedRows(case.tables, format=format)
    rows = core.ServedRows(case.tables, format=format, resident=True, allocate=place.allocate)
    # When they are looked up, Then both read the same
    for output, expected in zip(case.look_up(rows, place), case.look_up(host)):
        np.testing.assert_allclose(output, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("space", [{"copies_bytes": 1 << 20}, {"resident": True}])
@pytest.mark.parametrize("format", ["float32", "int8"])
@pytest.mark.parametrize("place", [pytest.param(GPU, id="gpu", marks=on_gpu)])
def test_rows_that_are_written_are_read(place, format, space):
    # Given tables of which all rows have copies
    case = Case(num_rows=40)
    rows = core.ServedRows(case.tables, format=format, **space, allocate=place.allocate)
    for _ in range(6):
        case.look_up(rows, place)
    draw = np.random.default_rng(9)
    for _ in range(10):
        # When a row of each gets other values
        for t, table in enumerate(case.tables):
            row = int(draw.integers(40))
            table[row] = draw.uniform(-1, 1, table.shape[1])
            rows.write(t, row, table[row])
        # Then lookups read them
        for output, expected in zip(case.look_up(rows, place), case.outputs(case.tables)):
            np.testing.assert_allclose(output, expected, atol=10 * STEP[format])
