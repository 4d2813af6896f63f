"""`describe_run`: what a training would make, without training."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from group_embedding.layers import GroupEmbedding, plan_tables, table_loads
from group_embedding.optimizers import num_slots
from group_embedding.ranks.sharding import plan_placements
from group_embedding.recommender.config.check import ConfigError
from group_embedding.recommender.config.read import Config
from group_embedding.recommender.zoo.configured_model import inner_optimizer
from group_embedding.recommender.zoo.make_model import make_model


def describe_run(config: Config, models: Mapping[str, Any]) -> str:
    """The model, its tables with their bytes, and where each lies.

    No data is read, and no table is made.

    Args:
        config: the config.
        models: the classes that `model.name` names.

    Returns:
        Lines of text.

    Raises:
        ConfigError: the config cannot be used.
    """
    model = make_model(config, models, fits=False)
    tables = plan_tables(_features(model.network))
    ranks, placement = config["ranks"]["number"], config["ranks"]["placement"]
    loads = [
        dataclasses.replace(load, placement=load.placement or placement)
        for load in table_loads(tables)
    ]
    try:
        plan = plan_placements(loads, ranks)
    except ValueError as error:
        raise ConfigError(f"{config.path}: ranks.placement: {error}") from None
    stated, optimizer = dict(config["model"]), config["optimizer"]
    name, size = stated.pop("name"), sum(load.memory for load in loads)
    slots = num_slots(inner_optimizer(model.optimizer))
    lines = [
        f"model {name} ({type(model.network).__name__}) {json.dumps(stated)}",
        f"labels {', '.join(model.labels)}; {config['loss']['name']}; {config['precision']}",
        f"optimizer {optimizer['name']}, learning rate {optimizer['learning_rate']}, "
        f"{slots} slot{'' if slots == 1 else 's'} of a table's size",
        f"{len(loads)} tables, {size / 2**20:,.2f} MiB, with slots "
        f"{size * (1 + slots) / 2**20:,.2f} MiB; those of keys grow from 0",
        f"placement over {ranks} rank{'' if ranks == 1 else 's'}:",
        str(plan),
    ]
    if config.left_out:
        lines.append(f"not taken over: {', '.join(config.left_out)}")
    return "\n".join(lines)


def _features(network):
    layers = [x for x in network._flatten_layers() if isinstance(x, GroupEmbedding)]
    return [feature for layer in layers for feature in layer.features]
