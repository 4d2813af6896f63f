"""Schemas: kept as text, checked against files, and as tables of a layer."""

import pytest
import tensorflow as tf
from support.cases.sample_files import write_parquet

import group_embedding as ge
from group_embedding.data import pieces


def make_schema(**changes):
    items = {"table": "items", "num_ids": 5000, "dim": 8, **changes}
    return ge.data.Schema(
        [
            ge.data.Feature("user", "categorical", "int64", hash_size=64, dim=4),
            ge.data.Feature(
                "clicks", "categorical", "int64", is_list=True, combiner="sum", **items
            ),
            ge.data.Feature("last", "categorical", "int64", missing=-1, **items),
            ge.data.Feature("age", "continuous", "float32", missing=0.5),
            ge.data.Feature("word", "categorical", "string", dim=2),
            ge.data.Feature("label", "label", "int32"),
        ]
    )


@pytest.mark.parametrize("name", ["schema.yaml", "schema.json"])
def test_saved_and_loaded(tmp_path, name):
    # Given a schema
    schema = make_schema()

    # When it is saved and loaded
    schema.save(tmp_path / name)
    loaded = ge.data.Schema.load(tmp_path / name)

    # Then it is equal, and another one is not
    assert loaded == schema
    assert loaded != make_schema(dim=16)


def test_tables_of_a_layer():
    # Given a schema whose features share a table
    schema = make_schema()

    # When its configs are made
    features, tables = schema.feature_configs(), schema.table_configs()

    # Then features that share a table have one object, as those of other layers
    assert [table.name for table in tables] == ["user", "items", "word"]
    assert [(t.num_rows, t.dim) for t in tables] == [(64, 4), (5000, 8), (None, 2)]
    assert features[1].table is features[2].table is tables[1]
    assert features[1].combiner == "sum"
    assert schema.feature_configs()[1].table is tables[1]
    layer = ge.layers.GroupEmbedding(features[1:3])
    vectors = layer(
        {"clicks": tf.ragged.constant([[1, 2], []], tf.int64), "last": tf.constant([4, -1])}
    )
    assert vectors["clicks"].shape == (2, 8) and vectors["last"].numpy()[1].tolist() == [0] * 8


def test_reader_of_a_schema(tmp_path):
    # Given files, and a schema of some of their columns
    write_parquet(tmp_path / "a")
    schema = ge.data.Schema([f for f in make_schema().features if f.name not in ("last", "word")])

    # When they are read by it
    features, label = next(iter(ge.data.Reader(tmp_path / "a", 8, schema)))

    # Then its columns are features, and its label the label
    assert sorted(features) == ["age", "clicks", "user"]
    assert label.dtype == tf.int32
    assert schema.check(tmp_path / "a") == 400


@pytest.mark.parametrize(
    "feature, words",
    [
        ({"name": "users", "dtype": "int64"}, "expected a column 'users', got user, age"),
        ({"name": "user", "dtype": "int64", "is_list": True}, "column 'user': expected lists"),
        ({"name": "word", "dtype": "int64"}, "row 1, column 'word': expected int64, got 'word 0'"),
        (
            {"name": "user", "dtype": "int64", "num_ids": 350},
            "part-2.parquet, row 244, column 'user': expected ids 0 to 349, or -1.*, got 350",
        ),
        (
            {"name": "clicks", "dtype": "int64", "is_list": True, "num_ids": 3500},
            "part-2.parquet, row 244, column 'clicks': expected ids 0 to 3499.*got 3500",
        ),
    ],
)
def test_check_names_what_does_not_fit(tmp_path, monkeypatch, feature, words):
    # Given files that differ from a schema
    monkeypatch.setattr(pieces, "PIECE_ROWS", 13)
    write_parquet(tmp_path / "a")
    schema = ge.data.Schema([ge.data.Feature(kind="categorical", **feature)])

    # Then the error names file, row, column, expected and got
    with pytest.raises(ValueError, match=words):
        schema.check(tmp_path / "a")


def test_what_no_schema_can_be():
    def feature(name="a", kind="categorical", dtype="int64", **others):
        return ge.data.Feature(name, kind, dtype, **others)

    with pytest.raises(ValueError, match="'a': expected kind to be one of"):
        feature(kind="number")
    with pytest.raises(ValueError, match="'a': expected dim of categorical features alone"):
        feature(kind="label", dim=4)
    with pytest.raises(ValueError, match="'a': expected an integer dtype or string, got float32"):
        feature(dtype="float32")
    with pytest.raises(ValueError, match="'a': expected num_ids or hash_size"):
        feature(num_ids=4, hash_size=4)
    with pytest.raises(ValueError, match="each name once, got a"):
        ge.data.Schema([feature(), feature()])
    with pytest.raises(ValueError, match="'b': expected 4 rows and dim 8.*'a' has of table 't'"):
        ge.data.Schema(
            [feature(table="t", num_ids=4, dim=8), feature("b", table="t", num_ids=5, dim=8)]
        )
    with pytest.raises(ValueError, match="feature 'a': expected the keys name.*got 'kinds'"):
        ge.data.Schema.from_dict({"features": [{"name": "a", "kinds": "label"}]})
    with pytest.raises(ValueError, match="'a': expected a dim, for its table 'a'"):
        ge.data.Schema([feature()]).feature_configs()
