"""DeepRec's Processor functions of libge_serving, called as a server of DeepRec calls them."""

import ctypes
import json
import random

import numpy as np
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from support.cases import shop_models
from support.cases.shop_models import Shop, answers, request

from group_embedding.serving.session.native_library import library

FIELDS = {np.float32: ("float_val", 1), np.int64: ("int64_val", 9)}  # and DataType's number


def make_messages():
    """The messages of DeepRec's documentation, page "Processor"."""
    file = descriptor_pb2.FileDescriptorProto(name="predict.proto", syntax="proto3", package="eas")
    label = descriptor_pb2.FieldDescriptorProto
    kinds = {"int64": 3, "int32": 5, "float": 2, "double": 1, "bool": 8, "string": 9, "bytes": 12}

    def add(message, number, name, kind, repeated=False):
        field = message.field.add(name=name, number=number)
        field.label = label.LABEL_REPEATED if repeated else label.LABEL_OPTIONAL
        if kind in kinds:
            field.type = kinds[kind]
        else:
            field.type, field.type_name = label.TYPE_MESSAGE, f".eas.{kind}"

    def add_map(message, number, name):
        entry = message.nested_type.add(name=name.title() + "Entry")
        entry.options.map_entry = True
        add(entry, 1, "key", "string")
        add(entry, 2, "value", "ArrayProto")
        add(message, number, name, f"{message.name}.{entry.name}", repeated=True)

    add(file.message_type.add(name="ArrayShape"), 1, "dim", "int64", repeated=True)
    array = file.message_type.add(name="ArrayProto")
    add(array, 1, "dtype", "int32")
    add(array, 2, "array_shape", "ArrayShape")
    values = ("float", "double", "int32", "bytes", "int64", "bool")
    names = ("float_val", "double_val", "int_val", "string_val", "int64_val", "bool_val")
    for number, (name, kind) in enumerate(zip(names, values), 3):
        add(array, number, name, kind, repeated=True)
    asked = file.message_type.add(name="PredictRequest")
    add(asked, 1, "signature_name", "string")
    add_map(asked, 2, "inputs")
    add(asked, 3, "output_filter", "string", repeated=True)
    add_map(file.message_type.add(name="PredictResponse"), 1, "outputs")
    add(file.message_type.add(name="ServingModelInfo"), 1, "model_path", "string")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)

    def class_of(name):
        descriptor = pool.FindMessageTypeByName(f"eas.{name}")
        if hasattr(message_factory, "GetMessageClass"):
            return message_factory.GetMessageClass(descriptor)
        return message_factory.MessageFactory(pool).GetPrototype(descriptor)

    return {message.name: class_of(message.name) for message in file.message_type}


MESSAGES = make_messages()


class Processor:
    """The three functions, with Python's types."""

    def __init__(self, config):
        native = library()
        native.initialize.restype = ctypes.c_void_p
        state = ctypes.c_int(7)
        self.model = native.initialize(b"", config.encode(), ctypes.byref(state))
        self.state = state.value

    def process(self, data):
        return self._call(library().process, ctypes.c_void_p(self.model), data, len(data))

    def info(self):
        return self._call(library().get_serving_model_info, ctypes.c_void_p(self.model))

    @staticmethod
    def _call(function, *arguments):
        output, size = ctypes.c_void_p(), ctypes.c_int()
        code = function(*arguments, ctypes.byref(output), ctypes.byref(size))
        data = ctypes.string_at(output.value, size.value)
        ctypes.CDLL(None).free(output)  # as the server must
        return code, data


def message_of(inputs, signature="", outputs=()):
    asked = MESSAGES["PredictRequest"](signature_name=signature, output_filter=outputs)
    for name, array in inputs.items():
        value = asked.inputs[name]
        field, value.dtype = FIELDS[array.dtype.type]
        value.array_shape.dim.extend(array.shape)
        getattr(value, field).extend(array.ravel().tolist())
    return asked.SerializeToString()


def arrays_of(data):
    outputs = MESSAGES["PredictResponse"].FromString(data).outputs
    return {
        name: np.array(value.float_val, np.float32).reshape(value.array_shape.dim)
        for name, value in outputs.items()
    }


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A model, its folder, and a processor of it."""
    shop = Shop()
    folder = shop_models.export(shop, tmp_path_factory.mktemp("processor") / "5")
    config = {
        "savedmodel_dir": folder,
        "model_store_type": "local",
        "feature_store_type": "local",
        "signature_name": "serving_default",
        "intra_op_parallelism_threads": 2,
        "inter_op_parallelism_threads": 2,
        "session_num": 2,
        "use_per_session_threads": False,
        "ev_storage_size": [1024, 1024],
    }
    processor = Processor(json.dumps(config))
    assert processor.state == 0
    return shop, folder, processor


def test_answers_are_those_of_the_model(served):
    shop, folder, processor = served

    for count in (1, 6, 40):
        # Given a request of DeepRec's protobuf
        inputs = request(count, seed=count)

        # When it is processed, with all outputs and with one
        code, data = processor.process(message_of(inputs))
        some, one = processor.process(message_of(inputs, "serving_default", ["score"]))

        # Then the answers are the trainer's, to the bit
        expected = answers(shop, inputs)
        assert (code, some) == (200, 200)
        found = arrays_of(data)
        assert sorted(found) == sorted(expected)
        for name, value in expected.items():
            np.testing.assert_array_equal(found[name], value)
        assert list(arrays_of(one)) == ["score"]

    # And the status has the model's folder, and its state
    code, data = processor.info()
    assert code == 200
    assert MESSAGES["ServingModelInfo"].FromString(data).model_path == folder
    code, data = processor.process(b"")
    assert code == 200 and json.loads(data)["version"] == 5


def test_bad_requests_are_sentences(served):
    _, _, processor = served
    good = request(2)
    missing = {name: ids for name, ids in good.items() if name != "user"}
    wrong = {**good, "user": np.ones(2, np.float32)}
    cases = {
        message_of(missing): b"'user' is missing",
        message_of(wrong): b"input 'user': expected int64, got float",
        message_of(good, "other"): b"got 'other'",
        message_of(good, outputs=["none"]): b"got 'none'",
        b"\xff\xff": b"bytes that are no message",
    }
    for message, words in cases.items():
        code, data = processor.process(message)
        assert code == 500
        assert words in data


CONFIGS = {
    "[1]": "expected one JSON object",
    '{"session_num": 2}': "expected 'savedmodel_dir'",
    '{"savedmodel_dir": "/nowhere"}': "expected the folder of a SavedModel",
    '{"savedmodel_dir": "/a", "feature_store_type": "redis"}': "expected 'local', got 'redis'",
    '{"savedmodel_dir": "/a", "cpusets": [': "got another text at byte",
}


@pytest.mark.parametrize("config", CONFIGS)
def test_bad_configurations_are_sentences(config, capfd):
    processor = Processor(config)

    assert processor.model is None and processor.state == -1
    assert CONFIGS[config] in capfd.readouterr().err


def test_settings_without_a_use_are_named(served, capfd):
    _, folder, _ = served
    Processor(json.dumps({"savedmodel_dir": folder, "omp_num_threads": 4, "cpusets": "1;2"}))

    assert "not used here: omp_num_threads, cpusets" in capfd.readouterr().err


def test_mutated_requests_are_answered(served):
    # Given a right request, and bytes that are drawn
    _, _, processor = served
    draw = random.Random(11)
    right = message_of(request(3))
    codes = set()

    # When mutated requests are processed
    for _ in range(2_000):
        data = bytearray(right)
        for _ in range(draw.randint(1, 3)):
            at = draw.randrange(len(data))
            change = draw.randrange(3)
            if change == 0:
                data[at] = draw.randrange(256)
            elif change == 1:
                del data[at : at + draw.randint(1, 5)]
            else:
                data[at:at] = draw.randbytes(draw.randint(1, 4))
        codes.add(processor.process(bytes(data))[0])

    # Then each has an answer or an error, and the right one its answer
    assert codes == {200, 500}
    assert processor.process(right)[0] == 200
