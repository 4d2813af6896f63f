"""`start` seeds all random numbers of a test, whichever tests ran before it in its process."""

import random
import sys

import numpy as np


def start(seed):
    """Random numbers start anew: Python's, NumPy's and, where they are imported, TensorFlow's and
    those of Keras 2, which once a test has called `keras.utils.set_random_seed` draws the seeds of
    initial values from a generator of its own."""
    random.seed(seed)
    np.random.seed(seed)
    tf = sys.modules.get("tensorflow")
    if tf is not None:
        tf.random.set_seed(seed)
    generator = getattr(sys.modules.get("keras.src.backend"), "_SEED_GENERATOR", None)
    if generator is not None:
        generator.generator = None
