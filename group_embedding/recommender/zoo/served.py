"""`Served`: how a model of the zoo is exported, and saved inside a module."""

from __future__ import annotations

import tensorflow as tf

from group_embedding.config import FeatureConfig
from group_embedding.keras_compat import IS_KERAS_3, keras
from group_embedding.recommender.zoo.routed_inputs import RoutedInputs


class Served:
    """Mixed into a model of features and dense inputs."""

    _features: tuple[FeatureConfig, ...]
    _dense_widths: dict[str, int]

    def serving_signature(self) -> dict[str, tf.TensorSpec]:
        """The inputs of an exported model: ids `[batch, any]`, filled up with a negative id, and
        dense inputs `[batch, width]`."""
        specs = {}
        for feature in self._features:
            dtype = feature.table.key_dtype or "int64"
            specs[feature.name] = tf.TensorSpec([None, None], dtype, feature.name)
        for name, width in self._dense_widths.items():
            specs[name] = tf.TensorSpec([None, width], tf.float32, name)
        return specs

    def export(self, filepath: str) -> None:
        """Writes a SavedModel for serving, with the inputs of `serving_signature`.

        Args:
          filepath: the folder of the SavedModel.
        """
        if not self.built:  # type: ignore[attr-defined]
            self.build()  # type: ignore[attr-defined]
        serve = self._serving_function()
        serve.get_concrete_function()
        archive = keras.export.ExportArchive()
        archive.track(self)
        archive.add_endpoint("serve", serve)
        archive.write_out(str(filepath))

    def _serving_function(self):
        signature = self.serving_signature()
        return tf.function(lambda inputs: self(inputs, training=False), input_signature=[signature])

    @property
    def _default_save_signature(self):
        """The function of a SavedModel that names none. Keras 3 would trace it with a tensor for
        each argument of `build`, whatever the inputs are."""
        return self._serving_function() if IS_KERAS_3 else super()._default_save_signature

    def _set_save_spec(self, inputs, args=None, kwargs=None):
        """Keras 2: the inputs that a SavedModel is traced with, those of the first call."""
        if isinstance(inputs, RoutedInputs):
            # Packed ids have the size of one batch.
            inputs = self.serving_signature()
        super()._set_save_spec(inputs, args, kwargs)
