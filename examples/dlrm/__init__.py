"""The parts that the example scripts share: data, features, model, input pipeline, training job,
report."""
