"""The framework-free core, forward and backward, against NumPy in float64."""

import numpy as np
import pytest
from support.cases.core_cases import ROUNDING, draw_case, expect, from_storage
from support.cases.core_runner import PLACES, Run, core, on_gpu

DTYPES = ["float32", "float16", "bfloat16"]


def assert_near(actual, expected, dtype, terms=64):
    """Within the rounding of the result, and of float32 sums of about `terms` terms."""
    actual = from_storage(actual, dtype)
    tolerance = ROUNDING[dtype] * np.abs(expected) + terms * ROUNDING["float32"]
    tolerance = tolerance + (0 if dtype == "float32" else 1e-7)  # subnormal float16
    worst = np.argmax(np.abs(actual - expected) - tolerance) if actual.size else None
    assert actual.shape == expected.shape
    assert worst is None or np.all(np.abs(actual - expected) <= tolerance), (
        f"at {np.unravel_index(worst, actual.shape)}: expected {expected.flat[worst]}, "
        f"got {actual.flat[worst]}"
    )


def check_all(case, place, terms=64):
    expected = expect(case)
    for actual, output in zip(Run(case, place).lookup(), expected.outputs):
        assert_near(actual, output, case.dtype, terms)
    indices, values = Run(case, place).row_gradients()
    for t in range(len(case.tables)):
        np.testing.assert_array_equal(indices[t], expected.indices[t])
        assert_near(values[t], expected.values[t], case.dtype, 4 * terms)
    gradient_terms = terms * max(table.shape[1] for table in case.tables)
    assert_near(Run(case, place).weight_gradient(), expected.weight_grad, "float32", gradient_terms)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_mixed_dims(place, dtype):
    # Given one table of each kind of dim: below, at and above a vector, a warp and a cache line
    case = draw_case(
        1, [1, 2, 3, 4, 7, 8, 16, 20, 32, 33, 64, 100, 128, 130, 256, 258, 1000], dtype=dtype
    )
    # When it is looked up and differentiated, then every value is NumPy's
    check_all(case, place)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_weights(place, dtype):
    # Given weights, some of them negative, which mean and sqrtn leave out
    check_all(
        draw_case(
            2,
            [4, 5, 64, 200],
            dtype=dtype,
            weighted=True,
            table_of_feature=[0, 1, 2, 3, 2, 1, 0, 2],
        ),
        place,
    )


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("max_norm", [0.0, 3.0])
def test_signed_combiners_count_every_weight(place, max_norm):
    # Given weights of which some are negative, some zero, and some cancel each other exactly
    case = draw_case(
        12,
        [4, 5, 64, 200, 16],
        num_samples=200,
        weighted=True,
        combiners=("signed_mean", "signed_sqrtn", "sum", "mean"),
        max_norm=max_norm,
    )
    case.weights = np.random.default_rng(12).choice(np.float32([-1, 0, 0.5, 2]), case.ids.size)
    # When it is looked up and differentiated, then every value is NumPy's
    check_all(case, place, terms=256)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_max_norm(place, dtype):
    # Given rows of norms around max_norm, on tables with one vector per thread and with several
    check_all(draw_case(3, [16, 8, 3, 8, 640], dtype=dtype, weighted=True, max_norm=4.0), place)


@pytest.mark.parametrize("place", PLACES)
def test_bad_ids_read_zeros(place):
    # Given negative ids, ids past the end and 2^62, in the mode that reads zeros for them
    check_all(draw_case(4, [8, 12, 40], weighted=True, bad_ids=True), place)


@pytest.mark.parametrize("place", PLACES)
def test_one_row_of_all(place):
    # Given a row that most ids name, so often that its gradient is summed in pieces
    case = draw_case(5, [4, 32, 300], num_samples=900, skew=0.7, max_norm=3.0)
    check_all(case, place, terms=20000)


@pytest.mark.parametrize("place", PLACES)
def test_long_and_empty_samples(place):
    # Given samples of hundreds of ids between samples of none
    case = draw_case(6, [16, 24], num_samples=40, max_length=400)
    lengths = np.diff(case.row_splits)
    lengths[lengths % 3 == 0] = 0
    case.row_splits = np.concatenate([[0], lengths.cumsum()])
    case.ids = case.ids[: case.row_splits[-1]]
    check_all(case, place, terms=20000)


@pytest.mark.parametrize("place", PLACES)
def test_tables_served_by_several_features(place):
    # Given three features per table, one of them without samples
    case = draw_case(7, [8, 64], table_of_feature=[0, 1, 0, 1, 0, 1])
    case.num_samples[2] = 0
    removed = slice(2 * 17, 3 * 17)
    lengths = np.delete(np.diff(case.row_splits), removed)
    case.row_splits = np.concatenate([[0], lengths.cumsum()])
    case.ids = case.ids[: case.row_splits[-1]]
    case.gradients[2] = case.gradients[2][:0]
    check_all(case, place)


@pytest.mark.parametrize("place", PLACES)
def test_thousands_of_tables(place):
    # Given more tables than any launch could take as arguments
    check_all(draw_case(8, [4] * 2000, num_samples=2, num_rows=5, max_length=3), place)


@pytest.mark.parametrize("place", PLACES)
def test_nothing_to_do(place):
    # Given no ids at all, and no samples at all
    check_all(draw_case(9, [4, 8], max_length=0), place)
    check_all(draw_case(10, [4, 8], num_samples=0), place)


@pytest.mark.parametrize("place", PLACES)
def test_bits_repeat(place):
    # Given a skewed case, when it is differentiated again, also by other threads, so are the bits
    case = draw_case(11, [16, 48, 100], num_samples=700, skew=0.5, weighted=True)
    runs = [Run(case, place, num_threads).row_gradients() for num_threads in (1, 3, 1)]
    for indices, values in runs[1:]:
        for t in range(3):
            np.testing.assert_array_equal(indices[t], runs[0][0][t])
            np.testing.assert_array_equal(values[t].view(np.uint32), runs[0][1][t].view(np.uint32))


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("bad_id", [50, 2**62, -(2**62)])
def test_bad_id_is_named(place, bad_id):
    # Given one id outside table 1, where negative ids are not pruned
    case = draw_case(12, [4, 6], max_length=0)
    case.prune_negative = False
    case.row_splits[17 + 6 :] = 1
    case.ids = np.array([bad_id])
    # When it is looked up, then the message names table, id and sample
    with pytest.raises(ValueError, match=rf"table '1'.* id {bad_id} of sample 5 .* id < 50"):
        Run(case, place).lookup()


@pytest.mark.parametrize("place", PLACES)
def test_outputs_side_by_side(place):
    # Given outputs that are columns of one array
    case = draw_case(13, [3, 8, 5])
    run = Run(case, place)
    whole = run.arrays.to_device(np.full((17, 16), np.nan, np.float32))
    run.outputs = [run.arrays.columns(whole, *ends) for ends in [(0, 3), (3, 11), (11, 16)]]
    # When looked up, then each is where it should be
    run.lookup()
    assert_near(run.arrays.to_host(whole), np.concatenate(expect(case).outputs, axis=1), "float32")


@pytest.mark.parametrize("place", PLACES[1:])
@pytest.mark.parametrize("weighted", [False, True])
def test_row_splits_left_by_a_fault_do_no_harm(place, weighted):
    # Given row splits in any order, as a fault leaves them for what is under way on a GPU
    case = draw_case(15, [4, 33, 600], num_samples=300, weighted=weighted, max_norm=2.0)
    splits = case.row_splits
    rng = np.random.default_rng(15)
    for first in (0, 300, 600):
        splits[first + 1 : first + 300] = rng.integers(
            splits[first], splits[first + 300] + 1, size=299
        )
    # When it is looked up and differentiated, then the lookup names the row splits
    run = Run(case, place)
    with pytest.raises(ValueError, match="feature '.': row_splits has"):
        run.lookup()
    # And nothing outside the arrays is touched
    indices, _ = run.row_gradients()
    run.weight_gradient()
    assert all(rows.min() >= 0 and rows.max() < 50 for rows in indices)


def test_wrong_arrays_are_refused():
    case = draw_case(14, [4, 8])
    run = Run(case, "cpu")
    run.kept["combiners"] = ["sum", "max"]
    with pytest.raises(ValueError, match="expected sum, mean, .* got 'max'"):
        run.lookup()
    run = Run(case, "cpu")
    run.outputs[1] = np.zeros((17, 9), np.float32)
    with pytest.raises(ValueError, match=r"outputs\[1\]: expected shape \[17, 8\], got \[17, 9\]"):
        run.lookup()
    run = Run(case, "cpu")
    run.kept["ids"] = case.ids.astype(np.int32)
    with pytest.raises(ValueError, match="ids: expected elements of type i8, got i4"):
        run.lookup()
    run.kept["ids"] = case.ids.tolist()
    with pytest.raises(TypeError, match="ids: expected a NumPy or CUDA array"):
        run.lookup()
    assert core.Group.__doc__


class TestRowsBeyondDeviceMemory:
    """Rows from `first_host_rows` on are fetched before they are looked up, wherever they lie."""

    pytestmark = on_gpu

    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("shape", ["plain", "weighted", "clipped", "bad ids", "skewed"])
    def test_outputs_have_the_same_bits(self, dtype, shape):
        # Given tables of odd and even dims, of which all rows, some or none lie beyond a limit
        options = {
            "weighted": {"weighted": True},
            "clipped": {"weighted": True, "max_norm": 3.0},
            "bad ids": {"weighted": True, "bad_ids": True},
            "skewed": {"skew": 0.7},
        }.get(shape, {})
        case = draw_case(21, [1, 3, 8, 20, 64, 130, 300], dtype=dtype, num_samples=200, **options)
        limits = [0, 10, -1, 25, 49, 50, 1]
        # When it is looked up with and without the limits
        plain = Run(case, "gpu").lookup()
        fetched = Run(case, "gpu", first_host_rows=limits).lookup()
        # Then every output is the same, and NumPy's
        for actual, expected, exact in zip(fetched, plain, expect(case).outputs):
            np.testing.assert_array_equal(actual, expected)
            assert_near(actual, exact, dtype, terms=256)

    @pytest.mark.parametrize("id, prune_negative", [(50, True), (2**40, True), (-1, False)])
    def test_a_bad_id_is_named(self, id, prune_negative):
        # Given a bad id in the second of three tables
        case = draw_case(22, [4, 8, 16], num_samples=400)
        case.prune_negative = prune_negative
        sample = 400 + int(np.flatnonzero(np.diff(case.row_splits)[400:])[0])
        case.ids[case.row_splits[sample]] = id
        # When it is looked up in tables in host memory, then the error is that of other tables
        with pytest.raises(ValueError) as expected:
            Run(case, "gpu").lookup()
        with pytest.raises(ValueError) as named:
            Run(case, "gpu", first_host_rows=[0, 0, 0]).lookup()
        assert str(named.value) == str(expected.value)

    def test_falling_row_splits_are_named(self):
        # Given row splits of which one falls
        case = draw_case(23, [4, 8], num_samples=400)
        case.row_splits[100] = case.row_splits[102] + 1
        # When they are used for tables in host memory, then the error is that of other tables
        with pytest.raises(ValueError) as expected:
            Run(case, "gpu").lookup()
        with pytest.raises(ValueError) as named:
            Run(case, "gpu", first_host_rows=[0, 10]).lookup()
        assert str(named.value) == str(expected.value)

    def test_one_id_a_sample(self):
        # Given no row splits, and more rows than all warps together fetch at once
        case = draw_case(24, [32, 6], num_samples=30_000, num_rows=50_000)
        case.row_splits, case.ids = None, np.random.default_rng(1).integers(0, 50_000, 60_000)
        # When it is looked up with and without limits, then the outputs are the same
        plain = Run(case, "gpu").lookup()
        fetched = Run(case, "gpu", first_host_rows=[500, 0]).lookup()
        for actual, expected in zip(fetched, plain):
            np.testing.assert_array_equal(actual, expected)
