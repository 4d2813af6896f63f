"""The layers' answer to XLA, which cannot compile a custom op: said early and in words."""

import sys

from tensorflow.python.framework import ops
from tensorflow.python.ops import control_flow_util

from group_embedding.keras_compat import keras

_ADVICE = (
    "looks its tables up by a custom op, which XLA cannot compile. Compile the model with "
    "jit_compile=False, which is also what compile() chooses by itself, or leave the layer outside "
    "the tf.function that has jit_compile=True."
)

# The setter through which Keras 3 takes `compile(jit_compile=...)`. Keras 2 has one too, which asks
# no layer.
_JIT_SETTER = getattr(getattr(keras.Model, "jit_compile", None), "fset", None)
# From the layer's `supports_jit` to that setter there are two or three calls.
_MAX_CALLS_TO_SETTER = 8


def refuse_xla_trace(layer_name):
    """Raises ValueError if the code at hand is being traced for XLA."""
    if control_flow_util.GraphOrParentsInXlaContext(ops.get_default_graph()):
        raise ValueError(f"layer '{layer_name}' {_ADVICE}")


def refuse_explicit_jit(layer_name):
    """Raises ValueError if Keras asks for XLA support because of an explicit `jit_compile=True`.

    Keras 3 asks each layer in two cases: to resolve `jit_compile="auto"`, and to check an explicit
    `jit_compile=True`, which it would drop with a warning that does not name the layer. Only the
    caller tells the two apart.
    """
    frame = sys._getframe(1)
    for _ in range(_MAX_CALLS_TO_SETTER):
        if frame is None or _JIT_SETTER is None:
            return
        if frame.f_code is _JIT_SETTER.__code__:
            raise ValueError(f"jit_compile=True: layer '{layer_name}' {_ADVICE}")
        frame = frame.f_back


class NotForXla:
    """Mix-in of a layer that XLA cannot compile."""

    @property
    def supports_jit(self):
        """False, which is how Keras 3 learns that a model with this layer is not for XLA."""
        refuse_explicit_jit(self.name)
        return False

    @supports_jit.setter
    def supports_jit(self, value):
        """Keras sets True while it constructs any layer."""
