"""Optimizers whose updates of tables are native: stock ones, wrapped, and some without a stock
twin."""

from group_embedding.optimizers.own import Lamb, LazyAdam, RowwiseAdagrad
from group_embedding.optimizers.wrap import wrap

__all__ = ["Lamb", "LazyAdam", "RowwiseAdagrad", "wrap"]
