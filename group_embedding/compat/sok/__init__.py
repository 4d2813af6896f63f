"""The names of NVIDIA's SparseOperationKit (SOK), versions 1 and 2.

A script for either runs with its import line changed:

    from group_embedding import sok        # was: import sparse_operation_kit as sok

What differs, everywhere: gradients of tables are sums over the ranks, as SOK's are, and not means
as elsewhere in this package: divide the loss by the batch of all ranks. A key gets a row only when
it is trained. Optimizers change only the rows of a table that were looked up. Files of SOK itself
are not read.
"""

import tensorflow

from group_embedding.compat.sok import optimizers, tf
from group_embedding.compat.sok.content import assign, export, incremental_model_dump
from group_embedding.compat.sok.dump_files import dump, load
from group_embedding.compat.sok.dynamic_variable import DynamicVariable
from group_embedding.compat.sok.embeddings import All2AllDenseEmbedding, DistributedEmbedding
from group_embedding.compat.sok.evict import sparse_read_and_evict
from group_embedding.compat.sok.initialization import Init, init
from group_embedding.compat.sok.lookup import all2all_dense_embedding, lookup_sparse
from group_embedding.compat.sok.optimizers.utils import split_embedding_variable_from_others
from group_embedding.compat.sok.sok_saver import Saver
from group_embedding.compat.sok.sok_tables import Variable, filter_variables
from group_embedding.compat.sok.wrapper import SGD, OptimizerScope, OptimizerWrapper

tf_version = [int(part) for part in tensorflow.__version__.split("-")[0].split(".")]

__all__ = [
    "SGD",
    "All2AllDenseEmbedding",
    "DistributedEmbedding",
    "DynamicVariable",
    "Init",
    "OptimizerScope",
    "OptimizerWrapper",
    "Saver",
    "Variable",
    "all2all_dense_embedding",
    "assign",
    "dump",
    "export",
    "filter_variables",
    "incremental_model_dump",
    "init",
    "load",
    "lookup_sparse",
    "optimizers",
    "sparse_read_and_evict",
    "split_embedding_variable_from_others",
    "tf",
    "tf_version",
]
