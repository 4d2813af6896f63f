"""The watch over ranks on several hosts: ranks that make other calls than the rest, and hosts that
do not reach each other, end all ranks within the timeout, with a sentence that names both."""

import time

import pytest
import tensorflow as tf

import group_embedding as ge

TIMEOUT = 4.0  # seconds
NAMES = ["user", "item", "word"]
IDS = tf.constant([1, 2, 2, 5], tf.int64)


def tables():
    zeros = tf.zeros_initializer()
    return [ge.get_embedding_variable(f"{name}_table", 4, initializer=zeros) for name in NAMES]


def look_up(of):
    return ge.group_embedding_lookup(of, [IDS] * len(of))


def trainer(of, train_as=tf.function):
    optimizer = ge.DistributedOptimizer(ge.optimizers.wrap(tf.keras.optimizers.SGD(0.1)))

    @train_as
    def step():
        with tf.GradientTape() as tape:
            loss = tf.add_n([tf.reduce_sum(rows) for rows in look_up(of)])
        optimizer.apply_gradients(zip(tape.gradient(loss, of), of))
        return loss

    return step


def start():
    """The tables, a step of training that has been taken twice, and whether this is the last
    rank."""
    ge.enable_distributed_strategy(timeout_seconds=TIMEOUT)
    exchange, of = ge.exchange.current(), tables()
    step = trainer(of)
    for _ in range(2):
        step()
    return of, step, exchange.rank == exchange.num_ranks - 1


def one_lookup_more():
    """The last rank looks a table up between two steps."""
    of, step, is_last = start()
    if is_last:
        look_up(of[1:2])
    step()


def another_call():
    """The last rank looks a table up where the others save."""
    of, _, is_last = start()
    if is_last:
        look_up(of[1:2])
    else:
        tf.train.Checkpoint(tables=of).save("model")


def another_function():
    """The last rank takes the step in a function of its own."""
    _, step, is_last = start()
    if is_last:
        step = tf.function(step)
    step()


def one_leaves(leaving):
    """A rank's script ends, and the others look a table up."""
    of, _, _ = start()
    if ge.exchange.current().rank != leaving:
        look_up(of[1:2])


def train_for(seconds, timeout_seconds):
    ge.enable_distributed_strategy(timeout_seconds=timeout_seconds)
    exchange, step = ge.exchange.current(), trainer(tables())
    (begin,) = (now,) = exchange.broadcast([time.monotonic()], "clock")  # of rank 0
    while now < begin + seconds:
        step()
        print("a step", flush=True)
        (now,) = exchange.broadcast([time.monotonic()], "clock")


_LOOKUP = "the ids of a lookup of table 'item_table'"


@pytest.mark.parametrize(
    "where, program, waits",
    [
        ("ab", one_lookup_more, _LOOKUP),
        pytest.param("aabb", one_lookup_more, _LOOKUP, marks=pytest.mark.soak),
        pytest.param("ab", another_call, _LOOKUP, marks=pytest.mark.soak),
        pytest.param(
            *("ab", another_function, "the ids of a lookup of tables 'user_table', 'item_table'"),
            marks=pytest.mark.slow,
        ),
    ],
    ids=["ab-lookup", "aabb-lookup", "ab-call", "ab-function"],
)
def test_ranks_that_wait_in_different_calls(make_bed, start_job, where, program, waits):
    outcomes = start_job(make_bed(2), where, program).outcomes()

    for code, _, output in outcomes:
        assert code == 1, output
        assert "the ranks disagree: rank 0 waits in" in output
        assert f"rank {len(where) - 1} waits in {waits}" in output


@pytest.mark.parametrize("leaving", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_an_eager_lookup_after_a_rank_has_left(make_bed, start_job, leaving):
    outcomes = start_job(make_bed(2), "ab", one_leaves, leaving).outcomes()

    waiting = outcomes[1 - leaving]
    assert outcomes[leaving].code == 0, outcomes[leaving].output
    assert waiting.code == 1, waiting.output
    assert f"rank {leaving} (process" in waiting.output
    assert "has left: its program has ended" in waiting.output
    assert "a lookup of table 'item_table'" in waiting.output


@pytest.mark.slow
def test_two_hosts_that_only_reach_the_third(make_bed, start_job):
    # Given ranks on three hosts, which train
    bed = make_bed(3)
    gloo = {"HOROVOD_GLOO_TIMEOUT_SECONDS": "2"}  # less than the watch's
    job = start_job(bed, "abc", train_for, 60, TIMEOUT, environment=gloo)
    job.wait_until_all_said("a step")

    # When two hosts lose each other, and keep rank 0's host
    bed.set_link("b", "c", is_up=False)
    cut = time.monotonic()
    outcomes = job.outcomes()

    # Then all ranks end, in time, and say which two it was
    assert time.monotonic() - cut < TIMEOUT + 10  # a rank may take 5 s to end by itself
    for code, _, output in outcomes:
        assert code == 1, output
        assert "of b) and rank 2 (process" in output and "do not reach each other" in output
        assert "disagree" not in output


@pytest.mark.soak
def test_two_hosts_that_lose_each_other_for_a_while(make_bed, start_job):
    # Given ranks on three hosts, which train
    bed = make_bed(3)
    job = start_job(bed, "abc", train_for, 15, 10.0)
    job.wait_until_all_said("a step")

    # When two hosts lose each other for half of the timeout, in which ranks wait in different calls
    bed.set_link("b", "c", is_up=False)
    time.sleep(5)
    bed.set_link("b", "c")

    # Then they go on
    job.results()
