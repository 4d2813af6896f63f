"""Random training programs: group_embedding against stock TensorFlow with dense gradients."""

import os

import pytest
from support.session.tiers import by_day

from group_embedding.keras_compat import IS_KERAS_3
from programs.compare import Difference, run
from programs.draw import draw
from programs.program import from_text

pytestmark = pytest.mark.skipif(
    IS_KERAS_3, reason="programs are drawn for the optimizers of Keras 2, new and legacy"
)
SEED = int(os.environ.get("GROUP_EMBEDDING_TEST_SEED", "0"))


def run_seeds(seeds):
    """Runs the program of each seed. Returns what a reader of a failure needs."""
    failures = []
    for seed in seeds:
        try:
            run(draw(seed))
        except Exception as error:
            failures.append(f"seed {seed}: {type(error).__name__}: {error}")
    hint = "a program, and the smallest like it: PYTHONPATH=tests python -m programs SEED --shrink"
    return "\n".join([*failures, hint]) if failures else ""


@pytest.mark.parametrize("part", by_day(range(2), [0]))
def test_programs(part):
    # Given programs that are drawn from fixed seeds
    seeds = range(SEED + 20 * part, SEED + 20 * (part + 1))
    # When both run them, Then each step gives the same values, slots, keys and counts
    assert not (failures := run_seeds(seeds)), failures


@pytest.mark.soak
@pytest.mark.parametrize("part", range(20))
def test_two_thousand_programs(part):
    first = SEED + 1000 + 100 * part
    assert not (failures := run_seeds(range(first, first + 100))), failures


def test_text_is_the_program():
    # Given a program, printed
    program = draw(17)
    # When it is read again
    again = from_text(program.text())
    # Then it is the same program
    assert again.text() == program.text() and again.steps[0].ids == program.steps[0].ids


def test_a_difference_is_seen(monkeypatch):
    # Given an oracle that starts one element of a dense variable elsewhere
    from programs import oracle, values

    def changed(program):
        return values.initial_dense(program) + 1e-3 * (program.seed % 2)

    monkeypatch.setattr(oracle, "initial_dense", changed)
    # When programs are run, Then the one that starts elsewhere differs
    run(draw(0))
    with pytest.raises(Difference, match="step 0"):
        run(draw(1))
