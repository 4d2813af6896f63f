"""Placements that are chosen by bytes, for given ranks and hosts and in a job."""

import dataclasses
import re

import numpy as np
import pytest
import tensorflow as tf
from support.cases import placed_tables as cases

import group_embedding as ge
from group_embedding.placement import to_placement
from group_embedding.ranks.simulate import Job, TableOfModel, TracedIds, traffic_of

SEED = 4


def placed(features, **options):
    given = {"ranks": 4, "hosts": 2, **options}
    batches = cases.batches(features, SEED)
    return ge.place_tables(features, batches=batches, dry_run=True, **given)


def words(found):
    return {name: table.placement for name, table in found.tables.items()}


def test_each_table_has_the_placement_of_the_fewest_bytes(capsys):
    # Given tables that are small, of many ids a sample, of few, of keys, wide, and placed already
    features = cases.features()

    # When they are placed over four ranks on two hosts
    found = placed(features, optimizer=tf.keras.optimizers.Adagrad(0.1))

    # Then each is where the fewest bytes are sent, and the placed one where it was
    assert words(found) == {
        "days": "replicated",
        "history": "columns:sums",
        "clicks": "distributed:sums",
        "users": "distributed",
        "hot": "distributed:two_levels",
        "wide": "columns:sums",
        "placed": "localized:1",
    }
    assert {f.name: f.table.placement for f in found.features} == {
        f.name: words(found)[f.table.name] for f in features
    }
    # and the table printed says so, with bytes, crossings and the time of a step
    text = capsys.readouterr().out
    assert text == f"{found}\n"
    assert text.startswith("placement of 7 tables over 4 ranks on 2 hosts:\n")
    (history,) = [line for line in text.splitlines() if line.startswith("history ")]
    assert "columns:sums" in history and "of the bytes of rows" in history
    assert "crosses 3 times" in text and f"takes {found.step.total:.2f} ms" in text


def test_bytes_are_those_of_the_simulation():
    # Given a table of 40 ids a sample, all different
    features = cases.features()
    found = placed(features)
    ids = np.concatenate([b["history"] for b in cases.batches(features, SEED)]).ravel()
    model = TableOfModel("history", 200_000, 64, 40, TracedIds.of(ids, 200_000))
    model = dataclasses.replace(model, column_parts=4)
    # When it is placed, Then it sends what the simulation of sums of columns says
    job = Job(ranks=4, ranks_of_host=2, samples=cases.SAMPLES)
    expected = traffic_of(model, job, "columns").between_hosts
    assert found.tables["history"].sent_bytes == pytest.approx(expected)
    # which are fewer bytes than those of sums of rows
    assert expected < 0.8 * traffic_of(model, job, "owner_sums").between_hosts


def test_memory_is_that_of_the_rank_with_most():
    found = placed(cases.features(), optimizer=tf.keras.optimizers.Adagrad(0.1))

    # A row and its slot, of a part of the ranks, of all, and on one
    assert found.tables["history"].memory_bytes == pytest.approx(200_000 / 4 * 2 * 64 * 4, rel=0.01)
    assert found.tables["days"].memory_bytes == pytest.approx(7 * 2 * 16 * 4, rel=0.01)
    assert found.tables["placed"].memory_bytes == pytest.approx(9000 * 2 * 16 * 4, rel=0.01)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"weights": True}, id="weights"),
        pytest.param({"sequence": True}, id="a sequence"),
    ],
)
def test_owners_send_no_sums_where_lookups_would_refuse_them(change):
    change = dict(change)
    features = cases.features(weights=change.pop("weights", False))
    if change.pop("sequence", False):
        features = [
            dataclasses.replace(f, combiner=None, max_length=40) if f.name == "history" else f
            for f in features
        ]
    assert words(placed(features, **change))["history"] == "distributed"


@pytest.mark.parametrize(
    "options, placement",
    [
        ({}, "columns:sums"),
        ({"max_norm": 1.0}, "distributed:sums"),
        ({"dim": 66}, "distributed:sums"),
        ({"num_rows": None}, "distributed:sums"),
        ({"dim": 32}, "distributed:sums"),  # of which columns would send 0.84 of the bytes
    ],
    ids=str,
)
def test_columns_are_spread_of_wide_tables_whose_lookups_allow_it(options, placement):
    # Given a table of 40 ids a sample
    table = ge.TableConfig("history", **{"num_rows": 200_000, "dim": 64, **options})
    # When it is placed over four ranks
    found = placed([ge.FeatureConfig("history", table, "sum")])
    # Then by columns, where these divide among the ranks and send fewer bytes
    assert words(found) == {"history": placement}


@pytest.mark.parametrize(
    "change, placement",
    [
        ({}, "distributed:two_levels"),
        ({"num_rows": None}, "distributed:two_levels"),
        ({"hosts": 1}, "distributed"),
        ({"ranks": 2}, "distributed"),
        ({"machine": "h100"}, "distributed"),
        ({"known": 100_000}, "distributed"),  # of which ranks of a host share few
    ],
    ids=str,
)
def test_rows_that_ranks_of_a_host_share_cross_once(capsys, change, placement):
    # Given a table of one id a sample, and ranks whose batches have most ids in common
    table = ge.TableConfig("users", change.get("num_rows", 200_000), 50)
    ids = np.random.default_rng(SEED).integers(0, change.get("known", 500), [8, 1024, 1])
    options = {name: change[name] for name in ("hosts", "ranks", "machine") if name in change}
    # When it is placed over eight ranks on two hosts
    found = ge.place_tables(
        [ge.FeatureConfig("users", table)],
        batches=[{"users": of_batch} for of_batch in ids],
        dry_run=True,
        **{"ranks": 8, "hosts": 2, **options},
    )
    # Then rows cross once a host, and the reason says how often they else would
    assert words(found) == {"users": placement}
    if placement != "distributed":
        unique = [len(np.unique(of_batches)) for of_batches in (ids[0], ids[:4])]
        (said,) = re.findall(r"ranks of a host ask ([0-9.]+) times", capsys.readouterr().out)
        assert float(said) == pytest.approx(4 * unique[0] / unique[1], rel=0.05)
        assert found.crossings == 3


def test_on_gpus_owners_send_sums_of_tables_without_keys():
    # Given the same tables, where ranks have a GPU each
    features = cases.features()
    adagrad, rowwise = tf.keras.optimizers.Adagrad(0.1), ge.optimizers.RowwiseAdagrad(0.1)
    # When they are placed for a rule of single numbers, and for one of whole rows
    found = [words(placed(features, machine="h200", optimizer=one)) for one in (adagrad, rowwise)]
    # Then samples of many ids have sums, and no owner sends columns of rows, shares rows of a host,
    # or sends sums of keys
    assert [of["history"] for of in found] == ["columns:sums", "distributed:sums"]
    for of in found:
        keyed = {f.table.name for f in features if f.table.num_rows is None}
        assert keyed and {of[name] for name in keyed} == {"distributed"}
        assert not {"columns", "distributed:two_levels"} & {*of.values()}


def test_optimizers_of_whole_rows_keep_rows_whole():
    optimizers = [tf.keras.optimizers.Adagrad(0.1), ge.optimizers.RowwiseAdagrad(0.1)]
    found = [words(placed(cases.features(), optimizer=one))["history"] for one in optimizers]

    assert found == ["columns:sums", "distributed:sums"]


@pytest.mark.parametrize("ranks, placement", [(2, "distributed"), (4, "columns")])
def test_columns_load_ranks_alike_where_one_owner_would_send_most(ranks, placement):
    # Given a wide table of which ids are multiples of four, so that rank 0 has all rows
    table = ge.TableConfig("shops", 10_000, 256)
    ids = 4 * np.random.default_rng(SEED).integers(0, 2500, [256, 1])
    # When it is placed: of two ranks one sends rows, and the other as many gradients
    found = ge.place_tables(
        [ge.FeatureConfig("shops", table)],
        batches=[{"shops": ids}],
        ranks=ranks,
        whole_bytes=0,
        dry_run=True,
    )
    # Then over four ranks by columns, which all send as much
    assert words(found) == {"shops": placement}
    if placement == "columns":
        assert "of the bytes of the busiest owner of rows" in found.tables["shops"].reason


def test_columns_that_a_config_spreads_have_to_divide_among_ranks():
    table = ge.TableConfig("shops", 10_000, 30, placement="columns")
    with pytest.raises(ValueError, match="table 'shops': expected a dim that 4 ranks divide.*30"):
        placed([ge.FeatureConfig("hot", table)])


@pytest.mark.parametrize(
    "num_rows, placement, message",
    [
        (None, "columns", "as its rows are found by key"),
        (None, "columns:sums", "as its rows are found by key"),
        (None, "replicated", "as its rows are found by key"),
        (10_000, "localized:4", "a rank below 4, got 'localized:4'"),
    ],
)
def test_placements_that_a_table_cannot_have_are_refused_as_where_it_is_made(
    num_rows, placement, message
):
    # Given a config with a placement that four ranks refuse when they make the table
    table = ge.TableConfig("shops", num_rows, 32, placement=placement)
    is_keyed = num_rows is None
    with pytest.raises(ValueError) as when_made:
        to_placement("table 'shops'", placement, 4, keyed=is_keyed)
    # When it is planned, Then the planner says the same
    with pytest.raises(ValueError, match=f"table 'shops': .*{message}") as planned:
        placed([ge.FeatureConfig("hot", table)])
    assert str(planned.value) == str(when_made.value)
    # And one rank has each table whole, whatever its config says
    found = placed([ge.FeatureConfig("hot", table)], ranks=1, hosts=1)
    assert found.tables["shops"].placement == placement


def test_a_job_that_sees_a_gpu_has_no_sums(monkeypatch):
    # Given a process that sees a GPU, or none
    from group_embedding.planning.table_placements import _are_tables_in_host_memory

    for gpus in ([], ["GPU:0"]):
        monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind, gpus=gpus: gpus)
        # When it asks whether owners may send sums, Then they may where tables are in host memory
        assert _are_tables_in_host_memory() == (not gpus)


def test_a_frozen_table_is_whole_where_memory_allows_it():
    # Given a frozen table, which sends nothing once each rank has it
    table = ge.TableConfig("frozen", 5000, 32, trainable=False)
    features = [ge.FeatureConfig("frozen", table)]
    # When it may take a megabyte of each rank, or not
    large, small = (placed(features, whole_bytes=size) for size in (1 << 20, 1 << 19))
    # Then it is whole and nothing is sent, or its rows are
    assert (words(large), large.crossings) == ({"frozen": "replicated"}, 0)
    assert large.tables["frozen"].sent_bytes == 0
    assert (words(small), small.crossings) == ({"frozen": "distributed"}, 2)


def test_a_slower_link_and_more_hosts_take_longer():
    times = [
        placed(cases.features(), network=network, **job).step.total
        for network, job in [
            (ge.simulate.Network(gb_s=1.25, round_trip_ms=1), {"ranks": 2, "hosts": 1}),
            (ge.simulate.Network(gb_s=1.25, round_trip_ms=1), {"ranks": 2, "hosts": 2}),
            (ge.simulate.Network(gb_s=1.25, round_trip_ms=40), {"ranks": 2, "hosts": 2}),
            (ge.simulate.Network(gb_s=0.125, round_trip_ms=40), {"ranks": 2, "hosts": 2}),
        ]
    ]
    assert times == sorted(times) and len(set(times)) == 4
    # Three ways of a link of 40 ms there and back are 60 ms.
    assert times[2] - times[1] == pytest.approx(1.5 * 39)


def test_one_process_has_all_rows(capsys):
    found = ge.place_tables(cases.features(), batches=cases.batches(cases.features(), SEED))

    assert set(words(found).values()) == {"distributed", "localized:1"}
    assert found.crossings == 0 and "over 1 rank on 1 host" in capsys.readouterr().out


@pytest.mark.parametrize(
    "options, message",
    [
        ({"ranks": 2, "dry_run": False}, "ranks: expected none without dry_run=True"),
        ({"hosts": 2, "dry_run": False}, "hosts: expected none without dry_run=True"),
        ({"ranks": 0}, "expected ranks to be an int of at least 1, got 0"),
        ({"ranks": 2.5}, "expected ranks to be an int of at least 1, got 2.5"),
        ({"ranks": 4, "hosts": "2"}, "expected hosts to be an int of at least 1, got '2'"),
        ({"ranks": 2, "hosts": 3}, "hosts: expected at most one for each of 2 ranks, got 3"),
        ({"machine": "a100"}, "machine: expected one of cpu, h100, h200, got 'a100'"),
        ({"network": 5}, "network: expected a ge.simulate.Network or None, got 5"),
        ({"cores": 0}, "ge.place_tables: expected cores to be an int of at least 1, got 0"),
        ({"whole_bytes": -1}, "expected whole_bytes to be 0 or more, got -1"),
        ({"whole_bytes": "16 KiB"}, "expected whole_bytes to be a finite number, got '16 KiB'"),
    ],
)
def test_what_is_wrong_is_named(options, message):
    features = cases.features()
    with pytest.raises(ValueError, match=message):
        ge.place_tables(
            features, batches=cases.batches(features, SEED), **{"dry_run": True, **options}
        )
