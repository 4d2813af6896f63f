"""Ranks that make different tables, lookups or steps: all end with an error that names a rank, a
table and the difference, and none waits for ever."""

import importlib.util
import json
import time
from pathlib import Path

import pytest
from support.programs.ranks import Job, run_script
from support.session.tiers import by_day, values_of_run

PROGRAM = Path(__file__).with_name("disagreeing_rank.py")
TIMEOUT = 6.0  # seconds, as there
HOW = ["eager", "function", "graph"]

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("horovod") is None, reason="Horovod is not installed"
)

# After these, which go through memory that the ranks share, all of them can go on.
SHARED = {
    **{f"more_lookups-{how}": ["lookup of table", "_user'"] for how in HOW},
    "more_lookups_of_rows-function": ["lookup of table", "_user'"],
    "another_dim-eager": ["rank", "12 rows of 3 float32", "12 rows of 2 float32", "_user'"],
    "another_dim-function": ["rank", "12 rows of 3 float32", "12 rows of 2 float32", "_user'"],
    "another_dim_of_keys-eager": ["dim 3", "dim 2", "_user'"],
    "another_combiner-function": ["mean of table", "sum of table", "_user'"],
    "another_dense_variable-function": ["float32 (3, 1)", "float32 (1, 3)", "average_gradients"],
}
SHARED_BY_DAY = ["more_lookups-function", "another_dim-eager", "another_dim_of_keys-eager"]
SHARED_BY_DAY += ["another_combiner-function", "another_dense_variable-function"]
# After these, Horovod has ended.
LAST = {
    "more_tables-eager": ["lookup of table 'more_tables_eager_user'", "making table"],
    "over_horovod-eager": ["lookup of table", "over_horovod_eager_user'"],
    "over_horovod-function": ["lookup of table", "over_horovod_function_user'"],
    "leaves-eager": ["rank 1", "lookup of table 'leaves_eager_user'"],
}
# Rank 1 does not catch what it meets in these.
_OTHER_IDS = ["raised ValueError", "expected a RaggedTensor of rank 2, got shape (4, 3, 1)"]
_TOO_MANY = ["raised ResourceExhaustedError", "OOM when allocating tensor with shape["]
ENDED = {
    **{f"ids_of_another_rank-{how}": _OTHER_IDS for how in ("eager", "function")},
    "enormous_batch-eager": [*_TOO_MANY, "in the rows of", "'enormous_batch_eager_user'"],
    "enormous_batch-function": _TOO_MANY,  # an op of TensorFlow meets it first, of no table
    **{f"exits-{how}": ["died: its process ended without a word"] for how in HOW},
}


def run(starter, folder, cases):
    """The errors that the ranks raised, [{case: (error, seconds)}]. `output` in the folder has all
    that they printed."""
    command = (PROGRAM, folder, *cases)
    seconds = 60 + 20 * len(cases)
    job = Job(starter, ["localhost"] * 2, folder / "job", run_script, command, seconds)
    begin = time.monotonic()
    job.outcomes()
    print(job.all_output())
    print(f"{time.monotonic() - begin:.1f} s")
    (folder / "output").write_text(job.all_output())
    found = [folder / f"found_{rank}" for rank in range(2)]
    return [json.loads(file.read_text()) if file.exists() else {} for file in found]


@pytest.fixture(scope="module")
def found_of_shared(request, starter, tmp_path_factory):
    cases = [case for case in values_of_run(request, "case") if case in SHARED]
    return run(starter, tmp_path_factory.mktemp("disagreeing"), cases)


@pytest.mark.parametrize("case", by_day(SHARED, SHARED_BY_DAY, nightly=SHARED))
def test_all_ranks_raise_what_differs(found_of_shared, case):
    for found in found_of_shared:
        error, seconds = found[case]
        assert all(text in error for text in SHARED[case]), error
        assert "rank 0" in error or "rank 1" in error
        assert seconds < TIMEOUT + 30  # with building the model, on busy cores


# Cases whose like, in another kind of step, goes the same way: each starts ranks of its own.
ALIKE = ("over_horovod-eager", "over_horovod-function", "ids_of_another_rank-function")
ALIKE += (
    "more_tables-eager",
    "exits-eager",
    "exits-graph",
    "enormous_batch-function",
    "enormous_batch-eager",
)


@pytest.mark.parametrize(
    "case", by_day(LAST, set(LAST) - set(ALIKE), nightly=["over_horovod-eager"])
)
def test_all_ranks_say_what_differs_and_end(starter, tmp_path, case):
    raised = [
        found[case][0] for found in run(starter, tmp_path, [case]) if case in found
    ]  # which ends

    output = (tmp_path / "output").read_text(errors="replace")
    said = "\n".join([output, *filter(None, raised)])
    assert all(text in said for text in LAST[case]), said
    assert case.startswith("leaves") or len(raised) == 2 and all(raised)
    if case == "over_horovod-eager":  # where Horovod itself says which call it was
        assert all("of a lookup of table" in error for error in raised), raised


@pytest.mark.parametrize("case", by_day(ENDED, set(ENDED) - set(ALIKE), nightly=ENDED))
def test_the_other_ranks_name_one_that_ends(starter, tmp_path, case):
    # Given ranks of which one is given a batch that it cannot take, or ends without a word
    begin = time.monotonic()
    # When it does not catch the error
    found = run(starter, tmp_path, [case])
    # Then all end, and the rest say which rank it was and why
    output = (tmp_path / "output").read_text(errors="replace")
    error = found[0].get(case, [""])[0]  # of rank 0, where Horovod did not end it before
    assert "rank 1 (process" in output + error
    assert all(text in output + error for text in ENDED[case]), output + error
    assert time.monotonic() - begin < TIMEOUT + 60  # with the start of the job, on busy cores
