"""Random programs of tables with a budget whose keys expire, on 1, 2 and 3 ranks."""

import pytest
from table import storages
from table.budget_programs import Program, run_for

SECONDS = 300  # of a part of the hour


@pytest.mark.parametrize("storage", storages.ALL)
@pytest.mark.parametrize("num_ranks", [1, 2, 3])
@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 30))]
)
def test_random_programs(storage, num_ranks, seed, tmp_path):
    # Given a program that is drawn from a seed
    program = Program(storage, 6 * seed + num_ranks, num_ranks, tmp_path)
    # When it runs, Then the tables have what the dict has, after each call
    program.run()


@pytest.mark.soak
@pytest.mark.parametrize("part", range(12))
def test_an_hour_of_programs(part):
    # Given an hour in twelve parts, each of which starts tables anew
    # When programs run for that time, Then each has what the dict has
    done = list(run_for(SECONDS, first_seed=100_000 * (1 + part)))
    # And the process takes as much memory as it did after the first quarter
    quarter = [d["bytes"] for d in done[: len(done) // 4]]
    assert done[-1]["bytes"] <= max(quarter) + (16 << 20), done[:: len(done) // 20]
