"""The Open Inference Protocol (KServe, Triton) over gRPC and REST: the answers are those of
TensorFlow Serving's protocol."""

import json
import struct

import numpy as np
import pytest
from support.servers.server_clients import Client, http, rest

client_of_grpc = pytest.importorskip("tritonclient.grpc")
from tritonclient.utils import InferenceServerException  # noqa: E402

X = np.array([[0, 1, 2], [3, 4, 5.5]], np.float32)
N = np.array([10, 20])
Y = X.sum(axis=1) + N
DTYPES = {
    "bool": "BOOL",
    "uint8": "UINT8",
    "uint16": "UINT16",
    "uint32": "UINT32",
    "uint64": "UINT64",
    "int8": "INT8",
    "int16": "INT16",
    "int32": "INT32",
    "int64": "INT64",
    "float16": "FP16",
    "float32": "FP32",
    "float64": "FP64",
}


@pytest.fixture(scope="module")
def client(shared):
    with client_of_grpc.InferenceServerClient(f"localhost:{shared.grpc_port}") as one:
        yield one


def inputs_of(arrays, datatypes=None):
    found = []
    for name, array in arrays.items():
        datatype = (datatypes or {}).get(name) or DTYPES[array.dtype.name]
        found.append(client_of_grpc.InferInput(name, list(array.shape), datatype))
        found[-1].set_data_from_numpy(array)
    return found


def infer(client, arrays, **options):
    return client.infer("m", inputs_of(arrays), client_timeout=20, **options)


def test_the_client_of_triton(shared, client):
    # Given the answer over TensorFlow Serving's protocol
    with Client(shared) as other:
        expected, version = other.predict({"x": X, "n": N})

    # When Triton's client asks
    answer = infer(client, {"x": X, "n": N}, request_id="seven")

    # Then it gets the same, of the same version
    np.testing.assert_array_equal(answer.as_numpy("y"), expected["y"])
    message = answer.get_response()
    assert (message.model_version, message.id) == (str(version), "seven")


def test_health_and_metadata(shared, client):
    # When the server and its model are asked about
    described = client.get_model_metadata("m", as_json=True)
    over_rest = rest(shared, "/v2/models/m")[1]

    # Then both protocols say the same
    assert client.is_server_live() and client.is_server_ready()
    assert client.is_model_ready("m") and client.is_model_ready("m", "7")
    assert not client.is_model_ready("m", "8") and not client.is_model_ready("other")
    assert client.get_server_metadata().name == "ge-serve"
    assert described["versions"] == over_rest["versions"] == ["7"]
    assert described["platform"] == over_rest["platform"] == "tensorflow_savedmodel"
    inputs = {one["name"]: (one["datatype"], one["shape"]) for one in over_rest["inputs"]}
    assert inputs == {"n": ("INT64", [-1]), "x": ("FP32", [-1, 3])}
    assert [one["name"] for one in described["outputs"]] == ["y"]
    for path in ("/v2/health/live", "/v2/health/ready", "/v2/models/m/ready", "/v2"):
        assert http(shared, path)[0] == 200
    assert http(shared, "/v2/models/m/versions/8/ready")[0] == 404


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("how", ["grpc", "json", "bytes"])
def test_dtypes(shared, client, dtype, how):
    # Given values of a dtype
    values = np.array([[0, 1, 1], [1, 0, 1]]).astype(dtype)

    # When the model answers with its input
    if how == "grpc":
        answer = infer(client, {"t": values}, parameters={"signature_name": "same"})
        found = answer.as_numpy("t")
    else:
        found = infer_over_rest(shared, {"t": values}, how == "bytes", "same")["t"]

    # Then it is what was sent
    assert found.dtype == values.dtype
    np.testing.assert_array_equal(found, values)


def infer_over_rest(server, arrays, as_bytes, signature=None):
    """The outputs, of inputs as JSON or as bytes behind it."""
    body, tail = {"inputs": [], "parameters": {"binary_data_output": as_bytes}}, b""
    if signature:
        body["parameters"]["signature_name"] = signature
    for name, array in arrays.items():
        one = {"name": name, "shape": list(array.shape), "datatype": DTYPES[array.dtype.name]}
        if as_bytes:
            one["parameters"] = {"binary_data_size": array.nbytes}
            tail += array.tobytes()
        else:
            one["data"] = array.tolist()
        body["inputs"].append(one)
    head = json.dumps(body).encode()
    fields = {"Inference-Header-Content-Length": str(len(head))} if as_bytes else {}
    status, answer, content = http(
        server, "/v2/models/m/infer", head + tail, headers=fields, raw=True
    )
    assert status == 200, content
    size = int(answer.get("Inference-Header-Content-Length", len(content)))
    described, tail, outputs = json.loads(content[:size]), content[size:], {}
    names = {datatype: name for name, datatype in DTYPES.items()}
    for output in described["outputs"]:
        dtype = np.dtype(names[output["datatype"]])
        if as_bytes:
            taken = output["parameters"]["binary_data_size"]
            outputs[output["name"]] = np.frombuffer(tail[:taken], dtype)
            tail = tail[taken:]
        else:
            outputs[output["name"]] = np.array(output["data"], dtype)
        outputs[output["name"]] = outputs[output["name"]].reshape(output["shape"])
    assert tail == b""
    return outputs


def test_strings(client):
    # Given strings with zero bytes, empty ones, and bytes that are no text
    words = np.array([b"", b"a\x00b", "é".encode(), b"\xff" * 9], object)
    asked = inputs_of({"s": words}, {"s": "BYTES"})

    # When they are sent
    answer = client.infer("m", asked, parameters={"signature_name": "strings"})

    # Then they come back whole
    assert answer.as_numpy("s_bytes").tolist() == words.tolist()
    assert answer.as_numpy("length").tolist() == [0, 3, 2, 9]


def test_only_the_outputs_that_are_asked_for(client):
    asked = inputs_of({"s": np.array([b"ab"], object)}, {"s": "BYTES"})
    wanted = [client_of_grpc.InferRequestedOutput("length")]

    answer = client.infer("m", asked, outputs=wanted, parameters={"signature_name": "strings"})

    assert [output.name for output in answer.get_response().outputs] == ["length"]


BODY = {"name": "x", "shape": [2, 3], "datatype": "FP32", "data": X.tolist()}
BAD = {
    "model": ("/v2/models/other/infer", {"inputs": [BODY]}, 404, "'other' is not served"),
    "version": ("/v2/models/m/versions/6/infer", {"inputs": [BODY]}, 404, "version 6"),
    "no inputs": ("/v2/models/m/infer", {}, 400, 'expected a list "inputs"'),
    "no datatype": (
        "/v2/models/m/infer",
        {"inputs": [{"name": "x", "shape": [1], "data": [1]}]},
        *(400, "input 'x': expected a datatype"),
    ),
    "datatype": (
        "/v2/models/m/infer",
        {"inputs": [{**BODY, "datatype": "FP12"}]},
        *(400, "input 'x': unknown datatype 'FP12'"),
    ),
    "too few": (
        "/v2/models/m/infer",
        {"inputs": [{**BODY, "data": [1, 2]}]},
        *(400, "input 'x': expected 24 bytes"),
    ),
    "negative": (
        "/v2/models/m/infer",
        {"inputs": [{**BODY, "shape": [-1, 3]}]},
        *(400, "input 'x': expected dims of 0 or more"),
    ),
    "unknown": (
        "/v2/models/m/infer",
        {"inputs": [BODY, {**BODY, "name": "z"}]},
        *(400, "input 'z' is not in the signature"),
    ),
    "twice": ("/v2/models/m/infer", {"inputs": [BODY, BODY]}, 400, "input 'x': expected it once"),
    "bytes that are not there": (
        "/v2/models/m/infer",
        {"inputs": [{**BODY, "parameters": {"binary_data_size": 24}}]},
        *(400, "expected so many bytes behind the JSON"),
    ),
    "path": ("/v2/models/m/infere", {}, 404, "unknown path"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_requests_are_errors_by_name(shared, name):
    path, body, expected, words = BAD[name]

    status, answer = rest(shared, path, body)

    assert status == expected
    assert words in answer["error"]


def test_bytes_that_are_no_strings(shared, client):
    # Given a tensor of strings whose lengths go beyond its bytes
    service = client_of_grpc.service_pb2
    message = service.ModelInferRequest(model_name="m")
    message.parameters["signature_name"].string_param = "strings"
    message.inputs.add(name="s", datatype="BYTES", shape=[1])
    message.raw_input_contents.append(struct.pack("<I", 99) + b"ab")

    # When it is sent, Then the error says so, and the server answers the next one
    with pytest.raises(Exception, match="the bytes are no strings with their lengths"):
        client._client_stub.ModelInfer(message, timeout=20)
    with pytest.raises(InferenceServerException, match="expected inputs 'n' and 'x'"):
        infer(client, {"x": X})
    np.testing.assert_array_equal(infer(client, {"x": X, "n": N}).as_numpy("y"), Y)


def test_bytes_that_are_no_bools(client):
    # Given a tensor of bools one of whose bytes is neither 0 nor 1
    message = client_of_grpc.service_pb2.ModelInferRequest(model_name="m")
    message.parameters["signature_name"].string_param = "same"
    message.inputs.add(name="t", datatype="BOOL", shape=[2])
    message.raw_input_contents.append(b"\1\2")

    # When it is sent, Then the error says so
    with pytest.raises(Exception, match="input 't': value 2 is no bool"):
        client._client_stub.ModelInfer(message, timeout=20)


def test_values_in_the_fields_of_the_protocol(client):
    # Given inputs as numbers of the message, and not as bytes
    message = client_of_grpc.service_pb2.ModelInferRequest(model_name="m")
    x = message.inputs.add(name="x", datatype="FP32", shape=X.shape)
    x.contents.fp32_contents.extend(X.ravel().tolist())
    n = message.inputs.add(name="n", datatype="INT64", shape=N.shape)
    n.contents.int64_contents.extend(N.tolist())

    # When they are sent
    answer = client._client_stub.ModelInfer(message, timeout=20)

    # Then they are read as bytes are
    assert np.frombuffer(answer.raw_output_contents[0], np.float32).tolist() == Y.tolist()
