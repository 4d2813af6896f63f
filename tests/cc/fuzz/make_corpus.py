"""Writes corpus/: the inputs from which the fuzzers begin, right ones and odd ones.

python tests/cc/fuzz/make_corpus.py
"""

import json
import struct
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1]))

from support.servers import http2_frames as h2  # noqa: E402


def part(data):
    return struct.pack("<H", len(data)) + data


def parts(*all):
    return b"".join(map(part, all))


def heads():
    post = b"POST /v1/models/m:predict HTTP/1.1\r\nHost: a\r\n"
    yield b"GET /healthz?a=b HTTP/1.1\r\nHost: a\r\n\r\n"
    yield b"GET http://a/health%7A HTTP/1.0\r\nAccept-Encoding: gzip\r\n\r\n"
    yield post + b"Content-Length: 2\r\nExpect: 100-continue\r\n\r\n{}"
    yield post + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"
    yield post + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\nX:\ty \r\n\r\n"
    yield b"HEAD /v1/models/m%00 HTTP/1.1\nHost: a\r\n folded\r\nContent-Length : 0, 0\r\n\r\n"


def calls():
    def session(*received):
        return b"\x00" + b"".join(bytes([n]) + part(data) for n, data in received)

    settings = h2.frame(h2.SETTINGS, payload=struct.pack(">HI", 4, 10))
    more = [(b"grpc-timeout", b"100m"), (b"grpc-encoding", b"gzip")]
    for path in (b"/a/Compute", b"/a/Now", b"/a/Watch", b"/a/Other"):
        call = h2.call(1, h2.fields(path), b"message")
        yield session((0, settings), (1, call), (15, h2.frame(h2.SETTINGS, 1)))
    yield session((0, settings + h2.call(1, h2.fields(b"/a/Now", *more), b"\x1f\x8b")), (2, b""))
    head, rest = h2.fields(b"/a/Compute")[:20], h2.fields(b"/a/Compute")[20:]
    yield session(
        (0, h2.frame(h2.HEADERS, 0, 1, head)),
        (0, h2.frame(h2.CONTINUATION, 4, 1, rest)),
        (1, h2.frame(h2.DATA, 0, 1, h2.message(b"m")) + h2.frame(h2.DATA, 1, 1)),
        (3, h2.frame(h2.WINDOW_UPDATE, 0, 0, struct.pack(">I", 1000))),
        (0, h2.frame(h2.RST_STREAM, 0, 1, struct.pack(">I", 8))),
        (0, h2.frame(h2.PING, payload=b"8" * 8)),
    )


def bodies():
    yield b"\x00" + json.dumps({"instances": [{"x": [0, 1.5, -2e9], "n": 10}]}).encode()
    yield b"\x01" + json.dumps({"instances": [[1, 2], [3, 4]], "signature_name": "one"}).encode()
    strings = {"s": ["a", {"b64": "AAA="}], "b": True, "x": [[1, 2, 3]], "n": [1]}
    yield b"\x00" + json.dumps({"inputs": strings}).encode()
    yield b"\x00" + json.dumps({"examples": [{"a": 1, "b": ["x"]}], "context": {"c": 0.5}}).encode()
    yield b"\x00" + b'{"inputs": {"x": [[NaN, Infinity, 1e999]], "n": [-0]}}'
    shapes = {"m": {"method_name": "", "inputs": {"x": {"name": "x", "dtype": 1, "shape": [-1]}}}}
    yield b"\x00" + json.dumps({"s": {**shapes["m"], "outputs": {}}}).encode()


def tensors():
    from tensorflow.core.framework import tensor_pb2
    from tensorflow_serving.apis import predict_pb2
    from tritonclient.grpc import service_pb2

    for dtype, field, values in (
        (1, "float_val", [1.5]),
        (9, "int64_val", [1, 2, 3, 4]),
        (7, "string_val", [b"a", b"", b"b", b"c"]),
        (1, "tensor_content", b"\x00" * 16),
        (7, "tensor_content", b"\x01\x00\x02\x00abc"),
        (10, "tensor_content", b"\x00\x01\xc0\x01"),
        (6, "int_val", [1, 2]),
        (8, "scomplex_val", [1, 2, 3, 4]),
        (19, "half_val", [15360]),
    ):
        request = predict_pb2.PredictRequest()
        tensor = tensor_pb2.TensorProto(dtype=dtype, **{field: values})
        for size in (2, 2):
            tensor.tensor_shape.dim.add().size = size
        request.inputs["x"].CopyFrom(tensor)
        yield b"\x00" + request.SerializeToString()
    for datatype, raw in (("FP32", b"\0" * 8), ("BYTES", b"\1\0\0\0a\0\0\0\0"), ("INT64", None)):
        request = service_pb2.ModelInferRequest(model_name="m")
        tensor = request.inputs.add(name="x", datatype=datatype, shape=[2])
        if raw is None:
            tensor.contents.int64_contents.extend([1, 2])
        else:
            request.raw_input_contents.append(raw)
        yield b"\x01" + request.SerializeToString()


def deltas():
    def text(value):
        return struct.pack("<I", len(value)) + value

    def sections(*all):
        return bytes([len(all)]) + b"".join(bytes([kind - 1]) + part(data) for kind, data in all)

    version = struct.pack("<I", 2) + text(b"m") + struct.pack("<qqQqQqqq", 2, 1, 7, 1, 7, 2, 5, 9)
    rows = struct.pack("<I", 1) + text(b"b") + text(b"t") + struct.pack("<iiqIQ", 0, 1, 0, 0, 0)
    values = struct.pack("<I", 2) + text(b"c") + text(b"") + struct.pack("<iiqIQ", 0, 1, 0, 0, 0)
    header = text(b"t") + struct.pack("<QQiiiqiii", 1, 0, 0, 1, 1, 5, 4, 0, 0)
    header += struct.pack("<iffQqfiqqii", 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0) + struct.pack("<I", 0)
    variable = text(b"w") + struct.pack("<iIqIq", 1, 1, 3, 0, 0)
    some = text(b"v") + struct.pack("<iIqqIq", 9, 2, 5, 1, 1, 2)
    of_variables = [(20, variable), (22, b"\0" * 12), (23, struct.pack("<q", 1))]
    of_rows = [(20, some), (21, struct.pack("<qq", 1, 3)), (22, b"\0" * 16)]
    commit = sections((16, version), (17, rows), (17, values))
    yield b"\x00" + commit + sections((1, header), (7, b"\0" * 32)) + sections(*of_variables)
    commit = sections((16, version), (17, values))
    yield b"\x00" + commit + sections() + sections(*of_variables)
    yield b"\x00" + commit + sections() + sections(*of_rows)
    yield b"\x01" + parts(b"\x89GETABLE" + b"\0" * 40, b"", b"")


def answers():
    yield b"\x00" + parts(b"+OK\r\n:12\r\n-ERR no\r\n", b"$3\r\nabc\r\n", b"$-1\r\n*-1\r\n")
    yield b"\x00" + parts(b"*2\r\n*2\r\n:1\r\n$1\r\na\r\n:-5\r\n")
    node = b"*2\r\n$9\r\n127.0.0.1\r\n:7000\r\n"
    yield b"\x00" + parts(b"*1\r\n*3\r\n:0\r\n:16383\r\n" + node)
    yield b"\x07" + parts(b"+OK\r\n+OK\r\n*2\r\n", b"$16\r\n" + b"0" * 16, b"\r\n$-1\r\n")
    yield b"\x01" + parts(b"*3\r\n$16\r\n0123456789abcdef\r\n$-1\r\n$5\r\n")


TARGETS = {
    "http_head": heads,
    "grpc": calls,
    "json": bodies,
    "tensors": tensors,
    "deltas": deltas,
    "redis": answers,
}

if __name__ == "__main__":
    for target, inputs in TARGETS.items():
        folder = HERE / "corpus" / target
        folder.mkdir(parents=True, exist_ok=True)
        for number, data in enumerate(inputs()):
            (folder / str(number)).write_bytes(data)
