"""The workloads of the benchmarks: groups with the shapes of recommender models."""

from dataclasses import dataclass, replace

MLPERF_HOTNESS = [
    3, 2, 1, 2, 6, 1, 1, 1, 1, 7, 3, 8, 1, 6, 9, 5, 1, 1, 1, 12, 100, 27, 10, 3, 1, 1,
]  # fmt: skip
MLPERF_ROWS = [
    40_000_000, 39060, 17295, 7424, 20265, 3, 7122, 1543, 63, 40_000_000, 3_067_956, 405_282, 10,
    2209, 11938, 155, 4, 976, 14, 40_000_000, 40_000_000, 40_000_000, 590_152, 12973, 108, 36,
]  # fmt: skip


@dataclass(frozen=True)
class Workload:
    """One table and one feature per entry of the lists; every sample has `hotness` ids."""

    name: str
    hotness: list
    batch: int
    rows: list
    dims: list
    pooled: bool = True  # False: a sample is one position of a sequence, and its row the output

    @property
    def num_ids(self):
        return self.batch * sum(self.hotness)

    def shrunk(self, batch, rows):
        """Returns the workload with a batch and tables that are small enough for a CPU."""
        return replace(self, batch=min(self.batch, batch), rows=[min(r, rows) for r in self.rows])

    def forward_bytes(self, element_bytes):
        """The least that a forward pass moves: looked-up rows and ids read, outputs written."""
        looked_up = sum(h * self.batch * d for h, d in zip(self.hotness, self.dims))
        outputs = self.batch * sum(self.dims)
        return (looked_up + outputs) * element_bytes + 8 * self.num_ids

    def reduce_bytes(self, element_bytes, num_unique):
        """The least that ReduceRows moves: a gradient, a position and a sample per id read, and per
        unique row its gradient and index written, its number and its end read."""
        read = sum(h * self.batch * d for h, d in zip(self.hotness, self.dims)) * element_bytes
        written = sum(n * d for n, d in zip(num_unique, self.dims)) * element_bytes
        return read + 8 * self.num_ids + written + 24 * sum(num_unique)


WORKLOADS = {
    w.name: w
    for w in [
        # 26 categorical columns of one id each, as in Criteo's data.
        Workload("onehot26", [1] * 26, 65536, [1_000_000] * 26, [128] * 26),
        # 32 columns of 20 ids each, pooled.
        Workload("pool20x32", [20] * 32, 8192, [1_000_000] * 32, [64] * 32),
        # Tables of four dims.
        Workload("mixdim", [10] * 40, 16384, [500_000] * 40, [16, 32, 64, 128] * 10),
        # MLPerf's DCNv2: from 3 rows to 40 million (here at most 4), from 1 id to 100.
        Workload(
            "dcnv2_cap4M",
            MLPERF_HOTNESS,
            32768,
            [min(r, 4_000_000) for r in MLPERF_ROWS],
            [128] * 26,
        ),
        # Sequences of items: 8,192 of 64 positions, 8,192 of 32, and 1,024 of 128 as in HSTU.
        Workload("sequence64", [1], 8192 * 64, [4_000_000], [64], pooled=False),
        Workload("sequence128", [1], 8192 * 32, [4_000_000], [128], pooled=False),
        Workload("sequence512", [1], 1024 * 128, [4_000_000], [512], pooled=False),
    ]
}
POOLED = [name for name, workload in WORKLOADS.items() if workload.pooled]

COLLECTIVE = ("onehot26", "dcnv2_cap4M")  # whose tables are spread over ranks, `batch` samples each
ALPHAS = (0.0, 1.05)


def ids_from_uniform(u, rows, alpha, floor):
    """Ids in [0, rows) of float64 numbers in [0, 1): uniform for alpha 0, else Zipf's law bounded
    to the table, its ranks then scattered over the rows. `floor`: float array -> int64 array."""
    if alpha == 0:
        return floor(u * rows)
    exponent = 1 - alpha
    rank = floor((u * (rows**exponent - 1) + 1) ** (1 / exponent)) - 1
    return (rank.clip(0, rows - 1) * 2654435761) % rows
