"""Tables in files of other libraries: the originals' own, else of their documented layouts."""

import collections
import pickle
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from group_embedding import convert
from group_embedding.convert import rows, torch_files

SAMPLES = Path(__file__).with_name("samples")
USERS = dict(
    zip([7, -3, 2**40, 11, 12, 13, 100], np.arange(28, dtype=np.float32).reshape(7, 4).tolist())
)


def content(table):
    """{key: row} of a table, all blocks."""
    found = {}
    for block in table.blocks():
        assert block.keys.dtype == np.int64 and len(block.keys) == len(block.values)
        found.update(zip(block.keys.tolist(), np.asarray(block.values, np.float32).tolist()))
    return found


def save_tensors(prefix, tensors):
    """A checkpoint with tensors of these names, as DeepRec's Saver writes it."""
    prefix.parent.mkdir(parents=True, exist_ok=True)
    tf.raw_ops.SaveV2(
        prefix=str(prefix),
        tensor_names=list(tensors),
        shape_and_slices=[""] * len(tensors),
        tensors=[tf.constant(tensor) for tensor in tensors.values()],
    )
    return str(prefix)


@pytest.mark.parametrize("path", ["tfra_by_object/ckpt-1", "tfra_files"])
def test_tfra_over_devices(path):
    # Given what TFRA saved of a table over two devices, when it is opened:
    (table,) = convert.open_tables("tfra", str(SAMPLES / path))
    # Then it is one table with the keys of both.
    assert (table.name, table.dim, table.num_rows) == ("users", 4, 7)
    assert content(table) == USERS


def test_tfra_by_name():
    (table,) = convert.open_tables("tfra", str(SAMPLES / "tfra_by_name" / "v1"))
    assert (table.name, table.dim) == ("items", 2)
    assert content(table) == {5: [1, 2], 6: [3, 4]}


def test_tfra_part_without_rows(tmp_path):
    # Given files of two devices, of which one has no key:
    for part, keys in (("1of2", [3, 4]), ("2of2", [])):
        keys = np.array(keys, np.int32)
        keys.tofile(tmp_path / f"t_mht_{part}-keys")
        np.repeat(keys, 3).astype(np.float16).tofile(tmp_path / f"t_mht_{part}-values")
    (table,) = convert.open_tables("tfra", str(tmp_path), key_dtype="int32", value_dtype="float16")
    # Then the other's rows are all.
    assert (table.dim, table.dtype) == (3, np.float16)
    assert content(table) == {3: [3, 3, 3], 4: [4, 4, 4]}


def test_deeprec(tmp_path):
    # Given a checkpoint with a table in two parts, one in one, a slot, and a dense variable:
    user = np.arange(12, dtype=np.float32).reshape(4, 3)
    prefix = save_tensors(
        tmp_path / "model.ckpt-10",
        {
            "user/part_0-keys": np.array([5, 6], np.int64),
            "user/part_0-values": user[:2],
            "user/part_0-freqs": np.array([9, 8], np.int64),
            "user/part_0-versions": np.array([100, 90], np.int64),
            "user/part_0-keys_filtered": np.array([77], np.int64),
            "user/part_0-partition_offset": np.arange(1001, dtype=np.int32),
            "user/part_1-keys": np.array([-1, 2**50], np.int64),
            "user/part_1-values": user[2:],
            "user/part_1-freqs": np.array([7, 6], np.int64),
            "user/part_1-versions": np.array([80, 70], np.int64),
            "user/part_0/Adagrad-keys": np.array([5], np.int64),
            "user/part_0/Adagrad-values": np.full([1, 3], 0.5, np.float32),
            "a/item-keys": np.array([1], np.int64),
            "a/item-values": np.array([[4.0]], np.float32),
            "dense/kernel": np.ones([2, 2], np.float32),
        },
    )
    # When it is opened, then each has its rows, counts and versions.
    tables = {table.name: table for table in convert.open_tables("deeprec", prefix)}
    assert set(tables) == {"user", "user/Adagrad", "a/item"}
    assert content(tables["user"]) == dict(zip([5, 6, -1, 2**50], user.tolist()))
    blocks = list(tables["user"].blocks())
    assert np.concatenate([block.counts for block in blocks]).tolist() == [9, 8, 7, 6]
    assert np.concatenate([block.versions for block in blocks]).tolist() == [100, 90, 80, 70]
    (item,) = tables["a/item"].blocks()
    assert item.counts is None and item.versions is None


def test_deeprec_newest_of_a_folder(tmp_path):
    checkpoint = tf.train.Checkpoint(dense=tf.Variable(1.0))
    checkpoint.save(str(tmp_path / "model"))
    with pytest.raises(ValueError, match="expected tables of deeprec, got none"):
        convert.open_tables("deeprec", str(tmp_path))


def write_sok(path, name, kind, slot, array):
    head = name.rjust(256).encode() + kind.to_bytes(4, "big") + slot.rjust(32).encode()
    dtypes = ["int32", "int64", "uint32", "uint64", "float16", "float32", "float64"]
    path.write_bytes(head + dtypes.index(array.dtype.name).to_bytes(4, "big") + array.tobytes())


def test_sok(tmp_path):
    # Given a dump of two tables, of which one has a slot:
    user = np.arange(6, dtype=np.float32).reshape(3, 2)
    write_sok(tmp_path / "user_0-key", "user_0", 0, "", np.array([4, 2**40, 9], np.int64))
    write_sok(tmp_path / "user_0-weight", "user_0", 1, "", user)
    write_sok(tmp_path / "user_0-Adagrad-accumulator", "user_0", 2, "accumulator", user + 10)
    write_sok(tmp_path / "user-key", "user", 0, "", np.array([2**64 - 1, 1], np.uint64))
    write_sok(tmp_path / "user-weight", "user", 1, "", np.array([[0.5], [2]], np.float64))
    (tmp_path / "meta_info").write_bytes(b"not read")
    tables = {table.name: table for table in convert.open_tables("sok", str(tmp_path))}
    # Then each has its rows; keys of uint64 are taken bit for bit, rows of float64 rounded.
    assert set(tables) == {"user", "user_0", "user_0-Adagrad-accumulator"}
    assert content(tables["user_0"]) == dict(zip([4, 2**40, 9], user.tolist()))
    slot = content(tables["user_0-Adagrad-accumulator"])
    assert slot == dict(zip([4, 2**40, 9], (user + 10).tolist()))
    assert content(tables["user"]) == {-1: [0.5], 1: [2.0]}
    assert tables["user"].dtype == np.float32


def write_hugectr(folder, keys, vectors):
    folder.mkdir(parents=True)
    np.array(keys, np.int64).tofile(folder / "key")
    np.array(vectors, np.float32).tofile(folder / "emb_vector")
    np.zeros(len(keys), np.uint64).tofile(folder / "slot_id")


def test_hugectr(tmp_path):
    write_hugectr(tmp_path / "0_sparse_100.model", [3, 1], [[1, 2], [3, 4]])
    write_hugectr(tmp_path / "1_sparse_100.model", [8], [[5, 6, 7]])
    (tmp_path / "_dense_100.model").write_bytes(b"")
    # A folder of models has their tables, a model's folder its own.
    tables = {table.name: table for table in convert.open_tables("hugectr", str(tmp_path))}
    assert content(tables["0_sparse_100.model"]) == {3: [1, 2], 1: [3, 4]}
    assert content(tables["1_sparse_100.model"]) == {8: [5, 6, 7]}
    (one,) = convert.open_tables("hugectr", str(tmp_path / "1_sparse_100.model"))
    assert one.dim == 3


@pytest.mark.parametrize(
    "file, dtype", [("torchrec.pt", "float32"), ("torchrec_bfloat16.pt", "bfloat16")]
)
def test_torchrec(file, dtype):
    # Given a state dict that torch saved, when it is opened without torch:
    tables = {t.name: t for t in convert.open_tables("torchrec", str(SAMPLES / file))}
    # Then row numbers are the keys.
    assert {name: (t.num_rows, t.dtype.name) for name, t in tables.items()} == {
        "users": (5, dtype),
        "products": (7, dtype),
    }
    users, items = np.arange(20.0).reshape(5, 4), -np.arange(14.0).reshape(7, 2) / 4
    assert content(tables["users"]) == dict(enumerate(users.tolist()))
    assert content(tables["products"]) == dict(enumerate(items.tolist()))


class Evil:
    def __reduce__(self):
        return (print, ("it ran",))


@pytest.mark.parametrize(
    "make, says",
    [
        (lambda: pickle.dumps({"a": Evil()}), "got an object of builtins.print"),
        (
            lambda: pickle.dumps({"a": collections.Counter()}),
            "got an object of collections.Counter",
        ),
        (lambda: b"\x80\x02}q\x00", "expected a pickle of tensors"),
    ],
)
def test_torch_pickle_is_not_run(make, says, tmp_path, capsys):
    with zipfile.ZipFile(tmp_path / "bad.pt", "w") as archive:
        archive.writestr("archive/data.pkl", make())
    with pytest.raises(ValueError, match=says):
        torch_files.torch_tensors(str(tmp_path / "bad.pt"))
    assert "it ran" not in capsys.readouterr().out


def test_torch_storage_that_is_too_short(tmp_path):
    # Given a saved state dict whose storage was cut off:
    with zipfile.ZipFile(SAMPLES / "torchrec.pt") as whole:
        members = {name: whole.read(name) for name in whole.namelist()}
    (storage,) = (name for name in members if name.endswith("/data/0"))
    members[storage] = members[storage][:-4]
    with zipfile.ZipFile(tmp_path / "cut.pt", "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    # Then its tensor is refused by name.
    with pytest.raises(ValueError, match=r"'ebc.embedding_bags.users.weight'.*storage of 80 bytes"):
        torch_files.torch_tensors(str(tmp_path / "cut.pt"))


@pytest.mark.parametrize("head", ["", "3 2\n"])
def test_text(head, tmp_path):
    path = tmp_path / "items.txt"
    path.write_text(head + "7 0.5 -1\n-2 1e-3 4 \n1099511627776 0 0\n")
    (table,) = convert.open_tables("text", str(path))
    assert (table.name, table.dim, table.num_rows) == ("items", 2, 3)
    expected = np.array([[0.5, -1], [1e-3, 4], [0, 0]], np.float32).tolist()
    assert content(table) == dict(zip([7, -2, 2**40], expected))


def test_text_of_one_number_a_line(tmp_path):
    # Two integers in front are sizes only if as many lines of as many numbers follow.
    path = tmp_path / "items.txt"
    for text, expected in (
        ("7 1\n8 2\n", {7: [1], 8: [2]}),
        ("2 1\n7 1\n8 2\n", {7: [1], 8: [2]}),
        ("7 1\n", {7: [1]}),
    ):
        path.write_text(text)
        assert content(*convert.open_tables("text", str(path))) == expected


def test_words(tmp_path):
    path = tmp_path / "words.vec"
    path.write_text("the 1 2\nüber 3 4\nun-do 5 6\n", encoding="utf-8")
    (lines,) = convert.open_tables("text", str(path), keys="lines")
    (hashes,) = convert.open_tables("text", str(path), keys="hashes")
    assert content(lines) == {0: [1, 2], 1: [3, 4], 2: [5, 6]}
    ids = tf.strings.to_hash_bucket_fast(["the", "über", "un-do"], 2**63 - 1).numpy().tolist()
    assert content(hashes) == dict(zip(ids, content(lines).values()))
    with pytest.raises(ValueError, match=r"line 1: expected an integer in front, got 'the'"):
        list(convert.open_tables("text", str(path))[0].blocks())


def test_text_with_a_short_line(tmp_path):
    path = tmp_path / "items.txt"
    path.write_text("1 0.5 1\n2 3\n")
    (table,) = convert.open_tables("text", str(path))
    with pytest.raises(
        ValueError, match=r"items.txt, line 2: expected a word and 2 numbers, got 1"
    ):
        list(table.blocks())


@pytest.mark.parametrize(
    "change, says",
    [
        (lambda f: (f / "key").write_bytes(bytes(15)), r"key: expected a multiple of 8 bytes"),
        (lambda f: (f / "emb_vector").write_bytes(bytes(12)), r"expected 2 rows of one length"),
        (lambda f: (f / "emb_vector").unlink(), r"emb_vector: expected a file, got none"),
        (lambda f: (f / "emb_vector").write_bytes(b""), r"expected 2 rows of one length, got 0"),
    ],
)
def test_damaged_files(change, says, tmp_path):
    write_hugectr(tmp_path / "model", [3, 1], [[1, 2], [3, 4]])
    change(tmp_path / "model")
    with pytest.raises(ValueError, match=says):
        convert.open_tables("hugectr", str(tmp_path / "model"))


def test_file_that_shrinks_is_no_table(tmp_path):
    write_hugectr(tmp_path / "model", [3, 1], [[1, 2], [3, 4]])
    (table,) = convert.open_tables("hugectr", str(tmp_path / "model"))
    (tmp_path / "model" / "emb_vector").write_bytes(bytes(8))
    with pytest.raises(ValueError, match="expected 16 bytes from 0 on, got 8"):
        list(table.blocks())


@pytest.mark.parametrize("cut", [0, 20, -8])
def test_damaged_index(cut, tmp_path):
    prefix = save_tensors(tmp_path / "model", {"a-keys": np.array([1], np.int64)})
    index = Path(f"{prefix}.index")
    index.write_bytes(index.read_bytes()[:cut])
    with pytest.raises(ValueError, match="model.index: expected the index of a checkpoint"):
        convert.open_tables("deeprec", prefix)


def test_tensors_of_a_checkpoint_with_many_names(tmp_path):
    # Given more names than one block of the index has, when it is read:
    tensors = {f"scope/of/a/long/name/{i:05d}-keys": np.array([i], np.int64) for i in range(3000)}
    tensors |= {
        f"scope/of/a/long/name/{i:05d}-values": np.array([[i]], np.float32) for i in range(3000)
    }
    prefix = save_tensors(tmp_path / "model", tensors)
    tables = convert.open_tables("deeprec", prefix)
    # Then every tensor is found where it lies.
    assert len(tables) == 3000
    for i in (0, 1, 1499, 2999):
        assert content(tables[i]) == {i: [i]}


def test_unknown_format():
    with pytest.raises(
        ValueError, match="format: expected one of checkpoint, deeprec, hugectr, sok"
    ):
        convert.open_tables("caffe", "x")


def test_one_block_at_a_time_is_in_memory(tmp_path):
    # Given a table of 128 MB, which takes no space on disk, when it is read to its end:
    num_rows, dim = 1 << 17, 256
    (tmp_path / "model").mkdir()
    np.arange(num_rows, dtype=np.int64).tofile(tmp_path / "model" / "key")
    with open(tmp_path / "model" / "emb_vector", "wb") as file:
        file.truncate(num_rows * dim * 4)
    (table,) = convert.open_tables("hugectr", str(tmp_path / "model"))
    tracemalloc.start()
    num_read = sum(len(block.keys) for block in table.blocks())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # Then no more than two blocks were in memory.
    assert num_read == num_rows
    assert peak < 3 * rows._BYTES_AT_A_TIME
