"""Requests whose answer nobody waits for any more: their computation ends."""

import contextlib
import json
import socket
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from support.servers.server_clients import Client, http, predict_request, wait_for

import group_embedding as ge
from group_embedding.serving import InferenceSession, server

LONG = 1 << 20  # of products: hours
LIMIT = 0.5  # seconds of processor time once a request is over, on a busy machine
infer = pytest.importorskip("tritonclient.grpc")


class Slow(tf.Module):
    """Products of matrices one after the other, and lookups of many keys, as a request says."""

    def __init__(self):
        self.table = ge.get_embedding_variable("slow_keys", embedding_dim=4)
        self.table.insert(np.arange(1000), np.ones([1000, 4], np.float32))
        self.matrix = tf.Variable(tf.eye(300), name="matrix")

    @tf.function(input_signature=[tf.TensorSpec([1], tf.int64, name="times")])
    def products(self, times):
        found = tf.eye(300)
        for _ in tf.range(times[0]):
            found = tf.matmul(found, self.matrix)
        return {"corner": found[:1, 0]}

    @tf.function(input_signature=[tf.TensorSpec([1], tf.int64, name="thousands")])
    def lookups(self, thousands):
        keys = tf.tile(tf.range(1000, dtype=tf.int64), thousands)
        found = ge.group_embedding_lookup([self.table] * 8, [keys] * 8)
        return {"sum": tf.reduce_sum(found[-1], keepdims=True)[0]}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path, slow = tmp_path_factory.mktemp("slow"), Slow()
    signatures = {"serving_default": slow.products, "lookups": slow.lookups}
    tf.saved_model.save(slow, str(path / "1"), signatures=signatures)
    return path


@pytest.fixture(scope="module")
def slow(program, model):
    if not program.with_name("libge_serving.so").exists():
        pytest.skip("libge_serving is not built: make build")
    with server.ServerProcess({"m": model}, "--threads", "1", "--timeout-seconds", "1000") as one:
        yield one
        assert one.running(), one.errors()


def processor_seconds(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def metric(one, name):
    lines = http(one, "/metrics")[1].splitlines()
    return next(float(line.split()[-1]) for line in lines if line.startswith(f"{name} "))


def computes(one):
    return metric(one, "ge_serve_requests_running") == 1


def assert_ends(one):
    """The request in progress ends, and then takes no processor time."""
    begin = processor_seconds(one.pid)
    wait_for(lambda: not computes(one))
    assert processor_seconds(one.pid) - begin < LIMIT
    answer = http(one, "/v1/models/m:predict", {"inputs": {"times": [1]}})
    assert answer[0] == 200 and json.loads(answer[1]) == {"outputs": [1.0]}


def infer_long(one, **how):
    client = infer.InferenceServerClient(f"localhost:{one.grpc_port}")
    times = infer.InferInput("times", [1], "INT64")
    times.set_data_from_numpy(np.array([LONG]))
    return client, client.async_infer("m", [times], lambda result, error: None, **how)


def begin_rest(one, version="1.1"):
    body = json.dumps({"inputs": {"times": [LONG]}})
    connection = socket.create_connection(("localhost", one.rest_port), timeout=20)
    head = f"POST /v1/models/m:predict HTTP/{version}\r\nHost: h\r\nContent-Length: {len(body)}"
    connection.sendall(f"{head}\r\n\r\n{body}".encode())
    return connection


def by_a_deadline(one):
    with Client(one) as client:
        request = predict_request({"times": np.array([LONG])})
        waiting = client.predictions.Predict.future(request, timeout=0.5)
        assert waiting.code().name == "DEADLINE_EXCEEDED"


def by_a_cancel(one):
    with Client(one) as client:
        request = predict_request({"times": np.array([LONG])})
        waiting = client.predictions.Predict.future(request, timeout=60)
        wait_for(lambda: computes(one))
        waiting.cancel()


class Forwarder:
    """A port whose connection to another one can be cut."""

    def __init__(self, port):
        self._listener = socket.create_server(("localhost", 0))
        self.grpc_port = self._listener.getsockname()[1]
        self._to = socket.create_connection(("localhost", port))
        self._thread = threading.Thread(target=self._accept)
        self._thread.start()

    def _accept(self):
        self._from, _ = self._listener.accept()
        self._listener.close()
        back = threading.Thread(target=self._forward, args=[self._to, self._from])
        back.start()
        self._forward(self._from, self._to)
        back.join()

    def _forward(self, source, target):
        with contextlib.suppress(OSError):
            while received := source.recv(65536):
                target.sendall(received)

    def cut(self):
        for one in (self._from, self._to):
            one.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        for one in (self._from, self._to):
            one.close()


def by_a_cut_connection(one):
    forwarder = Forwarder(one.grpc_port)
    with Client(forwarder) as client:
        request = predict_request({"times": np.array([LONG])})
        waiting = client.predictions.Predict.future(request, timeout=60)
        wait_for(lambda: computes(one))
        forwarder.cut()
        assert waiting.code().name == "UNAVAILABLE"


def by_a_deadline_of_inference(one):
    client, _ = infer_long(one, client_timeout=0.5)
    wait_for(lambda: computes(one))
    time.sleep(0.5)
    client.close()


def by_a_cancel_of_inference(one):
    client, waiting = infer_long(one, client_timeout=60)
    wait_for(lambda: computes(one))
    waiting.cancel()
    client.close()


def by_a_closed_rest_connection(one):
    connection = begin_rest(one)
    wait_for(lambda: computes(one))
    connection.close()


def by_a_closed_connection_of_http_1_0(one):
    connection = begin_rest(one, "1.0")
    wait_for(lambda: computes(one))
    connection.close()


ENDS = [by_a_deadline, by_a_cancel, by_a_cut_connection, by_a_deadline_of_inference]
ENDS += [by_a_cancel_of_inference, by_a_closed_rest_connection, by_a_closed_connection_of_http_1_0]


@pytest.mark.parametrize("end", ENDS)
def test_a_computation_ends(slow, end):
    # Given a server that computes one request at a time, and a request of hours
    # When its sender waits no longer
    end(slow)

    # Then the computation ends between two products, and the server answers the next request
    assert_ends(slow)


def test_the_servers_own_deadline(program, model):
    # Given a server whose requests of REST have 0.3 s
    with server.ServerProcess({"m": model}, "--timeout-seconds", "0.3") as one:
        # When a request would take hours, by either protocol
        body = {"inputs": {"times": [LONG]}}
        status, text = http(one, "/v1/models/m:predict", body)
        inputs = [{"name": "times", "datatype": "INT64", "shape": [1], "data": [LONG]}]
        of_inference = http(one, "/v2/models/m/infer", {"inputs": inputs})

        # Then each is answered by 504, and ends
        assert status == of_inference[0] == 504
        assert "the deadline passed while the request was computed" in text
        assert_ends(one)


def test_a_long_lookup_ends(model):
    # Given a lookup that takes seconds
    with InferenceSession(str(model / "1")) as session:
        begin = time.thread_time()

        # When its answer is wanted sooner
        with pytest.raises(tf.errors.DeadlineExceededError, match="the deadline passed while"):
            session.predict({"thousands": np.array([20_000])}, "lookups", timeout=0.2)

        # Then it ends, whatever the thread was doing
        assert time.thread_time() - begin < 2


def test_nothing_begins_after_its_deadline(model):
    # Given a session
    with InferenceSession(str(model / "1")) as session:
        # When no time is left, Then the request is not begun
        with pytest.raises(tf.errors.DeadlineExceededError, match="the deadline passed"):
            session.predict({"times": np.array([1])}, timeout=0)
        assert session.predict({"times": np.array([1])}, timeout=60)["corner"].tolist() == [1]


# Many short requests: some answers are ready just when the server asks whether the client is still
# there. Such answers were empty, or had an interim one behind them.
@pytest.mark.parametrize(("times", "clients"), [(1, 500), (3000, 1)])
def test_clients_that_have_closed_their_half(slow, times, clients):
    # Given clients that say after their request that they send no more
    body = json.dumps({"inputs": {"times": [times]}})
    head = f"POST /v1/models/m:predict HTTP/1.1\r\nHost: h\r\nContent-Length: {len(body)}"
    for _ in range(clients):
        with socket.create_connection(("localhost", slow.rest_port), timeout=60) as connection:
            connection.sendall(f"{head}\r\n\r\n{body}".encode())
            connection.shutdown(socket.SHUT_WR)

            # When one reads all that comes
            answer = b"".join(iter(lambda: connection.recv(65536), b""))

        # Then it is the answer, behind an interim one where that was asked for
        final = answer.removeprefix(b"HTTP/1.1 100 Continue\r\n\r\n")
        assert final.startswith(b"HTTP/1.1 200 OK\r\n")
        assert json.loads(final.partition(b"\r\n\r\n")[2]) == {"outputs": [1.0]}
