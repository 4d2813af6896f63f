"""Ranks of a run: this process is one of them, or has horovodrun launch them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from group_embedding.ranks import exchange
from group_embedding.ranks.distributed import enable_distributed_strategy
from group_embedding.recommender.config.check import ConfigError
from group_embedding.recommender.config.read import Config


def start_ranks(config: Config, arguments: Sequence[str]) -> int | None:
    """Makes this process one of the ranks that the config asks for.

    Args:
        config: the config.
        arguments: of `python -m group_embedding`, with which ranks are launched.

    Returns:
        None: the process is a rank, and goes on. Otherwise it launched the ranks, which have ended,
        and this is their exit status.

    Raises:
        ConfigError: horovodrun is missing, or launched another number of ranks.
    """
    number = config["ranks"]["number"]
    if "HOROVOD_RANK" not in os.environ:
        return None if number == 1 else subprocess.call(_command(config, number, arguments))
    enable_distributed_strategy("collective", placement=config["ranks"]["placement"])
    launched = exchange.current().num_ranks
    if launched != number:
        raise ConfigError(
            f"{config.path}: ranks.number: expected {launched}, as horovodrun launched, got "
            f"{number}"
        )
    return None


def _command(config, number, arguments):
    beside = Path(sys.executable).with_name("horovodrun")
    launcher = str(beside) if beside.exists() else shutil.which("horovodrun")
    if launcher is None:
        raise ConfigError(
            f"{config.path}: ranks.number: expected horovodrun, which launches {number} ranks, got "
            "none; install Horovod, or give ranks.number=1"
        )
    return [launcher, "-np", str(number), sys.executable, "-m", "group_embedding", *arguments]
