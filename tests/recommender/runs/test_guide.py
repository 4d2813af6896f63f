"""The guide's config and commands run as they are written."""

import re
import shlex
from pathlib import Path

import pyarrow.csv
import pytest
from support.cases import config_cases as cases

from group_embedding.recommender.runs.command_line import main

GUIDE = Path(__file__).resolve().parents[3] / "docs/guides/config.md"


def test_the_guides_commands(tmp_path, monkeypatch, capsys):
    # Given the guide's config and its files
    text = GUIDE.read_text().replace("\\\n", " ")  # a command a line
    (config,) = re.findall(r"^```yaml\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    commands = re.findall(r"^```sh\n(.*?)^```", text, re.DOTALL | re.MULTILINE)[0].splitlines()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "clicks.yaml").write_text(config)
    cases.write_clicks(tmp_path / "clicks/train.parquet", 2000, seed=1)
    cases.write_clicks(tmp_path / "clicks/validation.parquet", 500, seed=2)

    # When its commands run, but for the search, which starts a process for each trial
    shown = {}
    for command in commands:
        python, option, module, *arguments = shlex.split(command, comments=True)
        assert (python, option, module) == ("python", "-m", "group_embedding")
        if arguments[0] != "tune":
            assert main(arguments) == 0
            shown[command.split("#")[0].strip()] = capsys.readouterr().out

    # Then each does what the guide says
    dry, train, evaluate, *_ = shown.values()
    assert "model dlrm" in dry and "placement over 1 rank" in dry
    assert "validation loss" in train and "auc" in evaluate
    assert len(pyarrow.csv.read_csv("runs/clicks/predictions.csv")) == 500
    assert (tmp_path / "runs/clicks/export/saved_model.pb").exists()


@pytest.mark.soak
def test_the_guides_search(tmp_path, monkeypatch):
    text = GUIDE.read_text().replace("\\\n", " ")  # a command a line
    (config,) = re.findall(r"^```yaml\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    (command,) = re.findall(r"^python -m group_embedding (tune .*)$", text, re.MULTILINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(GUIDE.parents[2]))
    (tmp_path / "clicks.yaml").write_text(config)
    cases.write_clicks(tmp_path / "clicks/train.parquet", 2000, seed=1)
    cases.write_clicks(tmp_path / "clicks/validation.parquet", 500, seed=2)

    assert main(shlex.split(command)) == 0

    assert len(list((tmp_path / "runs/tuned").glob("trial_*"))) == 2
