"""Rows that cross between hosts once a host: what is looked up and trained, and what crosses."""

import os
import signal
import time

import numpy as np
import pytest
import tensorflow as tf
from hosts import test_ahead
from hosts.test_wire import set_links
from support.session.tiers import by_day

import group_embedding as ge
from group_embedding.ranks.sharding.make_sharded_table import make_table
from group_embedding.ranks.sharding.sharded_table import gather_rows

LAYOUTS = by_day(["aabb", "ab", "aaa", "abc", "abab"], ["aabb"], nightly=["abab"])
SAMPLES, NUM_ROWS, NUM_STEPS = 48, 1000, 3
CONSTANT = tf.keras.initializers.Constant
# name: rows (None: keys), dim, combiner, placement before ':two_levels'
TABLES = {
    "user": (None, 8, "mean", "distributed"),
    "item": (None, 33, "sum", "distributed"),
    "shop": (NUM_ROWS, 16, "sqrtn", "distributed"),
    "page": (NUM_ROWS, 4, "sum", "localized:0"),
}
BESIDE = ("day", "word")  # a table of rows and one of sums, whose placements are as ever
LOOKUPS = [*TABLES, "user", *BESIDE]  # 'user' twice
COMBINERS = [TABLES[name][2] if name in TABLES else "sum" for name in LOOKUPS]


def start_of(name):
    """The rows of a table before training."""
    rows, dim, *_ = TABLES[name]
    return np.random.default_rng(dim).normal(size=(rows, dim)).astype(np.float32)


def by_row(name, value, placement):
    def create(shape, initializer):
        return tf.Variable(initializer(shape, "float32"), name=name)

    return make_table(value.shape, tf.constant_initializer(value), create, placement)


def make_tables(suffix, dtype=tf.float32):
    tables = {}
    for name, (rows, dim, _, word) in TABLES.items():
        if rows is None:
            options = {"initializer": CONSTANT(0.1), "placement": word + suffix}
            tables[name] = ge.get_embedding_variable(f"{name}{suffix[1:]}", dim, **options)
        else:
            tables[name] = by_row(f"{name}{suffix[1:]}", start_of(name), word + suffix)
    tables["day"] = by_row(f"day{suffix[1:]}", np.full([NUM_ROWS, 4], 0.3), "distributed")
    tables["word"] = ge.get_embedding_variable(
        f"word{suffix[1:]}", 4, initializer=CONSTANT(0.2), placement="distributed:sums"
    )
    return tables


def batch_of(number):
    """This rank's part of a batch of skewed ids, some samples of which have none, and weights."""
    exchange = ge.exchange.current()
    random = np.random.default_rng(number)
    ids, weights = [], []
    for _ in LOOKUPS:
        lists = [
            (random.zipf(1.2, random.integers(0, 9)) % NUM_ROWS).tolist() for _ in range(SAMPLES)
        ]
        part = lists[exchange.rank :: exchange.num_ranks]
        ids.append(tf.ragged.constant(part, dtype=tf.int64, ragged_rank=1))
        drawn = [random.choice([0.0, 0.5, 2.0], len(of_sample)).tolist() for of_sample in lists]
        drawn = drawn[exchange.rank :: exchange.num_ranks]
        weights.append(tf.ragged.constant(drawn, dtype=tf.float32, ragged_rank=1))
    return ids, weights


class Trainer:
    """Two calls with several lookups each, of which the second has weights; and their step."""

    def __init__(self, suffix):
        self.tables = make_tables(suffix)
        self.params = [self.tables[name] for name in LOOKUPS]
        stock = tf.keras.optimizers.Adagrad(0.1)
        self._optimizer = ge.DistributedOptimizer(ge.optimizers.wrap(stock))

    def look_up(self, ids, weights):
        first = ge.group_embedding_lookup_sparse(self.params, ids, COMBINERS)
        weighted = ge.group_embedding_lookup_sparse(
            self.params[:4], ids[:4], COMBINERS[:4], sp_weights=weights[:4]
        )
        return [*first, *weighted]

    @tf.function(reduce_retracing=True)
    def step(self, ids, weights):
        with tf.GradientTape() as tape:
            outputs = self.look_up(ids, weights)
            # Sums over samples: the mean of ranks, times their number, is that of one process.
            loss = tf.add_n([tf.reduce_sum(tf.tanh(output)) for output in outputs])
            loss *= ge.exchange.current().num_ranks / SAMPLES
        tables = list(self.tables.values())
        self._optimizer.apply_gradients(zip(tape.gradient(loss, tables), tables))
        return outputs

    def content(self):
        """{table: its rows, by row or by key}"""
        found = {}
        for name, table in self.tables.items():
            if not hasattr(table, "export"):
                found[name] = np.asarray(gather_rows(table))
                continue
            keys, values = map(np.asarray, table.export(gather=True)[:2])
            found[name] = np.concatenate(
                [keys[np.argsort(keys), None], values[np.argsort(keys)]], axis=1
            )
        return found


def train():
    """The outputs and the tables of one level and of two."""
    return {suffix: _train(Trainer(suffix)) for suffix in ("", ":two_levels")}


def _train(trainer):
    outputs = [[np.asarray(o) for o in trainer.step(*batch_of(i))] for i in range(NUM_STEPS)]
    eager = [output.numpy() for output in trainer.look_up(*batch_of(NUM_STEPS))]
    return outputs[0], eager, trainer.content()


def train_on_rank(**options):
    ge.enable_distributed_strategy(timeout_seconds=20, **options)
    return train()


@pytest.fixture(scope="module")
def expected():
    return _train(Trainer(""))


@pytest.mark.parametrize("where", LAYOUTS)
def test_two_levels_train_what_one_process_trains(make_bed, start_job, expected, where):
    # Given ranks on hosts
    job = start_job(make_bed(len(set(where))), where, train_on_rank, timeout=240)

    # When they train tables whose rows cross once a rank, and once a host
    ranks = job.results()

    for rank, of_rank in enumerate(ranks):
        one, two = of_rank[""], of_rank[":two_levels"]
        # Then what is looked up before anything is trained is the same to the bit
        for found, known, of_process in zip(two[0], one[0], expected[0], strict=True):
            np.testing.assert_array_equal(found, known)
            np.testing.assert_allclose(found, of_process[rank :: len(where)], rtol=1e-5, atol=1e-6)
        for name, known in expected[2].items():
            # and all tables are those of one process,
            np.testing.assert_allclose(two[2][name], known, rtol=1e-5, atol=1e-6, err_msg=name)
            if len(set(where)) in (1, len(where)) or name in BESIDE:
                # to the bit those of one level where no ranks share a host of several.
                np.testing.assert_array_equal(two[2][name], one[2][name], err_msg=name)


UNIT = {None: 2.0**-24, tf.bfloat16: 2.0**-9}  # the largest relative error of rounding


def sum_gradients(comm_dtype):
    """One step by SGD of rows that are zero: their gradients, negated, by one level and by two."""
    ge.enable_distributed_strategy(comm_dtype=comm_dtype)
    exchange, found = ge.exchange.current(), []
    for suffix in ("", ":two_levels"):
        zeros = np.zeros([NUM_ROWS, 8], np.float32)
        table = by_row(f"sums{suffix[1:]}", zeros, f"distributed{suffix}")
        optimizer = ge.DistributedOptimizer(ge.optimizers.wrap(tf.keras.optimizers.SGD(1.0)))
        ids, factors = terms_of(exchange.rank)
        with tf.GradientTape() as tape:
            (rows,) = ge.group_embedding_lookup([table], [ids])
            loss = tf.reduce_sum(rows * factors)
        optimizer.apply_gradients([(tape.gradient(loss, table), table)])
        found.append(np.asarray(gather_rows(table)))
    return found


def terms_of(rank):
    """Skewed ids of a rank, and the gradients of their rows."""
    random = np.random.default_rng([5, rank])
    ids = random.zipf(1.2, 2000) % NUM_ROWS
    return tf.constant(ids), random.normal(size=[2000, 8]).astype(np.float32)


@pytest.mark.slow
@pytest.mark.parametrize("comm_dtype", [None, tf.bfloat16])
def test_sums_of_hosts_are_within_rounding_of_exact_sums(make_bed, start_job, comm_dtype):
    # Given the mean over four ranks of the gradients of each row, in float64, and of their sizes
    exact, sizes, counts = np.zeros([NUM_ROWS, 8]), np.zeros([NUM_ROWS, 8]), np.zeros([NUM_ROWS, 1])
    for rank in range(4):
        ids, factors = terms_of(rank)
        np.add.at(exact, ids.numpy(), factors / 4)
        np.add.at(sizes, ids.numpy(), np.abs(factors) / 4)
        np.add.at(counts, ids.numpy(), 1)

    # When two ranks on each of two hosts have added them up
    ranks = start_job(make_bed(2), "aabb", sum_gradients, comm_dtype).results()

    # Then each sum is within the bound that the guide states
    bound = (counts * UNIT[None] + 2 * UNIT[comm_dtype]) * sizes
    for one, two in ranks:
        assert (np.abs(one + exact) <= bound).all()
        assert (np.abs(two + exact) <= bound).all()
        assert (two != one).any()  # which are sums in another order


def train_ahead(ahead):
    ge.enable_distributed_strategy(placement="distributed:two_levels", ahead=ahead)
    tables, kernel, step = test_ahead.trainer()
    losses = [float(loss) for loss in step.over(test_ahead.batches_of(6, 50))]
    return [losses, kernel.numpy(), *(table.export(gather=True)[1] for table in tables)]


@pytest.mark.slow
def test_rows_ahead_are_the_same_bits(make_bed, start_job):
    # Given compiled steps of ranks on two hosts, 10 ms from each other
    bed = make_bed(2)
    bed.set_link("a", "b", delay=10)

    # When the next batch goes ahead of the step, or not
    in_turn, of_ahead = (
        start_job(bed, "aabb", train_ahead, way).results() for way in (False, True)
    )

    # Then the same is trained
    for of_rank, of_rank_ahead in zip(in_turn, of_ahead, strict=True):
        for expected, found in zip(of_rank, of_rank_ahead, strict=True):
            np.testing.assert_array_equal(found, expected)


TIMEOUT = 4.0  # seconds


def one_table():
    ge.enable_distributed_strategy(placement="distributed:two_levels", timeout_seconds=TIMEOUT)
    return by_row("item", np.ones([10, 2]), None), ge.exchange.current().rank


def look_up(table, ids, combiner="sum"):
    return ge.group_embedding_lookup_sparse([table], [tf.ragged.constant(ids)], [combiner])[0]


def bad_id():
    table, rank = one_table()
    look_up(table, [[1, 99 if rank == 2 else 3]])


def other_combiner():
    table, rank = one_table()
    look_up(table, [[1]], "mean" if rank == 3 else "sum")


def slow_rank():
    table, rank = one_table()
    for slow in range(4):
        time.sleep(2 * TIMEOUT if rank == slow == 1 else 0)
        look_up(table, [[1]])
    return "went on"


def one_lookup_more():
    table, rank = one_table()
    look_up(table, [[1]])
    if rank == 3:
        look_up(table, [[1]])
    ge.exchange.current().barrier("the end")


def one_dies():
    table, rank = one_table()
    for step in range(100_000):
        look_up(table, [[1]])
        if rank == 1 and step == 3:
            os.kill(os.getpid(), signal.SIGKILL)


def test_a_bad_id_is_an_error_of_all_ranks(make_bed, start_job):
    # Given ranks 0 and 1 on host a, 2 and 3 on host b, When rank 2 looks up an id beyond the table
    for code, _, output in start_job(make_bed(2), "aabb", bad_id).outcomes():
        # Then all say so, as by one level
        assert code == 1, output
        assert "rank 2: table 'item'" in output and "id 99 of sample 0 is outside" in output


@pytest.mark.slow
def test_ranks_of_a_host_that_disagree_end_all(make_bed, start_job):
    # When rank 3 combines by another rule, Then those of its host say it, and the others whose end
    # they found
    outcomes = start_job(make_bed(2), "aabb", other_combiner).outcomes()
    assert all(outcome.code == 1 for outcome in outcomes), outcomes
    for other, (_, _, output) in zip((3, 2), outcomes[2:]):
        assert f"the ranks disagree: rank {other} has" in output, output
        assert "mean of table 'item'" in output
    for _, _, output in outcomes[:2]:
        assert "rank 2" in output or "rank 3" in output, output


@pytest.mark.slow
def test_a_rank_that_computes_may_take_its_time(make_bed, start_job):
    # When a rank computes for longer than the timeout, in which others of its host wait in a call
    # within it, and the ranks of the other host in one between both, Then all go on
    assert set(start_job(make_bed(2), "aabb", slow_rank).results()) == {"went on"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "program, sentence",
    [
        (one_lookup_more, "the ranks disagree: rank"),
        (one_dies, "rank 1 (process"),
    ],
    ids=["lookup", "death"],
)
def test_ranks_that_wait_in_vain_are_named(make_bed, start_job, program, sentence):
    # When a rank looks up once more than the others, or dies, Then all ranks end and say it
    begin = time.monotonic()
    outcomes = start_job(make_bed(2), "aabb", program, timeout=60).outcomes()
    assert time.monotonic() - begin < TIMEOUT + 25
    for rank, (code, _, output) in enumerate(outcomes):
        if program is one_dies and rank == 1:
            continue
        assert code == 1, output
        assert sentence in output


def count_steps(suffix):
    """Takes a step, and on command some more, of two tables whose ids ranks share."""
    ge.enable_distributed_strategy(timeout_seconds=10)
    exchange = ge.exchange.current()
    tables = [
        by_row("shop", start_of("shop"), f"distributed{suffix}"),
        ge.get_embedding_variable(
            "user", 8, initializer=CONSTANT(0.1), placement=f"distributed{suffix}"
        ),
    ]
    optimizer = ge.DistributedOptimizer(ge.optimizers.wrap(tf.keras.optimizers.Adagrad(0.1)))

    @tf.function
    def step(ids):
        with tf.GradientTape() as tape:
            outputs = [ge.group_embedding_lookup(tables[:1], [ids])[0]]  # two calls
            outputs += ge.group_embedding_lookup(tables[1:], [ids])
            loss = tf.add_n([tf.reduce_sum(tf.tanh(output)) for output in outputs])
        optimizer.apply_gradients(zip(tape.gradient(loss, tables), tables))

    for i in range(NUM_STEPS + 1):
        if i == 1:
            print("is ready", flush=True)
            exchange.barrier("all are ready")
            time.sleep(2)  # while the test sets the link
            print("begins", flush=True)
        step(ids_of(i, exchange.rank))
    print("is done", flush=True)
    time.sleep(1)  # while the test counts


def ids_of(number, rank):
    return tf.constant(np.random.default_rng([number, rank]).integers(0, NUM_ROWS, 4 * NUM_ROWS))


def overlap_of_hosts(ranks_of_host, num_hosts):
    """The ids of a rank, those of a host, both unique: how often a row crosses by one level for
    once by two."""
    found = []
    for i in range(1, NUM_STEPS + 1):
        ids = [np.unique(ids_of(i, rank)) for rank in range(ranks_of_host * num_hosts)]
        for first in range(0, len(ids), ranks_of_host):
            of_host = ids[first : first + ranks_of_host]
            found.append(sum(map(len, of_host)) / len(np.unique(np.concatenate(of_host))))
    return np.mean(found)


@pytest.mark.slow
def test_two_levels_cross_as_often_and_in_fewer_bytes(make_bed, start_job):
    # Given two ranks on each of two hosts, 100 ms from each other, who share most ids
    bed, counted = make_bed(2), {}
    for suffix in ("", ":two_levels"):
        # When they train tables whose rows cross once a rank, or once a host
        job = start_job(bed, "aabb", count_steps, suffix)
        job.wait_until_all_said("is ready")
        set_links(bed, delay=100)
        job.wait_until_all_said("begins")
        bed.count()
        job.wait_until_all_said("is done")
        counted[suffix] = bed.count()
        set_links(bed, delay=0)
        job.results()
    # Then a step crosses for ids, rows and gradients, once each,
    overlap = overlap_of_hosts(2, 2)
    saved = counted[""].bytes / counted[":two_levels"].bytes
    print(f"{counted}; overlap {overlap:.3f}, bytes saved {saved:.3f}")
    for traffic in counted.values():
        assert traffic.crossings <= 3 * NUM_STEPS + 2, traffic
    # and in bytes that are fewer by the overlap of the ranks of a host
    assert overlap > 1.9 and 0.9 * overlap < saved < 1.05 * overlap
