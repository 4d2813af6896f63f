"""Tables found by key whose rows lie in GPU memory and in the host's, and move between the two."""

import types

import numpy as np
import pytest
from support.cases.core_runner import GPU, on_gpu
from table.device_tables import DeviceTable, core

pytestmark = on_gpu
DIM = 4
ROW_BYTES = 32 + 8 + 4 * DIM  # of the key, of its use, of values
STRATEGIES = ["least_recent", "least_frequent"]


def make_table(rows_on_device=0, **options):
    """A table in GPU memory alone, or one that has so many rows there, and a slot."""
    if rows_on_device:
        options["device_bytes"] = (rows_on_device + 1) * (ROW_BYTES + 4 * DIM)
    table = DeviceTable(dim=DIM, distribution="normal", b=1.0, seed=5, **options)
    table.slot("accumulator", initial=0.5)
    return table


def train(table, keys, step):
    """One step of something like Adagrad, whose result depends on values, slots and order."""
    batch = table.begin_batch()
    rows = np.unique(table.locate(keys, train=True, step=step))
    table.before_write(rows)
    values, slots = table.rows[rows], table.slot("accumulator")[rows]
    gradient = np.sin(values * (1 + step % 7))
    slots += gradient**2
    table.slot("accumulator")[rows] = slots
    table.rows[rows] = values - 0.1 * gradient / np.sqrt(slots)
    table.end_batch(batch)


def content_of(table, before_reading=lambda: None):
    """Everything in a snapshot, in the order of the keys."""
    snapshot = table.snapshot()
    before_reading()
    rows = snapshot.read(0, snapshot.num_rows)
    slot = rows.pop("slots")[0]
    order = np.argsort(rows["keys"])
    return {name: of[order] for name, of in (rows | {"slot": slot}).items()}


def assert_equal_content(actual, expected):
    assert actual.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_array_equal(actual[name], values, err_msg=name)


@pytest.mark.parametrize("cache_strategy", STRATEGIES)
def test_little_device_memory_trains_to_the_same_bits(cache_strategy):
    rng = np.random.default_rng(1)
    table, whole = make_table(1500, cache_strategy=cache_strategy), make_table()
    train(table, np.arange(20_000), 0)
    train(whole, np.arange(20_000), 0)

    for step in range(1, 40):
        keys = 19_999 - rng.zipf(1.3, 500) % 20_000
        train(table, keys, step)
        train(whole, keys, step)

    tiers = table.describe(np.arange(20_000))["tiers"]
    assert (tiers == 0).sum() == 1500
    assert (tiers[-11:-1] == 0).all()  # the most common keys, which came last
    assert_equal_content(content_of(table), content_of(whole))


def test_the_least_frequent_go_and_the_least_recent():
    tables = {strategy: make_table(64, cache_strategy=strategy) for strategy in STRATEGIES}
    old, new = np.arange(64), np.arange(100, 164)

    for table in tables.values():
        for step in range(4):
            train(table, old, step)
        for step in range(4, 7):
            train(table, new, step)
        train(table, [1000], 7)

    tiers = {name: table.describe(np.append(old, new))["tiers"] for name, table in tables.items()}
    assert (tiers["least_frequent"][:64] == 0).all()  # four times each, the others three times
    assert (tiers["least_recent"][:64] == 1).any()


@pytest.mark.parametrize("train_on", [False, True])
def test_rows_that_a_batch_holds_stay(train_on):
    table = make_table(64)
    table.locate(np.arange(256), train=True)
    batch = table.begin_batch()
    held = table.locate(np.arange(128, 256), train=train_on)

    for step in range(5):
        train(table, np.arange(128, 256), step)

    np.testing.assert_array_equal(table.find(np.arange(128, 256)), held)
    table.end_batch(batch)
    train(table, np.arange(128, 256), 5)
    train(table, np.arange(128, 256), 6)
    assert (table.find(np.arange(128, 256)) < held.min()).any()


def test_a_snapshot_is_of_one_instant_while_rows_move():
    rng = np.random.default_rng(2)
    table, whole = make_table(300), make_table()
    for step in range(10):
        keys = rng.zipf(1.3, 300) % 5000
        train(table, keys, step)
        train(whole, keys, step)
    tiers = table.describe(np.arange(5000))["tiers"]

    def train_on():
        for step in range(10, 20):
            train(table, 4999 - rng.zipf(1.3, 300) % 5000, step)

    content = content_of(table, before_reading=train_on)

    assert (table.describe(np.arange(5000))["tiers"] != tiers).any()
    assert_equal_content(content, content_of(whole))


def test_a_restored_table_goes_on_as_it_would_have():
    rng = np.random.default_rng(3)
    table, restored = make_table(200), make_table(200)
    for step in range(10):
        train(table, rng.zipf(1.3, 300) % 3000, step)
    snapshot = table.snapshot()
    restored.insert(snapshot.read(0, snapshot.num_rows))
    del snapshot

    for step in range(10, 20):
        keys = rng.zipf(1.3, 300) % 3000
        train(table, keys, step)
        train(restored, keys, step)

    assert_equal_content(content_of(restored), content_of(table))


def test_readers_on_another_stream_see_whole_rows_while_they_move():
    torch = pytest.importorskip("torch")
    table = core.DeviceTable(
        dim=64,
        distribution="uniform",
        b=1.0,
        seed=3,
        device_bytes=2000 * 296,
        cache_strategy="least_recent",
    )
    keys = torch.arange(20_000, device="cuda")
    rows, read = torch.empty_like(keys), torch.empty_like(keys)
    table.locate(keys, rows, train=True)
    torch.cuda.synchronize()
    view = torch.as_tensor(types.SimpleNamespace(__cuda_array_interface__=table.interface()))
    expected = view[rows].clone()
    trainer, reader = torch.cuda.Stream(), torch.cuda.Stream()
    generator = torch.Generator(device="cuda").manual_seed(4)
    hot = [torch.randint(0, 20_000, (1500,), device="cuda", generator=generator) for _ in range(60)]
    hot_rows = torch.empty_like(hot[0])
    torch.cuda.synchronize()

    wrong = []
    for batch_keys in hot:
        batch = table.begin_batch()
        table.locate(batch_keys, hot_rows, train=True, stream=trainer.cuda_stream)
        table.end_batch(batch)
        batch = table.begin_batch()
        table.locate(keys, read, stream=reader.cuda_stream)
        with torch.cuda.stream(reader):
            wrong.append((view[read] != expected).sum())
        table.end_batch(batch)
    torch.cuda.synchronize()

    assert sum(int(count) for count in wrong) == 0
    assert len(set(table.find(np.arange(20_000)).tolist())) == 20_000


def test_the_size_bounds_rows_and_slots_in_device_memory():
    table = DeviceTable(dim=DIM, a=1.0, device_bytes=100 * ROW_BYTES)
    keys = np.arange(200)
    table.locate(keys, train=True)
    before = (table.describe(keys)["tiers"] == 0).sum()

    table.slot("accumulator")

    assert before == 99  # beside the row that is no key's
    after = (table.describe(keys)["tiers"] == 0).sum()
    assert after == 100 * ROW_BYTES // (ROW_BYTES + 4 * DIM) - 1


def test_a_lookup_reads_rows_of_both_memories():
    # Given a table with 300 of 5,000 rows in GPU memory, and a batch that names both kinds
    rng = np.random.default_rng(4)
    table = make_table(300)
    train(table, np.arange(5000), 0)
    keys = rng.zipf(1.2, 4000) % 5000
    rows = table.locate(keys)
    # When it is looked up from both
    outputs = core.DeviceArray(np.full((4000, DIM), np.nan, np.float32))
    view = types.SimpleNamespace(__cuda_array_interface__=table.interface())
    group = core.Group(
        tables=[view], outputs=[outputs], ids=core.DeviceArray(rows), row_splits=None,
        table_of_feature=[0], combiners=["sum"], max_norms=[0.0], allocate=GPU.allocate,
        first_host_rows=[table.first_host_row],
    )  # fmt: skip
    group.lookup()
    # Then the outputs are the rows
    assert table.first_host_row == 301
    assert (rows >= 301).any() and (rows < 301).any()
    np.testing.assert_array_equal(outputs.numpy(), table.rows[rows])
