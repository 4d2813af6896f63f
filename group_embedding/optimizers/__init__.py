"""Optimizers whose updates of tables are native: stock ones, wrapped, and some without a stock
counterpart."""

from typing import TYPE_CHECKING, Any

from group_embedding import import_paths
from group_embedding.optimizers.bases import KERAS as KERAS
from group_embedding.optimizers.bases import changed_method as changed_method
from group_embedding.optimizers.dense_rules import apply_dense as apply_dense
from group_embedding.optimizers.dense_rules import apply_sparse as apply_sparse
from group_embedding.optimizers.lamb import Lamb
from group_embedding.optimizers.lazy_adam import LazyAdam
from group_embedding.optimizers.loss_scale import inside as inside
from group_embedding.optimizers.loss_scale import is_loss_scale as is_loss_scale
from group_embedding.optimizers.named import maker_of as maker_of
from group_embedding.optimizers.named import num_slots as num_slots
from group_embedding.optimizers.registry import OPTIMIZER_NAMES as OPTIMIZER_NAMES
from group_embedding.optimizers.registry import V1_NAMES as V1_NAMES
from group_embedding.optimizers.rowwise_adagrad import RowwiseAdagrad
from group_embedding.optimizers.rowwise_adam import RowwiseAdam
from group_embedding.optimizers.rules import RuleSpec as RuleSpec
from group_embedding.optimizers.rules import v1_adam as v1_adam
from group_embedding.optimizers.rules import v1_ftrl as v1_ftrl
from group_embedding.optimizers.slot_types import set_slot_dtype
from group_embedding.optimizers.trained_tables import Settings as Settings
from group_embedding.optimizers.v1 import WrappedV1 as WrappedV1
from group_embedding.optimizers.wrap import WRAPPED as WRAPPED
from group_embedding.optimizers.wrap import can_wrap as can_wrap
from group_embedding.optimizers.wrap import keyed_alone_class as keyed_alone_class
from group_embedding.optimizers.wrap import stock_class as stock_class
from group_embedding.optimizers.wrap import wrap

__all__ = [
    "AdagradDecayOptimizer",
    "AdamAsyncOptimizer",
    "AdamWOptimizer",
    "Lamb",
    "LazyAdam",
    "RowwiseAdagrad",
    "RowwiseAdam",
    "set_slot_dtype",
    "wrap",
]

if TYPE_CHECKING:
    AdagradDecayOptimizer: Any
    AdamAsyncOptimizer: Any
    AdamWOptimizer: Any
else:
    __getattr__ = import_paths.names_of(__name__)  # DeepRec's optimizers
