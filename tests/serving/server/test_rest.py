"""REST as TensorFlow Serving has it, metrics, probes and the live page."""

import base64
import json
import math
import re
import socket

import numpy as np
import pytest
from support.servers.server_clients import http, rest

PREDICT = "/v1/models/m:predict"
ROWS = [{"x": [0, 1, 2], "n": 10}, {"x": [3, 4, 5.5], "n": 20}]
COLUMNS = {"x": [[0, 1, 2], [3, 4, 5.5]], "n": [10, 20]}


def test_rows_and_columns(shared):
    # When two samples are sent as rows, and as columns
    rows = rest(shared, PREDICT, {"instances": ROWS})
    columns = rest(shared, PREDICT, {"inputs": COLUMNS, "signature_name": "serving_default"})
    pinned = rest(shared, "/v1/models/m/versions/7:predict", {"instances": ROWS})

    # Then the answers are rows and columns
    assert rows == pinned == (200, {"predictions": [13.0, 32.5]})
    assert columns == (200, {"outputs": [13.0, 32.5]})


def test_values(shared):
    # Given numbers that REST writes in a way of their own
    values = [0.1, 1e-30, -3, 16777217, math.inf, math.nan]

    # When the model answers with its input, of any shape
    body = {"signature_name": "same", "inputs": [[values]]}
    status, answer = rest(shared, PREDICT, body)
    scalar = rest(shared, PREDICT, {"signature_name": "same", "inputs": 3})

    # Then each is the float32 that was sent
    assert status == 200
    np.testing.assert_array_equal(np.float32(answer["outputs"]), np.float32([[values]]))
    assert "0.1," in http(shared, PREDICT, body)[1]
    assert scalar == (200, {"outputs": 3.0})


def test_bytes(shared):
    # Given bytes of each length's remainder, and text
    words = [b"", b"\x00", b"\xff\xfe", b"abc", b"abcd"]
    encoded = [{"b64": base64.b64encode(word).decode()} for word in words]

    # When they are sent
    body = {"signature_name": "strings", "instances": [*encoded, "é"]}
    status, answer = rest(shared, PREDICT, body)

    # Then an output named _bytes is base64 again, and another one is not
    assert status == 200
    again = [base64.b64decode(row["s_bytes"]["b64"]) for row in answer["predictions"]]
    assert again == [*words, "é".encode()]
    assert [row["length"] for row in answer["predictions"]] == [0, 1, 2, 3, 4, 2]


def test_classify_and_regress(shared):
    # Given examples with whole numbers, reals, text and lists, and a context
    examples = [{"a": 1, "b": 0.5}, {"a": [1, 2], "c": "text", "d": {"b64": "AAA="}}]

    # When they are sent
    classify = {"signature_name": "classify", "examples": examples}
    regress = {"signature_name": "regress", "examples": examples}
    status, classes = rest(shared, "/v1/models/m:classify", classify)
    _, values = rest(shared, "/v1/models/m:regress", regress)
    _, wider = rest(shared, "/v1/models/m:regress", {**regress, "context": {"user": 7}})

    # Then classes are pairs and values are numbers: the bytes of each serialized example
    assert status == 200
    assert [[pair[0] for pair in one] for one in classes["results"]] == [["short", "long"]] * 2
    scores = [one[0][1] for one in classes["results"]]
    np.testing.assert_allclose(scores, [1 / (1 + v) for v in values["results"]], rtol=1e-6)
    assert all(w > v > 10 for w, v in zip(wider["results"], values["results"], strict=True))


def test_states_and_metadata(shared):
    # When the model is asked for
    _, states = rest(shared, "/v1/models/m")
    _, one = rest(shared, "/v1/models/m/versions/7")
    _, metadata = rest(shared, "/v1/models/m/metadata")

    # Then the answers have TensorFlow Serving's names
    ok = {"error_code": "OK", "error_message": ""}
    (state,) = states["model_version_status"]
    assert state == {"version": "7", "state": "AVAILABLE", "status": ok}
    assert one == states
    assert metadata["model_spec"] == {"name": "m", "signature_name": "", "version": "7"}
    signatures = metadata["metadata"]["signature_def"]["signature_def"]
    assert signatures["serving_default"]["inputs"]["x"]["dtype"] == "DT_FLOAT"


BAD = {
    "json": (PREDICT, b'{"instances": [1', 400, "JSON, byte"),
    "no object": (PREDICT, [1], 400, "expected an object in the body, got a list"),
    "neither": (PREDICT, {}, 400, 'expected one of "instances" and "inputs"'),
    "both": (PREDICT, {"instances": [1], "inputs": [1]}, 400, "expected one of"),
    "empty": (PREDICT, {"instances": []}, 400, "got an empty one"),
    "unnamed": (PREDICT, {"instances": [1, 2]}, 400, "expected objects with a value for each"),
    "input": (PREDICT, {"inputs": {"z": 1}}, 400, "input 'z' is not in the signature"),
    "missing": (PREDICT, {"inputs": {"n": [1]}}, 400, "expected inputs 'n' and 'x'"),
    "uneven": (PREDICT, {"instances": [ROWS[0], {"n": 1}]}, 400, "instance 1: expected input 'x'"),
    "kinds": (PREDICT, {"instances": [ROWS[0], 5]}, 400, "instance 1: expected an object"),
    "ragged": (PREDICT, {"inputs": {"x": [[1, 2], [1]]}}, 400, "lists of one length in dim 1"),
    "nested": (PREDICT, {"inputs": {"x": [1, [2]]}}, 400, "input 'x'"),
    "deep": (PREDICT, b'{"inputs":' + b"[" * 40000 + b"]" * 40000 + b"}", 400, "expected"),
    "text": (PREDICT, {"inputs": {"x": "a"}}, 400, "expected a value of float, got a string"),
    "real": (PREDICT, {"inputs": {"n": [0.5]}}, 400, "expected a value of int64, got a number"),
    "signature": (PREDICT, {"signature_name": "s", "inputs": 1}, 400, "signature 's' is not"),
    "no name": (PREDICT, {"signature_name": 1, "inputs": 1}, 400, "signature_name: expected"),
    "base64": (PREDICT, {"signature_name": "strings", "inputs": [{"b64": "?"}]}, 400, "base64"),
    "model": ("/v1/models/z:predict", {"inputs": 1}, 404, "'z' is not served"),
    "version": ("/v1/models/m/versions/6:predict", {"inputs": 1}, 404, "version 6"),
    "label": ("/v1/models/m/labels/new:predict", {"inputs": 1}, 404, "no version label 'new'"),
    "verb": ("/v1/models/m:explain", {}, 400, "expected :predict, :classify or :regress"),
    "path": ("/v1/models/m/predict", {}, 400, "malformed request: POST"),
    "get": (PREDICT, None, 400, "malformed request: GET"),
    "number": ("/v1/models/m/versions/99999999999999999999", None, 400, "at most 2^63 - 1"),
    "elsewhere": ("/v2/models", None, 404, "unknown path /v2/models"),
    "large": (PREDICT, {"inputs": [0] * 60_000}, 413, "above --max-message-bytes"),
    "example": ("/v1/models/m:classify", {"examples": [1]}, 400, "example 0: expected an object"),
    "mixed": ("/v1/models/m:classify", {"examples": [{"a": [1, "b"]}]}, 400, "feature 'a'"),
    "none": ("/v1/models/m:regress", {"examples": []}, 400, 'expected a list "examples"'),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_requests_are_errors_by_name(shared, name):
    # Given a request that is wrong in one way
    path, body, status, words = BAD[name]

    # When it is sent
    got, answer = rest(shared, path, body)

    # Then the error says so, and the server answers the next one
    assert (got, list(answer)) == (status, ["error"])
    assert words in answer["error"]
    assert rest(shared, PREDICT, {"instances": ROWS})[0] == 200


def test_names_that_are_no_utf8(shared):
    # When a path has bytes that are no text
    status, text = http(shared, "/v1/models/%FF%FE:predict", b'{"inputs": 1}')

    # Then the error is text
    assert status == 404
    assert "model '??' is not served" in json.loads(text)["error"]


def test_bytes_that_are_no_http(shared):
    # Given connections that send something else, or nothing
    for sent in (b"\x00\xff" * 100, b"POST / HTTP/1.1\r\nContent-Length: 99\r\n\r\n", b""):
        with socket.create_connection(("127.0.0.1", shared.rest_port)) as connection:
            connection.sendall(sent)

    # Then the server answers the next one
    assert rest(shared, PREDICT, {"instances": ROWS})[0] == 200


def test_all_models_are_listed(start, model, tmp_path):
    # Given two models, one of which does not load
    server = start({"a": model(tmp_path / "3"), "b": model(tmp_path / "b" / "4", words="fail")})

    # When they are listed
    status, answer = rest(server, "/v1/models")

    # Then each has its versions
    assert status == 200
    states = {
        name: [(one["version"], one["state"]) for one in of["model_version_status"]]
        for name, of in answer["models"].items()
    }
    assert states == {"a": [("3", "AVAILABLE")], "b": [("4", "END")]}


def test_metrics(shared):
    # Given a request that was answered, and one that was wrong
    rest(shared, PREDICT, {"instances": ROWS})
    rest(shared, PREDICT, {"inputs": {"n": [1]}})

    # When the metrics are read, at both paths
    text = http(shared, "/metrics")[1]
    assert http(shared, "/monitoring/prometheus/metrics")[0] == 200

    # Then each line is Prometheus's format, and has the counts and the model's tables
    line = re.compile(r'[a-z_]+(\{[a-z]+="[^"]*"(,[a-z]+="[^"]*")*\})? (-?[0-9.e+-]+|\+Inf)')
    lines = [one for one in text.splitlines() if not one.startswith("#")]
    assert [one for one in lines if not line.fullmatch(one)] == []
    values = dict(one.rsplit(" ", 1) for one in lines)
    counted = 'ge_serve_requests_total{model="m",method="predict",code="%s"}'
    assert int(values[counted % "OK"]) >= 1
    assert int(values[counted % "INVALID_ARGUMENT"]) >= 1
    buckets = [int(v) for k, v in values.items() if k.startswith("ge_serve_request_seconds_bucket")]
    assert buckets == sorted(buckets)
    assert buckets[-1] == int(values['ge_serve_request_seconds_count{model="m"}'])
    assert values['ge_serve_model_version{model="m",base="7"}'] == "7"
    assert values['ge_serve_model_staleness_seconds{model="m",base="7"}'] == "2.5"
    assert values['ge_serve_table_bytes{model="m",base="7",table="<user>"}'] == "640"


def test_probes_and_live_page(shared):
    # When people and Kubernetes look
    page = http(shared, "/")[1]

    # Then the probes are right, and the page has versions, ages, latencies and tables, escaped
    assert http(shared, "/healthz")[0] == http(shared, "/readyz")[0] == 200
    for words in ("version 7 from", "published 2.5 s ago", "p99", "&lt;user&gt;", "640 B"):
        assert words in page
    assert "<user>" not in page
