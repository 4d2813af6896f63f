"""Learning rates by steps."""

import pytest

import group_embedding as ge


@pytest.mark.parametrize(
    "decay, at_15, at_19",
    [("none", 2.0, 2.0), ("linear", 1.0, 0.2), ("polynomial", 0.5, 0.1), ("cosine", 1.0, 0.1)],
)
def test_warm_up_and_decay(decay, at_15, at_19):
    # Given 4 steps of warm-up, a decay of 10 steps behind step 10, and an end of 0.1
    rate = ge.models.LearningRate(2.0, decay, 4, 10, 10, 2.0, 0.1)

    # When steps ask for it, Then it rises, stays, decays and ends
    assert [rate.at(step) for step in (1, 4, 5, 10)] == [0.5, 2.0, 2.0, 2.0]
    assert rate.at(15) == pytest.approx(at_15)
    assert rate.at(19) == pytest.approx(at_19)
    assert rate.at(1000) == (2.0 if decay == "none" else 0.1)


def test_wrong_ones_are_refused():
    with pytest.raises(ValueError, match="expected decay one of none, linear"):
        ge.models.LearningRate(1.0, "step")
    with pytest.raises(ValueError, match="expected decay_steps for the decay 'linear'"):
        ge.models.LearningRate(1.0, "linear")
