"""Models: recommenders of Keras whose features are looked up by one op."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from group_embedding.recommender.config.read import read_config
from group_embedding.recommender.zoo.attention import (
    ActivationUnit,
    HSTUBlock,
    SelfAttention,
    TransformerBlock,
)
from group_embedding.recommender.zoo.bst import BST
from group_embedding.recommender.zoo.configured_model import ConfiguredModel
from group_embedding.recommender.zoo.dcnv2 import DCNv2
from group_embedding.recommender.zoo.deepfm import DeepFM
from group_embedding.recommender.zoo.dien import DIEN
from group_embedding.recommender.zoo.din import DIN
from group_embedding.recommender.zoo.dlrm import DLRM
from group_embedding.recommender.zoo.experts import ExpertGate
from group_embedding.recommender.zoo.interactions import (
    CompressedInteraction,
    CrossNetwork,
    DotInteraction,
    FactorizationMachine,
)
from group_embedding.recommender.zoo.item_frequency import ItemFrequency
from group_embedding.recommender.zoo.learning_rate import LearningRate
from group_embedding.recommender.zoo.make_model import make_model
from group_embedding.recommender.zoo.mlp import MLP, Dice
from group_embedding.recommender.zoo.multitask import PLE, MMoE
from group_embedding.recommender.zoo.positions import PositionEmbedding
from group_embedding.recommender.zoo.recommender import Recommender
from group_embedding.recommender.zoo.recurrent import AttentionGRU
from group_embedding.recommender.zoo.routed_inputs import RoutedInputs
from group_embedding.recommender.zoo.sequential import HSTU, SASRec
from group_embedding.recommender.zoo.two_tower import TwoTower
from group_embedding.recommender.zoo.wide_and_deep import WideAndDeep
from group_embedding.recommender.zoo.xdeepfm import XDeepFM

# The models by the names that configs use.
MODELS = {
    "dlrm": DLRM,
    "dcnv2": DCNv2,
    "wide_and_deep": WideAndDeep,
    "deepfm": DeepFM,
    "xdeepfm": XDeepFM,
    "din": DIN,
    "dien": DIEN,
    "bst": BST,
    "sasrec": SASRec,
    "hstu": HSTU,
    "two_tower": TwoTower,
    "mmoe": MMoE,
    "ple": PLE,
}


def from_config(
    path: str | os.PathLike,
    overrides: Sequence[str] = (),
    models: Mapping[str, Callable[..., Any]] | None = None,
) -> tuple[ConfiguredModel, Any]:
    """The model and the optimizer that a config file describes, for a loop of one's own.

    Args:
        path: a YAML or JSON file, or a JSON file of HugeCTR: see docs/guides/config.md.
        overrides: "key.path=value" each, such as "model.dim=32".
        models: classes of your own, by the names that `model.name` may then have beside those of
            `MODELS`. A class is called with the `ge.data.Schema`, and by name with the other keys
            of `model`: `ge.models.Recommender` has an example.

    Returns:
        A `ConfiguredModel`, and its optimizer, an optimizer of Keras.

    Raises:
        ConfigError: a key or a value that does not fit; a ValueError.

    Example:

    >>> with open("/tmp/ge_loop.csv", "w") as file:
    ...     _ = file.write("user,click\\n" + "".join(f"{i % 9},{i % 2}\\n" for i in range(64)))
    >>> with open("/tmp/ge_loop.yaml", "w") as file:
    ...     _ = file.write('''
    ... data: {train: ge_loop.csv, batch_size: 16}
    ... schema:
    ...   features:
    ...   - {name: user, kind: categorical, dtype: int64, num_ids: 9}
    ...   - {name: click, kind: label, dtype: int64}
    ... model: {name: dcnv2, dim: 4}
    ... ''')
    >>> model, optimizer = ge.models.from_config("/tmp/ge_loop.yaml")
    >>> for batch in model.make_reader("train"):
    ...     loss = model.train_step(batch)
    >>> loss.shape
    TensorShape([])
    """
    known = {**MODELS, **(models or {})}
    model = make_model(read_config(path, overrides, tuple(known)), known)
    return model, model.optimizer


__all__ = [
    "ActivationUnit",
    "AttentionGRU",
    "BST",
    "CompressedInteraction",
    "ConfiguredModel",
    "CrossNetwork",
    "DCNv2",
    "DIEN",
    "DIN",
    "DLRM",
    "DeepFM",
    "Dice",
    "DotInteraction",
    "ExpertGate",
    "FactorizationMachine",
    "HSTU",
    "HSTUBlock",
    "ItemFrequency",
    "LearningRate",
    "MLP",
    "MMoE",
    "MODELS",
    "PLE",
    "PositionEmbedding",
    "Recommender",
    "RoutedInputs",
    "SASRec",
    "SelfAttention",
    "TransformerBlock",
    "TwoTower",
    "WideAndDeep",
    "XDeepFM",
    "from_config",
]
