"""DeepRec's names that stock TensorFlow lacks, in one table, for the import of
`group_embedding.deeprec` and for `patch_tensorflow`."""

import contextlib
import importlib
import sys
import types
from typing import NamedTuple, Optional

import tensorflow as tf
from tensorflow.python.ops import array_ops

from group_embedding import feature_column, variables
from group_embedding.compat.deeprec import (
    adamw,
    collective_strategy,
    contrib,
    embedding_column,
    fused_lookup,
    keep_weights,
    layers,
    lookup_tier,
    optimizers,
    options,
    refused,
)
from group_embedding.compat.deeprec.keyed_optimizers import trains_keyed_tables
from group_embedding.compat.deeprec.linear_model import linear_model
from group_embedding.compat.deeprec.parquet import dataset as parquet_dataset
from group_embedding.compat.deeprec.parquet.dataframe import (
    DataFrame,
    to_sparse,
    unbatch_and_to_sparse,
)
from group_embedding.compat.deeprec.session_options import ExecutorPolicy, take_deeprec_options
from group_embedding.compat.deeprec.staged import make_prefetch_hook, prefetch_join, staged
from group_embedding.lookups import group_embedding_lookup, group_embedding_lookup_sparse
from group_embedding.optimizers import V1_NAMES
from group_embedding.ranks.distributed import Saver, enable_distributed_strategy

v1 = tf.compat.v1
_NOT_NAMES = {"compat", "keras", "v1"}
_PUBLIC_MODULES = (
    "data",
    "experimental",
    "feature_column",
    "io",
    "losses",
    "metrics",
    "nn",
    "random",
    "saved_model",
    "strings",
    "summary",
    "train",
)


class Names(NamedTuple):
    """Objects by name, and where DeepRec has them.

    Attributes:
        public: the public module, such as "nn" for `tf.nn`, "" for `tf` itself; None: in none.
        modules: the modules, and classes, under `tensorflow` that have them too.
        objects: dict from name to object.
    """

    public: Optional[str]
    modules: tuple
    objects: dict


def _named(*objects):
    return {each.__name__: each for each in objects}


_PYTHON = "tensorflow.python"
_COLUMNS = (
    f"{_PYTHON}.feature_column.feature_column_v2",
    f"{_PYTHON}.feature_column.feature_column",
)
_COLLECTIONS = {
    "EMBEDDING_VARIABLES": "embedding_variables",
    "EV_INIT_VAR_OPS": "ev_init_var_ops",
    "EV_INIT_SLOT_OPS": "ev_init_slot_ops",
}

TABLE = (
    Names(
        "",
        (f"{_PYTHON}.ops.variables",),
        _named(
            options.CBFFilter,
            options.CheckpointOption,
            options.CounterFilter,
            options.EmbeddingVariableOption,
            options.GlobalStepEvict,
            options.InitializerOption,
            options.L2WeightEvict,
            options.StorageOption,
        ),
    ),
    Names("", (), _named(options.CacheStrategy, options.StorageType)),
    Names(
        "",
        (f"{_PYTHON}.ops.variable_scope",),
        _named(
            variables.get_embedding_variable,
            refused.get_dynamic_dimension_embedding_variable,
            refused.get_multihash_variable,
        ),
    ),
    Names(
        None,
        (f"{_PYTHON}.ops.variable_scope.variable_scope",),
        _named(keep_weights.keep_weights),
    ),
    Names(
        None,
        (f"{_PYTHON}.ops.kv_variable_ops",),
        {**_named(variables.EmbeddingVariable), "lookup_tier": lookup_tier.lookup_tier},
    ),
    Names(
        "nn",
        (f"{_PYTHON}.ops.embedding_ops",),
        _named(group_embedding_lookup, group_embedding_lookup_sparse),
    ),
    Names(
        "feature_column",
        _COLUMNS,
        _named(
            feature_column.categorical_column_with_embedding,
            feature_column.group_embedding_column_scope,
            embedding_column.embedding_column,
            linear_model,
            refused.categorical_column_with_adaptive_embedding,
            refused.categorical_column_with_multihash,
        ),
    ),
    Names(
        "feature_column",
        (f"{_PYTHON}.feature_column.sequence_feature_column",),
        _named(feature_column.sequence_categorical_column_with_embedding),
    ),
    Names(
        "config.experimental",
        (f"{_PYTHON}.framework.config",),
        _named(enable_distributed_strategy),
    ),
    Names(
        None,
        (f"{_PYTHON}.distribute.group_embedding_collective_strategy",),
        _named(collective_strategy.CollectiveStrategy),
    ),
    Names(
        None,
        ("tensorflow.core.framework.embedding.config_pb2",),
        _named(options.CacheStrategy, options.StorageType),
    ),
    Names(None, (f"{_PYTHON}.framework.ops.GraphKeys",), _COLLECTIONS),
    Names(
        "train",
        (f"{_PYTHON}.training.adagrad_decay",),
        _named(optimizers.AdagradDecayOptimizer),
    ),
    Names(
        None,
        (f"{_PYTHON}.training.adagrad_decay_v2",),
        {"AdagradDecayOptimizerV2": optimizers.AdagradDecayOptimizer},
    ),
    Names(
        "train",
        (f"{_PYTHON}.training.adam_async",),
        _named(optimizers.AdamAsyncOptimizer),
    ),
    Names("train", (f"{_PYTHON}.training.weight_decay_optimizers",), _named(adamw.AdamWOptimizer)),
    Names(
        "",
        (f"{_PYTHON}.ops.prefetch",),
        _named(staged, make_prefetch_hook, prefetch_join),
    ),
    Names(
        "data.experimental",
        (f"{_PYTHON}.data.experimental.ops.parquet_dataset_ops",),
        _named(parquet_dataset.ParquetDataset, parquet_dataset.read_parquet),
    ),
    Names(
        None,
        (f"{_PYTHON}.data.experimental.ops.dataframe",),
        _named(DataFrame, to_sparse, unbatch_and_to_sparse),
    ),
    Names(
        None,
        (f"{_PYTHON}.ops.embedding_ops",),
        _named(fused_lookup.fused_safe_embedding_lookup_sparse),
    ),
    Names(None, (f"{_PYTHON}.ops.work_queue",), _named(refused.WorkQueue)),
    Names("", (), _named(ExecutorPolicy)),
    *(Names(None, (f"tensorflow.contrib.{path}",), found) for path, found in contrib.MODULES),
)


def of_deeprec():
    """DeepRec's names in public modules: a dict from dotted name, of `tf.`, to object."""
    found = {
        f"{names.public}.{name}".lstrip("."): value
        for names in TABLE
        if names.public is not None
        for name, value in names.objects.items()
    }
    return {**found, "contrib": sys.modules["tensorflow.contrib"], "array_ops": array_ops}


def of_tensorflow_1():
    """Names of TensorFlow 1 in DeepRec's `tf` that differ from those in `tf.compat.v1`: {dotted
    name: object}."""
    trained = {f"train.{name}": trains_keyed_tables(getattr(v1.train, name)) for name in V1_NAMES}
    return {**trained, "train.Saver": Saver, **layers.of_tensorflow_1()}


def add_modules():
    """Makes DeepRec's modules importable, and adds its names to those that TensorFlow has; has
    TensorFlow's session options take DeepRec's."""
    take_deeprec_options()
    for names in TABLE:
        for path in names.modules:
            owner = _find_or_make(path)
            for name, value in names.objects.items():
                setattr(owner, name, value)


def _find_or_make(path):
    """The module or class at this path; one that is not there is a new module."""
    if path in sys.modules:
        return sys.modules[path]
    parent_path, _, name = path.rpartition(".")
    parent = _find_or_make(parent_path)
    if hasattr(parent, name):
        return getattr(parent, name)
    try:
        return importlib.import_module(path)
    except ImportError:
        pass
    module = types.ModuleType(path, "DeepRec's module, whose names group_embedding has.")
    module.__path__ = []
    sys.modules[path] = module
    setattr(parent, name, module)
    return module


def add_missing(module, other):
    """Gives a module, and the public modules in it, the names of another one that it lacks."""
    for name in set(dir(other)) - _NOT_NAMES:
        if name.startswith("_"):
            continue
        if name not in dir(module):
            with contextlib.suppress(AttributeError, ImportError):  # Estimators, from 2.16 on
                setattr(module, name, getattr(other, name))
        elif name in _PUBLIC_MODULES:
            add_missing(getattr(module, name), getattr(other, name))
