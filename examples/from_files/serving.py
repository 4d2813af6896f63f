"""The served model: raw features in, probabilities out."""

import tensorflow as tf


class Served(tf.Module):
    """Preprocessing and model in one; exported with the vocabularies and the tables."""

    def __init__(self, pipeline, model):
        super().__init__()
        self.pipeline = pipeline
        # Exported are the variables and these functions, not Keras's layers one by one.
        self._logits = lambda features: model(features, training=False)
        self._variables = lambda: model.variables

    def keep_weights(self):
        """Makes the variables of the model, once it has some, variables of this module."""
        self.weights = [w if isinstance(w, tf.Variable) else w.value for w in self._variables()]

    @tf.function
    def predict(self, features):
        logits = self._logits(self.pipeline(features))
        by_label = logits if isinstance(logits, dict) else {"probability": logits}
        return {label: tf.sigmoid(logit)[:, 0] for label, logit in by_label.items()}


def export(served, specs, folder):
    """Writes a SavedModel whose signature takes the features of the files, unprocessed.

    Args:
        served: a `Served`.
        specs: {feature: its `tf.TypeSpec`}, for batches of any size.
        folder: where it is written.
    """

    # Signatures take tensors: lists come as values and row lengths.
    @tf.function(input_signature=[_flat(specs)])
    def serve(inputs):
        return served.predict(
            {
                name: tf.RaggedTensor.from_row_lengths(inputs[name], inputs[f"{name}_lengths"])
                if isinstance(spec, tf.RaggedTensorSpec)
                else inputs[name]
                for name, spec in specs.items()
            }
        )

    served.serve = serve
    served.keep_weights()
    tf.saved_model.save(served, str(folder), signatures={"serving_default": serve})


def request(features):
    """Features as the signature takes them."""
    inputs = {}
    for name, values in features.items():
        if isinstance(values, tf.RaggedTensor):
            inputs[f"{name}_lengths"] = values.row_lengths()
            values = values.flat_values
        inputs[name] = values
    return inputs


def _flat(specs):
    flat = {}
    for name, spec in specs.items():
        if isinstance(spec, tf.RaggedTensorSpec):
            flat[f"{name}_lengths"] = tf.TensorSpec([None], tf.int64, f"{name}_lengths")
        flat[name] = tf.TensorSpec([None], spec.dtype, name)
    return flat
