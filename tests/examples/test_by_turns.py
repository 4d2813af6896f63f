"""Whole models on stock layers and on grouped lookups, by turns."""

import numpy as np
import pytest
import tensorflow as tf
import train_by_turns

from by_turns import batches, models, samples, turns
from group_embedding.keras_compat import IS_KERAS_3

FEATURES = samples.Shape("features", (50, 3, 400), most_ids=4, numbers=0, batch_size=64)
# Where a batch names a row twice, Keras 3's Adagrad squares its gradients one by one; Keras 2's and
# that of grouped lookups square their sum.
REPEATED = 0.03
DLRM = samples.Shape("dlrm", (30, 7, 100, 5), most_ids=1, numbers=3, batch_size=128)


@pytest.mark.parametrize("shape", [FEATURES, DLRM], ids=lambda shape: shape.name)
def test_models_learn_the_same(shape, capsys):
    # Given samples in small, when both models train on them by turns:
    result = train_by_turns.run(shape, 3)
    # Then they have seen as many steps, predict as well, and better than chance.
    assert result["steps"] == 34
    tolerance = REPEATED if IS_KERAS_3 and shape is DLRM else 1e-3
    assert result["stock"]["auc"] == pytest.approx(result["grouped"]["auc"], abs=tolerance)
    assert min(result["stock"]["auc"], result["grouped"]["auc"]) > 0.6
    # And every figure is there, and printed.
    for model in ("stock", "grouped"):
        for figures in (result[model]["wall_ms"], result[model]["cpu_ms"]):
            assert 0 < figures[0] <= figures[1] <= figures[2]
    assert "turn 3/3" in capsys.readouterr().out
    text = train_by_turns.table([result])
    assert f"{result['wall_ratio'][1]:.2f} (" in text and f"load {result['load']:.1f}" in text


@pytest.mark.parametrize("shape", [FEATURES, DLRM], ids=lambda shape: shape.name)
def test_inputs_ahead_are_those_of_the_step(shape):
    # Given samples, when inputs are made ahead and in the step:
    train = batches.batches(shape, samples.draw(shape, 2, 1))
    layer = models.grouped_embeddings(shape.rows)
    for make, options in ((batches.for_stock, {}), (batches.for_grouped, {"layer": layer})):
        ahead, in_step = (
            list(make(shape, train, epochs=2, ahead=ahead, **options)) for ahead in (True, False)
        )
        # Then both give the same batches, in each epoch.
        assert len(ahead) == len(in_step) == 4
        for one, other in zip(ahead, in_step):
            flat = [tf.nest.flatten(of, expand_composites=True) for of in (one, other)]
            assert len(flat[0]) == len(flat[1])
            for expected, got in zip(*flat):
                np.testing.assert_array_equal(expected, got)


def test_samples_depend_on_their_seed_alone():
    once, again, other = (samples.draw(FEATURES, 3, seed) for seed in (1, 1, 2))
    for name in ("ids", "lengths", "numbers", "labels"):
        np.testing.assert_array_equal(getattr(once, name), getattr(again, name))
    assert not np.array_equal(once.labels, other.labels)


def test_ids_follow_zipfs_law():
    # Given many ids of one table, when each is counted:
    shape = samples.Shape("one", (1000,), most_ids=5, numbers=0, batch_size=20_000)
    drawn = samples.draw(shape, 2, seed=3)
    assert drawn.lengths.min() == 1 and drawn.lengths.max() == 5
    counts = np.bincount(drawn.ids, minlength=1000)
    # Then all are rows of the table, and id k - 1 comes about k ** -1.05 times as often as id 0.
    assert len(counts) == 1000
    power = np.polyfit(np.log(np.arange(10, 501)), np.log(counts[9:500]), 1)[0]
    assert power == pytest.approx(-samples.EXPONENT, abs=0.1)


def test_turns_alternate():
    # Given two models, of which one is slower:
    order = []
    timed = [turns.Timed(lambda: order.append("a")), turns.Timed(lambda: order.append("b"))]
    turns.take_turns(timed, 2)
    # Then each takes its turn of one step that is not measured and ten that are.
    assert "".join(order) == ("a" * 11 + "b" * 11) * 2
    assert [len(one.wall) for one in timed] == [len(one.cpu) for one in timed] == [2, 2]


def test_ratios_are_of_neighbouring_turns():
    assert turns.ratios([4, 20, 6], [2, 5, 6]) == [1.5, 2, 3]


def test_auc():
    assert turns.auc([0, 0, 1, 1], [0.1, 0.4, 0.35, 0.8]) == 0.75
    assert turns.auc([1, 0], [2.0, 1.0]) == 1
