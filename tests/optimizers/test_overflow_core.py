"""The search for infinity and NaN in many arrays at once, compared with NumPy."""

import numpy as np
import pytest
from support.cases.core_cases import from_storage, to_storage
from support.cases.core_runner import PLACES, arrays_of, core

DTYPES = ["float32", "float16", "bfloat16"]
LARGEST = {"float32": np.finfo(np.float32).max, "float16": 65504.0, "bfloat16": 3.3895314e38}
SIZES = [1, 2, 7, 8, 9, 255, 4096, 32769, 100_003]  # in numbers; a block reads 32 KB


class From:
    """An array in GPU memory from a number on: no allocation begins there."""

    def __init__(self, array, first):
        self.array = array
        whole = array.__cuda_array_interface__
        item_bytes = int(whole["typestr"][2:])
        self.__cuda_array_interface__ = whole | {
            "shape": (whole["shape"][0] - first,),
            "strides": None,
            "data": (whole["data"][0] + first * item_bytes, False),
        }


def overflow_of(arrays, dtypes, place, first=0):
    """The overflow of arrays, each without its first `first` numbers."""
    on = arrays_of(place)
    result = on.to_device(np.full(1, 7, np.float32))
    placed = [on.to_device(array) for array in arrays]
    parts = [From(one, first) if place == "gpu" else one[first:] for one in placed]
    core.overflow(parts, dtypes, result, on.allocate, num_threads=2)
    return on.to_host(result)[0]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", SIZES)
def test_finite_numbers_have_not_overflowed(size, dtype, place):
    # Given the largest numbers among others
    values = np.random.default_rng(size).normal(size=size)
    values[:: max(1, size // 5)] = LARGEST[dtype]
    values[size // 2] = -LARGEST[dtype]
    stored = to_storage(values, dtype)
    assert np.isfinite(from_storage(stored, dtype)).all()

    assert overflow_of([stored], [dtype], place) == 0


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_one_number_is_enough(bad, dtype, place):
    for size in SIZES:
        for at in {0, size // 3, size - 1}:
            values = np.zeros(size)
            values[at] = bad

            assert np.isnan(overflow_of([to_storage(values, dtype)], [dtype], place)), (size, at)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("first", range(1, 9))
def test_arrays_begin_anywhere(first, dtype, place):
    # Given a NaN before the array, which is not asked, or in its first or last number
    for at, expected in [(first - 1, 0), (first, np.nan), (999, np.nan)]:
        values = np.ones(1000)
        values[at] = np.nan

        found = overflow_of([to_storage(values, dtype)], [dtype], place, first)

        np.testing.assert_equal(found, np.float32(expected))


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("bad_one", [None, 0, 150, 298])
def test_many_arrays_of_all_types_are_asked_at_once(bad_one, place):
    # Given 300 arrays, of which every seventh has no number
    rng = np.random.default_rng(3)
    dtypes = [DTYPES[i % 3] for i in range(300)]
    values = [rng.normal(size=0 if i % 7 == 5 else rng.integers(1, 50)) for i in range(300)]
    if bad_one is not None:
        values[bad_one][-1] = np.inf

    arrays = [to_storage(one, dtype) for one, dtype in zip(values, dtypes)]
    found = overflow_of(arrays, dtypes, place)

    assert found == 0 if bad_one is None else np.isnan(found)


@pytest.mark.parametrize("place", PLACES)
def test_no_number_has_not_overflowed(place):
    assert overflow_of([], [], place) == 0


@pytest.mark.parametrize("place", PLACES)
def test_arrays_of_another_type_are_refused(place):
    with pytest.raises(ValueError, match=r"arrays\[0\]"):
        overflow_of([np.zeros(3)], ["float32"], place)
