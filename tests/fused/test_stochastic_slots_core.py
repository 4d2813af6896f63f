"""Slots in bfloat16 beside rows of any type, rounded up or down at random."""

import numpy as np
import pytest
from fused.test_group_update_core import DTYPES, Updated, check
from support.cases.core_cases import ROUNDING, draw_case, from_storage, to_storage
from support.cases.core_runner import PLACES, on_gpu

RULES = ["adagrad", "rowwise_adagrad", "adam", "rowwise_adam"]
UNIT = 2.0**-7  # of bfloat16 from 1 to 2
ROWS, DIM = 400, 64
KEYS = np.array([3, 4], np.uint32).view(np.float32).tolist()


def one_row_a_sample(dtype="float32", gradient=2.0**-5, num_rows=ROWS):
    """Each row is looked up once, and has a gradient of which the square is an eighth of UNIT."""
    case = draw_case(1, [DIM], dtype=dtype, num_samples=num_rows, num_rows=num_rows)
    case.ids, case.row_splits = np.arange(num_rows), np.arange(num_rows + 1)
    case.combiners = ["sum"]
    case.tables = [to_storage(np.ones((num_rows, DIM)), dtype)]
    case.gradients = [to_storage(np.full((num_rows, DIM), gradient), dtype)]
    return case


class FromOnes(Updated):
    """Slots that start as ones, in bfloat16, and are rounded at random."""

    def __init__(self, case, place, rule, **arguments):
        super().__init__(case, place, rule, slot_dtype="bfloat16", stochastic_slots=True,
                         slots_of_ones=True, **arguments)  # fmt: skip

    def values(self, k):
        return from_storage(self.slots[0][k], "bfloat16")


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("stochastic_slots", [False, True])
def test_rows_and_slots_are_those_of_numpy(place, dtype, rule, stochastic_slots):
    # Given tables of words of 2 to 16 bytes, then rows and slots are NumPy's but for rounding
    case = draw_case(2, [1, 4, 6, 7, 64, 300], dtype=dtype)
    check(case, place, rule, slot_dtype="bfloat16", stochastic_slots=stochastic_slots)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rule", ["adagrad", "rowwise_adagrad"])
def test_updates_below_half_a_unit_count_on_average(place, dtype, rule):
    # Given sums of squares of 1, and squares of an eighth of what bfloat16 separates from 1
    case = one_row_a_sample(dtype, num_rows=ROWS * (16 if rule == "rowwise_adagrad" else 1))
    # When they are added, by two keys of a step
    slots, again, other = (
        FromOnes(case, place, rule, rounding_key=key).values(0) for key in (*KEYS[:1], *KEYS)
    )
    # Then slots move by as much on average, to neighbours alone: over n of them the mean is off by
    # less than four of its standard deviations
    share = 2.0**-10 / UNIT
    deviation = np.sqrt(share * (1 - share) / slots.size)
    assert set(np.unique(slots)) == {1.0, 1.0 + UNIT}
    assert abs(((slots - 1) / UNIT).mean() - share) < 4 * deviation
    # And the key decides, not the run
    np.testing.assert_array_equal(slots, again)
    assert not np.array_equal(slots, other)


@pytest.mark.parametrize("place", PLACES)
def test_draws_of_a_row_and_of_its_slots_are_independent(place):
    # Given moments, and rows, that each move by some share of a unit
    case = one_row_a_sample("bfloat16", gradient=1 + 2 * UNIT)
    # When Adam moves them
    updated = FromOnes(
        case, place, "adam", rounding_key=KEYS[0], stochastic_rounding=True,
        learning_rate=ROUNDING["bfloat16"] / 2, beta_1=0.75, beta_2=0.875, epsilon=0.0,
        beta_1_power=0.5, beta_2_power=0.75,
    )  # fmt: skip
    drawn = [from_storage(updated.tables[0], "bfloat16"), updated.values(0), updated.values(1)]
    # Then each is at one of two neighbours
    are_up = [values == values.max() for values in drawn]
    for values, is_up in zip(drawn, are_up):
        assert len(np.unique(values)) == 2
        assert 0.1 < is_up.mean() < 0.9
    # And no two of them go together: correlations are noise of 1 / sqrt(n)
    correlations = np.corrcoef([is_up.ravel() for is_up in are_up])
    off_diagonal = correlations[~np.eye(3, dtype=bool)]
    assert np.abs(off_diagonal).max() < 4 / np.sqrt(ROWS * DIM)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("rule", RULES)
def test_keys_decide_and_not_the_rows_that_they_are_in(place, rule):
    # Given the same keys in two orders
    rng = np.random.default_rng(5)
    keys = rng.integers(-(2**63), 2**63 - 1, ROWS)
    order = rng.permutation(ROWS)
    case = one_row_a_sample("bfloat16")
    arguments = {"rounding_key": KEYS[0], "stochastic_rounding": True}
    # When both are updated
    updated = FromOnes(case, place, rule, keys=[keys], **arguments)
    ordered = FromOnes(case, place, rule, keys=[keys[order]], **arguments)
    by_number = FromOnes(case, place, rule, **arguments)
    # Then each key has the same row and slots
    arrays, in_order = ([one.tables[0], *one.slots[0]] for one in (updated, ordered))
    for array, other in zip(arrays, in_order):
        if array is not None:
            np.testing.assert_array_equal(array[order], other)
    # And others than a row by its number
    assert any(not np.array_equal(a, b) for a, b in zip(updated.bits(), by_number.bits()))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rule", RULES)
def test_threads_change_no_bit(dtype, rule):
    case = draw_case(6, [4, 33, 64], dtype=dtype, num_rows=500, num_samples=300)
    arguments = {"stochastic_slots": True, "slot_dtype": "bfloat16", "rounding_key": KEYS[0]}
    bits = [Updated(case, "cpu", rule, threads=n, **arguments).bits() for n in (1, 2, 7)]
    for others in bits[1:]:
        for a, b in zip(bits[0], others):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("place", [pytest.param("gpu", marks=on_gpu)])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rule", RULES)
def test_the_gpu_draws_what_the_cpu_draws(place, dtype, rule):
    # Given rows of keys that each occur once, so that their gradients have the same bits
    rng = np.random.default_rng(7)
    keys = rng.integers(-(2**63), 2**63 - 1, ROWS)
    case = one_row_a_sample(dtype)
    case.gradients = [to_storage(rng.normal(size=(ROWS, DIM)).astype(np.float32), dtype)]
    arguments = {
        "slot_dtype": "bfloat16", "stochastic_slots": True, "stochastic_rounding": True,
        "rounding_key": KEYS[0], "keys": [keys],
    }  # fmt: skip
    # When both update them
    of_gpu, of_cpu = (Updated(case, where, rule, **arguments) for where in (place, "cpu"))
    # Then slots have the same bits, but where a number moves over the one that was drawn: the CPU
    # rounds a product and a sum once, and adds a row's squares up in another order
    for slot, expected in zip(of_gpu.slots[0], of_cpu.slots[0]):
        assert (slot != expected).mean() < 0.01
        values, expected_values = (from_storage(one, "bfloat16") for one in (slot, expected))
        np.testing.assert_allclose(values, expected_values, rtol=UNIT, atol=1e-6)
    assert any(not np.array_equal(a, b) for a, b in zip(of_cpu.slots[0], of_cpu.slots_before[0]))
