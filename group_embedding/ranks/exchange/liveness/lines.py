"""The messages between a rank and the hub: a token, then lines of JSON of a bounded length.

Nothing is parsed of a caller that has not sent the token.
"""

import contextlib
import hmac
import json
import secrets
import socket
import time

TOKEN_BYTES = 32
TOKEN_SECONDS = 5.0  # in which a caller must have sent the token
MAX_LINE = 1 << 16  # bytes


def make_token():
    """The secret of a job, as text: it distinguishes the job's ranks from other processes that find
    the port."""
    return secrets.token_hex(TOKEN_BYTES // 2)


def has_token(connection, token, seconds):
    """Reads the token of a new connection. Returns whether it arrived within so many seconds."""
    deadline = time.monotonic() + seconds
    came = b""
    try:
        while len(came) < TOKEN_BYTES:
            connection.settimeout(max(0.01, deadline - time.monotonic()))
            more = connection.recv(TOKEN_BYTES - len(came))
            if not more or time.monotonic() > deadline:
                return False
            came += more
    except OSError:
        return False
    return hmac.compare_digest(came, token.encode())


def line_of(words):
    return json.dumps(words).encode() + b"\n"


def words_from(connection, timeout):
    """The dicts that come, until the connection closes, is silent for `timeout` seconds, or brings
    a line that is too long or no dict, for which {"bad": True} comes last."""
    connection.settimeout(timeout)
    try:
        with connection.makefile("rb") as lines:
            while True:
                line = lines.readline(MAX_LINE)
                if not line.endswith(b"\n") and len(line) < MAX_LINE:  # it has closed
                    return
                words = _parsed(line)
                yield words
                if "bad" in words:
                    return
    except OSError:
        return


def _parsed(line):
    try:
        words = json.loads(line) if line.endswith(b"\n") else None
    except (ValueError, RecursionError):
        words = None
    return words if isinstance(words, dict) else {"bad": True}


def introduction(words, num_ranks):
    """The rank that introduces itself, {"rank": ..., "who": ..., "process": ..., "identity": ...};
    None: these words do not."""
    kinds = {"rank": int, "who": str, "process": int, "identity": str}
    found = {name: words.get(name) for name in kinds}
    if any(type(found[name]) is not kind for name, kind in kinds.items()):
        return None
    if not 0 <= found["rank"] < num_ranks or found["process"] <= 0:
        return None
    return found


def is_open(connection):
    """Returns whether the peer of a silent connection still has its end open."""
    try:
        connection.settimeout(0.1)
        return connection.recv(1, socket.MSG_PEEK) != b""
    except socket.timeout:
        return True
    except OSError:
        return False


def how_it_ended(connection, timeout):
    """Returns how a rank ended that says nothing more, as {"how": sentence, "hangs": bool}."""
    if not is_open(connection):
        return {"how": "died: its process ended without a word", "hangs": False}
    advice = "enable_distributed_strategy(timeout_seconds=...) waits longer"
    how = f"has not answered for {timeout:g} s: it is stopped, or cannot be reached; {advice}"
    return {"how": how, "hangs": True}


def shut(connection):
    """Ends a connection, also where another thread reads from it."""
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()
