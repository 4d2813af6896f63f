"""Bytes of each placement, by hand, and what changes a step's time."""

import dataclasses

import pytest

from group_embedding.ranks.simulate import (
    MACHINES,
    PLACEMENTS,
    WHOLE,
    Job,
    Network,
    TableOfModel,
    Traffic,
    ZipfIds,
    best_placement,
    step_time,
    traffic_of,
)

MACHINE = MACHINES["h200"]


@dataclasses.dataclass
class CountedIds:
    """So many different ids, whatever is asked for."""

    count: float

    def unique(self, count):
        return min(count, self.count)


def table_of(dim=32, ids=4, unique=100):
    return TableOfModel("item", 1_000_000, dim, ids, CountedIds(unique))


def test_bytes_of_each_placement():
    # Given a table of dim 32, 4 ids a sample, 100 different ones in any batch, 50 samples a rank;
    # four hosts of two ranks
    table, job = table_of(), Job(ranks=8, ranks_of_host=2, samples=50)
    row = 32 * 4
    # When what a rank sends is computed, Then it is the sum of ids, rows and gradients: one of
    # eight parts lies here, one on the other rank of the host, six elsewhere
    rows = 100 * (8 + 2 * row)
    found = traffic_of(table, job, "rows")
    assert (found.within_host, found.between_hosts) == (rows / 8, rows * 6 / 8)
    # a host asks once for the 100, half of them by each rank, and ranks pass on what the other has
    found = traffic_of(table, job, "two_levels")
    assert (found.within_host, found.between_hosts) == (rows / 2, rows / 2 * 6 / 8)
    # all 200 ids go to both halves of the columns, and a sum of 32 columns comes back a sample
    found = traffic_of(table, job, "columns")
    assert found.between_hosts == ((200 + 50) * 8 * 2 + 50 * 2 * row) * 6 / 8
    # or the 100 go there, and the columns of a row come back
    found = traffic_of(table, job, "column_rows")
    assert found.between_hosts == 100 * (8 * 2 + 2 * row) * 6 / 8
    # where all ranks have some, the ids go to eight
    found = traffic_of(dataclasses.replace(table, column_parts=8), job, "columns")
    assert found.between_hosts == ((200 + 50) * 8 * 8 + 50 * 2 * row) * 6 / 8
    # 4 ids have 8 (1 - (7/8)^4) different owners
    owners = 8 * (1 - (7 / 8) ** 4)
    found = traffic_of(table, job, "owner_sums")
    assert found.between_hosts == pytest.approx((200 * 8 + 50 * owners * (8 + 2 * row)) * 6 / 8)
    # the gradients of the 100 go to each rank that has all rows
    found = traffic_of(table, job, WHOLE)
    gradients = 100 * (8 + row)
    assert (found.within_host, found.between_hosts) == (gradients, 6 * gradients)


def test_bytes_of_a_table_without_gradients_and_of_one_of_two_features():
    # Given the same table, frozen, and looked up by two features with 2 ids each
    job, row = Job(ranks=8, ranks_of_host=2, samples=50), 32 * 4
    frozen = dataclasses.replace(table_of(), trained=False)
    two = dataclasses.replace(table_of(), features=2)
    # When what a rank sends is computed, Then nothing goes back, and samples have two sums
    assert traffic_of(frozen, job, "rows").between_hosts == 100 * (8 + row) * 6 / 8
    assert traffic_of(frozen, job, WHOLE) == Traffic()
    owners = 2 * 8 * (1 - (7 / 8) ** 2)
    found = traffic_of(two, job, "owner_sums").between_hosts
    assert found == pytest.approx((200 * 8 + 50 * owners * (8 + 2 * row)) * 6 / 8)


def test_a_step_whose_tables_have_placements_of_their_own():
    # Given two tables, of which one is whole on each rank
    tables, job = [table_of(), table_of(dim=64)], Job(ranks=8, ranks_of_host=2, samples=50)
    network = Network(gb_s=0.001)
    # When a step is computed with a list, Then its bytes are those of each table's own placement
    step = step_time(tables, job, MACHINE, network, ["owner_sums", WHOLE])
    sent = traffic_of(tables[0], job, "owner_sums") + traffic_of(tables[1], job, WHOLE)
    assert step.between_hosts == pytest.approx(sent.between_hosts / network.gb_s * 1e-6)


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_one_rank_sends_nothing_and_one_host_nothing_to_others(placement):
    alone = traffic_of(table_of(), Job(1, 8, 50), placement)
    assert (alone.within_host, alone.between_hosts) == (0, 0)
    one_host = traffic_of(table_of(), Job(8, 8, 50), placement)
    assert one_host.within_host > 0 and one_host.between_hosts == 0


def test_the_best_placement_is_chosen_for_each_table():
    job = Job(64, 8, 1000)
    # One id a sample, nearly all different: rows are few bytes. Many ids: sums are.
    assert best_placement(table_of(ids=1, unique=1e9), job) in ("rows", "two_levels")
    assert best_placement(table_of(ids=200, dim=64, unique=1e9), job) in ("columns", "owner_sums")
    tables = [table_of(ids=1, unique=1e9), table_of(ids=200, dim=64, unique=1e9)]
    best = step_time(tables, job, MACHINE, placement="best")
    others = [step_time(tables, job, MACHINE, None, placement) for placement in PLACEMENTS]
    assert best.total < min(step.total for step in others)
    # Over very many ranks messages are what counts, and two levels send fewest
    many = Job(8192, 8, 1000)
    best = step_time(tables, many, MACHINE, placement="best")
    assert best == step_time(tables, many, MACHINE, placement="two_levels")


def test_the_largest_part_is_named():
    tables, job = [table_of(dim=128, ids=10, unique=1e9)], Job(16, 8, 65536)
    slow, fast = Network(gb_s=1.0), Network(gb_s=1e6, round_trip_ms=0)
    assert step_time(tables, job, MACHINE, slow).limit == "between_hosts"
    assert step_time(tables, job, MACHINE, fast).limit == "kernels"
    far = Network(gb_s=1e6, round_trip_ms=40, round_trips=3)
    step = step_time(tables, job, MACHINE, far, dense_ms=7)
    assert step.limit == "waiting" and step.waiting == pytest.approx(120, abs=0.1)
    assert step.total == pytest.approx(sum(step.parts.values())) and step.dense == 7
    hidden = step_time(tables, job, MACHINE, far, program_ms=1000)
    assert (hidden.total, hidden.limit) == (1000, "program")


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"ranks": 0}, "job: expected ranks to be an int of at least 1, got 0"),
        ({"ranks_of_host": 2.5}, "expected ranks_of_host to be an int of at least 1, got 2.5"),
        ({"samples": "9"}, "job: expected samples to be an int of at least 1, got '9'"),
        ({"wire_bytes": 3}, "wire_bytes: expected 2 or 4, got 3"),
        ({"through": "tcp"}, "through: expected one of peer_memory, nccl, got 'tcp'"),
    ],
)
def test_a_job_that_cannot_be_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        Job(**{"ranks": 2, "ranks_of_host": 2, "samples": 4, **arguments})


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"gb_s": 0}, "network: expected gb_s to be a number above 0, got 0"),
        ({"gb_s": -5.0}, "network: expected gb_s to be a number above 0, got -5.0"),
        ({"round_trip_ms": -1}, "network: expected round_trip_ms to be 0 or more, got -1"),
        ({"round_trips": float("nan")}, "expected round_trips to be a finite number, got nan"),
        ({"message_us": -0.5}, "network: expected message_us to be 0 or more, got -0.5"),
    ],
)
def test_a_network_that_cannot_be_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        Network(**arguments)


@pytest.mark.parametrize("name", ["dense_ms", "program_ms"])
@pytest.mark.parametrize("time", [-5.0, float("nan"), float("inf"), "1"])
def test_times_that_cannot_be_are_refused(name, time):
    with pytest.raises(ValueError, match=f"step: expected {name} to be .*, got {time!r}"):
        step_time([table_of()], Job(2, 2, 4), MACHINE, **{name: time})


def test_rows_in_fewer_bits_are_fewer_bytes():
    # Given the same table in the type of its job, in 16 bits, and in a job of 16 bits
    tables = [table_of(), dataclasses.replace(table_of(), row_bytes=2), table_of()]
    jobs = [Job(4, 2, 4096), Job(4, 2, 4096), Job(4, 2, 4096, row_bytes=2, wire_bytes=2)]
    # When steps are computed, Then the table's own type counts as the job's does
    wide, own, small = (step_time([t], job, MACHINE) for t, job in zip(tables, jobs))
    assert own == small
    assert own.between_hosts < wide.between_hosts and own.kernels < wide.kernels


def test_a_placement_that_is_none_is_refused():
    with pytest.raises(ValueError, match=r"expected one of rows, .* got 'row'.*rows"):
        step_time([table_of()], Job(2, 2, 4), MACHINE, placement="row")


def test_a_law_of_many_rows_is_quick():
    # Four billion rows take no more memory or time than thousands
    source = ZipfIds(4_000_000_000, 1.05)
    assert 0 < source.unique(1e6) < 1e6
