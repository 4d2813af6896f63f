"""Tables as Keras has variables; layers and models of Keras 3 see no `tf.Variable`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf
from tensorflow.python.saved_model import registration

from group_embedding.keras_compat import IS_KERAS_3, keras
from group_embedding.ranks.sharding.replica_tables import parts_of
from group_embedding.variables.get_variable import keyed_variables, make_keyed
from group_embedding.variables.loaded_variable import loaded_variable

if TYPE_CHECKING:
    from group_embedding.variables.embedding_variable import EmbeddingVariable

if IS_KERAS_3:

    @registration.register_serializable(package="group_embedding")
    class KerasEmbeddingVariable(keras.Variable):
        """An EmbeddingVariable as a variable of Keras 3. Made by `as_keras_variable`."""

        def __init__(self, variable):
            self._table = variable
            super().__init__(
                lambda shape, dtype=None: variable,
                shape=variable.shape,
                dtype=variable.dtype.name,
                trainable=variable.trainable,
                autocast=False,
                name=variable.name.partition(":")[0].replace("/", "_"),
            )
            self._value = variable

        def __getattr__(self, name):
            """The methods of an EmbeddingVariable, such as `export`, which Keras has not."""
            if name.startswith("_"):
                raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")
            return getattr(self._table, name)

        @property
        def trainable(self):
            return keras.Variable.trainable.fget(self)

        # A layer of Keras 3 that is frozen, or thawed, sets it of its variables.
        @trainable.setter
        def trainable(self, value):
            keras.Variable.trainable.fset(self, value)
            for part in parts_of(self._table):
                part.freeze(not self.trainable)

        def _initialize(self, value):
            self._value = self._table

        def _deferred_initialize(self):
            """Does nothing: Keras initializes variables later when it traces a layer, but a table
            exists already."""

        def numpy(self):
            return self._value.numpy()

        def assign(self, value):
            return self._value.assign(value)

        def __array__(self, *args, **kwargs):
            return self._value.__array__()

        @property
        def constraint(self):
            return self._value.constraint

        # The rows, which TensorFlow's checkpoints find as a child of the variable.
        def _trackable_children(self, save_type="checkpoint", **kwargs):
            return self._value._trackable_children(save_type, **kwargs)

        def _lookup_dependency(self, name, *args, **kwargs):
            return self._value._lookup_dependency(name, *args, **kwargs)

        # A SavedModel's functions may refer to the variable as Keras tracks it. Like the table, it
        # is loaded to where it was: TensorFlow would put it on a GPU.
        @classmethod
        def _deserialize_from_proto(cls, object_proto, **kwargs):
            del kwargs
            return loaded_variable(object_proto)


def add_weight_as_it_is(layer, **kwargs):
    """`layer.add_weight` of a table, which no policy of mixed precision casts: lookups read it
    itself, and their outputs are cast, never the whole table."""
    keep_dtype = {"autocast": False} if IS_KERAS_3 else {"experimental_autocast": False}
    weight = layer.add_weight(**keep_dtype, **kwargs)
    if IS_KERAS_3 and weight._value is None:
        _initialize(weight)
    return weight


def _initialize(weight):
    """Initializes a weight now. When Keras 3 traces a layer it would do so later, after the rows of
    a sharded table have been requested."""
    with tf.init_scope():
        weight._initialize_with_initializer(weight._initializer)
    weight._initializer, weight._deferred_initialize = None, lambda: None


def add_keyed_weight(layer, name, trainable, **arguments):
    """Makes a table that is found by key a weight of a layer.

    Args:
        arguments: of an EmbeddingVariable.
    """
    if IS_KERAS_3:
        weight = KerasEmbeddingVariable(make_keyed(name, trainable, **arguments))
        add_made_weight(layer, weight)
        return weight
    shape = (0, arguments["embedding_dim"])
    with keyed_variables(**arguments):
        return add_weight_as_it_is(
            layer,
            name=name,
            shape=shape,
            dtype=arguments["value_dtype"],
            initializer="zeros",
            trainable=trainable,
        )


def add_made_weight(layer, weight):
    """Makes what another layer has made a weight of this one too, in its place among them: saved
    optimizers have slots in the order of the weights."""
    if IS_KERAS_3:
        layer._track_variable(weight)
    elif weight.trainable:
        layer._trainable_weights.append(weight)
    else:
        layer._non_trainable_weights.append(weight)


def track_weight(layer, weight, name):
    """Has TensorFlow's checkpoints save a table that is a weight of a layer.

    Keras 2 does this in `add_weight`. Keras 3 tells them of weights that are attributes, and of no
    children of a weight, which the rows of a table found by key are.
    """
    variable = weight._value if IS_KERAS_3 else weight
    saved = variable if hasattr(variable, "rows") else weight
    layer._track_trackable(saved, name=name, overwrite=True)


def as_keras_variable(variable: EmbeddingVariable) -> Any:
    """An EmbeddingVariable as an attribute that a Keras layer of your own tracks.

    Keras 3 tracks no `tf.Variable`; lookups and wrapped optimizers take what this returns as they
    take the table. In Keras 2 it is `variable` itself.

    Example:

        class Users(keras.layers.Layer):
            def build(self, input_shape):
                table = ge.get_embedding_variable("users", 16)
                self.table = ge.layers.as_keras_variable(table)

            def call(self, keys):
                return ge.group_embedding_lookup([self.table], [keys])[0]
    """
    return KerasEmbeddingVariable(variable) if IS_KERAS_3 else variable
