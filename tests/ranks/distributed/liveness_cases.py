"""The watch over ranks, loaded without TensorFlow, and callers of its hub."""

import functools
import importlib.util
import socket
import sys
from pathlib import Path

MODULE = Path(__file__).parents[3] / "group_embedding/ranks/exchange/liveness/__init__.py"
NUM_RANKS = 3
TIMEOUT = 3.0  # seconds
TOKEN = "t" * 32


@functools.cache
def load_liveness():
    spec = importlib.util.spec_from_file_location("liveness", MODULE)
    module = importlib.util.module_from_spec(spec)
    sys.modules["liveness"] = module
    spec.loader.exec_module(module)
    return module


def introduced(liveness, hub, rank):
    """A connection of a rank to the hub."""
    host, port, token = hub.address
    connection = socket.create_connection((host, port), timeout=10)
    connection.sendall(token.encode() + liveness.lines.line_of(introduction(rank)))
    return connection


def introduction(rank):
    return {"rank": rank, "who": f"rank {rank}", "identity": "one", "process": 1 << 30}


def answer_of(connection, seconds=5):
    """The received data; empty once the other side has closed the connection."""
    connection.settimeout(seconds)
    try:
        return connection.recv(100)
    except socket.timeout:
        return None
    except ConnectionError:
        return b""
