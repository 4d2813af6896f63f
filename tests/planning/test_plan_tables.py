"""Bytes of tables by rank and tier, and where their rows are found."""

import numpy as np
import pytest

import group_embedding as ge

SEED = 13
GIB = 1 << 30


def feature(name, num_rows=None, placement=None, dim=16, **options):
    option = None if num_rows is not None else ge.KeyedOptions(**options)
    table = ge.TableConfig(name, num_rows, dim, ev_option=option, placement=placement)
    return ge.FeatureConfig(name, table)


@pytest.mark.parametrize(
    "tiers, hbm",
    [(["dram", "disk"], None), (["hbm", "dram", "disk"], 2 * GIB)],
    ids=str,
)
def test_tiers_above_others_have_their_default_size(tiers, hbm):
    # Given a table of more rows than its tiers hold by default
    options = {"tiers": tiers, "num_initial_rows": 1}
    batches = [{"user": np.arange(1000)}]

    # When it is planned with that size given, and without
    given = [{"tier_bytes": [GIB] * (len(tiers) - 1)}, {}]
    found = [
        ge.plan([feature("user", **options, **of)], batches=batches, keys={"user": 10**8}, hbm=hbm)
        for of in given
    ]

    # Then host memory takes it, and some bytes of each row on disk, which has the rest
    for plan in found:
        (of_rank,) = plan.bytes_by_rank
        assert list(of_rank) == tiers
        assert of_rank["disk"] > 10**9
        assert GIB <= of_rank["dram"] < 1.1 * GIB + 6 * 10**8
        assert GIB <= of_rank.get("hbm", GIB) <= 2 * GIB
        assert 0 < plan.tables["user"].hit_rates["dram"] < 0.5


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_rows_of_one_rank_are_found_there(rank):
    # Given tables of one rank, in one memory and in two
    where = f"localized:{rank}"
    tiers = {"tiers": ["dram", "disk"], "tier_bytes": [50 * 96]}
    features = [
        feature("number", 100, where),
        feature("key", None, where),
        feature("below", None, where, **tiers),
    ]
    ids = np.arange(100)

    # When they are planned over three ranks, and for one
    batches = [{f.name: ids for f in features}] * 2
    found, alone = (ge.plan(features, batches=batches, ranks=r).tables for r in (3, 1))

    # Then their rows are found as in one process, which has the bytes, whatever the placement
    for name, table in found.items():
        assert table.hit_rates == alone[name].hit_rates
        assert sum(table.hit_rates.values()) == pytest.approx(1)
        assert table.bytes_by_rank[rank] == alone[name].bytes_by_rank[0]
    assert 0.3 < found["below"].hit_rates["dram"] < 0.7


@pytest.mark.parametrize(
    "num_rows, placement, message",
    [
        (100, "localized:3", "table 'user': expected placement to name a rank below 3"),
        (None, "localized:5", "table 'user': expected placement to name a rank below 3"),
        (None, "replicated", "table 'user': expected another placement than 'replicated'"),
        (None, "columns", "table 'user': expected another placement than 'columns'"),
        (100, "columns", "table 'user': expected a dim that 3 ranks divide.*got 16"),
    ],
)
def test_placements_that_a_table_cannot_have_are_refused(num_rows, placement, message):
    with pytest.raises(ValueError, match=message):
        ge.plan([feature("user", num_rows, placement)], batches=[{"user": np.arange(9)}], ranks=3)


@pytest.mark.parametrize("share", [0.25, 0.5, 2.0])
def test_a_tier_of_gpu_memory_has_initial_rows_among_its_rows(share):
    # Given tables whose tier in GPU memory holds some of their initial rows, or these and others
    initial = 1000 * (64 + 32)
    options = {"tiers": ["hbm", "dram"], "tier_bytes": [int(share * initial)]}
    features = [feature(n, **options, num_initial_rows=of) for n, of in (("a", 1), ("b", 1000))]
    batches = [dict.fromkeys("ab", np.arange(100))]

    # When they are planned with the same keys
    keys = dict.fromkeys("ab", 5000)
    found = ge.plan(features, batches=batches, keys=keys, hbm=1 << 30).tables
    (few,), (many,) = (found[name].bytes_by_rank for name in "ab")

    # Then those below are more, and GPU memory has the initial rows at least
    assert many["dram"] - few["dram"] == pytest.approx(min(share, 1) * initial, rel=0.2)
    assert many["hbm"] - 5000 * 57 < max(share, 1) * initial * 1.01
