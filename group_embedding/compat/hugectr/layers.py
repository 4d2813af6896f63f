"""HugeCTR's dense layers by the type that a file names. The semantics are those of HugeCTR 25.03.

A layer is made of its `Fields`, and called on the list of its bottoms; it returns a tensor, or a
list of them. The first axis may be more than the batch: `Reshape` with a `leading_dim` moves what
does not fit into it.
"""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from group_embedding.compat.hugectr import plain_layers, trained_layers
from group_embedding.compat.hugectr.dense_layer import DenseLayer
from group_embedding.compat.hugectr.fields import Fields


class _Function(DenseLayer):
    """A layer without weights and keys."""

    def call(self, bottoms):
        return self.function(bottoms)


def _function_layer(name, function):
    return type(name, (_Function,), {"function": staticmethod(function)})


def _multiply(bottoms):
    product = bottoms[0]
    for factor in bottoms[1:]:
        product = product * factor
    return product


# The class of each type of layer that a file may name. Losses are the network's.
LAYERS: dict[str, Callable[[Fields, str], DenseLayer]] = {
    **{
        name: getattr(trained_layers, name)
        for name in (
            *("BatchNorm", "FusedInnerProduct", "InnerProduct", "LayerNorm", "MLP", "MultiCross"),
            "WeightMultiply",
        )
    },
    **{
        name: getattr(plain_layers, name)
        for name in (
            *("Concat", "Dropout", "ELU", "FmOrder2", "FusedReshapeConcat"),
            *("FusedReshapeConcatGeneral", "Gather", "Interaction", "ReduceMean", "ReduceSum"),
            *("Reshape", "Scale", "Slice", "Softmax"),
        )
    },
    "PReLU_Dice": plain_layers.PReLUDice,
    **{
        name: _function_layer(name, function)
        for name, function in {
            "Add": tf.add_n,
            "Cast": lambda bottoms: bottoms[0],  # Keras's policy says which dtype a layer has
            "ElementwiseMultiply": _multiply,
            "MatrixMultiply": lambda bottoms: tf.matmul(*bottoms),
            "ReLU": lambda bottoms: tf.nn.relu(bottoms[0]),
            "Sigmoid": lambda bottoms: tf.sigmoid(bottoms[0]),
            "Sub": lambda bottoms: bottoms[0] - bottoms[1],
        }.items()
    },
}
