"""Tables over several ranks that start from the rows of a checkpoint, whoever wrote it."""

import numpy as np
import pytest
import tensorflow as tf
from support.session.tiers import by_day

import group_embedding as ge

v1 = tf.compat.v1
DIM = 3
KEYS = np.random.default_rng(3).integers(-(2**63), 2**63 - 1, 30, dtype=np.int64)
ROWS = np.arange(len(KEYS) * DIM, dtype=np.float32).reshape(-1, DIM)
STOCK = np.arange(20 * DIM, dtype=np.float32).reshape(-1, DIM)
COUNTS = [1, 3]
PLACES = [None, "localized:1"]


def save(folder):
    """Saves a keyed table, with changes after a full save, and a stock variable."""
    table = ge.get_embedding_variable("user", DIM)
    table.insert(KEYS, ROWS - 1, versions=KEYS % 5, freqs=KEYS % 7)
    checkpoint = tf.train.Checkpoint(keyed=table, stock=tf.Variable(STOCK))
    checkpoint.save(f"{folder}/{ge.exchange.current().rank}")
    table.insert(KEYS[10:], ROWS[10:])
    table.insert(KEYS[:10], ROWS[:10])
    return ge.checkpoint.save_changes(checkpoint, f"{folder}/{ge.exchange.current().rank}")


def start_eagerly(option, placement):
    table = ge.get_embedding_variable("other", DIM, ev_option=option, placement=placement)
    return table.export()


def start_in_a_graph(option, placement):
    with tf.Graph().as_default(), v1.Session() as session:
        table = ge.get_embedding_variable("other", DIM, ev_option=option, placement=placement)
        found = table.export()
        session.run(v1.global_variables_initializer())
        return session.run(found)


def resume(option, placement, folder):
    """A restore of another checkpoint, in a graph."""
    with tf.Graph().as_default(), v1.Session() as session:
        table = ge.get_embedding_variable("other", DIM, ev_option=option, placement=placement)
        insert, found = table.insert([5], np.ones([1, DIM])), table.export()
        saver = ge.Saver()
        session.run(v1.global_variables_initializer())
        session.run(insert)
        saver.restore(session, saver.save(session, f"{folder}/trained"))
        return session.run(found)


def start(path, folder):
    """{what: the keys that this rank has, and their rows, versions and counts}."""
    found = {}
    for placement in PLACES:
        for name in ("keyed", "stock"):
            option = ge.EmbeddingVariableOption(ckpt=ge.CheckpointOption(path, name))
            found["eagerly", name, placement] = start_eagerly(option, placement)
            found["in a graph", name, placement] = start_in_a_graph(option, placement)
    for always in (False, True):
        option = ge.CheckpointOption(path, "keyed", always_load_from_specific_ckpt=always)
        option = ge.EmbeddingVariableOption(ckpt=option)
        found["resumed", always] = resume(option, None, f"{folder}/{always}")
    return {what: [np.asarray(part) for part in parts] for what, parts in found.items()}


def on_rank(function_name, *args):
    ge.enable_distributed_strategy()
    return globals()[function_name](*args)


@pytest.fixture(scope="module")
def saved(three_ranks, tmp_path_factory):
    """{number of ranks: the checkpoint that they wrote}."""
    folders = {count: str(tmp_path_factory.mktemp(f"by_{count}")) for count in COUNTS}
    return {
        1: save(folders[1]),
        3: three_ranks.run(on_rank, "save", folders[3])[0],
    }


@pytest.fixture(scope="module", params=by_day(COUNTS, [1]), ids=lambda count: f"by_{count}_ranks")
def started(request, saved, several_ranks, tmp_path_factory):
    """Each rank's content of tables that started from a checkpoint of so many ranks."""
    folder = str(tmp_path_factory.mktemp("started"))
    return several_ranks.run(on_rank, "start", saved[request.param], folder)


def together(ranks, what):
    """{key: (row, version, count)} of all ranks, of which each key is on one."""
    found = [dict(zip(rank[what][0].tolist(), zip(*rank[what][1:]))) for rank in ranks]
    assert len(set().union(*found)) == sum(map(len, found))
    return {key: kept for part in found for key, kept in part.items()}


def assert_is_keyed(found):
    assert found.keys() == set(KEYS.tolist())
    for key, row in zip(KEYS.tolist(), ROWS):
        np.testing.assert_array_equal(found[key][0], row)
        assert found[key][1:] == (key % 5, key % 7)


@pytest.mark.covering(1)
@pytest.mark.parametrize("placement", PLACES)
@pytest.mark.parametrize("way", ["eagerly", "in a graph"])
def test_a_table_starts_from_a_keyed_table_and_its_changes(started, way, placement):
    found = together(started, (way, "keyed", placement))

    assert_is_keyed(found)
    if placement:
        assert [len(rank[way, "keyed", placement][0]) > 0 for rank in started][:2] == [False, True]


@pytest.mark.parametrize("placement", PLACES)
@pytest.mark.parametrize("way", ["eagerly", "in a graph"])
def test_a_table_starts_from_a_stock_variable(started, way, placement):
    found = together(started, (way, "stock", placement))

    assert found.keys() == set(range(len(STOCK)))
    for key, row in enumerate(STOCK):
        np.testing.assert_array_equal(found[key][0], row)


@pytest.mark.parametrize("always", [False, True])
def test_what_a_restore_of_another_checkpoint_brings(started, always):
    found = together(started, ("resumed", always))

    assert (5 in found) != always
    found.pop(5, None)
    assert_is_keyed(found)
