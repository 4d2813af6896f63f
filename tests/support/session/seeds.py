"""`start` seeds all random numbers of a test, whichever tests ran before it in its process."""

import random
import sys

import numpy as np


def start(seed):
    """Seeds Python's random numbers, NumPy's and, where it is imported, TensorFlow's. Also has
    Keras 2 draw the seeds of initial values from Python's again: after a test's call of
    `keras.utils.set_random_seed` it draws them from a generator of its own."""
    random.seed(seed)
    np.random.seed(seed)
    tf = sys.modules.get("tensorflow")
    if tf is not None:
        tf.random.set_seed(seed)
    generator = getattr(sys.modules.get("keras.src.backend"), "_SEED_GENERATOR", None)
    if generator is not None:
        generator.generator = None
