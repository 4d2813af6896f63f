"""DeepRec's names on TensorFlow's own modules, for scripts whose imports cannot change."""

from __future__ import annotations

import functools

import tensorflow as tf

from group_embedding.compat.deeprec.keyed_optimizers import train_keyed_tables_from_now_on


def patch_tensorflow() -> None:
    """Has `import tensorflow as tf` mean what `import group_embedding.deeprec as tf` does.

    Afterwards `tf` and `tf.compat.v1` have DeepRec's names, such as `tf.get_embedding_variable` and
    `tf.nn.group_embedding_lookup_sparse`; `tf` has those of TensorFlow 1 that TensorFlow 2 lacks,
    such as `tf.placeholder`; DeepRec's modules can be imported; and `tf.compat.v1.train`'s
    optimizers that are made from then on update EmbeddingVariables without `wrap`. A name that both
    versions of TensorFlow have stays that of version 2, and code runs eagerly, unless the script
    calls `tf.compat.v1.disable_v2_behavior()`. Calling it again changes nothing.

    Example:

    ```python
    import group_embedding as ge
    import tensorflow as tf

    ge.patch_tensorflow()
    tf.compat.v1.disable_v2_behavior()
    table = tf.get_embedding_variable("user", 8)  # and so on, as a DeepRec script does
    ```
    """
    from group_embedding.compat.deeprec import layers, table  # which read all of tf.compat.v1
    from group_embedding.compat.deeprec.overlay import Overlay

    table.add_modules()
    for dotted, value in table.of_deeprec().items():
        for root in (tf, tf.compat.v1):
            _set(root, dotted, value)
    # An overlay, as names cannot be set on what stands there beside Keras 3.
    with_layers = Overlay("tensorflow.compat.v1", tf.compat.v1, layers.of_tensorflow_1())
    tf.compat.v1.layers = with_layers.layers
    table.add_missing(tf, tf.compat.v1)
    train_keyed_tables_from_now_on()


def _set(root, dotted, value):
    *modules, name = dotted.split(".")
    setattr(functools.reduce(getattr, modules, root), name, value)
