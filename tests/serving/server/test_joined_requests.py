"""Requests that wait are computed as one, and each gets its own answer."""

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor

import grpc
import numpy as np
import pytest
import tensorflow as tf
from support.servers.server_clients import Client, http, wait_for

UNLUCKY = -1313  # a value that the double refuses


def metric(server, name):
    lines = http(server, "/metrics")[1].splitlines()
    return next(float(line.split()[-1]) for line in lines if line.startswith(f"{name} "))


def joined(server):
    """Requests that were computed with others, and runs of them."""
    names = ("ge_serve_joined_requests_total", "ge_serve_joined_runs_total")
    return tuple(metric(server, name) for name in names)


def parameters(tmp_path, text):
    file = tmp_path / "batching.txt"
    file.write_text(text)
    return "--batching_parameters_file", str(file)


@pytest.fixture
def batching(start, model, tmp_path):
    """A server that computes one request at a time, and has computed one of `serving_default`."""

    def begin(text="", *more):
        path = model(tmp_path / "m" / "1")
        limits = parameters(tmp_path, text)
        one = start({"m": path.parent}, "--enable_batching", *limits, "--threads=1", *more)
        one.go = path / "go"
        with Client(one) as client:
            assert add(client, [[1, 2, 3]], [4]) == [10]
        return one

    return begin


def add(client, x, n, seconds=20):
    """The outputs of the double's sum of rows, or the code of the error."""
    inputs = {"x": np.array(x, np.float32), "n": np.array(n, np.int64)}
    try:
        return client.predict(inputs, seconds)[0]["y"].tolist()
    except grpc.RpcError as error:
        return error.code().name


@contextlib.contextmanager
def waiting(server, requests):
    """Futures of requests `(function, *arguments)` that have come, one after the other, and wait
    for one that is computed until the context ends; and a client."""
    server.go.unlink(missing_ok=True)
    with Client(server) as client, ThreadPoolExecutor(len(requests) + 1) as pool:
        held = pool.submit(client.predict, {"n": np.array([1])}, signature="held")
        wait_for(lambda: metric(server, "ge_serve_requests_running") == 1)
        answers = []
        for number, (function, *arguments) in enumerate(requests):
            answers.append(pool.submit(function, client, *arguments))
            wait_for(lambda n=number: metric(server, "ge_serve_requests_waiting") > n)
        yield answers, client
        server.go.touch()
        held.result()


def together(server, requests):
    """The answers of requests that wait together."""
    with waiting(server, requests) as (answers, _):
        pass
    return [answer.result() for answer in answers]


def numbered(count, samples=lambda i: 1 + i % 3):
    """Requests of some samples each, and their answers."""
    requests, expected = [], []
    for i in range(count):
        x = np.arange(3.0 * samples(i)).reshape(-1, 3) + 100 * i
        n = np.arange(samples(i)) * 7 + i
        requests.append((add, x, n))
        expected.append((x.sum(1) + n).tolist())
    return requests, expected


def test_requests_that_wait_are_one_run(batching):
    # Given requests of one to three samples
    server = batching()
    requests, expected = numbered(7)

    # When they wait for another request
    answers = together(server, requests)

    # Then one run has answered them, each with its own rows
    assert answers == expected
    assert joined(server) == (7, 1)


def test_a_failing_request_fails_alone(batching):
    # Given a request that the model refuses, among others
    server = batching()
    requests, expected = numbered(5)
    requests[2] = (add, [[1, 2, 3]], [UNLUCKY])
    expected[2] = "INVALID_ARGUMENT"

    # When they would be joined, Then the others are answered
    assert together(server, requests) == expected
    assert joined(server) == (0, 0)


@pytest.mark.parametrize("late", [0, 1], ids=["the first, which leads", "a later one"])
def test_a_late_request_leaves(batching, late):
    # Given a request with less time than the one in front of it takes
    server = batching()
    requests, expected = numbered(4)
    requests[late] = (*requests[late], 2)
    expected[late] = "DEADLINE_EXCEEDED"

    # When the others wait longer, Then they are answered, together
    with waiting(server, requests) as (answers, _):
        wait_for(lambda: metric(server, "ge_serve_requests_waiting") == 3)
    assert [answer.result() for answer in answers] == expected
    assert joined(server) == (3, 1)


def test_batches_have_limits(batching):
    # Given a server of batches of at most 4 samples
    server = batching("max_batch_size { value: 4 }")
    requests, expected = numbered(9, lambda i: 2)
    requests.append((add, np.ones([5, 3]), np.arange(5)))  # too large for any batch
    expected.append([3, 4, 5, 6, 7])

    # When requests of two samples wait, Then each run has two of them, and what is
    # too large is alone
    assert together(server, requests) == expected
    assert joined(server) == (8, 4)


def test_batches_that_wait_have_a_limit(batching):
    # Given a server where one batch of two samples may wait
    server = batching("max_batch_size { value: 2 } max_enqueued_batches { value: 1 }")
    requests, expected = numbered(2, lambda i: 1)

    # When another batch would wait, Then it is refused
    with waiting(server, requests) as (answers, client):
        assert add(client, [[1, 2, 3]], [4]) == "RESOURCE_EXHAUSTED"
    assert [answer.result() for answer in answers] == expected


def test_the_queue_has_a_limit(batching):
    # Given a server where three requests may wait
    server = batching("", "--queue=3")
    requests, expected = numbered(3)

    # When a fourth one comes, Then it is refused, though it would fit into the batch
    with waiting(server, requests) as (answers, client):
        assert add(client, [[1, 2, 3]], [4]) == "RESOURCE_EXHAUSTED"
    assert [answer.result() for answer in answers] == expected


def test_what_does_not_fit_is_apart(batching):
    # Given requests of other signatures, dtypes and outputs, and inputs of two numbers of samples
    server = batching()

    def strings(client, *values):
        outputs, _ = client.predict({"s": np.array(values, object)}, signature="strings")
        return outputs["s_bytes"].tolist(), outputs["length"].tolist()

    def classify(client, *values):
        examples = [tf.train.Example() for _ in values]
        for example, value in zip(examples, values):
            example.features.feature[value].int64_list.value.append(1)
        found = client.classify(examples, signature="classify").result.classifications
        return len(found)

    requests, expected = numbered(2)
    requests += [(strings, b"a", b"\0bc"), (strings, b"", b"x" * 1000), (classify, "a", "b")]
    expected += [([b"a", b"\0bc"], [1, 3]), ([b"", b"x" * 1000], [0, 1000]), 2]
    requests += [(add, np.ones([2, 3]), [1]), (classify, "abc"), *numbered(1)[0]]
    expected += ["INVALID_ARGUMENT", 1, *numbered(1)[1]]
    with Client(server) as client:
        assert strings(client, b"one") == ([b"one"], [3])
        assert classify(client, "one") == 1

    # When they wait together, Then each is right, and requests of one kind are joined
    assert together(server, requests) == expected
    assert joined(server) == (7, 3)


def test_sizes_of_batches(batching):
    # Given a server whose batches have 2 or 6 samples
    server = batching("max_batch_size { value: 6 } allowed_batch_sizes: 2 allowed_batch_sizes: 6")

    # When requests of other sizes come, Then nobody sees the samples that fill up
    requests, expected = numbered(3, lambda i: 1)
    assert together(server, requests) == expected
    assert joined(server) == (3, 1)
    with Client(server) as client:
        assert add(client, np.ones([3, 3]), [1, 2, 3]) == [4, 5, 6]


def test_a_batch_waits_to_be_filled(batching):
    # Given a server that waits up to 20 s for batches of three, once it has joined some
    server = batching("max_batch_size { value: 3 } batch_timeout_micros { value: 20000000 }")
    requests, expected = numbered(3, lambda i: 1)
    assert together(server, requests) == expected

    # When three requests come at a time, none in front of them, Then they are one run
    with Client(server) as client:
        barrier = threading.Barrier(3)

        def send(request):
            barrier.wait()
            return request[0](client, *request[1:])

        with ThreadPoolExecutor(3) as pool:
            assert list(pool.map(send, requests)) == expected
    assert joined(server) == (6, 2)


def test_outputs_without_samples(batching):
    # Given a signature whose output is a scalar
    server = batching()

    def left(client):
        return client.predict({"n": np.array([1])}, signature="left")[0]["us"].shape

    # When its requests wait together, Then they are computed one by one
    assert together(server, [(left,)] * 3) == [()] * 3
    assert joined(server) == (0, 0)


def test_no_request_is_joined_unless_asked_for(start, model, tmp_path):
    # Given a server without --enable_batching
    server = start({"m": model(tmp_path / "1")}, "--threads=1")
    server.go = tmp_path / "1" / "go"
    requests, expected = numbered(4)

    # When requests wait together, Then they are computed one by one
    assert together(server, requests) == expected
    assert joined(server) == (0, 0)


@pytest.mark.parametrize(
    "text, error",
    [
        ("max_batch_size { value: 0 }", "max_batch_size: expected a number from 1"),
        ("max_batch_size: 3", "line 1"),
        ("pad_variable_length_inputs: true", "pad_variable_length_inputs: expected false"),
        ("allowed_batch_sizes: 3", "allowed_batch_sizes: expected numbers from the least to"),
        ("num_batch_threads { value: -1 }", "num_batch_threads: expected a number from 1"),
        ("batch_timeout_micros { value: -1 }", "batch_timeout_micros: expected a number from 0"),
        ("max_enqueued_batches { value: 0 }", "max_enqueued_batches: expected a number from 1"),
    ],
)
def test_wrong_parameters(start, model, tmp_path, text, error):
    # Given a wrong file of parameters, When a server is started, Then its error names what is wrong
    with pytest.raises(RuntimeError) as failed:
        start({"m": model(tmp_path / "1")}, "--enable_batching", *parameters(tmp_path, text))
    assert error in str(failed.value) and "batching.txt" in str(failed.value)
