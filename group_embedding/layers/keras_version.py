"""The Keras under the layers: `tf.keras`, which is Keras 2 up to TensorFlow 2.15, then 3."""

import tensorflow as tf

keras = tf.keras
IS_KERAS_3 = hasattr(keras, "KerasTensor")
