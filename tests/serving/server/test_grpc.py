"""gRPC, as the unmodified client of tensorflow-serving-api speaks it."""

import socket
import subprocess

import grpc
import numpy as np
import pytest
import tensorflow as tf
from support.servers.server_clients import Client, predict_request
from tensorflow.core.framework import tensor_pb2
from tensorflow_serving.apis import prediction_service_pb2_grpc

X = np.arange(6, dtype=np.float32).reshape(2, 3)
N = np.array([10, 20], np.int64)
PREDICT = "tensorflow.serving.PredictionService/Predict"


@pytest.fixture
def client(shared):
    with Client(shared) as one:
        yield one


def test_predict(client):
    # Given a server of version 7

    # When two samples are sent, with and without the version's number
    outputs, version = client.predict({"x": X, "n": N})
    again, _ = client.predict({"x": X, "n": N}, version=7, signature="serving_default")

    # Then each answer is the sample's, and names the version
    np.testing.assert_array_equal(outputs["y"], [13.0, 32.0])
    np.testing.assert_array_equal(again["y"], outputs["y"])
    assert version == 7


@pytest.mark.parametrize("seconds, most", [(5, 5), (None, 30)])
def test_the_library_knows_the_deadline(client, seconds, most):
    # Given a client that waits so long, or names no deadline, which is then the server's
    # When it asks how long the model has, Then the answer is the rest of that time
    outputs, _ = client.predict({"n": N}, seconds, signature="left")
    assert (most - 4) * 1e6 < outputs["us"] <= (most + 0.1) * 1e6  # gRPC rounds deadlines up


DTYPES = "float32 float64 int64 int32 int16 int8 uint16 uint8 uint32 uint64 bool float16 bfloat16"


@pytest.mark.parametrize("dtype", [*DTYPES.split(), "complex64", "complex128"])
def test_dtypes(client, dtype):
    # Given values of a dtype: in the field of the dtype, as bytes, and one that stands for all
    dtype = tf.dtypes.as_dtype(dtype)
    values = tf.cast(tf.constant([[0, 1, 2], [1, 0, 1]]), dtype).numpy()
    as_bytes = tf.make_tensor_proto(values)
    as_values = tensor_pb2.TensorProto(dtype=as_bytes.dtype, tensor_shape=as_bytes.tensor_shape)
    for field in as_values.DESCRIPTOR.fields:
        if field.name == _field_of(dtype):
            getattr(as_values, field.name).extend(_as_fields(values, dtype))
    one = tf.make_tensor_proto(values[0, 1], shape=[2, 2])
    none = tensor_pb2.TensorProto(dtype=as_bytes.dtype, tensor_shape=as_bytes.tensor_shape)

    # When the model answers with its input
    answers = [
        client.predict({"t": proto}, signature="same")[0]["t"]
        for proto in (as_bytes, as_values, one, none)
    ]

    # Then values, shape and dtype are those that were sent
    assert all(answer.dtype == values.dtype for answer in answers)
    expected = [values, values, np.full([2, 2], values[0, 1]), np.zeros_like(values)]
    for answer, wanted in zip(answers, expected, strict=True):
        np.testing.assert_array_equal(answer, wanted)


def _field_of(dtype):
    names = {"float32": "float", "float64": "double", "float16": "half", "bfloat16": "half"}
    names |= {"complex64": "scomplex", "complex128": "dcomplex"}
    small = dtype.is_integer and dtype.size <= 2 or dtype == tf.int32
    return ("int" if small else names.get(dtype.name, dtype.name)) + "_val"


def _as_fields(values, dtype):
    if dtype.is_complex:
        return [part for value in values.ravel() for part in (value.real, value.imag)]
    if dtype in (tf.float16, tf.bfloat16):
        return values.ravel().view(np.uint16).tolist()
    return values.ravel().tolist()


def test_strings(client):
    # Given strings with zero bytes, empty ones, and TensorFlow's two encodings
    words = [b"", b"a\x00b", "é".encode(), b"x" * 200]
    packed = tensor_pb2.TensorProto(dtype=tf.string.as_datatype_enum)
    packed.tensor_shape.dim.add().size = 4
    packed.tensor_content = b"\x00\x03\x02\xc8\x01" + b"".join(words)

    # When both are sent
    answers = [client.predict({"s": s}, signature="strings")[0] for s in (words, packed)]

    # Then they come back whole
    for answer in answers:
        assert answer["s_bytes"].tolist() == words
        assert answer["length"].tolist() == [0, 3, 2, 200]


def test_only_the_outputs_that_are_asked_for(client):
    request = predict_request({"s": [b"ab"]}, signature="strings", outputs=["length"])

    answer = client.predictions.Predict(request, timeout=20)

    assert list(answer.outputs) == ["length"]


def test_metadata(client):
    # When the signatures are asked for
    signatures, version = client.metadata()

    # Then they are the model's: keys, dtypes, shapes, methods
    assert version == 7
    assert set(signatures) > {"serving_default", "classify", "regress"}
    x = signatures["serving_default"].inputs["x"]
    assert (x.name, x.dtype, [d.size for d in x.tensor_shape.dim]) == ("x:0", 1, [-1, 3])
    assert signatures["same"].inputs["t"].tensor_shape.unknown_rank
    assert signatures["classify"].method_name == "tensorflow/serving/classify"


def test_states(client):
    assert client.states() == {7: ("AVAILABLE", "")}
    assert client.states(version=7) == {7: ("AVAILABLE", "")}


def _example(**features):
    lists = {
        name: tf.train.Feature(int64_list=tf.train.Int64List(value=values))
        for name, values in features.items()
    }
    return tf.train.Example(features=tf.train.Features(feature=lists))


def test_classify(client):
    # Given two examples
    examples = [_example(a=[1]), _example(a=[1], b=[2, 3])]

    # When they are classified
    answer = client.classify(examples, signature="classify")

    # Then each has its classes: the double's score is 1 / (1 + the example's bytes)
    sizes = [example.ByteSize() for example in examples]
    classes = [one.classes for one in answer.result.classifications]
    assert [[c.label for c in one] for one in classes] == [["short", "long"]] * 2
    np.testing.assert_allclose([one[0].score for one in classes], [1 / (1 + s) for s in sizes])
    assert answer.model_spec.version.value == 7


def test_regress_with_and_without_a_context(client):
    # Given two examples, and features that both have
    examples, context = [_example(a=[1]), _example(b=[2, 3])], _example(user=[7])
    sizes = [example.ByteSize() for example in examples]

    # When they are sent; the double answers the bytes of each serialized example
    plain = client.regress(examples, signature="regress")
    merged = client.regress(examples, context, signature="regress")

    # Then the context is part of each
    assert [one.value for one in plain.result.regressions] == sizes
    wanted = [size + context.ByteSize() for size in sizes]
    assert [one.value for one in merged.result.regressions] == wanted


def _shaped(*dims, dtype=tf.float32, **fields):
    proto = tensor_pb2.TensorProto(dtype=dtype.as_datatype_enum, **fields)
    for dim in dims:
        proto.tensor_shape.dim.add().size = dim
    return proto


BAD = {
    "model": ({"x": X, "n": N}, {"model": "other"}, "NOT_FOUND", "'other' is not served"),
    "no model": ({"x": X, "n": N}, {"model": ""}, "INVALID_ARGUMENT", "expected a name"),
    "version": ({"x": X, "n": N}, {"version": 6}, "NOT_FOUND", "version 6 of model 'm'"),
    "label": ({"x": X, "n": N}, {"label": "new"}, "NOT_FOUND", "no version label 'new'"),
    "signature": ({"x": X}, {"signature": "s"}, "FAILED_PRECONDITION", "signature 's' is not"),
    "missing": ({"x": X}, {}, "INVALID_ARGUMENT", "expected inputs 'n' and 'x'"),
    "dtype": ({"x": X.astype(np.float64), "n": N}, {}, "INVALID_ARGUMENT", "input 'x'"),
    "shape": ({"x": X[:, :2], "n": N}, {}, "INVALID_ARGUMENT", "input 'x'"),
    "rank": ({"x": X[0], "n": N}, {}, "INVALID_ARGUMENT", "input 'x'"),
    "no dtype": ({"x": _shaped(1, dtype=tf.resource)}, {}, "INVALID_ARGUMENT", "resource"),
    "negative": ({"x": _shaped(-1, 3)}, {}, "INVALID_ARGUMENT", "expected dim 0 of 0 or more"),
    "large": ({"x": _shaped(1 << 40)}, {}, "INVALID_ARGUMENT", "may have together"),
    "unknown": ({"x": X, "n": N, "z": N}, {}, "INVALID_ARGUMENT", "input 'z' is not in the"),
    "together": (
        {"x": _shaped(20_000), "n": _shaped(10_000)},
        {},
        "INVALID_ARGUMENT",
        "more than the inputs of a message may have together: 100000 bytes",
    ),
    "larger": ({"x": _shaped(1 << 40, 1 << 40)}, {}, "INVALID_ARGUMENT", "64 bits"),
    "many strings": ({"x": _shaped(1 << 40, dtype=tf.string)}, {}, "INVALID_ARGUMENT", "strings"),
    "dims": ({"x": _shaped(*[1] * 300)}, {}, "INVALID_ARGUMENT", "at most 254 dims"),
    "values": ({"x": _shaped(1, float_val=[1, 2])}, {}, "INVALID_ARGUMENT", "expected 1 values"),
    "bytes": ({"x": _shaped(2, tensor_content=b"123")}, {}, "INVALID_ARGUMENT", "8 bytes"),
    "bool": (
        {"x": _shaped(3, dtype=tf.bool, tensor_content=b"\0\1\xc0")},
        *({}, "INVALID_ARGUMENT", "value 192 is no bool"),
    ),
    "range": ({"x": _shaped(1, dtype=tf.int8, int_val=[128])}, {}, "INVALID_ARGUMENT", "no int8"),
    "varint": (
        {"x": _shaped(1, dtype=tf.string, tensor_content=b"\xff")},
        {},
        "INVALID_ARGUMENT",
        "does not hold 1 strings",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_requests_are_errors_by_name(client, name):
    # Given a request that is wrong in one way
    inputs, spec, code, words = BAD[name]

    # When it is sent
    with pytest.raises(grpc.RpcError) as error:
        client.predict(inputs, **spec)

    # Then the error says so, and the server answers the next one
    assert error.value.code().name == code
    assert words in error.value.details()
    assert client.predict({"x": X, "n": N})[1] == 7


def test_an_output_that_is_asked_for_twice(client):
    request = predict_request({"x": X, "n": N})
    request.output_filter.extend(["y", "y"])

    with pytest.raises(grpc.RpcError, match="expected output 'y' once"):
        client.predictions.Predict(request, timeout=20)


def test_unknown_output_and_metadata_field(client):
    request = predict_request({"s": [b"a"]}, signature="strings", outputs=["size"])

    with pytest.raises(grpc.RpcError, match="no output 'size'"):
        client.predictions.Predict(request, timeout=20)
    with pytest.raises(grpc.RpcError, match="expected 'signature_def', got 'graph'"):
        client.metadata(field="graph")
    with pytest.raises(grpc.RpcError, match="expected method 'tensorflow/serving/classify'"):
        client.classify([_example(a=[1])], signature="regress")
    with pytest.raises(grpc.RpcError, match="expected one example or more"):
        client.classify([], signature="classify")


def test_messages_that_are_none_or_too_large(client):
    # Given bytes that are no message, and a message above the server's limit
    large = predict_request({"t": np.zeros(100_000, np.float32)}, signature="same")

    # When they are sent
    with pytest.raises(grpc.RpcError) as malformed:
        client.raw(PREDICT, b"\xff\xff\xff")
    with pytest.raises(grpc.RpcError) as too_large:
        client.predictions.Predict(large, timeout=20)
    with pytest.raises(grpc.RpcError) as unknown:
        client.raw("tensorflow.serving.PredictionService/Explain")

    # Then gRPC's codes say so, and the server answers the next one
    assert malformed.value.code() == grpc.StatusCode.INTERNAL
    assert too_large.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert unknown.value.code() == grpc.StatusCode.UNIMPLEMENTED
    assert client.predict({"x": X, "n": N})[1] == 7


def test_health(client):
    # Given the name of a service as field 1 of a HealthCheckRequest
    check = "grpc.health.v1.Health/Check"
    name = b"tensorflow.serving.PredictionService"

    # Then the server, and the service, are SERVING, and another one is not known
    assert client.raw(check) == b"\x08\x01"
    assert client.raw(check, b"\x0a" + bytes([len(name)]) + name) == b"\x08\x01"
    with pytest.raises(grpc.RpcError) as error:
        client.raw(check, b"\x0a\x05other")
    assert error.value.code() == grpc.StatusCode.NOT_FOUND


def test_health_is_watched(start, model, tmp_path):
    # Given a server, and more watches than it has threads
    server = start({"m": model(tmp_path / "1")}, "--threads", "1", "--queue", "1")
    with Client(server) as client:
        watch = client.channel.unary_stream("/grpc.health.v1.Health/Watch")
        watches = [watch(b"") for _ in range(100)]
        assert [next(states) for states in watches] == [b"\x08\x01"] * 100
        other = watch(b"\x0a\x05other")
        assert next(other) == b"\x08\x03"  # SERVICE_UNKNOWN

        # When some are cancelled, Then requests are answered
        for states in watches[:50]:
            states.cancel()
        assert client.predict({"x": X, "n": N})[1] == 1

        # And a server that stops says so, and ends the others
        server.stop()
        told = []
        with pytest.raises(grpc.RpcError) as ended:
            told.extend(iter(lambda: next(watches[50]), None))
        assert told in ([], [b"\x08\x02"])  # NOT_SERVING
        assert ended.value.code() == grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize("algorithm", [grpc.Compression.Gzip, grpc.Compression.Deflate])
def test_messages_that_are_compressed(shared, algorithm):
    # Given a channel that compresses, also to more than the server takes
    address = f"localhost:{shared.grpc_port}"
    zeros = predict_request({"t": np.zeros(20_000, np.float32)}, signature="same")
    large = predict_request({"t": np.zeros(100_000, np.float32)}, signature="same")
    with grpc.insecure_channel(address, compression=algorithm) as channel:
        stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)

        # When messages are sent, Then they are inflated up to the limit
        answer = stub.Predict(zeros, timeout=20)
        with pytest.raises(grpc.RpcError) as error:
            stub.Predict(large, timeout=20)

    assert not tf.make_ndarray(answer.outputs["t"]).any()
    assert error.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "inflates" in error.value.details()


def test_an_error_of_many_letters(client):
    # Given a name that is no ASCII, and too long for a header
    with pytest.raises(grpc.RpcError) as error:
        client.predict({"x": X, "n": N}, signature="é%" * 10_000)

    # Then what fits of the sentence comes
    assert error.value.code() == grpc.StatusCode.FAILED_PRECONDITION
    assert error.value.details().startswith("signature 'é%é%")


def test_large_messages_at_a_time(start, model, tmp_path):
    # Given messages of 4 MB, many times what a window has
    server = start({"m": model(tmp_path / "1")})
    values = np.arange(1_000_000, dtype=np.float32)
    request = predict_request({"t": values}, signature="same")
    with Client(server) as client:
        # When eight are sent side by side, Then each comes back whole
        for answer in [client.predictions.Predict.future(request, timeout=60) for _ in range(8)]:
            np.testing.assert_array_equal(tf.make_ndarray(answer.result().outputs["t"]), values)


def test_a_unix_socket(start, model, tmp_path):
    # Given a socket that another server left
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))

    # When a server listens there, too, as a flag of TensorFlow Serving asks for
    server = start({"m": model(tmp_path / "m" / "1")}, f"--grpc_socket_path={path}")

    # Then it answers at both
    with grpc.insecure_channel(f"unix:{path}") as channel:
        stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
        answer = stub.Predict(predict_request({"x": X, "n": N}), timeout=20)
        assert answer.model_spec.version.value == 1
    with Client(server) as client:
        assert client.predict({"x": X, "n": N})[1] == 1
    server.stop()
    assert not path.exists()


def test_tls(start, model, tmp_path):
    # Given a certificate of localhost
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", *subject]
    subprocess.run([*make, "-keyout", key, "-out", certificate], check=True, capture_output=True)

    # When a server has it
    files = ["--tls-key", str(key), "--tls-certificate", str(certificate)]
    server = start({"m": model(tmp_path / "1")}, *files)

    # Then a client that trusts it is answered, and one that speaks no TLS is not
    credentials = grpc.ssl_channel_credentials(certificate.read_bytes())
    with Client(server, credentials) as client:
        assert client.predict({"x": X, "n": N})[1] == 1
    with Client(server) as client, pytest.raises(grpc.RpcError):
        client.predict({"x": X, "n": N}, seconds=2)


def test_a_server_that_asks_for_certificates(start, model, tmp_path):
    # Given an authority, a certificate of it for the server and one for a client, and a stranger's
    def openssl(*arguments):
        subprocess.run(["openssl", *arguments], cwd=tmp_path, check=True, capture_output=True)

    def authority(name):
        new = ["-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", f"/CN={name}"]
        openssl("req", "-x509", *new, "-keyout", f"{name}.key", "-out", f"{name}.pem")

    def certificate(name, signer):
        new = ["-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={name}"]
        openssl("req", *new, "-keyout", f"{name}.key", "-out", f"{name}.csr")
        (tmp_path / "names").write_text("subjectAltName=DNS:localhost")
        sign = ["-CA", f"{signer}.pem", "-CAkey", f"{signer}.key", "-CAcreateserial", "-days", "1"]
        openssl(
            "x509", "-req", "-in", f"{name}.csr", *sign, "-extfile", "names", "-out", f"{name}.pem"
        )

    for name in ("authority", "other"):
        authority(name)
    for name, signer in (("server", "authority"), ("client", "authority"), ("stranger", "other")):
        certificate(name, signer)

    # When a server asks clients for a certificate of the authority
    files = {"key": "server.key", "certificate": "server.pem", "client-ca": "authority.pem"}
    arguments = [f"--tls-{name}={tmp_path / file}" for name, file in files.items()]
    server = start({"m": model(tmp_path / "1")}, *arguments)

    # Then the client that has one is answered, and no other one
    def ask(*pair):
        root, *own = [(tmp_path / name).read_bytes() for name in ("authority.pem", *pair)]
        with Client(server, grpc.ssl_channel_credentials(root, *own)) as client:
            return client.predict({"x": X, "n": N}, seconds=3)[1]

    assert ask("client.key", "client.pem") == 1
    for pair in ((), ("stranger.key", "stranger.pem")):
        with pytest.raises(grpc.RpcError):
            ask(*pair)
    assert ask("client.key", "client.pem") == 1
