"""Ports of servers that tests start on 127.0.0.1."""

import socket
import time

START_SECONDS = 20


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def wait_for_port(address, process):
    """Waits until a process listens."""
    host, port = address.split(":")
    end = time.monotonic() + START_SECONDS
    while True:
        try:
            socket.create_connection((host, int(port)), 1).close()
            return
        except OSError:
            assert process.poll() is None and time.monotonic() < end, f"{address} does not listen"
            time.sleep(0.02)
