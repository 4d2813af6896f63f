"""Requests side by side, waiting, too many, too late; and a server that stops on SIGTERM."""

import threading
from concurrent.futures import ThreadPoolExecutor

import grpc
import numpy as np
import pytest
from support.servers.server_clients import Client, http, wait_for


def sleep(client, ms, seconds=20):
    """A request that takes milliseconds; "OK", or the code of its error."""
    try:
        client.predict({"ms": np.array([ms], np.int32)}, seconds, signature="slow")
    except grpc.RpcError as error:
        return error.code().name
    return "OK"


def metric(server, name):
    lines = http(server, "/metrics")[1].splitlines()
    return next(float(line.split()[-1]) for line in lines if line.startswith(f"{name} "))


def test_requests_run_side_by_side(start, model, tmp_path):
    # Given a server that computes three requests at a time
    server = start({"m": model(tmp_path / "1")}, "--threads", "3")

    # When five come, each of which takes a while
    with Client(server) as client, ThreadPoolExecutor(5) as pool:
        answers = [pool.submit(sleep, client, 1000) for _ in range(5)]
        wait_for(lambda: metric(server, "ge_serve_requests_waiting") == 2)
        running = metric(server, "ge_serve_requests_running")

    # Then three ran and two waited, and all are answered
    assert running == 3
    assert [answer.result() for answer in answers] == ["OK"] * 5


def test_what_exceeds_the_queue_and_what_waits_too_long(start, model, tmp_path):
    # Given a server with one request that runs, and one that may wait, for 0.3 s at most
    arguments = ["--threads", "1", "--queue", "1", "--timeout-seconds", "0.3"]
    server = start({"m": model(tmp_path / "1")}, *arguments)
    with Client(server) as client, ThreadPoolExecutor(4) as pool:
        first = pool.submit(sleep, client, 2000, 60)
        wait_for(lambda: metric(server, "ge_serve_requests_running") == 1)

        # When one waits past its client's deadline, and one past the server's
        late = sleep(client, 0, 0.2)
        wait_for(lambda: metric(server, "ge_serve_requests_waiting") == 0)
        without = pool.submit(sleep, client, 0, None)
        wait_for(lambda: metric(server, "ge_serve_requests_waiting") == 1)
        too_many = sleep(client, 0)

        # Then each error says why, and the first request is answered
        assert late == "DEADLINE_EXCEEDED"
        assert too_many == "RESOURCE_EXHAUSTED"
        assert without.result() == "DEADLINE_EXCEEDED"
        assert first.result() == "OK"
        assert sleep(client, 0) == "OK"


def test_stop_answers_what_is_in_flight(start, model, tmp_path):
    # Given a request in flight
    server = start({"m": model(tmp_path / "1")})
    with Client(server) as client, ThreadPoolExecutor(1) as pool:
        answer = pool.submit(sleep, client, 700)
        wait_for(lambda: metric(server, "ge_serve_requests_running") == 1)

        # When the server gets SIGTERM
        status = server.stop()

        # Then the request is answered, and the server ends by itself
        assert answer.result() == "OK"
        assert status == 0


def test_stop_does_not_wait_for_ever(start, model, tmp_path):
    # Given a request in flight that takes longer than the server is given
    server = start({"m": model(tmp_path / "1")}, "--stop-seconds", "0.2")
    with Client(server) as client, ThreadPoolExecutor(1) as pool:
        answer = pool.submit(sleep, client, 1500)
        wait_for(lambda: metric(server, "ge_serve_requests_running") == 1)

        # When the server gets SIGTERM, Then the request ends with an error
        server.stop()
        assert answer.result() in ("UNAVAILABLE", "CANCELLED")


@pytest.mark.parametrize("clients", [8])
def test_many_clients(shared, clients):
    # Given clients that send at the same time, each its own values
    failures = []

    def send(number):
        with Client(shared) as client:
            for i in range(50):
                x = np.full([2, 3], number * 100 + i, np.float32)
                outputs, _ = client.predict({"x": x, "n": np.array([1, 2])})
                if outputs["y"].tolist() != [3 * x[0, 0] + 1, 3 * x[0, 0] + 2]:
                    failures.append((number, i))

    # When all are done
    threads = [threading.Thread(target=send, args=[number]) for number in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    # Then each answer is of its own request
    assert failures == []
