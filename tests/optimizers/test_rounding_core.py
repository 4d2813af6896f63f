"""The random bits of stochastic rounding: the core's are NumPy's, and NumPy's are as random as
rounding needs.

Every statistic here is a sum over so many draws that its distribution is known; a bound of five
standard deviations is passed by one honest generator in a million, and the draws never change.
"""

import itertools

import numpy as np
import pytest
from fused.test_group_update_core import Updated
from support.cases.core_cases import draw_case, from_storage, to_storage
from support.cases.core_runner import PLACES
from support.oracles.rounding import DRAW_OF_ROW, random_bits, round_to_bfloat16

ROWS, COLUMNS, SIGMAS = 4096, 128, 5
SEED = 11
STEP = 0x3F9D70A4  # the key of a step: any 32 bits
DRAWS = range(DRAW_OF_ROW + 1)
# Row numbers, and keys of which only high bits differ, or all.
NAMES = {
    "numbers": np.arange(ROWS),
    "high bits": np.arange(ROWS) << 51,
    "keys": np.random.default_rng(SEED).integers(-(2**63), 2**63 - 1, ROWS),
}


def draw(names="numbers", key=STEP, of=0, rows=0, columns=0):
    """[ROWS, COLUMNS] draws, of rows and columns that are so many further."""
    of_rows = NAMES[names][:, None] + rows
    return random_bits(key, of_rows, np.arange(COLUMNS) + columns, of)


def assert_even(counts):
    """Counts of what is equally likely: their chi-square is near its mean."""
    expected = counts.sum() / counts.size
    freedom = counts.size - 1
    chi_square = ((counts - expected) ** 2 / expected).sum()
    assert abs(chi_square - freedom) < SIGMAS * np.sqrt(2 * freedom)


def assert_independent(one, other):
    """Neither numbers nor their pairs of high bits show which goes with which."""
    size = one.size
    correlation = np.corrcoef(one.ravel().astype(float), other.ravel().astype(float))[0, 1]
    assert abs(correlation) < SIGMAS / np.sqrt(size)
    pairs = (one >> 12) * 16 + (other >> 12)
    assert_even(np.bincount(pairs.ravel(), minlength=256))


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("rule, slot", [("adagrad", 0), ("adam", 0), ("adam", 1), ("adam", 2)])
def test_slots_move_by_the_bits_of_numpy(place, rule, slot):
    # Given tables of dims below, of and above eight, keys, and slots of ones; and hypers by which
    # each slot becomes a float32 that no order of rounding changes
    case = draw_case(SEED, [3, 8, 77], num_samples=50, num_rows=50)
    case.ids, case.row_splits = np.tile(np.arange(50), 3), np.arange(151)
    case.combiners = ["sum"] * 3
    gradient = {"adagrad": 2.0**-5, "adam": 1 + 2.0**-9}[rule]
    case.gradients = [np.full((50, table.shape[1]), gradient, np.float32) for table in case.tables]
    after = {"adagrad": [1 + 2.0**-10], "adam": [1 + 2.0**-10, 1 + 2.0**-9 + 2.0**-19] * 2}[rule]
    keys = [np.random.default_rng(t).integers(-(2**63), 2**63 - 1, 50) for t in range(3)]
    key = np.array([STEP], np.uint32).view(np.float32)[0]
    # When they are rounded at random
    updated = Updated(
        case, place, rule, keys=keys, rounding_key=key, slot_dtype="bfloat16",
        stochastic_slots=True, slots_of_ones=True, beta_1=0.5, beta_2=0.5,
    )  # fmt: skip
    # Then every slot is where NumPy's bits take it: the maximum of v, which is slot 2, too
    value = after[1 if slot == 2 else slot]
    for t, of_table in enumerate(keys):
        columns = np.arange(case.tables[t].shape[1])
        expected = round_to_bfloat16(value, random_bits(STEP, of_table[:, None], columns, slot))
        np.testing.assert_array_equal(updated.slots[t][slot], expected)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("rule", ["rowwise_adagrad", "rowwise_adam"])
def test_slots_of_rows_move_by_the_bits_of_numpy(place, rule):
    # Given slots per row of ones, to which 2^-10 is added
    case = draw_case(SEED, [16], num_samples=500, num_rows=500)
    case.ids, case.row_splits, case.combiners = np.arange(500), np.arange(501), ["sum"]
    gradient = {"rowwise_adagrad": 2.0**-5, "rowwise_adam": np.sqrt(1 + 2.0**-9)}[rule]
    case.gradients = [np.full((500, 16), gradient, np.float32)]
    slot = {"rowwise_adagrad": 0, "rowwise_adam": 1}[rule]
    key = np.array([STEP], np.uint32).view(np.float32)[0]
    # When they are rounded at random
    updated = Updated(
        case, place, rule, rounding_key=key, slot_dtype="bfloat16", stochastic_slots=True,
        slots_of_ones=True, beta_2=0.5,
    )  # fmt: skip
    # Then they are where NumPy's bits take them, of a row's number as it has no key (but for one in
    # 2^13, as the square of Adam's gradient is rounded)
    expected = round_to_bfloat16(1 + 2.0**-10, random_bits(STEP, np.arange(500), 0, slot))
    assert (updated.slots[0][slot] != expected).mean() <= (0 if slot == 0 else 0.002)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_rows_move_by_the_bits_of_numpy(place, dtype):
    # Given rows of ones in 16 bits, from which SGD takes 3/16 of a unit below 1
    case = draw_case(SEED, [3, 8, 77], dtype=dtype, num_samples=50, num_rows=50)
    case.ids, case.row_splits = np.tile(np.arange(50), 3), np.arange(151)
    case.combiners = ["sum"] * 3
    case.tables = [to_storage(np.ones(t.shape), dtype) for t in case.tables]
    case.gradients = [to_storage(np.ones(t.shape), dtype) for t in case.tables]
    unit = {"bfloat16": 2.0**-8, "float16": 2.0**-11}[dtype]
    key = np.array([STEP], np.uint32).view(np.float32)[0]
    # When they are rounded at random
    updated = Updated(
        case, place, "sgd", rounding_key=key, stochastic_rounding=True,
        learning_rate=3 / 16 * unit,
    )  # fmt: skip
    # Then a row's number goes down where NumPy's bits do not carry
    for table in updated.tables:
        columns = np.arange(table.shape[1])
        bits = random_bits(STEP, np.arange(50)[:, None], columns, DRAW_OF_ROW)
        bits = bits if dtype == "bfloat16" else bits >> 3 << 3
        is_up = bits + 2**16 * 13 // 16 >= 2**16
        np.testing.assert_array_equal(from_storage(table, dtype), np.where(is_up, 1, 1 - unit))


@pytest.mark.parametrize("names", NAMES)
@pytest.mark.parametrize("of", DRAWS)
def test_all_numbers_are_equally_likely(names, of):
    # Given half a million draws, then high and low bits, of all and of each column, are even
    drawn = draw(names, of=of)
    assert_even(np.bincount(drawn.ravel() >> 4, minlength=4096))
    assert_even(np.bincount(drawn.ravel() & 0xFFF, minlength=4096))
    for column in range(COLUMNS):
        assert_even(np.bincount(drawn[:, column] >> 8, minlength=256))


@pytest.mark.parametrize("names", NAMES)
@pytest.mark.parametrize("share", [0.5, 0.25, 1 / 16, 1 / 256])
def test_rounding_has_no_bias(names, share):
    # Given numbers that lie that share of a unit above a neighbour
    for of, key in itertools.product(DRAWS, [STEP, STEP + 1, 0]):
        is_up = draw(names, key, of) + round(share * 2**16) >= 2**16
        variance = share * (1 - share)
        # Then that share of them moves up
        assert abs(is_up.mean() - share) < SIGMAS * np.sqrt(variance / is_up.size)
        # And sums over a row, and over a column, scatter as those of independent numbers: the
        # variance of a binomial distribution, which n sums tell by sqrt(2 / n), and a bit more
        # where few move (its kurtosis)
        for axis in (0, 1):
            sums = is_up.sum(axis)
            expected = is_up.shape[axis] * variance
            spread = np.sqrt((2 + (1 - 6 * variance) / expected) / sums.size)
            assert abs(((sums - is_up.shape[axis] * share) ** 2).mean() / expected - 1) < (
                SIGMAS * spread
            )


@pytest.mark.parametrize("names", NAMES)
def test_columns_rows_and_steps_are_independent(names):
    for of in DRAWS:
        drawn = draw(names, of=of)
        # Given neighbours by column, by row and by the key of a step
        for columns in (1, 2, 7, 8, 16, 64):
            assert_independent(drawn, draw(names, of=of, columns=columns))
        for rows in (1, 2, 64, 4096, 2**16, 2**31, 2**32, 2**62):
            assert_independent(drawn, draw(names, of=of, rows=rows))
        for bit in range(0, 32, 3):
            # Then one says nothing of the other
            assert_independent(drawn, draw(names, key=STEP ^ 1 << bit, of=of))


@pytest.mark.parametrize("names", NAMES)
def test_slots_and_rows_are_independent(names):
    for one, other in itertools.combinations(DRAWS, 2):
        assert_independent(draw(names, of=one), draw(names, of=other))
        assert_independent(draw(names, of=one), draw(names, of=other, columns=1))


@pytest.mark.parametrize("of", DRAWS)
def test_each_bit_of_the_input_changes_each_of_the_draw_half_the_time(of):
    # Given random keys, rows and columns
    random = np.random.default_rng(SEED)
    count = 1 << 16
    key = random.integers(0, 2**32, count, np.uint64)
    row = random.integers(-(2**63), 2**63 - 1, count)
    column = random.integers(0, 2048, count)
    before = random_bits(key, row, column, of)
    changed = [random_bits(key ^ np.uint64(1 << bit), row, column, of) for bit in range(32)]
    changed += [random_bits(key, row ^ np.int64(1 << bit), column, of) for bit in range(63)]
    changed += [random_bits(key, row, column ^ (1 << bit), of) for bit in range(11)]
    # When one of their bits changes, then each of the draw does half the time
    for after in changed:
        flips = (before ^ after)[:, None] >> np.arange(16, dtype=np.uint32) & 1
        assert np.abs(flips.mean(0) - 0.5).max() < 0.5 * (SIGMAS / np.sqrt(count) + 0.01)
