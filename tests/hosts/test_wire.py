"""How often a step waits for the link between hosts, what an idle job sends, and what becomes of a
job whose link is slow, loses packets, or is cut, for a while, for good, or one way alone."""

import time

import numpy as np
import pytest
import tensorflow as tf
from support.session.tiers import by_day

import group_embedding as ge

LAYOUTS = by_day(["ab", "aabb", "abc"], ["ab"], nightly=["aabb", "abc"])
DIMS = [4, 16, 33]
CONSTANT = tf.keras.initializers.Constant


def trainer():
    """The tables and the kernel, and a step that trains all of them on ids."""
    tables = [
        ge.get_embedding_variable(f"table_{dim}", dim, initializer=CONSTANT(0.1)) for dim in DIMS
    ]
    kernel = tf.Variable(tf.fill([sum(DIMS), 2], 0.2))
    optimizer = ge.DistributedOptimizer(ge.optimizers.wrap(tf.keras.optimizers.Adagrad(0.1)))

    @tf.function(reduce_retracing=True)
    def step(ids):
        with tf.GradientTape() as tape:
            first = ge.group_embedding_lookup(tables[:2], ids[:2])
            second = ge.group_embedding_lookup(tables[2:], ids[2:])
            loss = tf.reduce_mean(tf.tanh(tf.concat([*first, *second], 1)) @ kernel)
        trained = [*tables, kernel]
        optimizer.apply_gradients(zip(tape.gradient(loss, trained), trained))

    return tables, kernel, step


def ids_of(step_number, num_ranks, rank):
    """This rank's part of a batch of 12."""
    ids = np.random.default_rng(step_number).integers(0, 100, [len(DIMS), 12])
    return tf.unstack(tf.constant(np.split(ids, num_ranks, axis=1)[rank]))


def train(num_steps, timeout_seconds, pause=0.0):
    """Trains, and pauses after each step. Returns what was trained."""
    ge.enable_distributed_strategy(timeout_seconds=timeout_seconds)
    exchange, (tables, kernel, step) = ge.exchange.current(), trainer()
    for i in range(num_steps):
        step(ids_of(i, exchange.num_ranks, exchange.rank))
        print(f"step {i} is done", flush=True)
        time.sleep(pause)
    content = []
    for table in tables:
        keys, values = map(np.asarray, table.export(gather=True)[:2])
        content.append(values[np.argsort(keys)])
    return [*content, kernel.numpy()]


def count_crossings(num_steps):
    """Takes a step, and on command some more."""
    ge.enable_distributed_strategy(timeout_seconds=10)
    exchange, (_, _, step) = ge.exchange.current(), trainer()
    for i in range(2 + num_steps):
        if i == 2:
            print("is ready", flush=True)
            exchange.barrier("all are ready")
            time.sleep(3)  # idle, while the test counts and sets the link
            print("begins", flush=True)
        step(ids_of(i, exchange.num_ranks, exchange.rank))
    print("is done", flush=True)
    time.sleep(2)


def of_one_process(num_steps):
    tables, kernel, step = trainer()
    for i in range(num_steps):
        step(ids_of(i, 1, 0))
    content = []
    for table in tables:
        keys, values = map(np.asarray, table.export()[:2])
        content.append(values[np.argsort(keys)])
    return [*content, kernel.numpy()]


def set_links(bed, **how):
    names = sorted(bed.hosts)
    for one in names:
        for other in names[names.index(one) + 1 :]:
            bed.set_link(one, other, **how)


@pytest.mark.parametrize("where", LAYOUTS)
def test_a_step_waits_for_the_link_four_times(make_bed, start_job, where):
    # Given ranks on hosts, 150 ms from each other, that train three tables of two lookups, and a
    # dense kernel
    bed, num_steps = make_bed(len(set(where))), 4
    job = start_job(bed, where, count_crossings, num_steps)
    job.wait_until_all_said("is ready")
    set_links(bed, delay=150)
    # When they wait for a while, and then take some steps
    time.sleep(0.5)
    bed.count()
    time.sleep(2)
    idle = bed.count()
    job.wait_until_all_said("begins")
    bed.count()
    job.wait_until_all_said("is done")
    steps = bed.count()
    job.results()
    # Then the longest chain of packets is that of ids, rows, the kernel's gradients and their mean,
    # with which a sign of life may begin or end
    print(f"crossings a step: {steps.crossings / num_steps}, idle packets in 2 s: {idle.packets}")
    assert steps.crossings <= 4 * num_steps + 2, steps
    # And hosts that wait send no more than that they live
    assert idle.packets <= 2 * 20 * len(where), idle


LINKS = {
    "far": {"delay": 200},
    "lossy": {"delay": 2, "loss": 5},
    "narrow": {"rate": 2},
}


@pytest.mark.soak
@pytest.mark.parametrize("how", LINKS)
@pytest.mark.parametrize("where", ["ab", "aabb", "abc"])
def test_a_bad_link_changes_nothing(make_bed, start_job, where, how):
    bed = make_bed(len(set(where)))
    job = start_job(bed, where, train, 10, 10, timeout=120)
    job.wait_until_all_said("step 0 is done")
    set_links(bed, **LINKS[how])

    ranks = job.results()

    for content in ranks:
        for found, expected in zip(content, of_one_process(10), strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.soak
@pytest.mark.parametrize("where", ["ab", "aabb", "abc"])
def test_a_link_that_is_cut_for_ten_seconds(make_bed, start_job, where):
    bed = make_bed(len(set(where)))
    job = start_job(bed, where, train, 30, 40, 0.2, timeout=120)
    job.wait_until_all_said("step 3 is done")
    bed.set_link("a", "b", is_up=False)
    time.sleep(10)
    bed.set_link("a", "b")

    ranks = job.results()

    for content in ranks:
        for found, expected in zip(content, of_one_process(30), strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


CUTS = {
    "both_ways": [("a", "b", False)],
    "from_rank_0": [("a", "b", True)],
    "to_rank_0": [("b", "a", True)],
    "between_others": [("b", "c", False)],
    "one_way_between_others": [("c", "b", True)],
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "where, cut",
    [
        ("ab", "both_ways"),
        ("ab", "from_rank_0"),
        ("ab", "to_rank_0"),
        *(pytest.param("aabb", cut, marks=pytest.mark.soak) for cut in list(CUTS)[:3]),
        pytest.param("abc", "between_others"),
        pytest.param("abc", "one_way_between_others", marks=pytest.mark.soak),
    ],
)
def test_a_link_that_is_cut_for_good_ends_all_ranks_by_name(make_bed, start_job, where, cut):
    # Given ranks that train
    timeout, bed = 5.0, make_bed(len(set(where)))
    job = start_job(bed, where, train, 100_000, timeout, 0.05, timeout=90)
    job.wait_until_all_said("step 3 is done")
    # When two hosts no longer reach each other, or one no longer the other
    for one, other, one_way in CUTS[cut]:
        bed.set_link(one, other, is_up=False, one_way=one_way)
    begin = time.monotonic()
    outcomes = job.outcomes()
    seconds = time.monotonic() - begin
    # Then all ranks end with an error that names a rank of each host, and none hangs
    assert seconds < timeout + 20, seconds
    for rank, (code, _, output) in enumerate(outcomes):
        assert code not in (0, "timed out"), output
        named = [line for line in output.splitlines() if "reach" in line or "answered" in line]
        assert any("rank" in line and "process" in line for line in named), (rank, output)
