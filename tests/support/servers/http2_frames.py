"""HTTP/2 as bytes on a socket, for clients that break its rules: frames, and HPACK without its
table."""

import contextlib
import socket
import struct

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = (
    range(10)
)
END_STREAM, ACK, END_HEADERS = 1, 1, 4


def frame(kind, flags=0, stream=0, payload=b""):
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def number(value, prefix_bits, first=0):
    """An integer of HPACK behind the bits of a first byte (RFC 7541, section 5.1)."""
    most = (1 << prefix_bits) - 1
    if value < most:
        return bytes([first | value])
    text, value = bytes([first | most]), value - most
    while value >= 128:
        text, value = text + bytes([value % 128 | 128]), value // 128
    return text + bytes([value])


def text(value):
    return number(len(value), 7) + value


def field(name, value):
    """A field that enters no table."""
    return b"\x00" + text(name) + text(value)


def fields(path=b"/grpc.health.v1.Health/Check", *others, scheme=b"http"):
    """The head of a call; `others` are pairs that follow."""
    usual = [
        (b":method", b"POST"),
        (b":scheme", scheme),
        (b":path", path),
        (b":authority", b"a"),
        (b"content-type", b"application/grpc"),
        (b"te", b"trailers"),
    ]
    return b"".join(field(name, value) for name, value in [*usual, *others])


def message(body=b""):
    """A message in gRPC's frame."""
    return struct.pack(">BI", 0, len(body)) + body


def call(stream, head=None, body=b"", last=True):
    """A whole call, by default of the health service."""
    return frame(HEADERS, END_HEADERS, stream, fields() if head is None else head) + frame(
        DATA, END_STREAM if last else 0, stream, message(body)
    )


class Connection:
    """A connection that has said hello."""

    def __init__(self, port, seconds=10, settings=b""):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=seconds)
        self.rest = b""
        self.send(PREFACE + frame(SETTINGS, payload=settings))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def send(self, data):
        """False: the server has ended the connection."""
        try:
            self.socket.sendall(data)
        except OSError:
            return False
        return True

    def frames(self, seconds=5):
        """(kind, flags, stream, payload) of frames, until the server ends the connection or is
        silent."""
        self.socket.settimeout(seconds)
        with contextlib.suppress(OSError):
            while True:
                while len(self.rest) >= 9:
                    length = int.from_bytes(self.rest[:3], "big")
                    if len(self.rest) < 9 + length:
                        break
                    kind, flags, stream = struct.unpack(">BBI", self.rest[3:9])
                    payload, self.rest = self.rest[9 : 9 + length], self.rest[9 + length :]
                    yield kind, flags, stream, payload
                part = self.socket.recv(1 << 16)
                if not part:
                    return
                self.rest += part

    def answer(self, stream, seconds=5):
        """The bytes of a stream's frames HEADERS and DATA up to its end; None: it was reset, or the
        connection ended."""
        got = b""
        for kind, flags, of, payload in self.frames(seconds):
            if kind == GOAWAY or (kind, of) == (RST_STREAM, stream):
                return None
            if of == stream and kind in (DATA, HEADERS):
                got += payload
                if flags & END_STREAM:
                    return got
        return None

    def goodbye(self, seconds=5):
        """The last stream that the server took, and the code of its error; None: it says none."""
        for kind, _, _, payload in self.frames(seconds):
            if kind == GOAWAY:
                return struct.unpack(">II", payload[:8])
        return None

    def ended(self, seconds=5):
        """True if the server ends the connection before it is silent so long."""
        for _ in self.frames(seconds):
            pass
        self.socket.settimeout(0.01)
        try:
            return self.socket.recv(1) == b""
        except TimeoutError:
            return False
        except OSError:
            return True
