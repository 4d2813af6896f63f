"""`init`: Keras's legacy optimizers, one process without Horovod, and the version of TensorFlow."""

import importlib
import os
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from group_embedding import sok

LEGACY = getattr(getattr(tf.keras.optimizers, "legacy", None), "Optimizer", None)
IS_KERAS_2 = hasattr(LEGACY, "apply_gradients")


def run(code, **environment):
    """Runs Python code in a process of its own; returns it, its output as text."""
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_the_version_is_that_of_tensorflow():
    assert sok.tf_version == [int(part) for part in tf.__version__.split(".")]


@pytest.mark.skipif(not IS_KERAS_2, reason="Keras 3 has no legacy optimizers")
def test_init_puts_legacy_optimizers_where_sok_does():
    # Given tables, and optimizers of either kind made before
    table = sok.Variable(np.ones([3, 2], np.float32))
    stock = sok.OptimizerWrapper(tf.keras.optimizers.Adagrad(0.1))

    # When SOK starts as its scripts start it, twice
    sok.init()
    sok.init()

    # Then both names are of legacy optimizers, and all train tables
    assert issubclass(tf.keras.optimizers.SGD, LEGACY)
    assert issubclass(tf.optimizers.Adam, LEGACY)
    wrapped = sok.OptimizerWrapper(tf.keras.optimizers.SGD(1.0))
    for optimizer in (wrapped, stock, sok.SGD(1.0), sok.optimizers.Adam(0.1)):
        before = table.numpy()
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(sok.all2all_dense_embedding(table, [1]))
        optimizer.apply_gradients([(tape.gradient(loss, table), table)])
        changed = np.any(table.numpy() != before, axis=1)
        assert changed.tolist() == [False, True, False]


@pytest.mark.skipif(not hasattr(tf, "estimator"), reason="this TensorFlow has no Estimators")
def test_estimators_are_there_after_init():
    # Given Estimators, of which TensorFlow imports a module when they are first used
    module = importlib.import_module("tensorflow_estimator.python.estimator.canned.optimizers")
    # When SOK has started before that, Then the module finds the optimizers that it names
    sok.init()
    importlib.reload(module)
    assert tf.estimator.ModeKeys.TRAIN == "train"
    assert issubclass(tf.keras.optimizers.legacy.Adagrad, LEGACY)


def test_init_leaves_optimizers_where_it_is_told_to():
    before = tf.keras.optimizers.SGD

    sok.init(use_legacy_optimizer=False)

    assert tf.keras.optimizers.SGD is before


def test_single_is_one_rank_wherever_it_runs():
    # Given what horovodrun tells its processes, when one starts as a single rank
    environment = {"HOROVOD_SIZE": "2", "HOROVOD_RANK": "1"}
    code = "from group_embedding import exchange, sok; sok.init('single'); "

    ended = run(code + "print(exchange.current().num_ranks)", **environment)

    # Then it waits for no other
    assert ended.stdout.split() == ["1"], ended.stderr


WITHOUT_HOROVOD = """
import sys
sys.modules["horovod"] = None  # importing it fails, as where it is not installed
import tensorflow as tf
from group_embedding import exchange, sok
sok.init()
table = sok.DynamicVariable(dimension=2, initializer="1")
static = sok.Variable([[1., 2.], [3., 4.]])
optimizer = sok.OptimizerWrapper(tf.keras.optimizers.SGD(1.0))
ids = tf.ragged.constant([[1], [0, 1]], dtype=tf.int64)
with tf.GradientTape() as tape:
    vectors = sok.lookup_sparse([table, static], [ids, ids], combiners="sum")
    loss = tf.add_n([tf.reduce_sum(v) for v in vectors])
optimizer.apply_gradients(zip(tape.gradient(loss, [table, static]), [table, static]))
sok.dump(FOLDER, [table, static], optimizer)
print(exchange.current().num_ranks, sok.export(table)[1].numpy().tolist(), static.numpy().tolist())
"""


def test_one_process_needs_no_horovod(tmp_path):
    # Given a process that cannot import Horovod, when it trains and dumps tables
    ended = run(f"FOLDER = {str(tmp_path)!r}\n" + WITHOUT_HOROVOD)

    # Then it is the only rank
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.split() == [
        "1",
        "[[0.0,",
        "0.0],",
        "[-1.0,",
        "-1.0]]",
        "[[0.0,",
        "1.0],",
        "[1.0,",
        "2.0]]",
    ]


WITH_LAUNCHERS = """
import os, sys
sys.modules["horovod"] = None
from group_embedding import sok
for variable in ("HOROVOD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"):
    os.environ[variable] = "2"
    try:
        sok.init()
    except ImportError as error:
        print("pip install" in str(error))
    del os.environ[variable]
"""


def test_one_of_several_processes_needs_horovod():
    # Given what each launcher tells its processes, when Horovod is missing
    ended = run(WITH_LAUNCHERS)

    # Then each error has the command that installs it
    assert ended.stdout.split() == ["True"] * 3, ended.stderr
