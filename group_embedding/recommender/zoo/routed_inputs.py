"""`RoutedInputs`: a batch of a model between the dataset that packs its ids and the model."""

from __future__ import annotations

from collections.abc import Mapping

import tensorflow as tf

from group_embedding.lookups import RoutedIds


class RoutedInputs(tf.experimental.ExtensionType):
    """The inputs of a model, its ids packed: one element of a dataset.

    Attributes:
      ids: what `ge.route_ids` makes of the ids of all features.
      others: the dense inputs by name.
    """

    __name__ = "group_embedding.RoutedInputs"  # in a SavedModel

    ids: RoutedIds
    others: Mapping[str, tf.Tensor]

    def __tf_tracing_type__(self, context):
        """A function is not traced anew for a batch with more ids."""
        spec = self._type_spec.__tf_tracing_type__(context)
        return RoutedInputs.Spec(ids=self.ids.__tf_tracing_type__(context), others=spec.others)


@tf.experimental.dispatch_for_api(tf.shape, {"input": RoutedInputs})
def _shape_of_routed_inputs(input, out_type=None, name=None):  # noqa: A002, TensorFlow's names
    """[samples]: Keras 3 asks its first input how many samples there are."""
    return tf.shape(input.ids, out_type or tf.int32, name=name)
