"""The solver, optimizer and reader of a HugeCTR file as the keys of a config."""

from __future__ import annotations

import json
import os
from typing import Any

from group_embedding.compat.hugectr.fields import Fields
from group_embedding.compat.hugectr.graph import Graph

_OPTIMIZERS = {
    "Adam": ("adam", "adam_hparam", {"beta1": "beta_1", "beta2": "beta_2", "epsilon": "epsilon"}),
    "AdaGrad": (
        *("adagrad", "adagrad_hparam"),
        {"initial_accu_value": "initial_accumulator_value", "epsilon": "epsilon"},
    ),
    "Ftrl": (
        *("ftrl", "ftrl_hparam"),
        {
            "beta": "beta",
            "lambda1": "l1_regularization_strength",
            "lambda2": "l2_regularization_strength",
        },
    ),
    "MomentumSGD": ("sgd", "momentum_sgd_hparam", {"momentum_factor": "momentum"}),
    "Nesterov": ("sgd", "nesterov_hparam", {"momentum_factor": "momentum"}),
    "SGD": ("sgd", "sgd_hparam", {}),
}
_SOLVER = {
    "batchsize": ("data", "batch_size"),
    "batchsize_eval": ("data", "evaluation_batch_size"),
    "max_eval_batches": ("data", "evaluation_batches"),
    "max_iter": ("training", "steps"),
    "num_epochs": ("training", "epochs"),
    "eval_interval": ("training", "evaluate_every"),
    "display": ("logging", "every"),
    "snapshot": ("checkpoints", "every"),
}
_SCHEDULE = {
    "warmup_steps": "warmup_steps",
    "decay_start": "decay_start",
    "decay_steps": "decay_steps",
    "decay_power": "power",
    "end_lr": "end",
}
_FORMATS = {"Parquet": "parquet", "Raw": "hugectr"}
# A run of a file that names a number of steps reads as many epochs as it takes.
_ENDLESS = 1_000_000


def config_of_graph(graph: Graph) -> tuple[dict[str, Any], list[str]]:
    """The config of a HugeCTR file.

    Args:
        graph: what `read_graph` made of it.

    Returns:
        The values of a config, and the keys of solver, optimizer and data layer that have no
        meaning here, such as `gpu`.

    Raises:
        ValueError: an optimizer or a format that is not supported.
    """
    solver = dict(graph.solver)
    values: dict[str, Any] = {
        "data": {},
        "model": {"name": "hugectr", "file": os.path.abspath(graph.path)},
        "training": {},
        "checkpoints": {},
        "logging": {},
    }
    for key, (section, name) in _SOLVER.items():
        if key in solver:
            values[section][name] = solver.pop(key)
    if "steps" in values["training"]:
        values["training"].setdefault("epochs", _ENDLESS)
    mixed = solver.pop("mixed_precision", None)
    if mixed:
        values["precision"] = "mixed_float16"
    left_out = [f"solver.{key}" for key in solver]
    values["optimizer"] = _optimizer(graph, left_out)
    _read_data(graph, values["data"], left_out)
    return values, left_out


def _optimizer(graph, left_out):
    if not graph.optimizer:
        return {"name": "adam", "learning_rate": 0.001}  # what graph_to_json does not write
    fields = Fields(f"{graph.path}, 'optimizer'", graph.optimizer)
    kind = fields.take("type", str)
    if kind not in _OPTIMIZERS:
        raise ValueError(f"{fields.owner}: expected type {', '.join(_OPTIMIZERS)}, got '{kind}'")
    name, key, arguments = _OPTIMIZERS[kind]
    inner = fields.take_object(key)
    left_out += [f"optimizer.{key}" for key in fields.left()]
    made = {"name": name, "learning_rate": inner.take("learning_rate", float, 0.001)}
    if kind == "Nesterov":
        made["nesterov"] = True
    for theirs, ours in arguments.items():
        value = inner.take(theirs, float, None)
        if value is not None:
            made[ours] = value
    schedule = {
        ours: value
        for theirs, ours in _SCHEDULE.items()
        if (value := inner.take(theirs, (int, float), None)) is not None
    }
    if schedule:
        has_decay = bool(schedule.get("decay_start"))
        made["schedule"] = {"decay": "polynomial" if has_decay else "none", **schedule}
    left_out += [f"optimizer.{key}.{one}" for one in inner.left()]
    return made


def _read_data(graph, data, left_out):
    given = dict(graph.data)
    kind = given.pop("format", "Norm")
    source, evaluation = given.pop("source", None), given.pop("eval_source", None)
    left_out += [f"layers[0].{key}" for key in given]
    if source is None:
        return
    if kind not in _FORMATS:
        raise ValueError(
            f"{graph.path}, layer 'data': expected format {' or '.join(_FORMATS)}, got '{kind}'; "
            "write the data as Parquet"
        )
    data["format"] = _FORMATS[kind]
    data["train"] = _files(graph, kind, source)
    if evaluation:
        data["validation"] = _files(graph, kind, evaluation)


def _files(graph, kind, source):
    """The paths of a source: of Parquet a list of files, whose first line is their number."""
    sources = [source] if isinstance(source, str) else source
    folder = os.path.dirname(os.path.abspath(graph.path))
    found = []
    for one in sources:
        path = os.path.normpath(os.path.join(folder, one))
        if kind != "Parquet" or not os.path.exists(path) or not one.endswith(".txt"):
            found.append(path)
            continue
        with open(path) as file:
            lines = [line.strip() for line in file if line.strip()]
        found += [_beside(folder, path, line) for line in lines[1:]]
    return found


def _beside(folder, listing, name):
    """A file that a list names: from the folder of the JSON file, or else from the list's."""
    path = os.path.join(folder, name)
    return path if os.path.exists(path) else os.path.join(os.path.dirname(listing), name)


def columns_of(graph: Graph, files: list[str]) -> dict[str, list[str]]:
    """The names of the columns of Parquet files, by `labels`, `dense` and `slots`, in order.

    Args:
        graph: the network that they train.
        files: the Parquet files, with NVTabular's `_metadata.json` in the folder of the first.

    Raises:
        ValueError: there is no such file, or it has another number of columns of a kind.
    """
    path = os.path.join(os.path.dirname(files[0]), "_metadata.json")
    if not os.path.exists(path):
        raise ValueError(
            f"{path}: expected NVTabular's list of columns, with labels, conts and cats, beside "
            "the Parquet files"
        )
    with open(path) as file:
        stated = json.load(file)
    expected = {
        "labels": len(graph.labels),
        "conts": graph.dense[1],
        "cats": sum(one.num_slots for one in graph.sparse),
    }
    names = {key: [one["col_name"] for one in stated.get(key, [])] for key in expected}
    for key, count in expected.items():
        if len(names[key]) != count:
            raise ValueError(
                f"{path}: expected {count} {key}, as {graph.path} has, got {len(names[key])}"
            )
    return {"labels": names["labels"], "dense": names["conts"], "slots": names["cats"]}
