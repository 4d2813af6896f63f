"""The backward pass fused with the update, against NumPy in float64, and against itself."""

import mmap
from dataclasses import replace

import numpy as np
import pytest
from support.cases.core_cases import ROUNDING, draw_case, expect, from_storage, to_storage
from support.cases.core_runner import PLACES, Run, core
from support.oracles.rules import HYPER, RULES, apply_rule, make_hyper
from support.session.tiers import by_day

DTYPES = ["float32", "float16", "bfloat16"]


def draw_slot(rng, k, table, row_slot):
    """A random slot. For RMSProp, slot 2 is a mean, whose square is below slot 0, the mean of
    squares."""
    scale = 0.1 if k == 2 else 1.0
    return scale * rng.uniform(0.1, 1, table.shape[:1] if k == row_slot else table.shape)


def ones(_, k, table, row_slot):
    return np.ones(table.shape[:1] if k == row_slot else table.shape)


class Updated:
    """A case whose tables were updated: arrays in storage form, on the host."""

    def __init__(self, case, place, rule, *, slot_dtype="float32", seed=1, threads=1, runs=1,
                 missing_slots=(), stochastic_rounding=False, updated_tables=(),
                 passed_over=(), stochastic_slots=False, slots_of_ones=False, keys=(),
                 **hyper):  # fmt: skip
        num_slots, row_slot = core.rules[rule]
        rng = np.random.default_rng(seed)
        draw = ones if slots_of_ones else draw_slot
        self.rule, self.slot_dtype = rule, slot_dtype
        self.hyper = HYPER | hyper
        self.slots_before = [
            [
                None if k in missing_slots else to_storage(draw(rng, k, table, row_slot),
                                                           slot_dtype)
                for k in range(num_slots)
            ]
            for table in case.tables
        ]  # fmt: skip
        run = Run(case, place, num_threads=threads)
        device = run.arrays.to_device
        slots = [[None if s is None else device(s) for s in of] for of in self.slots_before]
        outputs = [
            case.num_samples[f] if f in passed_over else gradient
            for f, gradient in enumerate(run.gradients)
        ]
        self.group = core.Group(outputs=outputs, **run.kept)
        update = core.Update(
            self.group, rule=rule, slots=slots,
            hyper=device(make_hyper(core.hyper_names, **hyper)), slot_dtype=slot_dtype,
            stochastic_rounding=stochastic_rounding, updated_tables=list(updated_tables),
            stochastic_slots=stochastic_slots, keys=[device(of) for of in keys],
        )  # fmt: skip
        for _ in range(runs):
            update.run()
        host = run.arrays.to_host
        self.tables = [host(table) for table in run.kept["tables"]]
        self.slots = [[None if s is None else host(s) for s in of] for of in slots]

    def bits(self):
        arrays = self.tables + [s for of in self.slots for s in of if s is not None]
        return [array.view(np.uint8) for array in arrays]


def expect_update(case, updated, expected=None):
    """(tables, slots) in float64, from the exact gradients of the case."""
    expected = expect(case) if expected is None else expected
    tables = [from_storage(table, case.dtype) for table in case.tables]
    slots = [
        [None if s is None else from_storage(s, updated.slot_dtype) for s in of]
        for of in updated.slots_before
    ]
    for t, rows in enumerate(expected.indices):
        gradients = from_storage(to_storage(expected.values[t], case.dtype), case.dtype)
        of_rows = [None if s is None else s[rows] for s in slots[t]]
        tables[t][rows] = apply_rule(
            updated.rule, updated.hyper, gradients, tables[t][rows], of_rows
        )
        for slot, moved in zip(slots[t], of_rows):
            if slot is not None:
                slot[rows] = moved
    return tables, slots


def assert_near(actual, expected, dtype, tolerance):
    actual = from_storage(actual, dtype)
    bound = tolerance + 2 * ROUNDING[dtype] * np.abs(expected)
    worst = np.argmax(np.abs(actual - expected) - bound) if actual.size else 0
    assert actual.size == 0 or np.all(np.abs(actual - expected) <= bound), (
        f"at {np.unravel_index(worst, actual.shape)}: expected {expected.flat[worst]}, "
        f"got {actual.flat[worst]}"
    )


def check(case, place, rule, terms=64, **arguments):
    updated = Updated(case, place, rule, **arguments)
    tables, slots = expect_update(case, updated)
    # The gradient may be rounded the other way than NumPy's, and slots are rounded on the way.
    step = ROUNDING[case.dtype] + terms * ROUNDING["float32"]
    step += ROUNDING[updated.slot_dtype] if updated.slot_dtype != "float32" else 0
    for t in range(len(tables)):
        assert_near(updated.tables[t], tables[t], case.dtype, 32 * step)
        for slot, expected in zip(updated.slots[t], slots[t]):
            if expected is not None:
                scale = 64 * step * max(1.0, np.abs(expected).max(initial=0))
                assert_near(slot, expected, updated.slot_dtype, scale)
    return updated


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rule", RULES)
def test_rules(place, dtype, rule):
    # Given tables of many dims, slots in float32, then every row and slot is NumPy's
    case = draw_case(
        1, [1, 2, 3, 4, 6, 8, 16, 20, 33, 64, 100, 128, 130, 256, 258, 512, 1000], dtype=dtype
    )
    check(case, place, rule)


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("rule", [rule for rule in RULES if not rule.endswith("average")])
def test_what_is_not_finite_reaches_the_row(place, rule, bad):
    # Given three tables, and gradients of which the first and the last column are not finite in
    # one sample
    case = draw_case(8, [3, 8, 33], combiners=["sum"])
    for gradient in case.gradients:
        gradient[4, [0, -1]] = bad
    # When the rows are updated
    updated = Updated(case, place, rule)
    # Then rows and slots are finite where NumPy's are: none has a number in place of NaN
    tables, slots = expect_update(case, updated)
    assert not all(np.isfinite(table).all() for table in tables)
    actual = [*updated.tables, *(s for of in updated.slots for s in of if s is not None)]
    expected = [*tables, *(s for of in slots for s in of if s is not None)]
    for of_table, of_numpy in zip(actual, expected):
        np.testing.assert_array_equal(np.isfinite(of_table), np.isfinite(of_numpy))


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("dtype", DTYPES[1:])
@pytest.mark.parametrize("rule", [rule for rule in RULES if rule != "sgd"])
def test_slots_of_16_bits(place, dtype, rule):
    check(draw_case(2, [4, 7, 64, 300], dtype=dtype), place, rule, slot_dtype=dtype)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("rule", RULES)
def test_weights_combiners_and_shared_tables(place, rule):
    # Given three features per table, weights of which some are negative, and many duplicates
    case = draw_case(3, [8, 33, 260], table_of_feature=[0, 1, 2] * 3, weighted=True, skew=0.3)
    check(case, place, rule)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "rule", ["sgd", "adagrad", "rowwise_adagrad", "adam", "lamb", "rowwise_adam"]
)
def test_long_rows(place, dtype, rule):
    # Given rows that are named from a few times to most of the time, of few and many columns, which
    # threads have in words of 2 to 16 bytes
    case = draw_case(
        4, [3, 4, 10, 32, 50, 126, 300], dtype=dtype, num_samples=900, num_rows=200, skew=0.6,
        combiners=["mean"],
    )  # fmt: skip
    check(case, place, rule, terms=2000)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("rule", ["adagrad", "lamb"])
def test_max_norm(place, rule):
    case = draw_case(5, [16, 8, 3, 8, 640], weighted=True, max_norm=4.0, skew=0.2, num_samples=200)
    check(case, place, rule, terms=2000)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    "rule, hyper",
    [
        ("momentum", {"nesterov": 1.0}),
        ("keras_momentum", {"nesterov": 1.0}),
        ("rmsprop", {"centered": 1.0}),
        ("ftrl", {"learning_rate_power": -0.6}),
        ("adagrad", {"weight_decay": 0.3, "clip_value": 0.5, "gradient_scale": 0.7}),
        ("rowwise_adagrad", {"weight_decay": 0.3, "clip_value": 0.5, "gradient_scale": 0.7}),
    ],
)
def test_hyper(place, rule, hyper):
    check(draw_case(6, [5, 32, 200]), place, rule, **hyper)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("rule, missing", [("adam", [2]), ("rmsprop", [1, 2])])
def test_missing_slots_are_zeros(place, rule, missing):
    check(draw_case(7, [5, 32, 200]), place, rule, missing_slots=missing)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("rule", ["adam", "rowwise_adagrad", "rowwise_adam"])
def test_nothing_is_applied(place, rule):
    # Given apply = 0, or no ids, or tables that stay as they are
    case = draw_case(8, [5, 32, 200], num_samples=200, skew=0.8)
    empty = draw_case(9, [5, 32], max_length=0)
    for of, arguments in [
        (case, {"apply": 0.0}),
        (case, {"updated_tables": [False] * 3}),
        (case, {"passed_over": [0, 1, 2]}),
        (empty, {}),
    ]:
        updated = Updated(of, place, rule, **arguments)
        for before, after in zip(of.tables, updated.tables):
            np.testing.assert_array_equal(before, after)
        for before, after in zip(sum(updated.slots_before, []), sum(updated.slots, [])):
            np.testing.assert_array_equal(before, after)


@pytest.mark.parametrize("place", PLACES)
def test_passed_over_features(place):
    # Given three features per table, of which the second has no gradient
    case = draw_case(10, [8, 33], table_of_feature=[0, 1, 0, 1, 0, 1], weighted=True)
    updated = Updated(case, place, "adagrad", passed_over=[2, 3])
    # Then the rows are those of a case in which its gradient is zero, but rows that it alone names
    # keep their slots, as they would anyway
    for f in (2, 3):
        case.gradients[f] = np.zeros_like(case.gradients[f])
    tables, _ = expect_update(case, updated)
    for actual, expected in zip(updated.tables, tables):
        assert_near(actual, expected, "float32", 1e-5)


@pytest.mark.parametrize("place", PLACES)
def test_bad_ids_are_passed_over(place):
    check(draw_case(11, [8, 12, 40], weighted=True, bad_ids=True), place, "momentum")


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rule", ["adam", "rowwise_adagrad"])
def test_same_bits_as_from_gradients_of_rows(place, dtype, weighted, rule):
    # Given a skewed case, and what ReduceRows makes of it
    dims = [3, 4, 10, 32, 126, 300]
    case = draw_case(
        12, dims, dtype=dtype, num_samples=900, num_rows=200, skew=0.5, weighted=weighted
    )
    indices, values = Run(case, place).row_gradients()
    # When the rows' gradients are a batch of one id per sample, without row splits
    slices = draw_case(12, dims, dtype=dtype, num_rows=200, combiners=["sum"])
    slices.ids, slices.row_splits, slices.gradients = np.concatenate(indices), None, values
    slices.num_samples = [rows.size for rows in indices]
    slices.tables = case.tables
    # Then the update is the same, in bits
    for a, b in zip(Updated(case, place, rule).bits(), Updated(slices, place, rule).bits()):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("rule", ["adam", "lamb"])
def test_bits_repeat(place, rule):
    case = draw_case(13, [4, 10, 32, 126, 300], num_samples=900, skew=0.5)
    first = Updated(case, place, rule, runs=2).bits()
    for a, b in zip(first, Updated(case, place, rule, runs=2, threads=3).bits()):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num_samples", [300, 3000])
def test_a_row_has_the_same_bits_whatever_else_is_in_the_batch(place, dtype, num_samples):
    # Given a batch in which hundreds or thousands of ids name row 1 of each table, and the same
    # batch without the ids of even rows
    whole = draw_case(
        21, [4, 10, 32, 126, 300], dtype=dtype, num_samples=num_samples, skew=0.5, combiners=["sum"]
    )
    is_odd = whole.ids % 2 == 1
    before = np.concatenate([[0], np.cumsum(is_odd)])
    part = replace(whole, ids=whole.ids[is_odd], row_splits=before[whole.row_splits])
    of_first_table = np.bincount(part.ids[: part.row_splits[num_samples]])
    assert (of_first_table[1] > 64 * 32) == (num_samples == 3000)
    assert of_first_table[1] > 64
    # When both update the tables
    rows_of_whole = Updated(whole, place, "rowwise_adagrad").tables
    rows_of_part = Updated(part, place, "rowwise_adagrad").tables
    # Then the odd rows are the same
    for a, b in zip(rows_of_whole, rows_of_part):
        np.testing.assert_array_equal(a[1::2].view(np.uint8), b[1::2].view(np.uint8))


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("dtype", DTYPES[1:])
def test_stochastic_rounding(place, dtype):
    # Given rows of ones and an update of an eighth of what separates 1 from its lower neighbour
    case = draw_case(14, [64], dtype=dtype, num_samples=400, num_rows=400)
    case.ids, case.row_splits, case.combiners = np.arange(400), np.arange(401), ["sum"]
    case.tables = [to_storage(np.ones((400, 64)), dtype)]
    case.gradients = [to_storage(np.ones((400, 64)), dtype)]
    step = ROUNDING[dtype] / 8
    keys = np.array([3, 4], np.uint32).view(np.float32).tolist()

    def update(key):
        return Updated(
            case, place, "sgd", stochastic_rounding=True, learning_rate=step, rounding_key=key
        ).tables[0]

    # When it is rounded, then rows move by as much on average, and only to neighbours
    first, again, other = update(keys[0]), update(keys[0]), update(keys[1])
    rows = from_storage(first, dtype)
    assert set(np.unique(rows)) == {1.0, 1.0 - ROUNDING[dtype]}
    assert abs((1 - rows).mean() / step - 1) < 0.1
    # And the key decides, not the run
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("combiner", by_day(["sum", "mean"], (), nightly=["sum"]))
@pytest.mark.parametrize("weighted", by_day([False, True], [True]))
def test_scratch_is_16_bytes_per_id_and_the_sums_of_pieces(place, combiner, weighted):
    # Given a million ids, one per sample
    case = draw_case(15, [256], num_samples=1, max_length=0)
    case.num_samples, case.combiners = [1 << 20], [combiner]
    case.ids = np.arange(1 << 20) % 50
    case.row_splits = np.arange((1 << 20) + 1)
    case.weights = np.ones(1 << 20, np.float32) if weighted else None
    case.gradients = [np.ones((1 << 20, 256), np.float32)]
    # Then the scratch is 16 bytes for each, on a GPU two rows of float32 for each 64 of them and a
    # byte more, and the sort's few blocks
    updated = Updated(case, place, "sgd")
    per_id = 16 if place == "cpu" else 16 + 2 * 4 * 256 // 64 + 1
    assert updated.group.scratch_bytes["update"] <= per_id * case.ids.size + (256 << 10)
    # And that is enough
    expected = case.tables[0] - np.float32(0.1) * np.bincount(case.ids, minlength=50)[:, None]
    np.testing.assert_allclose(updated.tables[0], expected, 1e-4)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("rule", ["rowwise_adagrad", "adagrad"])
def test_one_row_a_million_times(place, rule):
    # Given gradients of which each sum is exact
    case = draw_case(16, [8], num_rows=4, num_samples=1, combiners=["sum"])
    case.num_samples, case.row_splits = [1 << 20], np.arange((1 << 20) + 1)
    case.ids = np.where(np.arange(1 << 20) % 1000 == 0, 1, 2)
    case.gradients = [np.full((1 << 20, 8), 2.0**-12, np.float32)]
    # Then the long row is updated as NumPy does
    check(case, place, rule)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("rule", ["rowwise_adagrad", "lamb", "rowwise_adam"])
def test_long_rows_of_a_large_batch(place, rule):
    # Given so many ids that some rows have dozens of pieces on the GPU
    case = draw_case(
        17, [3, 10, 32, 126], num_samples=10_000, num_rows=300, skew=0.4, combiners=["sum"]
    )
    assert case.ids.size > 1 << 16
    check(case, place, rule, terms=2000)


@pytest.mark.parametrize("place", PLACES)
def test_many_ids_in_few_rows(place):
    # Given so many weighted ids of a large table's first rows that the host sorts them in place
    case = draw_case(18, [2], num_rows=1 << 20, num_samples=1, combiners=["mean"])
    case.num_samples, case.row_splits = [1 << 17], np.arange((1 << 17) + 1)
    rng = np.random.default_rng(18)
    case.ids = np.where(rng.random(1 << 17) < 0.4, 3, rng.integers(0, 1 << 12, 1 << 17))
    case.weights = rng.uniform(0.5, 1, 1 << 17).astype(np.float32)
    # And gradients of which each sum is exact
    case.gradients = [rng.integers(-8, 8, (1 << 17, 2)).astype(np.float32)]
    check(case, place, "adagrad")


def test_more_rows_than_an_entry_holds_are_refused():
    # Given a table of 2^42 rows, of which no page exists, and 2^22 ids
    no_reserve = 0x4000  # MAP_NORESERVE, which `mmap` names from Python 3.13 on
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | no_reserve
    table = np.frombuffer(mmap.mmap(-1, 1 << 43, flags=flags), np.float16).reshape(-1, 1)
    group = core.Group(
        tables=[table], outputs=[np.zeros((1 << 22, 1), np.float16)],
        ids=np.zeros(1 << 22, np.int64), row_splits=None, dtype="float16", table_of_feature=[0],
        combiners=["sum"], max_norms=[0.0],
    )  # fmt: skip
    # Then a row and a place do not share 64 bits
    with pytest.raises(ValueError, match=r"tables\[0\]: expected at most 4398046511103 rows"):
        group.sort_rows()


def test_wrong_arguments_are_refused():
    case = draw_case(17, [4, 8])
    with pytest.raises(ValueError, match="rule: expected one of sgd, .*, got 'sdg'"):
        core.Update(core.Group(outputs=Run(case, "cpu").gradients, **Run(case, "cpu").kept),
                    rule="sdg", slots=[[], []], hyper=make_hyper(core.hyper_names))  # fmt: skip
    run = Run(case, "cpu")
    group = core.Group(outputs=run.gradients, **run.kept)
    hyper = make_hyper(core.hyper_names)
    with pytest.raises(ValueError, match=r"slots\[1\]: expected 1 entries, got 0"):
        core.Update(group, rule="adagrad", slots=[[None], []], hyper=hyper)
    with pytest.raises(ValueError, match=r"slots\[0\]\[0\]: expected shape \[50, 4\]"):
        core.Update(group, rule="adagrad", slots=[[np.zeros((50, 5), np.float32)], [None]],
                    hyper=hyper)  # fmt: skip
    with pytest.raises(ValueError, match="slot_dtype: expected float32 or the type of the tables"):
        core.Update(group, rule="sgd", slots=[[], []], hyper=hyper, slot_dtype="float16")
