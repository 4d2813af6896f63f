"""Ranks that make different tables, lookups or steps: all end with an error that names a rank, a
table and the difference, and none waits for ever."""

import importlib.util
import json
import sys
import time
from pathlib import Path

import pytest

from group_embedding.testing import launch, stop

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
# After these, Horovod has ended.
LAST = {
    "more_tables-eager": ["lookup of table 'more_tables_eager_user'", "making table"],
    "over_horovod-eager": ["lookup of table", "over_horovod_eager_user'"],
    "over_horovod-function": ["lookup of table", "over_horovod_function_user'"],
    "leaves-eager": ["rank 1", "lookup of table 'leaves_eager_user'"],
}


def run(folder, cases):
    """What the ranks raised, [{case: (error, seconds)}], all that they printed."""
    command = [sys.executable, str(PROGRAM), str(folder), *cases]
    with open(folder / "output", "w") as output:
        job = launch(command, 2, output)
    begin = time.monotonic()
    try:
        job.wait(60 + 20 * len(cases))
    finally:
        stop(job, grace=0)
    print((folder / "output").read_text(errors="replace"))
    print(f"{time.monotonic() - begin:.1f} s")
    found = [folder / f"found_{rank}" for rank in range(2)]
    return [json.loads(file.read_text()) if file.exists() else {} for file in found]


@pytest.fixture(scope="module")
def found_of_shared(tmp_path_factory):
    return run(tmp_path_factory.mktemp("disagreeing"), list(SHARED))


@pytest.mark.parametrize("case", SHARED)
def test_all_ranks_raise_what_differs(found_of_shared, case):
    for found in found_of_shared:
        error, seconds = found[case]
        assert all(text in error for text in SHARED[case]), error
        assert "rank 0" in error or "rank 1" in error
        assert seconds < TIMEOUT + 30  # with building the model, on busy cores


@pytest.mark.parametrize(
    "case",
    [pytest.param(c, marks=pytest.mark.soak if c == "over_horovod-eager" else ()) for c in LAST],
)
def test_all_ranks_say_what_differs_and_end(tmp_path, case):
    raised = [found[case][0] for found in run(tmp_path, [case]) if case in found]  # which ends

    output = (tmp_path / "output").read_text(errors="replace")
    said = "\n".join([output, *filter(None, raised)])
    assert all(text in said for text in LAST[case]), said
    assert case.startswith("leaves") or len(raised) == 2 and all(raised)
