"""`export`: the best checkpoint of a run as a SavedModel, preprocessing included."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from group_embedding.keras_compat import IS_KERAS_3, keras
from group_embedding.recommender.config.read import Config
from group_embedding.recommender.runs.run import Run
from group_embedding.serving import export_to


class _Served(tf.Module):
    """The object of a SavedModel: variables, preprocessing and signature."""

    def __init__(self, model, specs):
        super().__init__()
        # Not the Keras model, which would save signatures of its own.
        self.variables_of_model = [_as_tensorflow(v) for v in model.network.variables]
        self.pipeline = model.data.pipeline
        lists = {name for name, spec in specs.items() if isinstance(spec, tf.RaggedTensorSpec)}
        signature = {
            name: tf.TensorSpec(
                [None, None] if name in lists else [None, *spec.shape[1:]], spec.dtype, name
            )
            for name, spec in specs.items()
        }

        def serve(inputs):
            features = {
                name: _as_ragged(value) if name in lists else value
                for name, value in inputs.items()
            }
            return model.predict(model.data.features(features))

        self.serve = tf.function(serve, input_signature=[signature])


def export(config: Config, models: Mapping[str, Any]) -> str:
    """Writes a SavedModel. It runs in one process, which has the whole model.

    The signature `serving_default` takes the columns of the data by name: numbers and ids [B], and
    lists [B, n], whose rows are filled up with -1, or with "" where they are strings. It returns
    the predictions by label, float32 [B].

    Args:
        config: the config of a run.
        models: the classes that `model.name` names.

    Returns:
        The folder, or its URL.

    Raises:
        ConfigError: there is no run.
    """
    where = config["export"]["folder"] or str(config.folder / "export")
    run = Run(config, models)
    run.restore_best()
    reader = run.model.make_reader("train", "validation", "test", has_labels=False)
    served = _Served(run.model, reader.element_spec)
    with export_to(where) as folder:
        tf.saved_model.save(served, folder, {"serving_default": served.serve})
    return where


def _as_tensorflow(variable):
    """The TensorFlow variable of a variable of Keras."""
    return variable.value if IS_KERAS_3 and isinstance(variable, keras.Variable) else variable


def _as_ragged(rows):
    is_value = rows != "" if rows.dtype == tf.string else rows >= 0
    return tf.ragged.boolean_mask(rows, is_value)
