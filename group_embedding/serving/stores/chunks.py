"""Files in chunks, for services whose records have a largest size."""

from __future__ import annotations

from collections.abc import Iterator


def chunks_of(path: str, chunk_bytes: int) -> Iterator[bytes]:
    """The content of a file in pieces of at most so many bytes."""
    with open(path, "rb") as file:
        while chunk := file.read(chunk_bytes):
            yield chunk


def num_chunks(num_bytes: int, chunk_bytes: int) -> int:
    """The number of pieces of a file."""
    return -(-num_bytes // chunk_bytes)
