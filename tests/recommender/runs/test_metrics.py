"""Streamed loss and AUC, beside all pairs of samples."""

import numpy as np
import pytest
import tensorflow as tf

from group_embedding.recommender.runs.metrics import StreamedMetrics


def test_batches_give_what_all_samples_give():
    # Given logits and labels of two names, in batches of different sizes
    random = np.random.default_rng(0)
    logits = {name: random.normal(size=700).astype(np.float32) for name in "ab"}
    labels = {name: random.integers(0, 2, 700) for name in "ab"}
    logits["b"] = np.round(logits["b"])  # ties
    metrics = StreamedMetrics(("a", "b"), keep=2)

    # When they are added
    for begin, end in ((0, 300), (300, 310), (310, 700)):
        metrics.add(
            tf.constant(float(begin)),
            {name: tf.constant(x[begin:end]) for name, x in logits.items()},
            {name: tf.constant(x[begin:end]) for name, x in labels.items()},
        )
    found = metrics.result()

    # Then the AUC is the share of pairs in order, and the loss the mean over samples
    for name in "ab":
        ones, zeros = logits[name][labels[name] == 1], logits[name][labels[name] == 0]
        pairs = ones[:, None] - zeros[None]
        expected = (pairs > 0).mean() + 0.5 * (pairs == 0).mean()
        assert found[f"auc/{name}"] == pytest.approx(expected, abs=1e-3)
    assert found["auc"] == pytest.approx((found["auc/a"] + found["auc/b"]) / 2)
    assert found["loss"] == pytest.approx((10 * 300 + 390 * 310) / 700)
    assert metrics.num_samples == 700


def test_labels_that_are_all_alike_have_no_auc():
    metrics = StreamedMetrics(("a",))
    metrics.add(tf.constant(0.5), {"a": tf.zeros([3])}, {"a": tf.ones([3])})

    assert np.isnan(metrics.result()["auc"])
    metrics.reset()
    assert np.isnan(metrics.result()["loss"])
