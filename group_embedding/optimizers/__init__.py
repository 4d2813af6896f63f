"""Optimizers whose updates of tables are native: stock ones, wrapped, and some without a stock
twin."""

from group_embedding.optimizers.deeprec_adamw import AdamWOptimizer
from group_embedding.optimizers.deeprec_v1 import AdagradDecayOptimizer, AdamAsyncOptimizer
from group_embedding.optimizers.own import Lamb, LazyAdam, RowwiseAdagrad, RowwiseAdam
from group_embedding.optimizers.wrap import wrap

__all__ = [
    "AdagradDecayOptimizer",
    "AdamAsyncOptimizer",
    "AdamWOptimizer",
    "Lamb",
    "LazyAdam",
    "RowwiseAdagrad",
    "RowwiseAdam",
    "wrap",
]
