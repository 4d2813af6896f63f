"""From the sizes of tables to placements: pure functions of plain values."""

import dataclasses
import random

import pytest

from group_embedding.placement import check_columns, check_placement, to_placement
from group_embedding.ranks.sharding.placement_plan import TableLoad, plan_placements


def loads(**sizes):
    return [TableLoad(name, rows, dim) for name, (rows, dim) in sizes.items()]


def test_tables_go_where_their_size_says():
    tables = loads(day=(7, 4), user=(1_000_000, 16), shop=(20_000, 4), keys=(None, 8))

    placements = plan_placements(tables, num_ranks=2).placements

    assert placements == {
        "day": "replicated",
        "user": "distributed",
        "shop": "localized:0",
        "keys": "distributed",
    }


def test_whole_tables_are_spread_evenly():
    rng = random.Random(1)
    tables = [TableLoad(f"t{i}", rng.randint(10_000, 50_000), 8) for i in range(60)]

    plan = plan_placements(tables, num_ranks=4)

    assert {word.partition(":")[0] for word in plan.placements.values()} == {"localized"}
    assert max(plan.memory) < 1.2 * min(plan.memory)
    assert max(plan.traffic) < 1.2 * min(plan.traffic)
    assert sum(plan.memory) == sum(table.memory for table in tables)


def test_a_table_with_many_ids_is_distributed_and_a_placed_one_stays():
    tables = [TableLoad(f"t{i}", 20_000, 8) for i in range(8)]
    tables += [TableLoad("hot", 20_000, 8, expected_ids=1_000_000)]
    tables += [TableLoad("mine", 20_000, 8, placement="localized:1")]

    plan = plan_placements(tables, num_ranks=2)

    assert plan.placements["hot"] == "distributed"
    assert plan.placements["mine"] == "localized:1"
    assert plan == plan_placements(tables, num_ranks=2)


def test_a_plan_is_a_table_for_people():
    text = str(plan_placements(loads(day=(7, 4), user=(1_000_000, 16)), num_ranks=2))

    assert text.splitlines() == [
        "table        rows  dim    MiB  KiB a step  placement",
        "day             7    4   0.00         0.3  replicated",
        "user    1,000,000   16  61.04       136.0  distributed",
        "rank 0                  30.52       136.0",
        "rank 1                  30.52       136.0",
    ]


@pytest.mark.parametrize(
    "word, keyed, expected",
    [
        ("distributed", False, ("mod", 0, False, False)),
        ("distributed:sums", False, ("mod", 0, True, False)),
        ("distributed:sums", True, ("hash", 0, True, False)),
        ("distributed:two_levels", False, ("mod", 0, False, True)),
        ("distributed:two_levels", True, ("hash", 0, False, True)),
        ("localized:1", True, ("one_rank", 1, False, False)),
        ("localized:1:sums", False, ("one_rank", 1, True, False)),
        ("localized:1:two_levels", True, ("one_rank", 1, False, True)),
        ("columns", False, ("columns", 0, False, False)),
        ("columns:sums", False, ("columns", 0, True, False)),
    ],
)
def test_a_word_says_where_rows_are_and_how_owners_send_them(word, keyed, expected):
    placement = to_placement("a table", check_placement("a table", word), 2, keyed)

    assert dataclasses.astuple(placement) == expected
    assert str(placement) == word
    assert to_placement("a table", word, 1, keyed) is None


@pytest.mark.parametrize(
    "word", ["columns:two_levels", "distributed:sums:two_levels", "replicated:two_levels"]
)
def test_two_levels_are_of_tables_whose_owners_send_rows(word):
    with pytest.raises(ValueError, match="the first two with ':two_levels'.*got"):
        check_placement("a table", word)


def test_a_plan_leaves_tables_with_sums_where_they_are():
    tables = [
        TableLoad("all", 9000, 8, placement="distributed:sums"),
        TableLoad("one", 9000, 8, placement="localized:1:sums"),
    ]

    plan = plan_placements(tables, num_ranks=2)

    assert plan.placements == {"all": "distributed:sums", "one": "localized:1:sums"}
    assert plan.memory == (9000 * 16, 9000 * 48)


@pytest.mark.parametrize(
    "word",
    [
        *["localized", "localized:-1", "localized:x", "hash", "", 3],
        *["replicated:sums", "auto:sums", ":sums", "distributed:sum", "localized:1:sums:sums"],
        *["columns:1", "column", "columns:sum"],
    ],
)
def test_a_placement_that_is_none_is_refused(word):
    with pytest.raises(ValueError, match="table 'user': expected placement to be 'distributed'"):
        check_placement("table 'user'", word)


def test_placements_that_cannot_be_are_refused():
    with pytest.raises(ValueError, match="a rank below 2, got 'localized:2'"):
        to_placement("table 'user'", "localized:2", 2, keyed=False)
    with pytest.raises(ValueError, match="another placement than 'replicated'"):
        to_placement("table 'user'", "replicated", 2, keyed=True)
    with pytest.raises(ValueError, match="another placement than 'columns', as its rows are found"):
        to_placement("table 'user'", "columns", 2, keyed=True)


def test_each_rank_has_as_many_columns_of_all_rows():
    placement = to_placement("a table", "columns", 3, keyed=False)

    assert [placement.columns_of(12, rank, 3) for rank in range(3)] == [
        slice(0, 4),
        slice(4, 8),
        slice(8, 12),
    ]
    assert placement.num_local_rows(7, 1, 3) == 7 and placement.local_row(5, 3) == 5
    assert to_placement("a table", "distributed", 3, keyed=False).columns_of(12, 1, 3) == slice(
        0, 12
    )
    with pytest.raises(ValueError, match="expected a table whose rows have one owner each"):
        placement.owner_of(5, 3)


def test_columns_that_ranks_do_not_divide_are_refused():
    with pytest.raises(ValueError, match="table 'user': expected a dim that 3 ranks divide.*got 8"):
        check_columns("table 'user'", 8, 3)
