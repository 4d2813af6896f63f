"""InferenceSession answers as the model that was exported, whatever made the model."""

import shutil
import subprocess
import threading
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from support.cases import shop_models
from support.cases.shop_models import Shop, answers, request
from tensorflow.core.protobuf import saved_model_pb2

import group_embedding as ge
from group_embedding.serving import InferenceSession

v1 = tf.compat.v1
PACKAGE = Path(ge.__file__).parent
EXAMPLE = Path(__file__).parents[2] / "examples" / "serve.c"


@pytest.fixture(scope="module")
def shop():
    return Shop()


@pytest.fixture(scope="module")
def folder(shop, tmp_path_factory):
    return shop_models.export(shop, tmp_path_factory.mktemp("shop") / "3")


@pytest.fixture(scope="module")
def session(folder):
    with InferenceSession(folder) as opened:
        yield opened


def assert_equal(found, expected):
    assert sorted(found) == sorted(expected)
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


def test_a_module_answers_to_the_bit(shop, session):
    for seed, count in enumerate([1, 6, 40]):
        inputs = request(count, seed)
        found = session.predict(inputs)
        assert_equal(found, answers(shop, inputs))
        assert found.version == 3  # the folder's name


def test_some_outputs_are_computed(shop, session):
    inputs = request()
    found = session.predict(inputs, outputs=["score"])
    assert_equal(found, {"score": answers(shop, inputs)["score"]})


def test_threads_answer_side_by_side(shop, session):
    # Given requests of different sizes, and their answers
    inputs = [request(1 + i, seed=i) for i in range(8)]
    expected = [answers(shop, of_thread) for of_thread in inputs]
    # When 8 threads make them at the same time
    wrong = []

    def ask(i):
        for _ in range(20):
            found = session.predict(inputs[i])
            if any((found[name] != value).any() for name, value in expected[i].items()):
                wrong.append(i)

    threads = [threading.Thread(target=ask, args=[i]) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # Then each has its own answer
    assert wrong == []


def test_tables_belong_to_the_process(session):
    info = session.info()
    tables = {table["name"]: table for table in info["tables"]}
    assert set(tables) == {"user", "brand", "item"}
    assert [tables[name]["rows"] for name in ("user", "brand", "item")] == [4, 30, 50]
    assert [tables[name]["dim"] for name in ("user", "brand", "item")] == [8, 4, 8]
    assert {table["storage"] for table in info["tables"]} == {"float32"}
    assert (info["version"], info["previous_version"], info["step"]) == (3, None, None)
    assert info["quantize"] is None


def test_signatures_have_names_dtypes_and_shapes(session):
    (signature,) = session.signatures().values()
    assert {key: (i["dtype"], i["shape"]) for key, i in signature["inputs"].items()} == {
        "user": (9, [-1]),
        "brands": (9, [-1, 3]),
        "items": (9, [-1, 2]),
    }
    assert signature["outputs"]["score"]["dtype"] == 1


WRONG = {
    "missing": ({"user": None}, "inputs brands, items, user, but 'user' is missing"),
    "unknown": ({"age": np.zeros([6])}, "expected the inputs brands, items, user, got 'age'"),
    "dtype": ({"user": np.zeros([6], np.float32)}, "input 'user': expected int64, got float"),
    "rank": ({"brands": np.zeros([6], np.int64)}, r"input 'brands': expected shape \[\?,3\], got"),
    "size": ({"brands": np.zeros([6, 2], np.int64)}, r"expected shape \[\?,3\], got \[6,2\]"),
    "samples": ({"user": np.zeros([5], np.int64)}, "samples"),
    "row": ({"items": np.full([6, 2], 50)}, "id 50 of sample 0 is outside the table; expected 0"),
}


@pytest.mark.parametrize("case", list(WRONG))
def test_wrong_requests_are_named(session, case):
    changed, expected = WRONG[case]
    inputs = {**request(), **changed}
    inputs = {name: value for name, value in inputs.items() if value is not None}
    with pytest.raises(ValueError, match=expected):
        session.predict(inputs)
    session.predict(request())  # and the next one is answered


def test_wrong_names_are_named(session):
    with pytest.raises(KeyError, match="expected one of the signatures serving_default, got 'no'"):
        session.predict(request(), signature="no")
    with pytest.raises(ValueError, match="some of the outputs rows, score, got 'loss'"):
        session.predict(request(), outputs=["loss"])


def test_wrong_models_and_options_are_named(folder, tmp_path):
    with pytest.raises(FileNotFoundError, match="expected the folder of a SavedModel"):
        InferenceSession(tmp_path)
    with pytest.raises(FileNotFoundError, match="SavedModel.* got '/none/\ufffd'"):
        InferenceSession(b"/none/\xff")  # a path that is no UTF-8
    with pytest.raises(ValueError, match="'quantize': expected int8, fp8 or bfloat16, got 'int2'"):
        InferenceSession(folder, quantize="int2")
    with pytest.raises(FileNotFoundError, match="expected a graph with the tags train"):
        InferenceSession(folder, tags=["train"])
    closed = InferenceSession(folder)
    closed.close()
    closed.close()
    with pytest.raises(RuntimeError, match="expected an open session"):
        closed.predict(request())


def test_a_signature_that_cannot_run_is_told_to_its_requests(shop, folder, tmp_path):
    # Given a model with a second signature, of which the graph has no output
    path = shutil.copytree(folder, tmp_path / "3") / "saved_model.pb"
    saved = saved_model_pb2.SavedModel.FromString(path.read_bytes())
    signatures = saved.meta_graphs[0].signature_def
    signatures["broken"].CopyFrom(signatures["serving_default"])
    signatures["broken"].outputs["score"].name = "nowhere:0"
    path.write_bytes(saved.SerializeToString())
    # When it is opened, Then the first signature answers, and requests of the second one fail
    with InferenceSession(tmp_path / "3") as session:
        assert_equal(session.predict(request()), answers(shop, request()))
        with pytest.raises((ValueError, KeyError, tf.errors.OpError), match="nowhere"):
            session.predict(request(), signature="broken")


def test_a_damaged_table_is_refused(folder, tmp_path):
    damaged = shutil.copytree(folder, tmp_path / "damaged")
    (rows, *_) = sorted((damaged / "variables").glob("variables.data-r*"))
    content = bytearray(rows.read_bytes())
    content[len(content) // 2] ^= 1
    rows.write_bytes(content)
    with pytest.raises(tf.errors.DataLossError, match="checksum"):
        InferenceSession(damaged)


def test_a_filter_reads_its_constant(tmp_path):
    # Given a table that admits keys seen twice; unseen ones read 0.25
    option = ge.EmbeddingVariableOption(
        filter_option=ge.CounterFilter(filter_freq=2),
        init_option=ge.InitializerOption(
            initializer=tf.ones_initializer(),
            default_value_dim=3,
            default_value_no_permission=0.25,
        ),
    )
    module = tf.Module()
    module.table = ge.get_embedding_variable("filtered", embedding_dim=2, ev_option=option)
    module.table.insert(np.array([4]), np.full([1, 2], 9.0, np.float32))
    module.serve = tf.function(
        lambda key: {"rows": ge.group_embedding_lookup([module.table], [key])[0]},
        input_signature=[tf.TensorSpec([None], tf.int64, name="key")],
    )
    # When it is served
    with InferenceSession(shop_models.export(module, tmp_path)) as session:
        found = session.predict({"key": np.array([4, 8])})["rows"]
    # Then the key without a row reads the constant
    np.testing.assert_array_equal(found, [[9, 9], [0.25, 0.25]])


def test_a_graph_of_tensorflow_1(tmp_path):
    """An EmbeddingVariable, a RefVariable and a hash table of strings, by simple_save."""
    with tf.Graph().as_default(), v1.Session() as trainer:
        words = tf.constant(["tea", "coffee"])
        vocabulary = tf.lookup.StaticHashTable(
            tf.lookup.KeyValueTensorInitializer(words, tf.constant([3, 9], tf.int64)), -1
        )
        word = v1.placeholder(tf.string, [None])
        keyed = ge.get_embedding_variable(
            "drink", embedding_dim=3, initializer=tf.ones_initializer()
        )
        bias = v1.get_variable("bias", initializer=[1.0, 2.0, 3.0], use_resource=False)
        (rows,) = ge.group_embedding_lookup([keyed], [vocabulary.lookup(word)])
        output = rows + bias
        filled = keyed.insert(np.array([3, 9]), np.array([[1, 2, 3], [4, 5, 6]], np.float32))
        trainer.run([v1.global_variables_initializer(), v1.tables_initializer()])
        trainer.run(filled)
        v1.saved_model.simple_save(
            trainer,
            str(tmp_path / "1"),
            {"word": word},
            {"output": output},
            legacy_init_op=v1.tables_initializer(),
        )
    with InferenceSession(tmp_path / "1") as session:
        found = session.predict({"word": ["coffee", "tea", "milk"]})
    np.testing.assert_array_equal(found["output"], [[5, 7, 9], [2, 4, 6], [2, 3, 4]])


def test_a_keras_model(tmp_path):
    # Given a trained Keras model with a keyed table and one by row number
    configs = [
        ge.FeatureConfig(name, ge.TableConfig(name, rows, 4))
        for name, rows in (("clicks", None), ("page", 20))
    ]
    ids = {c.name: tf.keras.Input([2], dtype="int64", name=c.name) for c in configs}
    hidden = ge.layers.GroupEmbedding(configs, concat=True)(ids)
    model = tf.keras.Model(ids, tf.keras.layers.Dense(1, name="score")(hidden))
    model.compile(ge.optimizers.wrap(tf.keras.optimizers.SGD(0.1)), "mse")
    draw = np.random.default_rng(3)
    batch = {name: draw.integers(0, 20, [8, 2]) for name in ids}
    model.fit(batch, np.ones([8, 1], np.float32), epochs=2, verbose=0)
    # When it is exported and served
    model.export(str(tmp_path / "model"))
    with InferenceSession(tmp_path / "model") as session:
        signature = session.signatures()["serving_default"]
        found = session.predict({name: batch[name] for name in signature["inputs"]})
    # Then it answers as the model, but for products that TensorFlow fuses with their bias in a
    # graph, which round otherwise on some processors
    (answer,) = found.values()
    np.testing.assert_allclose(answer, model(batch).numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
def test_the_example_in_c(tmp_path):
    # Given a model with one input
    module = tf.Module()
    module.table = shop_models.table("user", 2)
    module.table.insert(np.array([7, 42]), np.array([[1, 2], [3.5, 4]], np.float32))
    module.serve = tf.function(
        lambda user: {"row": ge.group_embedding_lookup([module.table], [user])[0]},
        input_signature=[tf.TensorSpec([None], tf.int64, name="user")],
    )
    folder = shop_models.export(module, tmp_path / "12")
    # When the example is compiled, and run without Python
    program = tmp_path / "serve"
    flags = [f"-I{PACKAGE / 'include'}", f"-L{PACKAGE}", "-lge_serving", f"-Wl,-rpath,{PACKAGE}"]
    subprocess.run(
        ["gcc", "-std=c99", "-Wall", "-Werror", str(EXAMPLE), *flags, "-o", str(program)],
        check=True,
    )
    environment = {"GROUP_EMBEDDING_TENSORFLOW": str(Path(tf.__file__).parent)}
    served = subprocess.run(
        [str(program), folder, "user", "42", "7"],
        env=environment,
        capture_output=True,
        text=True,
    )
    # Then it prints the rows; and a wrong folder is a sentence
    assert served.returncode == 0, served.stderr
    assert served.stdout == "version 12\nrow: 3.5 4 1 2\n"
    refused = subprocess.run(
        [str(program), str(tmp_path), "user", "1"], env=environment, capture_output=True, text=True
    )
    assert refused.returncode == 1
    assert "expected the folder of a SavedModel" in refused.stderr
