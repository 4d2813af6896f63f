"""A checkpoint goes into tables that take all its keys and its rows, and into no others."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import group_embedding as ge
from group_embedding.checkpoint import checkpoint_files as files
from group_embedding.compat.convert.__main__ import main as convert

v1 = tf.compat.v1
VERSION_2 = Path(__file__).parent / "version_2"  # tables of keys of int64, uint64 and int32
INTEGERS = (tf.int32, tf.int64, tf.uint32, tf.uint64)
TAKES = {  # a table of these keys: files of those
    tf.int32: {tf.int32},
    tf.int64: {tf.int64, tf.int32, tf.uint32},
    tf.uint32: {tf.uint32},
    tf.uint64: {tf.uint64, tf.uint32},
}
PAIRS = [(saved, table) for saved in INTEGERS for table in INTEGERS]
OPTION = ge.EmbeddingVariableOption(init_option=ge.InitializerOption(default_value_dim=2))


def table_of(name, key_dtype=tf.int64, dim=2, **arguments):
    arguments = {"ev_option": OPTION, **arguments}
    return ge.get_embedding_variable(name, dim, key_dtype=key_dtype, **arguments)


def keys_of(dtype):
    """The least and the greatest."""
    return np.array([dtype.min, 7, dtype.max], dtype.as_numpy_dtype)


def saved_shop(folder, key_dtype):
    """A checkpoint of two tables by key and a dense variable: its prefix."""
    items, users = table_of("items", key_dtype), table_of("users")
    items.insert(keys_of(key_dtype), [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    users.insert([8], [[7.0, 8.0]])
    checkpoint = tf.train.Checkpoint(items=items, users=users, bias=tf.Variable(9.0))
    return checkpoint.write(f"{folder}/shop")


@pytest.mark.parametrize("saved, found", PAIRS, ids=lambda dtype: dtype.name)
def test_a_checkpoint_goes_into_tables_that_take_all_its_keys(saved, found, tmp_path):
    # Given a checkpoint, and tables and a variable that are to be restored from it
    prefix = saved_shop(tmp_path, saved)
    items, users, bias = table_of("items", found), table_of("users"), tf.Variable(0.0)
    items.insert(np.array([3], found.as_numpy_dtype), [[0.5, 0.5]])
    checkpoint = tf.train.Checkpoint(items=items, users=users, bias=bias)
    if saved in TAKES[found]:
        # When they are, Then they have its rows under the same numbers
        checkpoint.read(prefix).assert_consumed()
        keys, values, _, _ = items.export()
        assert dict(zip(keys.numpy().tolist(), values.numpy()[:, 0])) == dict(
            zip(keys_of(saved).tolist(), [1, 3, 5])
        )
        assert float(bias) == 9
        return
    # Else that is refused, with both types and the table, and nothing has changed
    with pytest.raises(
        tf.errors.InvalidArgumentError,
        match=f"table 'items.*expected keys of type {found.name}, got {saved.name}.*"
        f"convert checkpoint PREFIX --table 'items' --to-key-dtype {found.name}",
    ):
        checkpoint.read(prefix)
    assert items.export().keys.numpy().tolist() == [3]
    assert int(users.total_count()) == 0 and float(bias) == 0


def test_a_start_from_keys_of_another_type(tmp_path):
    # Given a checkpoint of int64 keys, When an int32 table starts from it, Then that is refused
    prefix = saved_shop(tmp_path, tf.int64)
    option = ge.EmbeddingVariableOption(ckpt=ge.CheckpointOption(prefix, "items"))
    with pytest.raises(tf.errors.InvalidArgumentError, match="keys of type int32, got int64"):
        table_of("started", tf.int32, ev_option=option)


@pytest.mark.parametrize("found", [tf.int32, tf.int64], ids=lambda dtype: dtype.name)
def test_a_saver_and_its_changes(found, tmp_path):
    # Given a Saver's checkpoint with changes of a table of uint32 keys
    def graph_of(key_dtype):
        table = table_of("items", key_dtype)
        keys = v1.placeholder(key_dtype, [None])
        inserted = table.insert(keys, tf.ones([tf.size(keys), 2]))
        return keys, inserted, table.export(), v1.train.Saver()

    with tf.Graph().as_default(), v1.Session() as session:
        keys, inserted, _, saver = graph_of(tf.uint32)
        session.run(v1.global_variables_initializer())
        session.run(inserted, {keys: [7, 2**32 - 1]})
        saver.save(session, f"{tmp_path}/full")
        session.run(inserted, {keys: [8]})
        prefix = ge.checkpoint.save_changes(saver, session, f"{tmp_path}/changes")
    # When a Saver restores it, into a graph without tables yet
    with tf.Graph().as_default(), v1.Session() as session:
        _, _, exported, saver = graph_of(found)
        if found == tf.int64:
            saver.restore(session, prefix)
            # Then wider keys are the same numbers, and others are refused
            assert session.run(exported).keys.tolist() == [7, 8, 2**32 - 1]
            return
        with pytest.raises(tf.errors.InvalidArgumentError, match="of type int32, got uint32"):
            saver.restore(session, prefix)


@pytest.mark.parametrize("as_file", ["model.keras", "model.weights.h5"])
def test_keras_files(as_file, tmp_path):
    # Given the files of a layer's table of int64 keys
    def model_of(key_dtype):
        table = ge.TableConfig("items", num_rows=None, dim=2, key_dtype=key_dtype)
        ids = tf.keras.Input([1], dtype=key_dtype, name="item")
        layer = ge.layers.GroupEmbedding([ge.FeatureConfig("item", table)], name="embedding")
        model = tf.keras.Model({"item": ids}, layer({"item": ids})["item"])
        return model, layer.tables["items"]

    model, items = model_of("int64")
    items.insert([2**40], [[1.0, 2.0]])
    path = f"{tmp_path}/{as_file}"
    model.save(path) if as_file == "model.keras" else model.save_weights(path)
    # When a layer of int32 keys loads them, Then that is refused
    model, items = model_of("int32")
    of_keras_3 = ValueError  # which quotes the error of the layer
    with pytest.raises(
        (tf.errors.InvalidArgumentError, of_keras_3), match="of type int32, got int64"
    ):
        model.load_weights(path)
    assert int(items.total_count()) == 0


def restored(saved_as, key_dtype):
    """The keys of one of version 2's tables, in a table of another type of keys."""
    table = table_of(saved_as, key_dtype)
    tf.train.Checkpoint(**{saved_as: table}).read(str(VERSION_2 / "model")).expect_partial()
    return table.export().keys.numpy().tolist()


def test_files_that_do_not_name_the_type_of_their_keys():
    # Given a checkpoint of format version 2, When tables take its keys, Then they have them
    assert restored("items", tf.int64) == [7, 2**40]
    assert restored("items", tf.uint64) == [7, 2**40]
    assert restored("users", tf.uint64) == [7, 2**64 - 1]
    assert restored("shops", tf.int32) == [-5, 7]
    # When one of its keys is none of the table's, Then that is refused
    for saved_as, key_dtype, key in (
        ("items", tf.int32, 2**40),
        ("items", tf.uint32, 2**40),
        ("shops", tf.uint32, -5),
    ):
        message = f"'{saved_as}.*expected keys of type {key_dtype.name}, got key {key}"
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            restored(saved_as, key_dtype)


def test_a_saver_of_files_that_do_not_name_the_type_of_their_keys(tmp_path):
    # Given a checkpoint of a Saver with a file of format version 2
    manifests = files.manifests(str(VERSION_2 / "model"))
    (manifest,) = (manifests[name] for name in manifests if name.startswith("items"))
    shutil.copytree(VERSION_2, tmp_path / "saved")
    with tf.Graph().as_default(), v1.Session() as session:
        table_of("items", tf.int32)
        saver = v1.train.Saver()
        prefix = f"{tmp_path}/saved/model"
        tensors = {"items": tf.zeros([0, 2]), "items-rows": tf.constant(manifest)}
        session.run(
            tf.raw_ops.SaveV2(
                prefix=prefix,
                tensor_names=list(tensors),
                shape_and_slices=[""] * 2,
                tensors=list(tensors.values()),
            )
        )
        # When it is restored before its table is made, Then its key is named
        with pytest.raises(tf.errors.InvalidArgumentError, match=f"got key {2**40}"):
            saver.restore(session, prefix)


def test_all_differences_are_named_and_the_converter_takes_them_away(tmp_path):
    # Given a checkpoint of int64 keys, in a full save and its changes
    items = table_of("items")
    checkpoint = tf.train.Checkpoint(items=items)
    items.insert([7, 8, -9], [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], freqs=[1, 2, 3])
    checkpoint.write(f"{tmp_path}/full")
    items.erase([8])
    items.insert([7], [[1.001, 2.0]])
    with ge.checkpoint.changes_only():
        prefix = checkpoint.write(f"{tmp_path}/changes")
    # When a table of other keys, values and dim is restored from it
    other = table_of("items", tf.int32, dim=3, value_dtype=tf.bfloat16)
    with pytest.raises(tf.errors.InvalidArgumentError) as error:
        tf.train.Checkpoint(items=other).read(prefix)
    # Then the sentence has all that differs, and the command that converts it
    for part in ("dim 3, got 2", "type bfloat16, got float32", "type int32, got int64"):
        assert part in str(error.value)
    command = "checkpoint PREFIX --table 'items' --to-dim 3 --to-value-dtype bfloat16"
    assert command in str(error.value)
    # When it is run, and the table starts from what it wrote
    options = ["--to-dim", "3", "--to-value-dtype", "bfloat16", "--to-key-dtype", "int32"]
    convert(["checkpoint", prefix, "--table", "items", *options, "--out", f"{tmp_path}/new"])
    option = ge.EmbeddingVariableOption(ckpt=ge.CheckpointOption(f"{tmp_path}/new", "items"))
    other = table_of("new_items", tf.int32, 3, value_dtype=tf.bfloat16, ev_option=option)
    # Then it has the rows, rounded, with a column of zeros, and the counts
    keys, values, _, counts = other.export()
    assert keys.numpy().tolist() == [-9, 7]
    expected = tf.cast([[5, 6, 0], [1.001, 2, 0]], tf.bfloat16)
    np.testing.assert_array_equal(values, expected)
    assert counts.numpy().tolist() == [3, 1]


def test_the_converter_refuses_keys_and_values_that_would_change(tmp_path):
    # Given a checkpoint, When a key or a value is beyond the type, Then it is named
    prefix = saved_shop(tmp_path, tf.int64)
    arguments = ["checkpoint", prefix, "--table", "items", "--out", f"{tmp_path}/new"]
    with pytest.raises(SystemExit, match=f"keys of type int32, got {tf.int64.min}"):
        convert([*arguments, "--to-key-dtype", "int32"])
    users = table_of("users")
    users.insert([8], [[1e6, 1.0]])
    prefix = tf.train.Checkpoint(users=users).write(f"{tmp_path}/large")
    arguments = ["checkpoint", prefix, "--out", f"{tmp_path}/new"]
    with pytest.raises(SystemExit, match="values within float16, got 1000000.0 of key 8"):
        convert([*arguments, "--to-value-dtype", "float16"])
    assert not list(tmp_path.glob("new*"))
