"""`route_ids` of the next batch brings its rows to the first tier, and changes no value."""

import time

import numpy as np
import pytest
import tensorflow as tf

import group_embedding as ge

DIM, KEYS, PER_STEP = 32, 6000, 512
TYPES = ge.StorageType
TIERED = [
    pytest.param(TYPES.DRAM_SSDHASH, [256 << 10], id="DRAM_SSDHASH"),
    pytest.param(TYPES.HBM_DRAM, [256 << 10], id="HBM_DRAM", marks=pytest.mark.gpu),
    pytest.param(
        TYPES.HBM_DRAM_SSDHASH, [64 << 10, 192 << 10], id="HBM_DRAM_SSDHASH", marks=pytest.mark.gpu
    ),
]


def in_tiers(kind, sizes):
    return ge.StorageOption(kind, storage_size=sizes)


def draw_batches(seed, steps, num_tables):
    generator = np.random.default_rng(seed)
    return [
        [
            tf.constant(generator.zipf(1.3, PER_STEP) % KEYS * 0x9E3779B97F4A7C1 - 2**61)
            for _ in range(num_tables)
        ]
        for _ in range(steps)
    ]


def first_tier(table, keys):
    return np.asarray(table.lookup_tier(tf.constant(keys))) == 0


def wait_for(condition, seconds=20):
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    return condition()


class Training:
    """Steps of Adagrad on several tables, which take routed ids."""

    def __init__(self, tables, compiled=False):
        self.tables = tables
        optimizer = ge.optimizers.wrap(tf.keras.optimizers.Adagrad(0.1))

        def step(routed, next_ids):
            with tf.GradientTape() as tape:
                rows = ge.group_embedding_lookup(self.tables, routed)
                loss = tf.add_n([tf.reduce_sum((r - 0.5) ** 2) for r in rows])
            routed_next = ge.route_ids(self.tables, next_ids)
            gradients = tape.gradient(loss, self.tables)
            optimizer.apply_gradients(zip(gradients, self.tables))
            return loss, routed_next

        self.step = ge.training.make_step(step) if compiled else tf.function(step)

    def run(self, batches, bring=True):
        routed, losses = ge.route_ids(self.tables, batches[0]), []
        for i, next_ids in enumerate([*batches[1:], batches[0]]):
            for table in self.tables:
                table.step = i
            loss, following = self.step(routed, next_ids if bring else batches[0])
            routed = following if bring else ge.route_ids(self.tables, next_ids)
            losses.append(float(loss))
        return losses


@pytest.mark.parametrize("compiled", [False, True], ids=["op by op", "compiled"])
@pytest.mark.parametrize("kind, sizes", TIERED)
def test_training_on_routed_batches_is_training_on_one_tier(make_table, kind, sizes, compiled):
    # Given two tables in several tiers, one of a single tier, and the same three in memory
    option = in_tiers(kind, sizes)
    single = ge.StorageOption(TYPES.DRAM if kind == TYPES.DRAM_SSDHASH else TYPES.HBM)
    tables = [
        make_table(DIM, name=f"tiered_{i}", storage_option=o)
        for i, o in enumerate((option, single, option))
    ]
    wholes = [make_table(DIM, name=f"whole_{i}", storage_option=single) for i in range(3)]
    batches = draw_batches(3, 25, num_tables=3)
    # When each step routes the next batch
    losses = Training(tables, compiled).run(batches)
    # Then it trains as it does where rows do not move
    np.testing.assert_array_equal(losses, Training(wholes, compiled).run(batches))
    for table, whole in zip(tables, wholes):
        actual, expected = table.export(), whole.export()
        for values, of_whole in zip(actual, expected):
            np.testing.assert_array_equal(values, of_whole)
    tiers = np.asarray(tables[0].lookup_tier(tables[0].export().keys))
    assert len(set(tiers)) > 1


@pytest.mark.parametrize("kind, sizes", TIERED[:2])
def test_rows_of_a_routed_batch_are_in_the_first_tier(make_table, kind, sizes):
    # Given two tables that have rows below their first tier
    tables = [make_table(DIM, name=f"t{i}", storage_option=in_tiers(kind, sizes)) for i in (0, 1)]
    Training(tables).run(draw_batches(4, 25, num_tables=2))
    below = []
    for table in tables:
        keys = np.asarray(table.export().keys)
        below.append(keys[~first_tier(table, keys)][:100])
        assert len(below[-1]) == 100
    counts = [np.asarray(table.get_frequency(keys)) for table, keys in zip(tables, below)]
    new = np.arange(5, dtype=np.int64)
    # When a batch of such keys, and of keys without a row, is routed
    ge.route_ids(tables, [tf.constant(np.concatenate([keys, new])) for keys in below])
    # Then its rows come up, no key is counted, and none is new
    for table, keys, count in zip(tables, below, counts):
        assert wait_for(lambda t=table, k=keys: first_tier(t, k).all())
        np.testing.assert_array_equal(table.get_frequency(keys), count)
        np.testing.assert_array_equal(table.get_frequency(new), np.zeros(5))


@pytest.mark.parametrize("kind, sizes", TIERED[2:])
def test_rows_of_a_routed_batch_come_from_disk_to_memory(make_table, kind, sizes):
    # Given two tables of three tiers, and one of GPU memory
    options = [in_tiers(kind, sizes)] * 2 + [ge.StorageOption(TYPES.HBM)]
    tables = [make_table(DIM, name=f"t{i}", storage_option=o) for i, o in enumerate(options)]
    Training(tables).run(draw_batches(4, 25, num_tables=3))
    before = [table.export() for table in tables]
    below = []
    for table, rows in zip(tables[:2], before):
        keys = np.asarray(rows.keys)
        below.append(keys[np.asarray(table.lookup_tier(keys)) == 2][:100])
        assert len(below[-1]) == 100
    counts = [np.asarray(table.get_frequency(keys)) for table, keys in zip(tables, below)]
    new = np.arange(5, dtype=np.int64)
    # When a batch of keys of rows on disk, some twice, and of keys without a row is routed
    ids = [tf.constant(np.concatenate([keys, new, keys[:9]])) for keys in below]
    ge.route_ids(tables, [*ids, tf.constant(new)])
    # Then its rows come to memory, no key is counted, none is new, and no row has changed
    for table, keys, count in zip(tables, below, counts):
        assert wait_for(lambda t=table, k=keys: (np.asarray(t.lookup_tier(k)) < 2).all())
        np.testing.assert_array_equal(table.get_frequency(keys), count)
        np.testing.assert_array_equal(table.get_frequency(new), np.zeros(5))
    for table, rows in zip(tables, before):
        for values, expected in zip(table.export(), rows):
            np.testing.assert_array_equal(values, expected)


@pytest.mark.parametrize("kind, sizes", TIERED[2:])
def test_rows_that_are_erased_while_they_come_are_gone(make_table, kind, sizes):
    # Given a table with rows on disk
    table = make_table(DIM, storage_option=in_tiers(kind, sizes))
    Training([table]).run(draw_batches(6, 25, num_tables=1))
    keys = np.asarray(table.export().keys)
    below = keys[np.asarray(table.lookup_tier(keys)) == 2][:400]
    # When parts of them are erased, each while all are brought
    for part in np.array_split(below, 8):
        ge.route_ids([table], [tf.constant(below)])
        table.erase(part)
    # Then they are gone, and all others are there
    np.testing.assert_array_equal(table.export().keys, np.setdiff1d(keys, below))
    assert int(table.total_count()) == len(keys) - len(below)


@pytest.mark.parametrize("kind, sizes", TIERED[:2])
def test_packed_ids_of_a_dataset_are_routed_once_more(make_table, kind, sizes):
    # Given ids that a dataset packs, which moves nothing
    table = make_table(DIM, storage_option=in_tiers(kind, sizes))
    batches = draw_batches(5, 25, num_tables=1)
    Training([table]).run(batches)
    ge.group_embedding_lookup([table], batches[0])  # whose rows the last step began to bring
    keys = np.asarray(table.export().keys)
    below = keys[~first_tier(table, keys)][:64]
    data = tf.data.Dataset.from_tensors(below).map(lambda ids: ge.route_ids([table], [ids]))
    (packed,) = data
    time.sleep(0.1)
    assert not first_tier(table, below).any()
    # When they are routed outside of it
    routed = ge.route_ids([table], packed)
    # Then their rows come up, and are the table's
    assert wait_for(lambda: first_tier(table, below).all())
    expected = dict(zip(keys.tolist(), np.asarray(table.export().values)))
    (rows,) = ge.group_embedding_lookup([table], routed)
    np.testing.assert_array_equal(rows, [expected[key] for key in below.tolist()])


@pytest.mark.parametrize("kind, sizes", TIERED[:2])
def test_graphs_of_tensorflow_1_prefetch_rows_as_well(make_table, kind, sizes):
    # Given a graph with a table whose rows do not fit its first tier
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        table = make_table(DIM, storage_option=in_tiers(kind, sizes))
        ids = tf.compat.v1.placeholder(tf.int64, [None])
        insert = table.insert(ids, tf.fill([tf.size(ids), DIM], 3.0))
        tiers = table.lookup_tier(ids)
        routed = tf.nest.flatten(ge.route_ids([table], [ids]), expand_composites=True)
        session.run(tf.compat.v1.global_variables_initializer())
        for first in range(0, 4000, 500):
            session.run(insert, {ids: np.arange(first, first + 500)})
        keys = np.arange(4000)
        below = keys[session.run(tiers, {ids: keys}) > 0][:50]
        # When ids are routed by a session
        session.run(routed, {ids: below})
        # Then their rows come up
        assert len(below) == 50
        assert wait_for(lambda: (session.run(tiers, {ids: below}) == 0).all())


def test_rows_that_no_memory_has_room_for_stay_on_disk(make_table):
    # Given memory for fewer rows than the next batch has
    table = make_table(DIM, storage_option=in_tiers(TYPES.DRAM_SSDHASH, [64 << 10]))
    for first in range(0, 3000, 100):
        table.insert(np.arange(first, first + 100), np.full([100, DIM], first, np.float32))
    # When it is routed, again and again
    for _ in range(5):
        ge.route_ids([table], [tf.range(3000, dtype=tf.int64)])
    # Then nothing is lost
    exported = table.export()
    order = np.argsort(exported.keys)
    np.testing.assert_array_equal(np.asarray(exported.keys)[order], np.arange(3000))
    expected = np.arange(3000) // 100 * 100
    np.testing.assert_array_equal(np.asarray(exported.values)[order][:, 0], expected)
