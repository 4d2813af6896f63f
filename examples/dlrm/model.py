"""DLRM: numbers pass a bottom MLP, every pair of vectors meets in a dot product, a top MLP decides.

Naumov et al., Deep Learning Recommendation Model for Personalization and Recommendation Systems
(2019). Here in TensorFlow 1 style, with variables by name; `train_keras.py` has it as Keras layers.
"""

import zlib

import tensorflow as tf

SEED = 2024
DIM = 16  # of every embedding vector
BOTTOM = (64, DIM)  # units; the last must be DIM, to meet the embedding vectors
TOP = (64, 32, 1)
INITIAL_STDDEV = 0.02  # of the embedding vectors
LEARNING_RATE = 0.03
# Adagrad's sum of squares starts here, not at the usual 0.1: a row that a batch of 512 names once
# gets a gradient near 1e-3, which 0.1 would drown.
INITIAL_ACCUMULATOR = 1e-7


def seed_of(name, seed=SEED):
    """One seed per variable, so that its draw depends on no other variable or op."""
    return (zlib.crc32(name.encode()) ^ seed) & 0x7FFFFFFF


def dlrm(numbers, embedded):
    """numbers [B, n], embedded [B, tables * DIM] -> logits [B]."""
    bottom = mlp(numbers, BOTTOM, "bottom")
    vectors = tf.concat([bottom, embedded], axis=1)
    dots = pairwise_dots(tf.reshape(vectors, [-1, vectors.shape[1] // DIM, DIM]))
    logits = mlp(tf.concat([bottom, dots], axis=1), TOP, "top")
    return tf.squeeze(logits, axis=1)


def pairwise_dots(vectors):
    """[B, n, D] -> [B, n * (n - 1) / 2]: the dot product of each pair of vectors."""
    n = vectors.shape[1]
    dots = tf.reshape(tf.matmul(vectors, vectors, transpose_b=True), [-1, n * n])
    pairs = [i * n + j for i in range(n) for j in range(i)]
    return tf.gather(dots, pairs, axis=1)


def mlp(inputs, units, name):
    """Dense layers with relu between them, none after the last."""
    for layer, num_units in enumerate(units):
        with tf.compat.v1.variable_scope(f"{name}_{layer}"):
            seeded = tf.compat.v1.glorot_uniform_initializer(seed_of(f"{name}_{layer}"))
            shape = (inputs.shape[1], num_units)
            kernel = tf.compat.v1.get_variable("kernel", shape, initializer=seeded)
            bias = tf.compat.v1.get_variable(
                "bias", num_units, initializer=tf.compat.v1.zeros_initializer()
            )
        inputs = inputs @ kernel + bias
        if layer < len(units) - 1:
            inputs = tf.nn.relu(inputs)
    return inputs
