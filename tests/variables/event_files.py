"""Event files of TensorBoard, read back."""

import glob

import tensorflow as tf


def read_events(folder):
    """{tag: {step: value}}"""
    found = {}
    for path in glob.glob(f"{folder}/*"):
        for event in tf.compat.v1.train.summary_iterator(path):
            for value in event.summary.value:
                is_tensor = value.HasField("tensor")
                number = tf.make_ndarray(value.tensor).item() if is_tensor else value.simple_value
                found.setdefault(value.tag, {})[event.step] = number
    return found
