"""One table for each `TableConfig`: layers that are given the same config share its table, in
memory and in the files that Keras writes."""

import importlib
import weakref

import tensorflow as tf

from group_embedding.keras_compat import keras
from group_embedding.lookups.lookup_table import Reference
from group_embedding.ranks import exchange

_package = keras.layers.Layer.__module__.partition(".")[0]
_serialization = importlib.import_module(f"{_package}.src.saving.serialization_lib")

_weights = {}  # id of a TableConfig -> {where it was made: weight}; as long as the config lives


def find_weight(config):
    """The weight that a layer has made of a `TableConfig`, of this very object; None: there is
    none yet in this graph and scope."""
    return _weights.get(id(config), {}).get(_where())


def share_weight(config, weight):
    """From now on `find_weight` finds it."""
    if id(config) not in _weights:
        _weights[id(config)] = {}
        weakref.finalize(config, _weights.pop, id(config))
    _weights[id(config)][_where()] = weight


def _where():
    """The graph (None: eager code), the ranks and the strategy that a weight is made for."""
    with tf.init_scope():
        graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
    strategy = tf.distribute.get_strategy() if tf.distribute.has_strategy() else None
    return tuple(map(Reference, (graph, exchange.current(), strategy)))


def name_in_file(config):
    """The name of a `TableConfig` in the file of a whole model that is being written, the same in
    all layers that share the config; None: no such file is being written."""
    return f"table {id(config)}" if _is_within_a_file() else None


def config_in_file(name, make):
    """The `TableConfig` that the file being read calls `name`: `make()` makes it, once."""
    if name is None:
        return make()
    config = _serialization.get_shared_object(name)
    if config is None:
        config = make()
        _serialization.record_object_after_deserialization(config, name)
    return config


def _is_within_a_file():
    """Returns whether Keras is writing or reading a `.keras` file: only then does it keep the
    object."""
    _serialization.record_object_after_deserialization(_package, "group_embedding")
    return _serialization.get_shared_object("group_embedding") is not None
