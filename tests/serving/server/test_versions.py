"""New versions in a model's folder, and the requests of a warm-up file."""

import struct
import threading

import grpc
import numpy as np
import pytest
import tensorflow as tf
from support.oracles.table_file_format import crc32c
from support.servers.server_clients import Client, http, predict_request, wait_for, with_spec
from tensorflow_serving.apis import classification_pb2, prediction_log_pb2

INPUTS = {"x": np.ones([1, 3], np.float32), "n": np.array([4])}
POLL = ("--poll-seconds", "0.05")


def test_new_versions_take_over_while_requests_go_on(start, model, tmp_path):
    # Given a server, and a client that sends without a pause
    model(tmp_path / "1")
    server = start({"m": tmp_path}, *POLL)
    versions, stop = [], threading.Event()

    def send():
        with Client(server) as client:
            while not stop.is_set():
                outputs, version = client.predict(INPUTS)
                assert outputs["y"].tolist() == [7.0]
                versions.append(version)

    thread = threading.Thread(target=send)
    thread.start()
    wait_for(lambda: versions)

    # When versions 2 and 10 come, each after the one before answers
    for version in (2, 10):
        model(tmp_path / str(version))
        wait_for(lambda version=version: versions and versions[-1] == version)
    stop.set()
    thread.join()

    # Then no request failed, versions only rose, and the old ones ended
    assert versions == sorted(versions) and set(versions) == {1, 2, 10}
    with Client(server) as client:
        states = {version: state for version, (state, _) in client.states().items()}
        wait_for(lambda: client.states()[2][0] == "END")
    assert states[10] == "AVAILABLE"


def test_a_version_that_does_not_load_is_told_and_not_served(start, model, tmp_path):
    # Given a server
    model(tmp_path / "1")
    server = start({"m": tmp_path}, *POLL)
    with Client(server) as client:
        # When a damaged version comes
        model(tmp_path / "2", words="fail")
        wait_for(lambda: 2 in client.states())

        # Then version 1 answers, and states and the page say why
        wait_for(lambda: client.states()[2][0] == "END")
        assert "is damaged" in client.states()[2][1]
        assert "is damaged" in client.states()[1][1]
        assert "is damaged" in http(server, "/")[1]
        assert client.predict(INPUTS)[1] == 1

        # And the next version is served
        model(tmp_path / "3")
        wait_for(lambda: client.predict(INPUTS)[1] == 3)
        wait_for(lambda: client.states()[3] == ("AVAILABLE", ""))


def test_a_version_that_is_copied_file_by_file_is_tried_again(start, model, tmp_path):
    # Given a server, and a version that is copied: what makes it whole comes last
    model(tmp_path / "1")
    server = start({"m": tmp_path}, *POLL)
    with Client(server) as client:
        model(tmp_path / "2", words="fail")
        wait_for(lambda: client.states().get(2, ("",))[0] == "END")

        # When the rest of its files has come
        (tmp_path / "2" / "words").unlink()

        # Then it is served
        wait_for(lambda: client.predict(INPUTS)[1] == 2)
        assert client.states()[2] == ("AVAILABLE", "")


def test_a_model_that_does_not_load_leaves_the_others(start, model, tmp_path):
    # Given three models, of which the one in the middle is damaged
    damaged = model(tmp_path / "b" / "1", words="fail")
    models = {
        "a": model(tmp_path / "a" / "1"),
        "b": damaged.parent,
        "c": model(tmp_path / "c" / "1"),
    }

    # When a server starts with them
    server = start(models, *POLL)

    # Then the others answer, and readiness and the error say which one does not, and why
    with Client(server) as client:
        assert client.predict(INPUTS, model="a")[1] == client.predict(INPUTS, model="c")[1] == 1
        with pytest.raises(grpc.RpcError, match="model 'b' is not loaded: .* is damaged"):
            client.predict(INPUTS, model="b")
        status, text = http(server, "/readyz")
        assert (status, len(text.splitlines())) == (503, 1)
        assert "model 'b'" in text and "is damaged" in text

        # And it is served once it can be loaded
        (damaged / "words").unlink()
        wait_for(lambda: http(server, "/readyz")[0] == 200)
        assert client.predict(INPUTS, model="b")[1] == 1


def test_a_folder_that_is_away(start, model, tmp_path):
    # Given a server
    model(tmp_path / "models" / "1")
    server = start({"m": tmp_path / "models"}, *POLL)

    # When the folder goes
    (tmp_path / "models").rename(tmp_path / "away")

    # Then the last version answers, and metrics and states say so
    up = 'ge_serve_source_up{model="m"} 0'
    wait_for(lambda: up in http(server, "/metrics")[1])
    with Client(server) as client:
        wait_for(lambda: "cannot read folder" in client.states()[1][1])
        assert client.predict(INPUTS)[1] == 1


def masked(data):
    crc = crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def record(log):
    """A record of a TFRecord file."""
    data = log.SerializeToString()
    size = struct.pack("<Q", len(data))
    return size + masked(size) + data + masked(data)


def warm_up_records():
    """A prediction and a classification, as TensorFlow writes them."""
    predict, classify = prediction_log_pb2.PredictionLog(), prediction_log_pb2.PredictionLog()
    predict.predict_log.request.CopyFrom(predict_request(INPUTS))
    request = with_spec(classification_pb2.ClassificationRequest(), signature="classify")
    request.input.example_list.examples.add()
    classify.classify_log.request.CopyFrom(request)
    return [predict, classify]


def write_warm_up(path, content):
    (path / "assets.extra").mkdir(parents=True)
    (path / "assets.extra" / "tf_serving_warmup_requests").write_bytes(content)


def test_warm_up(start, model, tmp_path):
    # Given a file of requests that TensorFlow has written
    logs = warm_up_records()
    written = tmp_path / "records"
    with tf.io.TFRecordWriter(str(written)) as writer:
        for log in logs:
            writer.write(log.SerializeToString())
    assert written.read_bytes() == b"".join(map(record, logs))
    write_warm_up(tmp_path / "m" / "1", written.read_bytes())
    (tmp_path / "m" / "1" / "saved_model.pb").touch()

    # When a server starts, Then the model answers, and warm-up is not counted as requests
    server = start({"m": tmp_path / "m"})
    assert 'method="predict",code="OK"} 0' in http(server, "/metrics")[1]


def _wrong_request():
    log = warm_up_records()[0]
    del log.predict_log.request.inputs["n"]
    return record(log)


WARM_UPS = {
    "length": (b"\x01" * 8 + b"\x00" * 4, "record 0: its length is damaged"),
    "half": (record(warm_up_records()[0])[:-3], "record 0: its bytes do not match"),
    "flipped": (record(warm_up_records()[0])[:-5] + b"\x00" * 5, "do not match their checksum"),
    "request": (_wrong_request(), "record 0: expected inputs 'n' and 'x'"),
    "second": (record(warm_up_records()[0]) + _wrong_request(), "record 1: expected inputs"),
    "kind": (record(prediction_log_pb2.PredictionLog()), "record 0: expected predict_log"),
    "many": (record(warm_up_records()[1]) * 1001, "expected at most 1000 records"),
}


@pytest.mark.parametrize("name", WARM_UPS)
def test_warm_up_files_that_are_wrong(start, model, tmp_path, name):
    # Given a file that is damaged, or a request in it that fails
    content, words = WARM_UPS[name]
    write_warm_up(tmp_path / "1", content)
    (tmp_path / "1" / "saved_model.pb").touch()

    # When a server starts, Then it says which record, and why
    with pytest.raises(RuntimeError, match="tf_serving_warmup_requests") as error:
        start({"m": tmp_path / "1"})
    assert words in str(error.value)
