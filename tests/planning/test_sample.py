"""The ids that plans and placements are made of, read from batches."""

import numpy as np
import pytest
import tensorflow as tf

import group_embedding as ge
from group_embedding.keras_compat import keras
from group_embedding.planning.sample import read_sample

SEED = 12


def skewed(random, shape, most=10**7):
    return np.minimum(random.zipf(1.1, shape), most)


def test_an_input_that_several_tables_look_up_counts_once():
    # Given a wide and a deep table of one feature, and two features of the deep one
    random = np.random.default_rng(SEED)
    deep, wide = ge.TableConfig("deep", None, 16), ge.TableConfig("wide", None, 1)
    batches = [{"user": skewed(random, [512, 1])} for _ in range(20)]
    alone = ge.FeatureConfig("user", deep)
    beside = [
        [alone, ge.FeatureConfig("user", wide)],
        [alone, ge.FeatureConfig("user", deep, "sum"), ge.FeatureConfig("user", wide)],
    ]
    inputs = {"user": keras.Input((1,), dtype="int64", name="user")}
    layers = [
        ge.layers.GroupEmbedding([ge.FeatureConfig("user", table)], concat=True)
        for table in (deep, wide)
    ]
    vectors = keras.layers.Concatenate()([layer(inputs) for layer in layers])
    model = keras.Model(inputs, keras.layers.Dense(1)(vectors))

    # When they are planned for a longer training, as a list, and as a model
    expected = ge.plan([alone], batches=batches, samples=10**8).tables["deep"].keys
    found = [ge.plan(of, batches=batches, samples=10**8).tables for of in (*beside, model)]

    # Then each table has as many keys as by itself
    assert expected > 10**6
    assert [{t.keys for t in of.values()} for of in found] == [{expected}] * 3


def test_ids_of_a_shared_table_are_in_the_order_of_time():
    # Given a table below memory that two features share, whose ids differ
    random = np.random.default_rng(SEED)
    options = {"tiers": ["dram", "disk"], "tier_bytes": [400 * 64]}

    def items():
        return ge.TableConfig("items", None, 8, ev_option=ge.KeyedOptions(**options))

    batches = [
        {"a": skewed(random, [128, 1], 5000), "b": 10_000 + skewed(random, [128, 1], 5000)}
        for _ in range(40)
    ]
    shared = items()

    # When it is planned, and one that has all ids by one feature
    found = ge.plan([ge.FeatureConfig(name, shared) for name in "ab"], batches=batches)
    mixed = [{"ab": np.concatenate([b["a"], b["b"]])} for b in batches]
    expected = ge.plan([ge.FeatureConfig("ab", items())], batches=mixed)

    # Then as many ids find their row in memory
    assert expected.tables["items"].hit_rates["dram"] > 0.3
    assert found.tables["items"].hit_rates == expected.tables["items"].hit_rates


@pytest.mark.parametrize("form", ["dense", "ragged", "sparse"])
@pytest.mark.parametrize("keep", ["first", "last"])
def test_sequences_have_the_ids_that_their_layer_looks_up(form, keep):
    # Given ids in which negative ones stand, which tables by number leave out
    ids = np.array([[7, -1, 8, 9], [-1, 3, -1, -1], [4, 5, 6, 2], [-1, -1, -1, -1]])
    as_form = {
        "dense": tf.constant,
        "ragged": tf.RaggedTensor.from_tensor,
        "sparse": tf.sparse.from_dense,
    }
    batches = [{"clicks": as_form[form](ids)}] * 2
    tables = [
        ge.TableConfig("by_number", 100, 4),
        ge.TableConfig("by_key", None, 4),
    ]
    features = [ge.FeatureConfig("clicks", t, max_length=2, keep=keep) for t in tables]

    # When a sample is read
    sample = read_sample(batches, features)

    # Then it has those of each sample that are among the first or last two
    expected = {
        "first": ([7, 8, 3, 4, 5], [7, -1, -1, 3, 4, 5, -1, -1]),
        "last": ([8, 9, 3, 6, 2], [8, 9, -1, -1, 6, 2, -1, -1]),
    }[keep]
    for feature, of_batch in zip(features, expected):
        assert sample.of_feature(feature).tolist() == of_batch * 2
    assert (sample.num_samples, sample.batch_size) == (8, 4)


def test_a_table_that_sequences_and_sums_share_has_the_ids_of_both():
    # Given a table that one layer looks up by two ids of a sample, another by all
    table = ge.TableConfig("items", None, 4)
    cut = ge.FeatureConfig("clicks", table, max_length=2)
    whole = ge.FeatureConfig("clicks", table)
    batches = [{"clicks": np.arange(40).reshape(4, 10)}]

    # When features are planned, by themselves and together
    found = [
        ge.plan(of, batches=batches).tables["items"].keys for of in ([cut], [whole], [cut, whole])
    ]

    # Then it has the keys of either
    assert found == [8, 40, 40]


@pytest.mark.parametrize("make", [ge.plan, ge.place_tables])
def test_features_of_different_sizes_are_refused(make):
    # Given a batch of 4 samples of one feature, and of 3 of another
    features = [ge.FeatureConfig(n, ge.TableConfig(n, None, 4)) for n in ("user", "item")]
    batches = [{"user": np.arange(4), "item": np.arange(4)}]
    batches.append({"user": np.arange(4), "item": np.arange(3)})
    # When it is planned, Then both features are named
    with pytest.raises(ValueError, match="got 4 of 'user' and 3 of 'item'"):
        make(features, batches=batches)


@pytest.mark.parametrize(
    "ids, message",
    [
        (np.array([1.5, 2.5]), "expected integer ids of feature 'user', got float64"),
        (np.array([np.nan, 2]), "expected integer ids of feature 'user', got float64"),
        (np.array(["a", "b"]), "expected integer ids of feature 'user', got strings"),
        (tf.constant(["a", "b"]), "expected integer ids of feature 'user', got strings"),
        (tf.ragged.constant([["a"], ["b"]]), "expected integer ids of feature 'user', got str"),
        ([[1], [2, 3]], "samples of one length of feature 'user', or a RaggedTensor, got a list"),
        (3, r"expected ids \[samples\] or \[samples, ids\] of feature 'user', got 3"),
        ([7], "expected at least 2 ids of feature 'user', got 1; give batches that have some"),
        (np.zeros([0, 2], int), "expected at least 2 ids of feature 'user', got 0"),
        ([[-1, -1], [3, -1]], "expected at least 2 ids of feature 'user', got 1"),
        ([900, 3], "ids of feature 'user' below the 50 rows of table 'users', got 900"),
    ],
    ids=str,
)
@pytest.mark.parametrize("make", [ge.plan, ge.place_tables])
def test_what_is_no_id_is_refused(make, ids, message):
    # Given a feature of a table of 50 rows
    features = [ge.FeatureConfig("user", ge.TableConfig("users", 50, 4))]
    # When something else than its ids is planned, Then the feature is named
    with pytest.raises(ValueError, match=message):
        make(features, batches=[{"user": ids}])


def test_a_layer_that_leaves_out_invalid_ids_is_planned_without_them():
    # Given ids past the end of their table, and weights
    ids = np.array([[1, 900], [2, 3], [77, 4]])
    table = ge.TableConfig("users", 50, 4)
    feature = ge.FeatureConfig("user", table)
    layer = ge.layers.GroupEmbedding([feature], invalid_ids="ignore")
    batches = [{"user": (ids, np.ones_like(ids, np.float32))}]
    # When the layer is planned, Then it is; and a sample has the others
    assert ge.plan(layer, batches=batches).tables["users"].keys == 50
    sample = read_sample(batches, [feature], leaves_out_invalid=True)
    assert sample.of_feature(feature).tolist() == [1, 2, 3, 4]
    assert sample.of_table("users", [feature]).tolist() == [1, 2, 3, 4]
