"""Tables found by key, in GPU memory: what only the GPU has."""

import types

import numpy as np
import pytest
from support.cases.core_runner import on_gpu
from table.device_tables import DeviceTable, core
from table.steps import EXTREMES, MAX, MIN
from table.storages import HBM

pytestmark = on_gpu


def test_new_keys_get_rows_in_the_order_of_their_first_places():
    table = HBM.make_table()
    first = table.first_row

    rows = table.locate([9, 4, 9, -1, 4, MAX], train=True)

    assert rows.tolist() == [first, first + 1, first, first + 2, first + 1, first + 3]


def test_row_numbers_are_the_same_on_every_run():
    rng = np.random.default_rng(4)
    batches = [rng.zipf(1.2, 50_000) for _ in range(5)]

    runs = []
    for _ in range(2):
        table = HBM.make_table()
        runs.append([table.locate(batch, train=True) for batch in batches])

    for ours, theirs in zip(*runs):
        np.testing.assert_array_equal(ours, theirs)
    seen = list(dict.fromkeys(np.concatenate(batches).tolist()))
    assert table.find(seen).tolist() == list(range(table.first_row, table.first_row + len(seen)))


def test_a_permuted_batch_leaves_the_same_content():
    keys = np.random.default_rng(5).integers(0, 30_000, 100_000)
    contents = []
    for order in (keys, np.random.default_rng(6).permutation(keys)):
        table = DeviceTable(dim=3, distribution="uniform", b=1.0, seed=3)
        rows = table.locate(order, train=True, step=2)
        unique, at = np.unique(order, return_index=True)
        contents.append((unique, table.rows[rows[at]], table.info(rows[at])["counts"]))

    for ours, theirs in zip(*contents):
        np.testing.assert_array_equal(ours, theirs)


def test_tables_of_one_call_and_features_of_one_table():
    dims = [1, 3, 8, 64]
    tables = [core.DeviceTable(dim=dim, a=float(dim)) for dim in dims]
    rng = np.random.default_rng(7)
    features = [
        (t, rng.integers(0, 500, n)) for t, n in [(0, 1000), (2, 0), (1, 77), (0, 600), (3, 9)]
    ]
    requests = [
        (
            tables[t],
            core.DeviceArray(np.append(keys, 5)),
            core.DeviceArray(np.zeros(len(keys) + 1, int)),
        )
        for t, keys in features
    ]

    core.locate_rows(requests, train=True, step=1)

    for t, table in enumerate(tables):
        batches = [np.append(keys, 5) for of, keys in features if of == t]
        keys, counts = np.unique(np.concatenate(batches), return_counts=True)
        located = np.concatenate([r[2].numpy() for r in requests if r[0] is table])
        np.testing.assert_array_equal(located, table.find(np.concatenate(batches)))
        assert table.num_keys == len(keys)
        np.testing.assert_array_equal(table.info(table.find(keys))["counts"], counts)


def test_row_numbers_may_take_the_place_of_the_keys():
    keys = np.random.default_rng(10).integers(0, 3000, 20_000)
    apart, in_place = HBM.make_table(), HBM.make_table()
    expected = [apart.locate(keys[:5000], train=True), apart.locate(keys, train=True)]

    found = []
    for batch in (keys[:5000], keys):
        array = core.DeviceArray(batch)
        in_place.table.locate(array, array, train=True)
        found.append(array.numpy())

    for ours, theirs in zip(found, expected):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("dim", [1, 5, 8, 130])
@pytest.mark.parametrize(
    "distribution", ["matrix", "constant", "uniform", "normal", "truncated_normal"]
)
def test_first_values_are_those_of_the_host_to_the_bit(distribution, dim, dtype):
    keys = np.concatenate([EXTREMES, np.arange(300)])
    options = {"dim": dim, "dtype": dtype, "no_row_value": 0.25}
    if distribution == "matrix":
        matrix = np.random.default_rng(8).standard_normal((17, dim)).astype(np.float32)
        options["matrix"] = matrix if dtype == "float32" else matrix.view(np.uint16)[:, :dim].copy()
    else:
        options |= {"distribution": distribution, "a": 1.0, "b": 2.0, "seed": 5}
    host, device = core.HostTable(**options), DeviceTable(**options)
    located = [(t.locate(keys), t.locate(keys, train=True)) for t in (host, device)]

    for of_host, of_device in zip(*located):
        np.testing.assert_array_equal(device.rows[of_device], host.rows[of_host])


@pytest.mark.parametrize("admission", ["counter", "bloom"])
def test_filters_admit_what_the_host_admits(admission):
    options = {"dim": 2, "distribution": "constant", "admission": admission, "min_count": 4,
               "num_counters": 999, "num_hashes": 3, "counter_bytes": 1}  # fmt: skip
    host, device = core.HostTable(**options), DeviceTable(**options)
    batches = [np.random.default_rng([9, b]).zipf(1.3, 3000) % 5000 for b in range(6)]
    every = np.unique(np.concatenate(batches))

    for batch in batches:
        host.locate(batch, train=True)
        device.locate(batch, train=True)

        has_row = device.find(every) >= 0
        np.testing.assert_array_equal(has_row, host.find(every) >= 0)
        counts = [t.info(t.find(every[has_row]))["counts"] for t in (host, device)]
        np.testing.assert_array_equal(*counts)


def test_rows_beyond_the_devices_share_are_used_in_place():
    keys = np.arange(200_000)
    dim = 16
    table = DeviceTable(dim=dim, distribution="uniform", b=1.0, device_bytes=2 << 20)
    whole = DeviceTable(dim=dim, distribution="uniform", b=1.0)
    table.slot("m", initial=0.5)

    rows = table.locate(keys, train=True)

    np.testing.assert_array_equal(table.rows[rows], whole.rows[whole.locate(keys, train=True)])
    np.testing.assert_array_equal(table.slot("m")[rows], np.full((len(keys), dim), 0.5, np.float32))
    tiers = table.describe(np.append(keys, -5))["tiers"]
    assert (tiers[0], tiers[-2], tiers[-1]) == (0, 1, -1)


def test_a_row_in_device_memory_can_be_updated_through_other_libraries():
    torch = pytest.importorskip("torch")
    table = DeviceTable(dim=4, a=1.0)
    row = table.locate([7], train=True)[0]
    view = torch.as_tensor(types.SimpleNamespace(__cuda_array_interface__=table.interface()))

    view[row] = 3.0

    np.testing.assert_array_equal(table.rows[row], np.full(4, 3.0))


def test_an_index_that_grows_over_many_calls_loses_nothing():
    print("seed 11")
    rng = np.random.default_rng(11)
    table = DeviceTable(dim=1, a=1.0)
    parts = rng.integers(MIN, MAX, [60, 50_000], np.int64)
    loads = []

    for i, part in enumerate(parts):
        table.locate(part, train=True)
        loads.append(table.load_factor)
        if i % 3 == 2:
            assert table.erase(parts[i - 1]) == parts.shape[1]
        np.testing.assert_array_equal(table.info(table.find(part))["keys"], part)

    assert (np.diff(loads) < 0).sum() > 3  # it grew
    assert min(loads[5:]) > 0.2 and max(loads) < 0.76
    erased = np.arange(60) % 3 == 1
    assert (table.find(parts[erased].reshape(-1)) == -1).all()
    kept = parts[~erased].reshape(-1)
    np.testing.assert_array_equal(table.info(table.find(kept))["keys"], kept)
    assert table.num_keys == len(kept)


def test_readers_on_another_stream_see_old_rows_while_new_ones_come():
    torch = pytest.importorskip("torch")
    table = core.DeviceTable(dim=2, a=1.0)
    old = torch.arange(50_000, device="cuda")
    rows = torch.empty_like(old)
    table.locate(old, rows, train=True)
    torch.cuda.synchronize()
    trainer, reader = torch.cuda.Stream(), torch.cuda.Stream()
    read = [torch.empty_like(old) for _ in range(40)]
    new_rows = torch.empty_like(old)
    batches = [old + 50_000 * (b + 1) for b in range(40)]  # grows more than once
    torch.cuda.synchronize()

    for batch, found in zip(batches, read):
        table.locate(batch, new_rows, train=True, stream=trainer.cuda_stream)
        table.locate(old, found, stream=reader.cuda_stream)
    torch.cuda.synchronize()

    for found in read:
        assert torch.equal(found, rows)
    assert table.num_keys == 41 * 50_000
