"""Dense models of HugeCTR: the weights of a network's dense layers, one after the other."""

from __future__ import annotations

import os

import numpy as np
import tensorflow as tf

from group_embedding.compat.convert.array_files import vector_file
from group_embedding.compat.hugectr import Network


def load_hugectr_dense(network: Network, path: str | os.PathLike[str]) -> None:
    """Gives the dense layers of a network the weights of HugeCTR's dense model file.

    The file has float32 numbers without a header, in the order of `network.dense_variables`. The
    moving averages of batch normalization are not in it. `load_table` loads the tables.

    Args:
        network: a `ge.hugectr.Network` that was called once, so that it has variables.
        path: of the file, such as "_dense_1000.model".

    Raises:
        ValueError: the network has no variables yet, or the file has another number of weights.

    Example:

    >>> import json, tempfile
    >>> folder = tempfile.mkdtemp()
    >>> sparse = {"top": "data", "slot_num": 1, "nnz_per_slot": 1, "is_fixed_length": True}
    >>> file = {"layers": [
    ...     {"type": "Data", "label": {"top": "label", "label_dim": 1},
    ...      "dense": {"top": "dense", "dense_dim": 1}, "sparse": [sparse]},
    ...     {"type": "LocalizedSlotSparseEmbeddingHash", "bottom": "data", "top": "vectors",
    ...      "sparse_embedding_hparam": {
    ...          "embedding_vec_size": 1, "combiner": "sum", "slot_size_array": [10]}},
    ...     {"type": "Reshape", "bottom": "vectors", "top": "flat", "leading_dim": 1},
    ...     {"type": "Concat", "bottom": ["flat", "dense"], "top": "all"},
    ...     {"type": "InnerProduct", "bottom": "all", "top": "fc", "fc_param": {"num_output": 1}},
    ...     {"type": "BinaryCrossEntropyLoss", "bottom": ["fc", "label"], "top": "loss"},
    ... ]}
    >>> with open(f"{folder}/net.json", "w") as opened:
    ...     json.dump(file, opened)
    >>> np.array([2, 3, 0.5], np.float32).tofile(f"{folder}/_dense_1.model")
    >>> network = ge.hugectr.Network(f"{folder}/net.json")
    >>> _ = network({"dense": tf.ones([1, 1]), "data": tf.zeros([1], tf.int64)})
    >>> ge.convert.load_hugectr_dense(network, f"{folder}/_dense_1.model")
    >>> [variable.numpy().tolist() for variable in network.dense_variables]
    [[[2.0], [3.0]], [0.5]]
    """
    variables = network.dense_variables
    if not variables:
        raise ValueError(
            f"{path}: expected a network that was called once, got one of no variables"
        )
    weights = vector_file(path, "float32")
    sizes = [int(np.prod(variable.shape)) for variable in variables]
    if weights.num_rows != sum(sizes):
        raise ValueError(
            f"{path}: expected {sum(sizes):,} weights of {len(sizes)} variables of "
            f"{network.graph.path}, got {weights.num_rows:,}"
        )
    begin = 0
    for variable, size in zip(variables, sizes):
        values = weights.read(begin, begin + size).reshape(variable.shape)
        variable.assign(tf.cast(values, variable.dtype))
        begin += size
