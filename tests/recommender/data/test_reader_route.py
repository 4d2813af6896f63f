"""Ids of a reader's batches are packed inside of `map`, ahead of the step that looks them up."""

import numpy as np
import tensorflow as tf
from support.cases.sample_files import write_parquet

import group_embedding as ge


def test_route_in_map(tmp_path):
    # Given a layer of two features, and a reader of files with them
    layer = ge.layers.GroupEmbedding(
        [
            ge.FeatureConfig("user", ge.TableConfig("users", 400, 4)),
            ge.FeatureConfig("clicks", ge.TableConfig("items", 4000, 8), combiner="sum"),
        ]
    )
    reader = ge.data.Reader(write_parquet(tmp_path / "a"), 64, ["user", "clicks"], labels="label")

    # When ids are packed in map
    packed = reader.map(lambda features, label: (layer.route(features), label))
    routed = reader.map(lambda features, label: layer.route(features))

    # Then batches are RoutedIds, also of the smaller last batch, whose lookups are those of the ids
    step = tf.function(layer)
    count = 0
    for (features, _), (ids, label), alone in zip(reader, packed.prefetch(2), routed):
        assert isinstance(ids, ge.RoutedIds) and isinstance(alone, ge.RoutedIds)
        expected = layer(features)
        for vectors in (step(ids), step(alone)):
            for name in ("user", "clicks"):
                np.testing.assert_array_equal(vectors[name], expected[name])
        count += len(label)
    assert count == 400
