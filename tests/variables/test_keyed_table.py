"""`keyed_table` makes by plain arguments what option objects make."""

import numpy as np
import pytest
import tensorflow as tf

import group_embedding as ge

OPTIONS = {
    "nothing": ({}, ge.EmbeddingVariableOption()),
    "rows": (
        {"num_initial_rows": None, "value_before_admission": 0.5},
        ge.EmbeddingVariableOption(
            init_option=ge.InitializerOption(
                default_value_dim=None, default_value_no_permission=0.5
            )
        ),
    ),
    "counters": (
        {"admit_after": 3},
        ge.EmbeddingVariableOption(filter_option=ge.CounterFilter(3)),
    ),
    "bloom": (
        {"admit_after": 3, "expected_keys": 1000, "early_share": 0.1, "counter_bits": 8},
        ge.EmbeddingVariableOption(filter_option=ge.CBFFilter(3, 1000, 0.1, tf.uint8)),
    ),
    "chance": (
        {"admit_probability": 0.25},
        ge.EmbeddingVariableOption(filter_option=ge.ProbabilityFilter(0.25)),
    ),
    "minutes": (
        {"evict_after_minutes": 90},
        ge.EmbeddingVariableOption(evict_option=ge.TimeEvict(90)),
    ),
    "steps": (
        {"evict_after_steps": 7},
        ge.EmbeddingVariableOption(evict_option=ge.GlobalStepEvict(7)),
    ),
    "norm": (
        {"evict_below_norm": 2.0},
        ge.EmbeddingVariableOption(evict_option=ge.L2WeightEvict(2.0)),
    ),
    "tiers": (
        {
            "tiers": ["dram", "disk"],
            "tier_bytes": [4096],
            "disk_folder": "/tmp",
            "keep": "last_used",
        },
        ge.EmbeddingVariableOption(
            storage_option=ge.StorageOption(
                ge.StorageType.DRAM_SSDHASH, "/tmp", [4096], ge.CacheStrategy.LRU
            )
        ),
    ),
    "start": (
        {"start_from": "runs/ckpt-1", "start_from_name": "old", "start_again": True},
        ge.EmbeddingVariableOption(ckpt=ge.CheckpointOption("runs/ckpt-1", "old", True)),
    ),
}


@pytest.mark.parametrize("case", OPTIONS)
def test_nested_options_stand_for_plain_ones(case):
    plain, nested = OPTIONS[case]

    assert nested.to_keyed_options() == ge.variables.KeyedOptions(**plain)


@pytest.mark.parametrize(
    "tiers, storage",
    [
        (["dram"], "DRAM"),
        (["hbm"], "HBM"),
        (("hbm", "dram"), "HBM_DRAM"),
        (["dram", "disk"], "DRAM_SSDHASH"),
        (["hbm", "dram", "disk"], "HBM_DRAM_SSDHASH"),
    ],
)
def test_tiers_are_a_storage(tiers, storage):
    option = ge.StorageOption(ge.StorageType[storage])

    nested = ge.EmbeddingVariableOption(storage_option=option)

    assert nested.to_keyed_options() == ge.variables.KeyedOptions(tiers=tiers)


def test_tables_train_as_they_say():
    # Given a table that admits keys at once, and one that waits for their second time
    ones = tf.ones_initializer()
    tables = [
        ge.keyed_table("users", dim=3, initializer=ones),
        ge.keyed_table("items", dim=2, initializer=ones, admit_after=2, dtype="float32"),
    ]
    optimizer = ge.optimizers.wrap(tf.keras.optimizers.SGD(1.0))
    ids = tf.ragged.constant([[-7, 2**40], [-7]], dtype=tf.int64)

    # When one step trains both on keys of which one comes twice
    with tf.GradientTape() as tape:
        vectors = ge.lookup_sparse(tables, [ids, ids], "sum")
        loss = sum(tf.reduce_sum(vector) for vector in vectors)
    optimizer.apply_gradients(zip(tape.gradient(loss, tables), tables))

    # Then the first has both keys, minus their gradients, and the second the one that it admits
    users, items = (table.export() for table in tables)
    rows = dict(zip(users.keys.numpy().tolist(), users.values.numpy()))
    np.testing.assert_array_equal(rows[-7], np.full(3, 1.0 - 2.0, np.float32))
    np.testing.assert_array_equal(rows[2**40], np.full(3, 1.0 - 1.0, np.float32))
    assert items.keys.numpy().tolist() == [-7]


def test_a_layer_takes_the_options():
    options = ge.variables.KeyedOptions(admit_after=3)
    table = ge.TableConfig("users", num_rows=None, dim=4, ev_option=options)
    layer = ge.layers.GroupEmbedding([ge.FeatureConfig("user", table, "sum")])

    assert layer({"user": tf.constant([[1], [2]])})["user"].shape == (2, 4)
    again = ge.layers.GroupEmbedding.from_config(layer.get_config())
    assert again.features[0].table.ev_option == options


@pytest.mark.parametrize(
    "arguments, error, message",
    [
        (
            {"tiers": ["disk"]},
            ValueError,
            "expected tiers to be \\['dram'\\] or .*got \\['disk'\\]",
        ),
        ({"tiers": "dram"}, ValueError, "got 'dram'"),
        ({"tiers": ["dram"], "tier_bytes": [1, 2]}, ValueError, "tier_bytes of 1 tiers"),
        ({"disk_folder": "/tmp"}, ValueError, "expected disk among tiers"),
        ({"keep": "newest"}, ValueError, "keep to be one of 'most_used'"),
        ({"admit_after": -1}, ValueError, "admit_after to be an int of at least 0"),
        ({"admit_after": 300, "expected_keys": 9, "counter_bits": 8}, ValueError, "hold admit_aft"),
        ({"expected_keys": 9}, ValueError, "admit_after or admit_probability, as expected_keys is"),
        ({"admit_after": 2, "early_share": 0.5}, ValueError, "expected_keys, as early_share is"),
        ({"admit_after": 2, "counter_bits": 8}, ValueError, "expected_keys, as counter_bits is"),
        ({"keep": "last_used"}, ValueError, "several tiers, as keep is given, got \\['dram'\\]"),
        ({"tier_bytes": 3}, ValueError, "tier_bytes to be a list, with the bytes .* got 3"),
        ({"tiers": 3}, ValueError, "expected tiers to be .*, got 3"),
        ({"max_keys": 5, "keep_share": 1e-9}, ValueError, "keep_share from 1e-6 to 1, got 1e-09"),
        ({"tier_bytes": [0]}, ValueError, "tier_bytes to be an int of at least 1, got 0"),
        ({"evict_after": 3}, TypeError, "evict_after"),
        ({"evict_below_norm": 0}, ValueError, "evict_below_norm to be a number above 0, got 0"),
        ({"start_from_name": "old"}, ValueError, "expected start_from"),
        ({"dim": 0}, ValueError, "embedding_dim from 1 to 4096"),
    ],
)
def test_a_bad_argument_is_refused_by_the_name_of_its_table(arguments, error, message):
    with pytest.raises(error, match=message) as raised:
        ge.keyed_table("users", **{"dim": 4, **arguments})
    assert str(raised.value).startswith("table 'users': ")


@pytest.mark.parametrize("name", ["clicks:v1", "clicks:0", ":", ""])
def test_a_name_that_tensorflow_would_cut_is_refused(name):
    # Given two such tables, which would be one to files and errors, When they are made
    for make in (ge.keyed_table, ge.get_embedding_variable):
        with pytest.raises(ValueError, match=f"table '{name}': expected a name .* without ':'"):
            make(name, 4)

    # Then a layer's table is refused, too
    if name:
        feature = ge.FeatureConfig("user", ge.TableConfig(name, None, 4))
        with pytest.raises(ValueError, match=f"table '{name}': expected a name .* without ':'"):
            ge.layers.GroupEmbedding([feature])({"user": tf.constant([[1]], tf.int64)})


@pytest.mark.parametrize(
    "arguments, message",
    [
        (
            {"max_keys": 2**63},
            "max_keys to be an int of at least 1 and at most 4611686018427387904",
        ),
        ({"max_keys": 2**62 + 1}, "max_keys .* at most 4611686018427387904, got 46116"),
        ({"max_bytes": 2**63}, "max_bytes .* at most 1152921504606846976, got 9223"),
        ({"max_keys": 9, "safe_steps": 2**63}, "safe_steps .* at least 0 and at most 46116"),
        (
            {"max_keys": 9, "evict": "decayed_frequency", "decay_steps": 2**63},
            "decay_steps .* 4611",
        ),
        ({"admit_after": 2**63}, "admit_after .* at least 0 and at most 46116"),
        ({"admit_after": 2, "expected_keys": 2**63}, "expected_keys .* most 4503599627370496, got"),
        (
            {"evict_after_steps": 2**63},
            "evict_after_steps .* at most 9223372036854775807, got 9223",
        ),
        ({"evict_after_minutes": 2**64}, "evict_after_minutes .* at most 9223372036854775807, got"),
        ({"num_initial_rows": 2**63}, "num_initial_rows .* at most 9223372036854775807, got 9223"),
        ({"tier_bytes": [2**63]}, "tier_bytes .* at most 1152921504606846976, got 9223"),
        ({"evict_below_norm": 1e-30}, "evict_below_norm from 2e-19 to 1e\\+19, .*got 1e-30"),
        ({"evict_below_norm": 1e200}, "evict_below_norm from 2e-19 to 1e\\+19, .*got 1e\\+200"),
        ({"value_before_admission": 1e39}, "value_before_admission .* below 3.40.*e\\+38, got 1e"),
        ({"value_before_admission": -(10**400)}, "value_before_admission .* above -3.40.*, got -1"),
        ({"value_before_admission": 2.0**128 - 2.0**101}, "value_before_admission from .*float32"),
        (
            {"value_before_admission": 1e6, "dtype": "float16"},
            "from -65504.* of float16 .*got 1000",
        ),
        ({"value_before_admission": -3.4e38, "dtype": "bfloat16"}, "rows of bfloat16 .*got -3.4e"),
    ],
    ids=str,
)
def test_a_number_that_ops_and_rows_do_not_have(arguments, message):
    # Given options of a table, one of them beyond the numbers that there are
    budget = {"budget_of": "rank"} if arguments.keys() & {"max_keys", "max_bytes"} else {}
    # When the table is made
    with pytest.raises(ValueError, match=message) as raised:
        ge.keyed_table("users", **{"dim": 4, **budget, **arguments})
    # Then the error names the table, too
    assert str(raised.value).startswith("table 'users': ")


def test_the_last_numbers_that_ops_and_rows_have():
    # Given tables whose numbers are the largest ones, and limits of norms that are the outermost
    most = {"evict_after_steps": 2**63 - 1, "evict_after_minutes": 2**63 - 1, "admit_after": 2**62}
    budget = {"max_keys": 2**62, "budget_of": "rank", "safe_steps": 2**62}
    largest = ge.keyed_table("users", 2, evict="decayed_frequency", decay_steps=2**62, **budget)
    halves = ge.keyed_table("items", 2, dtype="float16", value_before_admission=65504, **most)
    low, high = (ge.keyed_table("shops", 2, evict_below_norm=norm) for norm in (2e-19, 1e19))
    # When they get keys, and those of small rows are evicted
    rows = np.array([[0, 0], [1e-19, 1e-19], [1, 1], [0, 9e18], [0, 3e38]], np.float32)
    for table in (largest, halves, low, high):
        table.step = 9
        table.insert(range(5), np.minimum(rows, 1) if table is halves else rows, versions=[3] * 5)
        table.evict()
    # Then those are gone, and no others, and a key that is not admitted reads the finite number
    kept = [t.export().keys.numpy().tolist() for t in (largest, halves, low, high)]
    assert kept == [[0, 1, 2, 3, 4], [0, 1, 2, 3, 4], [2, 3, 4], [4]]
    assert ge.lookup([halves], [tf.constant([7], tf.int64)])[0].numpy().tolist() == [[65504] * 2]
