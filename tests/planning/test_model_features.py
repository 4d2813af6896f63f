"""The features of a model and their tables, as plans and placements read them."""

import numpy as np
import pytest

import group_embedding as ge
from group_embedding.keras_compat import keras

SEED = 14


def model_of(*layers):
    """A model of layers, each with all its features as inputs."""
    names = [feature.name for layer in layers for feature in layer.features]
    inputs = {name: keras.Input((1,), dtype="int64", name=name) for name in names}
    vectors = [layer({f.name: inputs[f.name] for f in layer.features}) for layer in layers]
    return keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Concatenate()(vectors)))


def layer_of(*features, **options):
    return ge.layers.GroupEmbedding(features, concat=True, **options)


def tower(name, table, **options):
    return layer_of(ge.FeatureConfig(name, table), name=f"tower_{name}", **options)


def test_tables_of_one_name_are_apart():
    # Given two towers with tables of one name, and a third that shares the first one's
    random = np.random.default_rng(SEED)
    small, large = ge.TableConfig("items", None, 4), ge.TableConfig("items", None, 64)
    model = model_of(tower("a", small), tower("b", large), tower("c", small))
    batches = [{name: random.integers(0, 2**40, [1000, 1]) for name in "abc"}]

    # When the model, a list of its features, and placements are computed
    features = [ge.FeatureConfig(n, t) for n, t in zip("abc", (small, large, small))]
    found = [ge.plan(of, batches=batches).tables for of in (model, features)]
    placed = ge.place_tables(model, batches=batches, ranks=2, dry_run=True)

    # Then each has its keys and bytes, by the names of statistics
    for tables in found:
        assert {n: t.keys for n, t in tables.items()} == {"items": 2000, "items#2": 1000}
        assert tables["items#2"].bytes_of_key > 3 * tables["items"].bytes_of_key
    assert list(placed.tables) == ["items", "items#2"]
    assert [f.table.name for f in placed.features] == ["items"] * 3


def test_a_table_that_is_called_as_a_second_one_keeps_its_name():
    # Given three tables, of which one has the name that the second of another name would get
    names, dims = ["items#2", "items", "items"], [4, 8, 16]
    features = [
        ge.FeatureConfig(key, ge.TableConfig(name, None, dim))
        for key, name, dim in zip("abc", names, dims)
    ]

    # When they are planned, Then each is there, with its own keys
    sizes = {"a": 500, "b": 300, "c": 200}
    batches = [{key: np.arange(size).repeat(3000 // size) for key, size in sizes.items()}]
    found = ge.plan(features, batches=batches).tables
    assert {n: t.keys for n, t in found.items()} == {"items#2": 500, "items": 300, "items#3": 200}


def test_rows_have_the_type_of_their_layer():
    # Given layers of several types, whose tables name none, or one
    types = ["float32", "bfloat16", "mixed_bfloat16"]
    layers = [
        layer_of(
            ge.FeatureConfig(f"free{i}", ge.TableConfig(f"free{i}", 100, 8)),
            ge.FeatureConfig(f"fixed{i}", ge.TableConfig(f"fixed{i}", 100, 8, dtype="float16")),
            dtype=dtype,
        )
        for i, dtype in enumerate(types)
    ]
    model = model_of(*layers)
    batches = [{f.name: np.arange(10) for layer in layers for f in layer.features}]

    # When the model is planned, without and with a type for all
    found = [ge.plan(model, batches=batches, dtype=of).tables for of in (None, "float32")]

    # Then rows have that of their table, the one given, or their layer's
    sizes = [{n: t.bytes_of_key / 8 for n, t in tables.items()} for tables in found]
    fixed = {f"fixed{i}": 2 for i in range(3)}
    assert sizes == [
        {"free0": 4, "free1": 2, "free2": 4, **fixed},
        {"free0": 4, "free1": 4, "free2": 4, **fixed},
    ]


def test_tables_of_frozen_layers_have_no_slots():
    # Given a frozen layer and one that trains, and a table that both look up
    shared, one, other = (ge.TableConfig(name, 100, 8) for name in ("shared", "one", "other"))
    frozen = layer_of(ge.FeatureConfig("a", one), ge.FeatureConfig("b", shared), name="frozen")
    trained = layer_of(ge.FeatureConfig("c", other), ge.FeatureConfig("d", shared), name="trained")
    model = model_of(frozen, trained)
    frozen.trainable = False
    batches = [{name: np.arange(10) for name in "abcd"}]

    # When the model is planned with an optimizer of two slots
    found = ge.plan(model, batches=batches, optimizer=keras.optimizers.Adam(0.1)).tables

    # Then only tables that a layer trains have slots
    sizes = {name: round(table.bytes_of_key / 32) for name, table in found.items()}
    assert sizes == {"one": 1, "shared": 3, "other": 3}


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_step_moves_rows_in_their_type(dtype):
    # Given tables in 32 and in 16 bits
    ids = np.random.default_rng(SEED).integers(0, 10**6, [8192, 20])
    features = [
        [
            ge.FeatureConfig(
                "user", ge.TableConfig("user", 10**6, 128, dtype=of, placement="distributed")
            )
        ]
        for of in ("float32", dtype)
    ]

    # When their steps over GPUs are planned
    wide, small = (
        ge.plan(of, batches=[{"user": ids}], hbm=1 << 40, ranks=8).step for of in features
    )

    # Then half as many bytes move
    assert small.within_host == pytest.approx(wide.within_host / 2, rel=0.05)
    assert small.kernels < 0.6 * wide.kernels
    # as in what placements count
    sent = [
        ge.place_tables(of, batches=[{"user": ids}], ranks=8, dry_run=True).tables["user"]
        for of in features
    ]
    assert sent[1].sent_bytes == pytest.approx(sent[0].sent_bytes / 2, rel=0.05)


def test_a_step_is_that_of_the_placements():
    # Given a table at each placement
    ids = np.random.default_rng(SEED).integers(0, 10**6, [4096, 20])
    words = [None, "distributed", "localized:1", "distributed:sums", "columns:sums", "replicated"]
    features = [
        [ge.FeatureConfig("user", ge.TableConfig("user", 10**6, 128, placement=word))]
        for word in words
    ]

    # When their steps are planned
    sent = [
        ge.plan(of, batches=[{"user": ids}], hbm=1 << 40, ranks=8).step.within_host
        for of in features
    ]

    # Then they send other bytes, but for tables of one rank, which count as if spread
    assert sent[0] == sent[1] == sent[2]
    assert len(set(sent)) == 4


def test_a_table_is_shared_where_it_is_placed():
    # Given two features of one table, and a third of another
    items, days = ge.TableConfig("items", 1000, 8), ge.TableConfig("days", 7, 8)
    features = [ge.FeatureConfig(name, items) for name in ("click", "view")]
    features.append(ge.FeatureConfig("day", days))
    random = np.random.default_rng(SEED)
    batches = [{f.name: random.integers(0, 7, [64, 3]) for f in features}]

    # When they are placed
    found = ge.place_tables(features, batches=batches, ranks=2, dry_run=True).features

    # Then both still share it, as do layers that are made of them
    assert found[0].table is found[1].table is not found[2].table
    layers = [layer_of(feature) for feature in found[:2]]
    for layer in layers:
        layer.build()
    assert layers[0].weights[0] is layers[1].weights[0]
