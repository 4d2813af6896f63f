"""`tune`: trains a config with several values of its keys, and compares the results."""

from __future__ import annotations

import itertools
import json
import math
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from group_embedding.recommender.config.check import ConfigError
from group_embedding.recommender.config.read import Config

_NAME = "result.json"


def tune(config: Config, overrides: list[str]) -> dict[str, Any]:
    """Trains each trial in a process, and a folder, of its own: `trial_000` and so on in the run's
    folder. A trial that has ended is not trained again, so that a search that was stopped goes on.

    Args:
        config: the config, with `tune.parameters` and validation data.
        overrides: of the command line, which every trial has too.

    Returns:
        What `tune.json` has: a list of trials, the best first, each with its overrides and result.

    Raises:
        ConfigError: there is nothing to search, or no validation data.
        RuntimeError: a trial failed.
    """
    if not config["tune"]["parameters"]:
        raise ConfigError(f"{config.path}: tune.parameters: expected keys to search, got none")
    if config.files("validation") is None:
        raise ConfigError(f"{config.path}: data.validation: expected files to compare trials by")
    metric, trials = config["training"]["metric"], []
    for number, chosen in enumerate(_trials(config["tune"])):
        folder = config.folder / f"trial_{number:03}"
        result = _run(config, overrides, chosen, folder)
        value = (result["best"] or {}).get(metric, math.nan)
        print(f"trial {number}: {' '.join(chosen)}: {metric} {value:.4f}", flush=True)
        trials.append({"overrides": chosen, metric: value, "folder": str(folder)})
    worst = math.inf if metric == "loss" else -math.inf
    sign = 1 if metric == "loss" else -1
    trials.sort(key=lambda one: sign * (worst if math.isnan(one[metric]) else one[metric]))
    found = {"metric": metric, "trials": trials}
    (config.folder / "tune.json").write_text(json.dumps(found, indent=1) + "\n")
    print(f"best: {' '.join(trials[0]['overrides'])}: {metric} {trials[0][metric]:.4f}")
    return found


def _run(config, overrides, chosen, folder):
    folder.mkdir(parents=True, exist_ok=True)
    stated = [*overrides, *chosen, f"checkpoints.folder={json.dumps(str(folder.resolve()))}"]
    trial = folder / "trial.json"
    ended = folder / _NAME
    if ended.exists() and trial.exists() and json.loads(trial.read_text()) == stated:
        return json.loads(ended.read_text())
    trial.write_text(json.dumps(stated))
    command = [sys.executable, "-m", "group_embedding", "train", str(config.path), *stated]
    with open(folder / "log.txt", "w") as log:
        status = subprocess.call(command, stdout=log, stderr=subprocess.STDOUT)
    if status:
        tail = "\n".join((folder / "log.txt").read_text().splitlines()[-10:])
        raise RuntimeError(f"trial in {folder} ended with status {status}:\n{tail}")
    return json.loads(ended.read_text())


def _trials(stated: dict[str, Any]) -> Iterator[list[str]]:
    """The overrides of each trial."""
    names = list(stated["parameters"])
    if stated["search"] == "grid":
        for values in itertools.product(*stated["parameters"].values()):
            yield [f"{name}={json.dumps(value)}" for name, value in zip(names, values)]
        return
    random = np.random.default_rng(stated["seed"])
    for _ in range(stated["trials"]):
        yield [f"{name}={json.dumps(_draw(random, stated['parameters'][name]))}" for name in names]


def _draw(random, choices):
    if isinstance(choices, list):
        return choices[int(random.integers(len(choices)))]
    low, high = choices["low"], choices["high"]
    if choices.get("log"):
        return float(math.exp(random.uniform(math.log(low), math.log(high))))
    if isinstance(low, int) and isinstance(high, int):
        return int(random.integers(low, high + 1))
    return float(random.uniform(low, high))
