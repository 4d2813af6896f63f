"""Tables in two memories under a skewed stream of keys: the gain of moving hot rows to the GPU.

A table of `num_keys` keys, made in an order independent of their frequencies, and a tenth of their
rows in GPU memory. Batches by Zipf's law train it, each a batch in flight of its own.
"""

import functools
from types import SimpleNamespace

import numpy as np
from workloads import ids_from_uniform

ALPHA, DIM, STEPS = 1.05, 32, 400
MATRIX_ROWS = 4096
ROW_BYTES = 4 * DIM + 40  # values and what is kept of a row
STRATEGIES = ("least_frequent", "least_recent")


class TieredTable:
    """`slots`: for each, whether it has one number a row."""

    def __init__(
        self, core, device, num_keys, batch, share=0.1, cache_strategy="least_frequent", slots=()
    ):
        self.core, self.device, self.num_keys = core, device, num_keys
        matrix = device.normal((MATRIX_ROWS, DIM), "float32")
        rows_on_device = int(share * num_keys) + MATRIX_ROWS + 1
        self.table = core.DeviceTable(
            dim=DIM,
            matrix=device.host(matrix),
            device_bytes=rows_on_device * ROW_BYTES if share < 1 else 0,
            cache_strategy=cache_strategy,
        )
        for s, per_row in enumerate(slots):
            self.table.slot(f"slot {s}", per_row=per_row, initial=0.1)
        self.rows = device.empty((batch,), "int64")
        self.values = device.empty((batch, DIM), "float32")
        order = device.torch.randperm(num_keys, device="cuda")
        for keys in order.split(batch):
            self.train(keys)
        view = SimpleNamespace(__cuda_array_interface__=self.table.interface())
        self.lookup = core.Group(
            tables=[view], outputs=[self.values], ids=self.rows, row_splits=None,
            table_of_feature=[0], combiners=["sum"], max_norms=[0.0], allocate=device.allocate,
            first_host_rows=[self.table.first_host_row],
        ).lookup  # fmt: skip

    def keys(self):
        return ids_from_uniform(
            self.device.uniform(len(self.rows)), self.num_keys, ALPHA, lambda x: x.long()
        )

    def train(self, keys):
        batch = self.table.begin_batch()
        self.table.locate(
            keys, self.rows[: len(keys)], train=True, step=1, stream=self.device.stream
        )
        self.table.end_batch(batch)

    def step(self, keys):
        """Locates keys and looks rows up, without the rest of a training step."""
        batch = self.table.begin_batch()
        self.table.locate(keys, self.rows, train=True, step=1, stream=self.device.stream)
        self.lookup(self.device.stream)
        self.table.end_batch(batch)

    def share_on_device(self, keys):
        tiers = self.table.describe(self.device.host(keys))["tiers"]
        return round(float(np.mean(tiers == 0)), 3)

    def milliseconds(self, run, batches):
        times = [self.device.milliseconds(functools.partial(run, keys)) for keys in batches]
        return round(float(np.median(times)), 3)

    def read(self, keys):
        self.table.locate(keys, self.rows, stream=self.device.stream)
        self.lookup(self.device.stream)


def move(core, device, num_keys, batch):
    """One row per strategy, and one of a table that is in GPU memory alone."""
    rows = []
    for name in (*STRATEGIES, "all in GPU memory"):
        on_device = name not in STRATEGIES
        options = {"share": 1} if on_device else {"cache_strategy": name}
        table = TieredTable(core, device, num_keys, batch, **options)
        fresh = [table.keys() for _ in range(8)]
        row = {"cache_strategy": name, "keys": num_keys, "keys a call": batch}
        row["found on the GPU, before"] = table.share_on_device(fresh[0])
        row["lookup ms, before"] = table.milliseconds(table.read, fresh)
        row["first steps ms"] = table.milliseconds(table.step, [table.keys() for _ in range(8)])
        for _ in range(0 if on_device else STEPS):
            table.step(table.keys())
        row["last steps ms"] = table.milliseconds(table.step, [table.keys() for _ in range(8)])
        row["found on the GPU, after"] = table.share_on_device(fresh[0])
        row["lookup ms, after"] = table.milliseconds(table.read, fresh)
        rows.append(row)
        print(row, flush=True)
        del table
        device.release()
    return rows
