"""python -m group_embedding checkpoint."""

import io
import os
import re
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from checkpoint import checkpoint_cases as cases

import group_embedding as ge
from group_embedding.__main__ import main as package_main
from group_embedding.checkpoint import checkpoint_files as files
from group_embedding.checkpoint.__main__ import main
from group_embedding.serving.versions.rewrite_model import rewrite_model

v1 = tf.compat.v1


@pytest.fixture
def saved(tmp_path):
    """A checkpoint with changes."""
    batches = cases.batches()
    with tf.Graph().as_default(), v1.Session() as session:
        model = cases.build()
        erase = model.tables[0].erase(batches[0].reshape(-1)[:5])
        saver = v1.train.Saver()
        session.run(v1.global_variables_initializer())
        cases.train(session, model, batches[:5])
        saver.save(session, f"{tmp_path}/model", global_step=5)
        session.run(erase)
        cases.train(session, model, batches[5:6])
        return ge.checkpoint.save_changes(saver, session, f"{tmp_path}/model", global_step=6)


def test_inspect_says_what_a_checkpoint_holds(saved, tmp_path, capsys):
    assert main(["inspect", str(tmp_path)]) == 0  # the newest in the folder

    said = capsys.readouterr().out
    assert "table 'user', step 6" in said and "table 'deep/item'" in said
    assert "dim 4, float32" in said and "changes, part 1 of 1" in said
    assert "keys erased" in said and "[4] float32" in said


def test_inspect_shows_how_often_keys_were_trained_and_how_long_ago(saved, tmp_path, capsys):
    picture = tmp_path / "keys.png"
    assert main(["inspect", saved, "--table", "user", "--plot", str(picture)]) == 0

    said = capsys.readouterr().out.partition("times trained")[2]
    counts, _, ages = said.partition("steps since")
    rows = cases.content(saved)[0]["user"].values()
    for shown, numbers in (
        (counts, [count for count, *_ in rows]),
        (ages, [5 - version for _, version, *_ in rows]),
    ):
        for begin, end in ((0, 0), (1, 1), (2, 3), (4, 7)):
            keys = sum(begin <= number <= end for number in numbers)
            name = f"{begin} to {end}" if end > begin else f"{begin}"
            assert bool(re.search(rf"^ +{name} +{keys}(?: #+)?$", shown, re.MULTILINE)) == (
                keys > 0
            )
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_steps_since_are_those_of_statistics(tmp_path, capsys):
    # Given tables whose steps a program sets, or the optimizer counts, and one without steps
    tables = {
        name: ge.keyed_table(name, 2, evict_after_steps=100) for name in ("set", "counted", "none")
    }
    optimizer = ge.optimizers.wrap(tf.keras.optimizers.SGD(0.1))
    for step, keys in enumerate([[1, 2, 3, 4], [1, 2, 3], [1], [1]]):
        tables["set"].step = step
        of_step = [tables["set"], tables["counted"]]
        with tf.GradientTape() as tape:
            loss = tf.add_n([tf.reduce_sum(x) for x in ge.lookup(of_step, [keys, keys])])
        optimizer.apply_gradients(zip(tape.gradient(loss, of_step), of_step))
    tables["none"].insert([1, 2], tf.ones([2, 2]))
    path = tf.train.Checkpoint(**tables).save(f"{tmp_path}/model")
    oldest = {name: ge.statistics([tables[name]]).tables[name].oldest_steps for name in tables}

    # When the checkpoint is inspected
    assert main(["inspect", path]) == 0

    # Then a key that was trained in the last step has 0, and the oldest has what statistics have
    assert oldest == {"set": 3, "counted": 3, "none": -1}
    trained = [("0", "1"), ("1", "0"), ("2 to 3", "3")]
    expected = {"set": trained, "counted": trained, "none": [("unknown", "2")]}
    said = capsys.readouterr().out
    for name in tables:
        ages = (
            said.rpartition(f"table '{name}'")[2].partition("steps since")[2].partition("table")[0]
        )
        assert re.findall(r"^ +(\d.*?|unknown) +(\d+)(?: #+)?$", ages, re.M) == expected[name]


def test_the_picture_has_unknown_keys_and_tables_without_keys(tmp_path, monkeypatch):
    pyplot = pytest.importorskip("matplotlib.pyplot")
    # Given a table with keys of known and unknown steps, one without steps, one without keys; a
    # name that has the signs of formulas
    tables = {
        "$a_{^$": ge.keyed_table("$a_{^$", 2, evict_after_steps=100),
        "none": ge.keyed_table("none", 2),
        "empty": ge.keyed_table("empty", 2),
    }
    tables["$a_{^$"].insert([1, 2, 3], tf.ones([3, 2]), versions=[-1, 4, 5])
    tables["none"].insert([1, 2], tf.ones([2, 2]))
    checkpoint = tf.train.Checkpoint(a=tables["$a_{^$"], b=tables["none"], c=tables["empty"])
    path = checkpoint.save(f"{tmp_path}/model")
    figures = []
    monkeypatch.setattr(pyplot, "close", lambda *figure: figures.extend(figure))

    # When it is drawn
    assert main(["inspect", path, "--plot", f"{tmp_path}/keys.png"]) == 0

    # Then each table has its bars, of unknown keys, too, or the words that it has no keys
    axes = figures[-1].axes
    bars = {
        axis.get_title(): {
            tick.get_text(): int(bar.get_height())
            for tick, bar in zip(axis.get_xticklabels(), axis.patches)
        }
        for axis in axes
    }
    assert bars == {
        "$a_{^$: times trained": {"0": 3},
        "$a_{^$: steps since": {"0": 1, "1": 1, "unknown": 1},
        "none: times trained": {"0": 2},
        "none: steps since": {"unknown": 2},
        "empty: times trained": {},
        "empty: steps since": {},
    }
    words = [[text.get_text() for text in axis.texts] for axis in axes]
    assert words == [[]] * 4 + [["no keys"]] * 2
    assert [axis.axison for axis in axes] == [True] * 4 + [False] * 2


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["inspect", "--plot", "{folder}/no/keys.png"], "--plot .*there is no folder '.*/no'"),
        (["inspect", "--plot", "ram://no/keys.png"], "--plot .*there is no folder 'ram://no'"),
        (["inspect", "--plot", "{folder}/keys.foo"], "suffix of a picture, one of .*png.*got foo"),
        (["inspect", "--plot", "{folder}"], "--plot .*expected a file, got a folder"),
        (["export", "--out", "{folder}/no/a.parquet"], "--out .*there is no folder '.*/no'"),
        (["export", "--out", "{folder}"], "--out .*expected a file, got a folder"),
        (["export", "--out", "/proc/a.parquet"], "group_embedding: .*/proc/a.parquet"),
        (["export", "--out", "other://a/b"], "group_embedding: .*'other'"),
    ],
)
def test_a_place_that_takes_no_file_is_refused_before_the_work(
    arguments, words, saved, tmp_path, capsys
):
    # Given a checkpoint, and a place for a file that cannot be made
    pytest.importorskip("matplotlib" if arguments[0] == "inspect" else "pyarrow")
    command, *place = [argument.format(folder=tmp_path) for argument in arguments]

    # When a command shall write there
    with pytest.raises(SystemExit, match=words):
        main([command, saved, "--table", "user", *place])

    # Then nothing was read before
    assert capsys.readouterr().out == ""


def test_tables_of_one_name_are_told_apart(tmp_path, capsys):
    parquet = pytest.importorskip("pyarrow.parquet")
    pytest.importorskip("matplotlib")
    # Given tables of one name, one whose own name has a number, and another
    names = {"a": "same", "b": "same", "c": "same#2", "d": "same", "e": "other", "f": "same"}
    tables = {entry: ge.keyed_table(name, 2) for entry, name in names.items()}
    for number, table in enumerate(tables.values()):
        table.insert(np.arange(number + 1), tf.ones([number + 1, 2]))
    path = tf.train.Checkpoint(**tables).save(f"{tmp_path}/model")
    shown = ["same", "same#3", "same#2", "same#4", "other", "same#5"]

    # When each command reads the checkpoint
    assert main(["verify", path]) == 0
    verified = capsys.readouterr().out
    assert main(["inspect", path, "--plot", f"{tmp_path}/keys.svg"]) == 0
    inspected = capsys.readouterr().out
    with pytest.raises(SystemExit, match=f"one of {', '.join(shown)}$"):
        main(["export", path, "--out", f"{tmp_path}/rows"])
    with pytest.raises(SystemExit, match="expected a table same#6, it has .*'same', 'same#3'"):
        main(["verify", path, "--table", "same#6"])

    # Then all have the same names, each with its own rows
    headed = r"^table '(.*)', step -1, entry (.)/table/.ROWS$"
    assert re.findall(headed, verified, re.M) == list(zip(shown, names))
    assert re.findall(headed, inspected, re.M) == list(zip(shown, names))
    counted = re.findall(r"^table '(.*)'\n +times trained +keys\n +0 +(\d)", inspected, re.M)
    assert counted == [(name, str(number + 1)) for number, name in enumerate(shown)]
    for number, name in enumerate(shown):
        assert main(["export", path, "--table", name, "--out", f"{tmp_path}/rows"]) == 0
        assert capsys.readouterr().out.endswith(f"{number + 1} rows of table '{name}'\n")
        assert parquet.read_table(f"{tmp_path}/rows").num_rows == number + 1


def test_whole_tables_are_counted_beside_damaged_ones(saved, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    pytest.importorskip("pyarrow")
    # Given a checkpoint with one damaged file
    item, user = files.tables(saved)
    with open(item["files"][0]["path"], "r+b") as file:
        file.seek(100)
        file.write(b"\xff\x00")
    picture = tmp_path / "keys.png"

    # When it is inspected, and the damaged table is exported over an older file
    assert main(["inspect", saved, "--plot", str(picture)]) == 1
    said = capsys.readouterr().out
    (tmp_path / "rows").write_text("older")
    with pytest.raises(SystemExit, match="table 'deep/item': file '.*' is damaged"):
        main(["export", saved, "--table", "deep/item", "--out", f"{tmp_path}/rows"])

    # Then the whole table is counted and drawn, the other one named; the older file stays
    assert [said.count(f"table '{name}'\n") for name in ("user", "deep/item")] == [1, 0]
    assert said.endswith("not counted, for the reasons above: 'deep/item'\n")
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "rows").read_text() == "older"

    # And where no table is whole, no picture is drawn
    picture.unlink()
    os.remove(user["files"][0]["path"])
    assert main(["inspect", saved, "--plot", str(picture)]) == 1
    assert capsys.readouterr().out.endswith("keys.png: not drawn, as no table was counted\n")
    assert not picture.exists()


def test_rows_that_only_serve_are_not_counted(tmp_path, capsys):
    pytest.importorskip("pyarrow")
    # Given a SavedModel with quantised rows of two tables
    module = tf.Module()
    module.tables = [ge.keyed_table(name, 4) for name in ("user", "item")]
    for table in module.tables:
        table.insert([1, 2], tf.ones([2, 4]))
    tf.saved_model.save(module, f"{tmp_path}/trained")
    (tmp_path / "served").mkdir()
    rewrite_model(f"{tmp_path}/trained", f"{tmp_path}/served", {}, [], "int8")

    # When it is inspected and exported
    assert main(["inspect", f"{tmp_path}/served"]) == 0
    said = capsys.readouterr().out
    with pytest.raises(SystemExit, match="table 'item': .*got rows quantised for serving"):
        main(["export", f"{tmp_path}/served", "--table", "item", "--out", f"{tmp_path}/rows"])

    # Then keys are said, and why nothing else is counted
    assert said.count("2 keys (int64)") == said.count("got rows quantised for serving") == 2
    assert said.endswith("not counted, for the reasons above: 'user', 'item'\n")


@pytest.mark.parametrize("command", ["inspect", "verify", "export"])
def test_the_index_file_means_its_checkpoint(command, saved, tmp_path, capsys):
    # Given the names of a checkpoint and of its index
    more = []
    if command == "export":
        pytest.importorskip("pyarrow")
        more = ["--table", "user", "--out", f"{tmp_path}/rows"]
    said = []

    # When a command gets either
    for prefix in (saved, f"{saved}.index"):
        assert main([command, prefix, *more]) == 0
        said.append(capsys.readouterr().out)

    # Then it says the same
    assert said[0] == said[1] != ""


@pytest.mark.parametrize(
    "name, words",
    [
        ("model.keras", "no file '.*model.keras.index'.*load the model.*give what that returns"),
        ("w.weights.h5", "no file '.*w.weights.h5.index'.*load the model.*give what that returns"),
        ("other", "expected the prefix of a checkpoint, or a folder.*no file '.*other.index'$"),
        ("cut.index", "checkpoint '.*cut': .*sstable"),
        ("dense-1", "expected tables whose rows are found by key, it has none"),
    ],
)
def test_files_that_are_no_checkpoint_say_what_to_give(name, words, tmp_path):
    # Given a file of another kind, a damaged index, and a checkpoint without such tables
    for other in ("model.keras", "w.weights.h5", "other", "cut.index"):
        (tmp_path / other).write_bytes(b"another kind of file" * 9)
    tf.train.Checkpoint(v=tf.Variable([1.0])).save(f"{tmp_path}/dense")

    # When, Then a command says what it expects
    for command in (["inspect"], ["verify"], ["export", "--out", f"{tmp_path}/rows"]):
        with pytest.raises(SystemExit, match=words):
            main([*command, f"{tmp_path}/{name}"])


def test_verify_says_which_file_at_a_url_is_missing(capsys):
    # Given tables that are saved at a URL, of which one has lost its file
    tables = {name: ge.keyed_table(name, 2) for name in ("user", "item")}
    path = tf.train.Checkpoint(**tables).save("ram://missing/model")
    (lost,) = next(table["files"] for table in files.tables(path) if table["name"] == "user")
    tf.io.gfile.remove(lost["path"])

    # When they are verified, Then a line says which, without Python's stack
    assert main(["verify", path]) == 1
    said = capsys.readouterr().out
    assert re.search(rf"cannot \w+ '{re.escape(lost['path'])}': NotFoundError: .*\n", said)
    assert "At:" not in said and said.count(": good,") == 1


def test_verify_says_which_file_is_damaged(saved, capsys):
    assert main(["verify", saved]) == 0
    name = files.present(saved)[0]
    with open(name, "r+b") as file:
        file.seek(100)
        file.write(b"\xff\x00")

    assert main(["verify", saved]) == 1

    assert f"'{name}' is damaged" in capsys.readouterr().out


def test_inspect_is_a_command_of_the_package(saved, tmp_path, capsys):
    # Given what each of three tables holds, by the former spelling
    tables = ["user", "deep/item", None]
    expected = []
    for table in tables:
        assert main(["inspect", saved, *(["--table", table] if table else [])]) == 0
        expected.append(capsys.readouterr().out)

    # When the package's own command inspects them
    for table, text in zip(tables, expected):
        picture = tmp_path / "keys.png"
        more = ["--table", table] if table else []
        command = ["checkpoint", "inspect", saved, *more, "--plot", str(picture)]
        assert package_main(command) == 0

        # Then it says the same, and draws the picture
        assert capsys.readouterr().out == text != ""
        assert picture.read_bytes().startswith(b"\x89PNG")
        picture.unlink()


def test_the_package_names_the_command_and_its_arguments(capsys):
    for arguments, said in (
        (["--help"], "python -m group_embedding checkpoint --help"),
        (["checkpoint", "--help"], "usage: python -m group_embedding checkpoint"),
    ):
        with pytest.raises(SystemExit) as ended:
            package_main(arguments)
        assert ended.value.code == 0
        assert said in " ".join(capsys.readouterr().out.split())
    with pytest.raises(SystemExit, match="checkpoint 'no/such'"):
        package_main(["checkpoint", "verify", "no/such"])


@pytest.mark.slow
@pytest.mark.parametrize(
    "command", [["group_embedding", "checkpoint"], ["group_embedding.checkpoint"]], ids=len
)
def test_the_command_says_its_own_lines_alone(command, saved):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    del environment["TF_CPP_MIN_LOG_LEVEL"]

    said = subprocess.run(
        [sys.executable, "-m", *command, "verify", saved],
        env=environment,
        capture_output=True,
        text=True,
    )

    assert (said.returncode, said.stderr) == (0, "")
    assert [line.startswith(("table '", "  /")) for line in said.stdout.splitlines()] == [True] * 6


@pytest.mark.parametrize("command", ["inspect", "verify", "export"])
def test_a_saved_model_is_taken(command, tmp_path, capsys):
    # Given a SavedModel of three tables
    module = tf.Module()
    module.tables = [
        ge.get_embedding_variable(name, dim) for name, dim in (("user", 2), ("item", 3), ("ad", 4))
    ]
    for table in module.tables:
        table.insert(np.arange(10), tf.ones([10, table.shape[1]]))
    tf.saved_model.save(module, f"{tmp_path}/exported")
    names = [t["table"] for t in files.tables(f"{tmp_path}/exported/variables/variables")]
    assert len(set(names)) == 3
    more = ["--table", names[0], "--out", f"{tmp_path}/rows"] if command == "export" else []
    if command == "export":
        pytest.importorskip("pyarrow")
    # When the command gets its folder
    assert main([command, f"{tmp_path}/exported", *more]) == 0
    # Then it tells of its tables
    said = capsys.readouterr().out
    assert all(f"'{name}'" in said for name in (names[:1] if more else names))


def test_a_folder_without_either_is_named(tmp_path):
    with pytest.raises(SystemExit, match="expected a checkpoint or a SavedModel in the folder"):
        main(["verify", str(tmp_path)])


def test_export_writes_the_rows_after_changes(saved, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")

    assert main(["export", saved, "--table", "user", "--out", f"{tmp_path}/user.parquet"]) == 0

    found = parquet.read_table(f"{tmp_path}/user.parquet").to_pylist()
    expected = cases.content(saved)[0]["user"]
    assert {row["key"] for row in found} == set(expected) and len(found) == len(expected)
    for row in found:
        count, version, values, slots = expected[row["key"]]
        assert (row["count"], row["version"]) == (count, version)
        assert np.array(row["values"], np.float32).tobytes() == values
        for name, slot in slots.items():
            assert np.array(row[name], np.float32).tobytes() == slot


@pytest.mark.parametrize(
    "key_dtype, kept, changed",
    [
        ("uint64", [5, 2**63, 2**63 + 5], [2**63 + 9, 2**64 - 1]),
        ("uint32", [5, 2**31 + 5], [2**32 - 1]),
        ("int64", [-(2**63), -5], [5, 2**63 - 1]),
        ("int32", [-5, 7], [9]),
    ],
)
def test_exported_keys_are_those_of_the_table(key_dtype, kept, changed, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    # Given a full save, and changes that replace, add and erase keys
    table = ge.keyed_table(f"of_{key_dtype}", 2, key_dtype=key_dtype)
    table.insert(tf.constant([3, *kept], key_dtype), tf.zeros([1 + len(kept), 2]))
    checkpoint = tf.train.Checkpoint(table=table)
    checkpoint.save(f"{tmp_path}/model")
    table.erase(tf.constant([3], key_dtype))
    table.insert(tf.constant([kept[-1], *changed], key_dtype), tf.ones([1 + len(changed), 2]))
    path = ge.checkpoint.save_changes(checkpoint, f"{tmp_path}/model")

    # When it is exported
    assert main(["export", path, "--out", f"{tmp_path}/rows.parquet"]) == 0

    # Then keys are numbers of their type, with their rows
    found = parquet.read_table(f"{tmp_path}/rows.parquet")
    assert str(found.schema.field("key").type) == ("uint64" if key_dtype == "uint64" else "int64")
    rows = dict(zip(found["key"].to_pylist(), found["values"].to_pylist()))
    assert found.num_rows == len(rows)
    assert rows == {**dict.fromkeys(kept, [0, 0]), **dict.fromkeys([kept[-1], *changed], [1, 1])}


@pytest.mark.parametrize("folder", ["{tmp_path}", "ram://empty_tables"])
def test_export_of_tables_without_rows_writes_files_without_rows(folder, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    # Given tables that never had a row, or have none after changes, and a file of another export
    tables = {
        "none": ge.keyed_table("none", 2),
        "unsigned": ge.keyed_table("unsigned", 3, key_dtype="uint64"),
        "erased": ge.keyed_table("erased", 4),
        "full": ge.keyed_table("full", 5),
    }
    for name in ("erased", "full"):
        tables[name].insert([1, 2], tf.ones([2, tables[name].shape[1]]))
    checkpoint = tf.train.Checkpoint(**tables)
    checkpoint.save(f"{tmp_path}/model")
    tables["erased"].erase([1, 2])
    path = ge.checkpoint.save_changes(checkpoint, f"{tmp_path}/model")
    out = f"{folder.format(tmp_path=tmp_path)}/rows.parquet"

    for name, table in tables.items():
        # When each takes the place of that file
        assert main(["export", path, "--table", "full", "--out", out]) == 0
        assert main(["export", path, "--table", name, "--out", out]) == 0

        # Then the file has this table's columns, and as many rows
        with tf.io.gfile.GFile(out, "rb") as file:
            found = parquet.read_table(io.BytesIO(file.read()))
        assert found.num_rows == (2 if name == "full" else 0)
        assert found.schema.names == ["key", "count", "version", "values"]
        assert found.schema.field("values").type.list_size == table.shape[1]
        unsigned = str(found.schema.field("key").type) == "uint64"
        assert unsigned == (name == "unsigned")


def test_export_without_pyarrow_says_what_to_install(saved, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)

    with pytest.raises(SystemExit, match="pyarrow is missing.*pip install"):
        main(["export", saved, "--table", "user", "--out", f"{tmp_path}/user.parquet"])


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["inspect", "no/such"], "checkpoint 'no/such'"),
        (["export", "{saved}", "--out", "x"], "expected --table, one of"),
        (["inspect", "{saved}", "--table", "cat"], "expected a table cat"),
    ],
)
def test_wrong_arguments_are_named(saved, arguments, words):
    with pytest.raises(SystemExit, match=words):
        main([argument.format(saved=saved) for argument in arguments])
