"""The search of `tune`: its trials, the best first, going on."""

import json
import subprocess

import pytest
from support.cases import config_cases as cases

from group_embedding.models import MODELS
from group_embedding.recommender.config import ConfigError, read_config
from group_embedding.recommender.runs.tune import tune

PARAMETERS = {
    "model.dim": [4, 8],
    "optimizer.learning_rate": {"low": 0.001, "high": 0.1, "log": True},
}


def config_in(folder, *overrides, **stated):
    values = cases.config_of(folder, tune=stated)
    return read_config(cases.write_config(folder, values), overrides, tuple(MODELS))


@pytest.fixture
def trained(monkeypatch):
    """The command lines of trials, which are not trained: their AUC is a tenth of their number."""
    commands = []

    def call(command, stdout, stderr):
        folder = json.loads(command[-1].partition("=")[2])
        number = int(folder[-3:])
        commands.append(command)
        result = {"best": None if number == 1 else {"auc": number / 10, "step": 3}}
        with open(f"{folder}/result.json", "w") as file:
            json.dump(result, file)
        return 7 if "optimizer.name=fails" in command else 0

    monkeypatch.setattr(subprocess, "call", call)
    return commands


def test_a_grid_has_all_combinations(tmp_path, trained):
    # Given two keys with two and three values
    parameters = {"model.dim": [4, 8], "model.top": [[8], [16], [32, 16]]}
    config = config_in(tmp_path, parameters=parameters)

    # When it is searched, with an override of the command line
    found = tune(config, ["data.shuffle_rows=9"])

    # Then each combination is a trial of its own, with the override, the best first
    assert len(trained) == 6
    assert len({tuple(command[5:-1]) for command in trained}) == 6
    assert all("data.shuffle_rows=9" in command for command in trained)
    assert "model.top=[32, 16]" in trained[-1] and "model.dim=8" in trained[-1]
    assert [trial["auc"] for trial in found["trials"]][:4] == [0.5, 0.4, 0.3, 0.2]
    assert found["trials"][-1]["folder"].endswith("trial_001")  # it has no evaluation
    saved = json.loads((tmp_path / "run/tune.json").read_text())
    assert saved["trials"][0] == found["trials"][0]

    # And a search that goes on trains what has not ended, or has changed
    (tmp_path / "run/trial_004/result.json").unlink()
    tune(config, ["data.shuffle_rows=9"])
    assert len(trained) == 7
    tune(config, ["data.shuffle_rows=8"])
    assert len(trained) == 13


def test_a_random_search_draws_from_ranges(tmp_path, trained):
    # Given a list, and a range by its logarithm
    config = config_in(tmp_path, parameters=PARAMETERS, search="random", trials=20, seed=3)

    # When it is searched twice
    tune(config, [])
    first = [command[5:-1] for command in trained]
    (tmp_path / "run/tune.json").unlink()
    tune(config, [])

    # Then values are those of the list and the range, and the same each time
    assert len(trained) == 20
    rates = [float(one.partition("=")[2]) for _, one in first]
    assert all(0.001 <= rate <= 0.1 for rate in rates) and len(set(rates)) == 20
    assert sum(rate < 0.01 for rate in rates) > 4
    assert {dim for dim, _ in first} == {"model.dim=4", "model.dim=8"}


def test_a_trial_that_fails_ends_the_search(tmp_path, trained):
    config = config_in(tmp_path, parameters={"optimizer.name": ["adam"]})

    with pytest.raises(RuntimeError, match=r"trial in .*trial_000 ended with status 7"):
        tune(config, ["optimizer.name=fails"])


def test_a_search_needs_keys_and_validation(tmp_path):
    with pytest.raises(ConfigError, match="tune.parameters: expected keys to search, got none"):
        tune(config_in(tmp_path), [])
    with pytest.raises(ConfigError, match="data.validation: expected files"):
        tune(config_in(tmp_path, "data.validation=null", parameters={"model.dim": [4]}), [])
