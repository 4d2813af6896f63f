"""A model of HPS as a SavedModel: its tables, or its tables under HugeCTR's network."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import tempfile
from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from group_embedding.compat.convert import load_hugectr_dense, load_table, open_tables
from group_embedding.compat.convert.rows import Rows, SavedTable
from group_embedding.compat.hps.config import HpsModel
from group_embedding.compat.hugectr import Network, read_graph
from group_embedding.files import is_remote, join, remote_files
from group_embedding.keras_compat import keras
from group_embedding.lookups import group_embedding_lookup
from group_embedding.variables import get_embedding_variable


def write_saved_model(
    model: HpsModel, key_bits: int, folder: str | os.PathLike[str]
) -> list[tuple[int, int]]:
    """Writes a model of HPS as a SavedModel, for `InferenceSession` and `ge-serve`.

    A model with a network has HugeCTR's inputs: the dense ones, float32 [B, width], and ids of each
    slot, int64 [B, k]; of an input that is not of fixed length, the ids of all samples, int64 [n],
    and `<slot>_lengths`, int64 [B]. Its outputs are probabilities [B, 1], by the labels' names. A
    model without one has an input for each table, int64 keys of any shape, and outputs of the same
    names, float32 with the rows' dim as the last axis.

    Args:
        model: of `read_hps`.
        key_bits: as of HpsConfig.
        folder: the folder to write.

    Returns:
        [(rows, dim)] of each table.

    Raises:
        ValueError: a file is damaged, or is not what the configuration says.
        OSError: a file cannot be read.
    """
    with contextlib.ExitStack() as copies:
        tables = [
            _open(copies.enter_context(_local(path)), dim, key_bits)
            for path, dim in zip(model.sparse_files, model.dims)
        ]
        if model.network_file:
            _write_network(_network(model, tables, copies), os.fspath(folder))
        else:
            made = _Tables(model, tables)
            tf.saved_model.save(made, os.fspath(folder), signatures=made.serve)
    return [(table.num_rows, table.dim) for table in tables]


class _Tables(tf.Module):
    """Tables by key, and a signature that looks keys up in all of them."""

    def __init__(self, model, saved):
        super().__init__()
        self.tables = []
        for name, default, table in zip(model.tables, model.defaults, saved):
            variable = get_embedding_variable(
                name, table.dim, initializer=tf.constant_initializer(default)
            )
            load_table(variable, table)
            self.tables.append(variable)
        given = [tf.TensorSpec(None, tf.int64, name=name) for name in model.tables]

        @tf.function(input_signature=given)
        def serve(*keys):
            found = group_embedding_lookup(self.tables, [tf.reshape(one, [-1]) for one in keys])
            return {
                name: tf.reshape(rows, tf.concat([tf.shape(one), [dim]], 0))
                for name, one, rows, dim in zip(model.tables, keys, found, model.dims)
            }

        self.serve = serve


class _Served(tf.Module):
    """HugeCTR's network, and a signature that answers probabilities."""

    def __init__(self, network):
        super().__init__()
        self.network = network
        name, width = network.graph.dense
        given = [tf.TensorSpec([None, width], tf.float32, name=name)] if width else []
        ragged = set()
        for one, values in zip(network.graph.sparse, _sparse_inputs(network.graph.values)):
            for slot in one.slots:
                if values.get("is_fixed_length"):
                    given.append(tf.TensorSpec([None, None], tf.int64, name=slot))
                else:
                    ragged.add(slot)
                    given.append(tf.TensorSpec([None], tf.int64, name=slot))
                    given.append(tf.TensorSpec([None], tf.int64, name=f"{slot}_lengths"))

        @tf.function(input_signature=given)
        def serve(*inputs):
            features = {spec.name: one for spec, one in zip(given, inputs)}
            for slot in ragged:
                features[slot] = tf.RaggedTensor.from_row_lengths(
                    features[slot], features.pop(f"{slot}_lengths")
                )
            logits = network(features, training=False)
            if not isinstance(logits, dict):
                logits = {network.graph.losses[0].label: logits}
            return {label: tf.sigmoid(one) for label, one in logits.items()}

        self.serve = serve


def _write_network(served, folder):
    # Keras's own export: tf.saved_model.save of a module would restore other variables of a Keras 3
    # model than those that its functions read.
    archive = keras.export.ExportArchive()
    archive.track(served.network)
    archive.add_endpoint("serve", served.serve)
    archive.write_out(folder)


def _sparse_inputs(values):
    return values["layers"][0]["sparse"]


def _network(model, saved, copies):
    graph_file = copies.enter_context(_local(model.network_file))
    dense_file = copies.enter_context(_local(model.dense_file))
    graph = read_graph(graph_file)
    if len(graph.embeddings) != len(saved):
        raise ValueError(
            f"{model.network_file}: expected {len(saved)} sparse embeddings, one for each of "
            f"sparse_files, got {len(graph.embeddings)}"
        )
    names = [one.name for one in graph.embeddings]
    starts = [tf.keras.initializers.Constant(default) for default in model.defaults]
    network = Network(graph, dict(zip(names, starts)))
    served = _Served(network)
    served.serve.get_concrete_function()  # makes the variables
    for name, table in zip(names, saved):
        load_table(network.embeddings.tables[name], table)
    load_hugectr_dense(network, dense_file)
    return served


@contextlib.contextmanager
def _local(url: str) -> Iterator[str]:
    """A file or a folder on this machine: itself, or a copy while the context lasts."""
    if not is_remote(url):
        yield url
        return
    with tempfile.TemporaryDirectory(prefix="group_embedding_") as work:
        path = os.path.join(work, url.rstrip("/").rpartition("/")[2])
        if not remote_files.is_folder(url):
            remote_files.download(url, path)
        for name in remote_files.files_below(url) if not os.path.exists(path) else ():
            to = remote_files.path_below(path, name, url)
            os.makedirs(os.path.dirname(to), exist_ok=True)
            remote_files.download(join(url, name), to)
        yield path


def _open(path, dim, key_bits):
    """The table in a folder; its keys have 8 bytes, or 4."""
    values = os.path.join(path, "emb_vector")
    keys = os.path.join(path, "key")
    has_both = os.path.isfile(values) and os.path.isfile(keys)
    rows = os.path.getsize(values) // (4 * dim) if has_both else 0
    is_short = has_both and key_bits == 32 and os.path.getsize(keys) == 4 * rows
    (table,) = open_tables("hugectr", path, key_dtype="uint32" if is_short else "int64")
    if table.dim != dim:
        raise ValueError(f"{path}: expected rows of dim {dim}, got {table.dim}")
    if key_bits == 64 or is_short:
        return table
    return dataclasses.replace(table, _blocks=lambda: _checked(path, table))


def _checked(path: str, table: SavedTable) -> Iterator[Rows]:
    for rows in table.blocks():
        wrong = (rows.keys < 0) | (rows.keys >= 1 << 32)
        if wrong.any():
            raise ValueError(
                f"{path}: expected keys of 32 bits, as supportlonglong is false, got "
                f"{rows.keys[np.argmax(wrong)]}"
            )
        yield rows
