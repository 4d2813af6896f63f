"""`ge.plan` against tables that are made and trained."""

import numpy as np
import pytest
import tensorflow as tf

import group_embedding as ge
from group_embedding.keras_compat import keras

SEED = 11
OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.1),
    "adagrad": lambda: keras.optimizers.Adagrad(0.1),
    "adam": lambda: ge.optimizers.wrap(keras.optimizers.Adam(0.1)),
    "ftrl": lambda: keras.optimizers.Ftrl(0.1),
    "rowwise adam": lambda: ge.optimizers.RowwiseAdam(0.1),
}
TABLES = {  # {name: (dim, dtype, options)}
    "users": (8, "float32", {}),
    "items": (64, "float32", {"evict_after_minutes": 60}),
    "words": (16, "bfloat16", {"max_keys": 10**6, "budget_of": "rank", "safe_steps": 3}),
}


def feature(name, dim=16, num_rows=None, dtype=None, placement=None, **options):
    option = None if num_rows is not None else ge.KeyedOptions(**options)
    table = ge.TableConfig(name, num_rows, dim, dtype=dtype, ev_option=option, placement=placement)
    return ge.FeatureConfig(name, table)


def train(tables, keys, optimizer):
    optimizer = optimizer if hasattr(optimizer, "_ge_settings") else ge.optimizers.wrap(optimizer)
    with tf.GradientTape() as tape:
        rows = ge.lookup(tables, [tf.constant(keys)] * len(tables))
        loss = tf.add_n([tf.reduce_sum(tf.cast(of, tf.float32)) for of in rows])
    optimizer.apply_gradients(zip(tape.gradient(loss, tables), tables))


@pytest.mark.parametrize("num_keys", [20_000, 90_000])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_bytes_of_tables_of_keys(name, num_keys):
    # Given tables of several dims, types and options, trained by an optimizer
    tables = [
        ge.keyed_table(table, dim, dtype=dtype, **options)
        for table, (dim, dtype, options) in TABLES.items()
    ]
    keys = np.random.default_rng(SEED).choice(2**62, num_keys, replace=False)
    train(tables, keys, OPTIMIZERS[name]())
    measured = ge.statistics(tables).tables

    # When they are planned from ten of their keys
    features = [feature(t, dim, dtype=dtype, **o) for t, (dim, dtype, o) in TABLES.items()]
    found = ge.plan(
        features,
        batches=[dict.fromkeys(TABLES, keys[:10])],
        keys=dict.fromkeys(TABLES, num_keys),
        optimizer=OPTIMIZERS[name](),
    )

    # Then bytes are near those that were measured
    for table, planned in found.tables.items():
        (of_rank,) = planned.bytes_by_rank
        assert planned.keys == num_keys and list(of_rank) == ["dram"]
        assert of_rank["dram"] == pytest.approx(measured[table].memory_bytes, rel=0.05), table
        assert planned.hit_rates == {"dram": 1}
    assert found.step is None


@pytest.mark.gpu
@pytest.mark.parametrize("tiers", [["hbm"], ["hbm", "dram"]], ids="+".join)
def test_bytes_of_tables_in_gpu_memory(tiers):
    # Given a table most of whose rows are below GPU memory, if it has a tier there
    options = {"tiers": tiers, **({"tier_bytes": [40 << 20]} if len(tiers) > 1 else {})}
    table = ge.keyed_table("users", 32, **options)
    keys = np.random.default_rng(SEED).choice(2**62, 400_000, replace=False)
    for part in np.array_split(keys, 8):
        train([table], part, OPTIMIZERS["adagrad"]())
    measured = ge.statistics([table]).tables["users"].bytes_by_tier
    # When it is planned
    found = ge.plan(
        [feature("users", 32, **options)],
        batches=[{"users": keys[:10]}],
        keys={"users": len(keys)},
        optimizer=OPTIMIZERS["adagrad"](),
        hbm=1 << 30,
    )
    # Then its bytes are near those that were measured, in each memory
    (of_rank,) = found.tables["users"].bytes_by_rank
    assert of_rank == {tier: pytest.approx(measured[tier], rel=0.15) for tier in tiers}


def test_bytes_of_a_table_with_slots_in_bfloat16():
    # Given a table of small slots, without and with a budget of bytes
    keys = np.random.default_rng(SEED).choice(2**62, 20_000, replace=False)
    for options in ({}, {"max_bytes": 64 << 20, "budget_of": "rank"}):
        options = {"slot_dtype": "bfloat16", **options}
        table = ge.keyed_table("users", 32, **options)
        train([table], keys, OPTIMIZERS["adam"]())
        # When it is planned
        found = ge.plan(
            [feature("users", 32, **options)],
            batches=[{"users": keys[:10]}],
            keys={"users": len(keys)},
            optimizer=OPTIMIZERS["adam"](),
        )
        # Then its bytes are near those that were measured, and a budget holds as many keys
        (of_rank,) = found.tables["users"].bytes_by_rank
        assert of_rank["dram"] == pytest.approx(int(table.memory_bytes()), rel=0.15)
        if "max_bytes" in options:
            wide = ge.keyed_table("wide", 32, **options | {"slot_dtype": None})
            train([wide], keys, OPTIMIZERS["adam"]())
            assert int(table.budget_counts().max_keys) > 1.3 * int(wide.budget_counts().max_keys)


def test_bytes_of_a_table_by_row_number_with_slots_in_bfloat16():
    # Given two tables that differ in the type of their slots
    types = {"wide": None, "small": "bfloat16"}
    tables = [ge.TableConfig(name, 100, 8, slot_dtype=of) for name, of in types.items()]
    # When they are planned with an optimizer of one slot
    batch = {table.name: np.arange(10)[:, None] for table in tables}
    features = [ge.FeatureConfig(table.name, table) for table in tables]
    found = ge.plan(features, batches=[batch], optimizer=keras.optimizers.Adagrad(0.1)).tables
    # Then slots take 4 bytes a number, and 2
    assert found["wide"].bytes_of_key == pytest.approx(8 * (4 + 4), rel=0.01)
    assert found["small"].bytes_of_key == pytest.approx(8 * (4 + 2), rel=0.01)


def test_a_frozen_table_beside_a_trained_one_of_its_shape_has_no_slots():
    # Given two tables that differ in whether they are trained
    tables = [
        ge.TableConfig(name, 100, 8, trainable=name == "trained") for name in ("trained", "frozen")
    ]
    features = [ge.FeatureConfig(table.name, table) for table in tables]
    # When they are planned with an optimizer of one slot
    batch = {table.name: np.arange(10)[:, None] for table in tables}
    found = ge.plan(features, batches=[batch], optimizer=keras.optimizers.Adagrad(0.1)).tables
    # Then the frozen one has its rows alone
    assert found["frozen"].bytes_of_key == 8 * 4
    assert found["trained"].bytes_of_key == pytest.approx(2 * 8 * 4, rel=0.01)


def test_bytes_of_a_model_and_its_variables():
    # Given a compiled model with a table of rows and one of keys
    layer = ge.layers.GroupEmbedding(
        [feature("country", 8, num_rows=5000), feature("user", 8)], concat=True
    )
    inputs = {n: keras.Input((1,), dtype="int64", name=n) for n in ("country", "user")}
    model = keras.Model(inputs, keras.layers.Dense(1)(layer(inputs)))
    model.compile(ge.optimizers.wrap(keras.optimizers.Adam(0.1)), "mse")
    keys = np.arange(30_000)[:, None]
    batch = {"country": keys % 5000, "user": keys * 7919}
    # When it is planned, and then trained
    found = ge.plan(model, batches=[(batch, np.zeros(30_000))])
    model.fit(batch, np.zeros(30_000), batch_size=10_000, verbose=0)
    # Then the table of rows has its row and two slots, and that of keys what it takes
    (planned,) = found.tables["country"].bytes_by_rank
    assert planned == {"dram": pytest.approx(5000 * 3 * 8 * 4, rel=0.01)}
    (measured,) = ge.statistics(model).tables.values()
    (planned,) = found.tables["user"].bytes_by_rank
    assert planned["dram"] == pytest.approx(measured.memory_bytes, rel=0.15)


def test_ranks_and_placements():
    features = [
        feature("spread", num_rows=9000),
        feature("whole", num_rows=9000, placement="localized:1"),
        feature("copied", num_rows=9000, placement="replicated"),
    ]
    found = ge.plan(features, batches=[{f.name: np.arange(8) for f in features}], ranks=3)
    size = 9000 * 16 * 4
    by_table = {n: [t["dram"] for t in p.bytes_by_rank] for n, p in found.tables.items()}
    assert by_table == {
        "spread": [size / 3] * 3, "whole": [0, size, 0], "copied": [size] * 3,
    }  # fmt: skip
    assert found.bytes_by_rank == [
        {"dram": size * 4 / 3},
        {"dram": size * 7 / 3},
        {"dram": size * 4 / 3},
    ]


def zipf(random, count, num_keys=20_000, exponent=1.05):
    weights = np.arange(1, num_keys + 1) ** -exponent
    return np.searchsorted(np.cumsum(weights) / weights.sum(), random.random(count))


def test_keys_that_a_longer_training_meets():
    random = np.random.default_rng(SEED)
    trained = zipf(random, 400_000, num_keys=2_000_000)
    batches = [{"user": ids} for ids in trained[:40_000].reshape(10, -1, 4)]
    found = ge.plan([feature("user")], batches=batches, samples=100_000)
    assert found.tables["user"].keys == pytest.approx(len(np.unique(trained)), rel=0.3)
    limited = feature("user", max_keys=500, budget_of="rank")
    found = ge.plan([limited], batches=batches, samples=100_000, ranks=2)
    assert found.tables["user"].keys == 1000
    assert 0.3 < found.tables["user"].hit_rates["dram"] < 0.9


@pytest.mark.parametrize("tiers", [["dram"], ["dram", "disk"]], ids="+".join)
@pytest.mark.parametrize("budget_of, ranks", [("rank", 2), ("all", 4)])
def test_a_budget_of_bytes_limits_keys(budget_of, ranks, tiers, tmp_path):
    # Given a table with a budget of bytes
    options = {"max_bytes": 256 << 20, "budget_of": budget_of, "hand_out": "keys", "tiers": tiers}
    if "disk" in tiers:
        options |= {"tier_bytes": [8 << 20], "disk_folder": str(tmp_path)}
    of_rank = (256 << 20) // (ranks if budget_of == "all" else 1)
    table = ge.keyed_table("user", 16, **{**options, "max_bytes": of_rank, "budget_of": "rank"})
    train([table], np.arange(10), keras.optimizers.Adagrad(0.1))
    # When one is planned for more keys than that
    found = ge.plan(
        [feature("user", **options)],
        batches=[{"user": [1, 2]}],
        keys={"user": 10**8},
        optimizer=keras.optimizers.Adagrad(0.1),
        ranks=ranks,
    )
    # Then each rank has as many as the budget allows, in fewer bytes
    planned = found.tables["user"]
    assert planned.keys == ranks * int(table.budget_counts().max_keys)
    assert all(0.2 * of_rank < sum(of.values()) <= of_rank for of in planned.bytes_by_rank)
    assert all(list(of) == tiers for of in planned.bytes_by_rank)


def test_hit_rates_of_rows_on_disk(tmp_path):
    # Given a table that has a fifth of its rows in memory, trained by skewed ids
    random = np.random.default_rng(SEED)
    row_bytes = 4 * 4 + 32
    options = {"tiers": ["dram", "disk"], "tier_bytes": [1000 * row_bytes]}
    table = ge.keyed_table("user", 4, disk_folder=str(tmp_path), **options)
    batches = [zipf(random, 500, num_keys=5000) for _ in range(80)]
    for batch in batches[:60]:
        train([table], batch, keras.optimizers.SGD(0.1))
    before = ge.statistics([table]).tables["user"]
    for batch in batches[60:]:
        train([table], batch, keras.optimizers.SGD(0.1))
    after = ge.statistics([table]).tables["user"]
    # When it is planned by a sample of ids
    planned = ge.plan(
        [feature("user", 4, disk_folder=str(tmp_path), **options)],
        batches=[{"user": batch[:, None]} for batch in batches[:40]],
        keys={"user": after.keys},
    ).tables["user"]
    # Then as many ids find their row in memory as expected
    measured = after.hit_rates(before)
    assert planned.hit_rates["dram"] == pytest.approx(measured["dram"], abs=0.08)
    assert sum(planned.hit_rates.values()) == pytest.approx(1)


def test_gpu_memory_is_shared_by_tables():
    features = [
        feature("country", num_rows=1000),
        feature("user", tiers=["hbm", "dram"]),
        feature("item", tiers=["hbm", "dram"], tier_bytes=[40_000]),
        feature("hot", tiers=["hbm"]),
    ]
    batches = [{f.name: np.arange(100) for f in features}]
    keys = {"user": 100_000, "item": 5000, "hot": 100}
    found = ge.plan(features, batches=batches, keys=keys, hbm=5_000_000, ranks=2)
    for of_rank in found.bytes_by_rank:
        # with a few bytes for each of the rows that are in host memory
        assert 4_900_000 < of_rank["hbm"] <= 5_000_000 and of_rank["dram"] > 3_000_000
    tables = found.tables
    assert list(tables["country"].bytes_by_rank[0]) == ["hbm"] == list(tables["hot"].hit_rates)
    assert 0 < tables["user"].hit_rates["hbm"] < 1
    assert found.step.total > 0


def test_a_plan_is_printed_and_drawn(tmp_path):
    features = [feature("user", tiers=["hbm", "dram"]), feature("country", num_rows=10**6)]
    batches = [{"user": np.arange(100), "country": np.arange(100)}]
    found = ge.plan(features, batches=batches, keys={"user": 10**7}, hbm=1 << 28)
    lines = str(found).splitlines()
    assert lines[0].split()[:2] == ["table", "keys"] and lines[1].startswith("user   ")
    assert "10,000,000" in lines[1] and any(line.startswith("step of") for line in lines)
    assert lines[-1].endswith("; beside them program 1.46)")
    found.draw(str(tmp_path / "plan.png"))
    assert (tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG")


def test_a_plan_says_which_ranks_do_not_fit():
    # Given a large table on one of three ranks, and a small one on all
    features = [feature("large", num_rows=10**6, placement="localized:1"), feature("small", 16, 99)]
    batches = [{f.name: np.arange(9) for f in features}]
    # When they are planned with too little GPU memory, with enough, and with none
    few, many, none = (
        str(ge.plan(features, batches=batches, ranks=3, hbm=of)) for of in (1 << 20, 1 << 30, None)
    )
    # Then that rank alone is named
    assert "rank 1 does not fit: its tables take 64.0 MB of GPU memory, of which it has 1.0" in few
    assert few.count("does not fit") == 1 and "does not fit" not in many + none


BATCHES = [{"user": [1, 2]}]


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"batches": []}, "expected at least one batch"),
        ({"batches": None}, "batches: expected several, .* got NoneType"),
        ({"batches": BATCHES[0]}, "batches: expected several, .* got dict"),
        ({"batches": [{"usr": [1, 2]}]}, r"ids of feature 'user', got \['usr'\]"),
        ({"keys": {"usr": 5}}, "keyed tables, got 'usr'.*user"),
        ({"keys": {"user": -5}}, "keys: expected 'user' to be an int of at least 1, got -5"),
        ({"keys": {"user": 0}}, "keys: expected 'user' to be an int of at least 1, got 0"),
        ({"keys": {"user": "9"}}, "keys: expected 'user' to be an int of at least 1, got '9'"),
        ({"keys": ["user"]}, r"keys: expected a dict of numbers by keyed table, got \['user'\]"),
        ({"ranks": 0}, "expected ranks to be an int of at least 1, got 0"),
        ({"ranks": 2.5}, "expected ranks to be an int of at least 1, got 2.5"),
        ({"ranks": "4"}, "expected ranks to be an int of at least 1, got '4'"),
        ({"samples": 0}, "expected samples to be an int of at least 1, got 0"),
        ({"samples": "x"}, "expected samples to be an int of at least 1, got 'x'"),
        ({"hbm": 0}, "expected hbm to be an int of at least 1, got 0"),
        ({"hbm": "4GB"}, "expected hbm to be an int of at least 1, got '4GB'"),
        ({"network": 5}, "network: expected a ge.simulate.Network or None, got 5"),
        ({"network": ge.simulate.Network, "hbm": 9}, "network: expected a .* or None, got <class"),
        ({"machine": "a100"}, "machine: expected one of h100"),
        ({"through": "x"}, "through: expected one of peer_memory, nccl, got 'x'"),
        ({"ranks_of_host": 0}, "expected ranks_of_host to be an int of at least 1, got 0"),
        ({"dense_ms": -1}, "expected dense_ms to be 0 or more, got -1"),
        ({"program_ms": float("nan")}, "expected program_ms to be a finite number, got nan"),
        ({"dtype": "float64"}, "expected dtype to be one of 'float32', .* got 'float64'"),
        ({"dtype": "float77"}, "expected dtype to be one of 'float32', .* got 'float77'"),
        ({"optimizer": "adagrad"}, "optimizer: expected an optimizer of Keras.* got 'adagrad'"),
        ({"optimizer": keras.optimizers.Adagrad}, "optimizer: expected an optimizer of Keras"),
        ({"optimizer": tf.compat.v1.train.AdagradOptimizer(0.1)}, "optimizer: expected an opt"),
    ],
)
def test_arguments_that_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        ge.plan([feature("user")], **{"batches": BATCHES, **arguments})


@pytest.mark.parametrize("tiers", [["hbm"], ["hbm", "dram"], ["hbm", "dram", "disk"]], ids="+".join)
def test_tables_in_gpu_memory_need_some(tiers):
    with pytest.raises(ValueError, match="table 'user': expected hbm=.*, as its tiers are .'hbm'"):
        ge.plan([feature("user", tiers=tiers)], batches=BATCHES)


@pytest.mark.parametrize(
    "model",
    [
        [],
        keras.layers.Dense(1),
        "user",
        ["user"],
        [ge.TableConfig("user", None, 4)],
        feature("user"),
    ],
    ids=lambda model: type(model).__name__,
)
def test_a_model_without_features_is_refused(model):
    with pytest.raises(ValueError, match="expected a (model with a GroupEmb|list of FeatureConf)"):
        ge.plan(model, batches=BATCHES)
