"""The commands of `python -m group_embedding`."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence

import tensorflow as tf

from group_embedding.ranks import exchange
from group_embedding.recommender.config import ConfigError, json_schema, read_config
from group_embedding.recommender.runs.dry_run import describe_run
from group_embedding.recommender.runs.launch import start_ranks
from group_embedding.recommender.runs.progress import as_text
from group_embedding.recommender.runs.run import Run
from group_embedding.recommender.runs.train import train
from group_embedding.recommender.runs.tune import tune
from group_embedding.recommender.zoo import MODELS

_COMMANDS = {
    "train": "train the model of a config, or go on with its run",
    "evaluate": "loss and AUC of the best checkpoint for data.test, or else data.validation",
    "predict": "write the predictions of the best checkpoint",
    "export": "write the best checkpoint as a SavedModel",
    "tune": "train with several values of keys, and compare",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command.

    Args:
        arguments: the command line; None: that of the process.

    Returns:
        The exit status.

    Raises:
        SystemExit: a config cannot be used; with one line that says why.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    options = _parser().parse_args(arguments)
    if options.command == "schema":
        print(json.dumps(json_schema((*MODELS, "hugectr")), indent=1))
        return 0
    try:
        config = read_config(options.config, options.overrides, tuple(MODELS))
        if getattr(options, "dry_run", False):
            print(describe_run(config, MODELS))
            return 0
        if options.command in ("train", "evaluate", "predict"):
            status = start_ranks(config, arguments)
            if status is not None:
                return status
        _run(options, config)
    except (ConfigError, ImportError, OSError, FloatingPointError, RuntimeError) as error:
        raise SystemExit(f"group_embedding: {error}") from None
    except tf.errors.InvalidArgumentError as error:  # a bad row, or an id outside of its table
        raise SystemExit(f"group_embedding: {_without_graph(error.message)}") from None
    return 0


def _without_graph(message):
    """An op's message without nodes of TensorFlow's graph, and without the trace of a reader."""
    message = message.partition("\nTraceback (most recent call last)")[0]
    message = re.sub(r"\{\{function_node [^}]*\}\} ", "", message).removeprefix("BadRow: ")
    lines = [line.partition(" [[{{node")[0].strip() for line in message.splitlines()]
    return " ".join(line for line in lines if line and line != "Graph execution error:")


def _run(options, config):
    is_first = exchange.current().rank == 0
    if config.left_out and is_first:
        print(f"not taken over: {', '.join(config.left_out)}")
    if options.command == "train":
        train(config, MODELS)
    elif options.command == "tune":
        tune(config, options.overrides)
    elif options.command == "export":
        from group_embedding.recommender.runs.export import export

        print(f"{export(config, MODELS)}: the SavedModel")
    elif options.command == "predict":
        from group_embedding.recommender.runs.predict import predict  # pyarrow is an extra

        print(f"{predict(config, MODELS)}: the predictions")
    else:
        run = Run(config, MODELS)
        step = run.restore_best()
        found = run.evaluate("test", "validation")
        if is_first:
            print(f"step {step}: {as_text(found)}")
            path = run.folder / "evaluation.json"
            path.write_text(json.dumps({"step": step, **found}, indent=1) + "\n")


def _parser():
    parser = argparse.ArgumentParser(
        prog="python -m group_embedding",
        description="Trains and uses the model that a config file describes.",
        epilog="Another command, without a config: checkpoint, which looks into checkpoints, and "
        "verifies and exports them; python -m group_embedding checkpoint --help describes it.",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in _COMMANDS.items():
        command = commands.add_parser(name, help=text, description=text)
        command.add_argument("config", help="a YAML or JSON file, or a JSON file of HugeCTR")
        command.add_argument(
            "overrides", nargs="*", metavar="key=value", help="such as model.dim=32"
        )
        if name == "train":
            command.add_argument(
                "--dry-run", action="store_true", help="show the model and its tables, and end"
            )
    commands.add_parser("schema", help="print the JSON Schema of config files")
    return parser
