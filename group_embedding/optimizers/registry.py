"""All optimizers whose updates of tables are native, one row each: classes that `wrap` takes, names
in configs, choices in errors and in the JSON Schema of configs are made of these rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from group_embedding.annotations import Optimizer
from group_embedding.optimizers import dense_formulas, rules
from group_embedding.optimizers.lamb import Lamb
from group_embedding.optimizers.rowwise_adagrad import RowwiseAdagrad
from group_embedding.optimizers.rowwise_adam import RowwiseAdam


class StockRules(NamedTuple):
    """How a stock optimizer updates a row of a table, and a whole variable. `whole`: None where
    stock updates whole variables."""

    row: Callable[[Any], rules.RuleSpec]
    whole: dense_formulas.DenseRule | None = None


# By the name of the stock class in each family.
STOCK_V1 = {
    "GradientDescentOptimizer": StockRules(rules.v1_sgd),
    "MomentumOptimizer": StockRules(rules.v1_momentum),
    "AdadeltaOptimizer": StockRules(rules.v1_adadelta),
    "AdagradOptimizer": StockRules(rules.v1_adagrad),
    "AdamOptimizer": StockRules(rules.v1_adam),
    "FtrlOptimizer": StockRules(rules.v1_ftrl),
    "RMSPropOptimizer": StockRules(rules.v1_rmsprop),
}
STOCK_KERAS = {
    "SGD": StockRules(rules.keras_sgd, dense_formulas.keras_sgd),
    "Adagrad": StockRules(rules.keras_adagrad, dense_formulas.keras_adagrad),
    "Adam": StockRules(rules.keras_adam, dense_formulas.keras_adam),
    "AdamW": StockRules(rules.keras_adam, dense_formulas.keras_adam),
    "Adadelta": StockRules(rules.keras_adadelta, dense_formulas.keras_adadelta),
    "Adamax": StockRules(rules.keras_adamax, dense_formulas.keras_adamax),
    "Ftrl": StockRules(rules.keras_ftrl, dense_formulas.keras_ftrl),
    "RMSprop": StockRules(rules.keras_rmsprop, dense_formulas.keras_rmsprop),
}
STOCK_KERAS_LEGACY = {
    "SGD": StockRules(rules.legacy_sgd),
    "Adadelta": StockRules(rules.legacy_adadelta),
    "Adagrad": StockRules(rules.legacy_adagrad),
    "Adam": StockRules(rules.legacy_adam),
    "Adamax": StockRules(rules.legacy_adamax),
    "Ftrl": StockRules(rules.legacy_ftrl),
    "RMSprop": StockRules(rules.legacy_rmsprop),
}
# Optimizers without a stock counterpart, by the name that configs have.
OWN: dict[str, Callable[..., Optimizer]] = {
    "rowwise_adagrad": RowwiseAdagrad,
    "rowwise_adam": RowwiseAdam,
    "lamb": Lamb,
}

V1_NAMES = tuple(STOCK_V1)
# What `wrap` takes as a string; a config names these and OWN.
STOCK_NAMES = {name.lower(): name for name in STOCK_KERAS}
OPTIMIZER_NAMES = (*STOCK_NAMES, *OWN)
