"""The command line of the training scripts."""

from pathlib import Path

import pytest

from dlrm import options


@pytest.fixture
def parse():
    return options.parser("What it does.", Path("runs/here")).parse_args


@pytest.mark.parametrize("option", ["--steps", "--batch-size"])
@pytest.mark.parametrize("value", ["0", "-3", "many"])
def test_counts_are_positive(parse, capsys, option, value):
    with pytest.raises(SystemExit):
        parse([f"{option}={value}"])
    assert f"{option}: invalid positive value: '{value}'" in capsys.readouterr().err


def test_an_epoch_is_the_default(parse, movielens_folder):
    _, train, test = options.load(movielens_folder)
    assert (len(train), len(test)) == (3200, 800)
    assert options.num_steps(parse(["--batch-size", "100"]), train) == 32
    assert options.num_steps(parse(["--batch-size", "5000"]), train) == 1
    assert options.num_steps(parse(["--steps", "7"]), train) == 7


def test_data_names_a_file_or_a_folder(movielens_folder, criteo_file, tmp_path):
    assert "user_id" in options.load(str(movielens_folder))[1].features
    assert "C26" in options.load(str(criteo_file))[1].features
    with pytest.raises(FileNotFoundError, match="no-such-file.csv"):
        options.load(str(tmp_path / "no-such-file.csv"))
