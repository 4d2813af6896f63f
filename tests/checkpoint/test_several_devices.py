"""Checkpoints of tables on several devices. Two devices of a CPU stand for a CPU and a GPU."""

import os
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from checkpoint import checkpoint_cases as cases
from variables import storages

import group_embedding as ge

v1 = tf.compat.v1
SCRIPT = """
import sys
import tensorflow as tf

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)

from checkpoint import test_several_devices as test
from group_embedding.variables import embedding_variable

plan = embedding_variable.plan_storage

def plan_storage(name, option):
    device = "/CPU:1" if name == "deep/item" else "/CPU:0"
    return plan(name, option)._replace(device=device)

embedding_variable.plan_storage = plan_storage
test.check_savers(sys.argv[1], {})
test.check_objects(sys.argv[1], {})
"""


def test_two_devices(tmp_path):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", SCRIPT, tmp_path], check=True, env=environment)


@pytest.mark.gpu
@pytest.mark.parametrize("check", ["savers", "objects"])
def test_a_cpu_and_a_gpu(check, tmp_path):
    options = {"deep/item": storages.HBM}
    (check_savers if check == "savers" else check_objects)(tmp_path, options)


def make_tables(storage_of):
    return [
        ge.get_embedding_variable(
            name,
            cases.DIM,
            ev_option=ge.EmbeddingVariableOption(
                storage_option=storage_of.get(name, ge.StorageOption())
            ),
        )
        for name in ("user", "deep/item")
    ]


def rows(n):
    return np.full([3, cases.DIM], n, np.float32)


def check_savers(folder, storage_of):
    with tf.Graph().as_default(), v1.Session() as session:
        tables = make_tables(storage_of)
        number = v1.placeholder(tf.float32, [3, cases.DIM])
        insert = [table.insert([1, 2, 3], number) for table in tables]
        exports = [table.export() for table in tables]
        saver = v1.train.Saver()
        session.run(v1.global_variables_initializer())
        session.run(insert, {number: rows(1)})
        paths = [saver.save(session, f"{folder}/saver")]
        save = ge.checkpoint.BackgroundSave(saver, session, f"{folder}/background")
        session.run(insert, {number: rows(2)})
        paths.append(save.result())
        for path in paths:
            session.run(insert, {number: rows(3)})
            saver.restore(session, path)
            for export in session.run(exports):
                np.testing.assert_array_equal(export.values, rows(1))


def check_objects(folder, storage_of):
    tables = make_tables(storage_of)
    assert tables[0].table_handle.device != tables[1].table_handle.device
    checkpoint = tf.train.Checkpoint(tables=tables)
    for table in tables:
        table.insert([1, 2, 3], rows(1))
    paths = [checkpoint.write(f"{folder}/objects")]
    save = ge.checkpoint.BackgroundSave(checkpoint, f"{folder}/objects_in_background")
    for table in tables:
        table.insert([1, 2, 3], rows(2))
    paths.append(save.result())
    for path in paths:
        for table in tables:
            table.insert([1, 2, 3], rows(3))
        checkpoint.read(path).expect_partial()
        for table in tables:
            np.testing.assert_array_equal(table.export().values, rows(1))
