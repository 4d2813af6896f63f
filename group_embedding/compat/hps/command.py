"""`python -m group_embedding.serving from-hps`: a deployment of HPS as one of ge-serve."""

from __future__ import annotations

import argparse
import os
import shlex

from group_embedding.compat.hps.config import HpsConfig, memory_bytes, read_hps
from group_embedding.compat.hps.keys import IS
from group_embedding.compat.hps.saved_models import write_saved_model


def add_from_hps(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Reads the configuration file of HugeCTR's HPS. Prints what each of its keys is here, "
        "writes its models to OUT/MODEL/1 as SavedModels, and prints the command of the server."
    )
    parser.add_argument("config", help="the file, often called ps.json")
    parser.add_argument("out", help="the folder for the SavedModels")
    parser.add_argument(
        "--model", action="append", metavar="NAME", help="only this one; may be repeated"
    )
    parser.set_defaults(run=lambda options: _run(options.config, options.out, options.model))


def _run(path, out, only):
    try:
        config = read_hps(path, only)
        for key, (value, here) in config.notes.items():
            print(f"{key} = {value!r:.60}: {_sentence(here)}")
        memory = 0
        for model in config.models:
            folder = os.path.join(out, model.name, "1")
            if os.path.exists(folder):
                raise ValueError(f"{folder}: expected a folder that does not exist, got one")
            tables = write_saved_model(model, config.key_bits, folder)
            memory = max(memory, memory_bytes(config, tables))
            print(f"{folder}: {sum(rows for rows, _ in tables):,} rows of {len(tables)} tables")
    except (OSError, RuntimeError, ValueError, ImportError) as error:
        raise SystemExit(f"group_embedding: {error}") from None
    print(shlex.join(server_command(config, out, memory)))
    return 0


def server_command(config: HpsConfig, out: str, memory: int) -> list[str]:
    """The command of the server.

    Args:
        config: of `read_hps`.
        out: the folder with the models, each below its name.
        memory: bytes of rows in memory, above the tier below.
    """
    command = ["python", "-m", "group_embedding.serving"]
    for model in config.models:
        command += ["--model", f"{model.name}={os.path.join(out, model.name)}"]
        if model.has_updates:
            command += ["--source", f"kafka://{config.brokers}/{model.name}"]
    if config.below:
        command += ["--tiers", f"memory={memory},{config.below},insert={config.insert}"]
    if config.quantize:
        command += ["--quantize", config.quantize]
    return command


def _sentence(here):
    return here if here.startswith(IS) else f"nothing here: {here}"
