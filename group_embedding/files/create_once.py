"""Files that nobody replaces: written only where there is none yet."""

from __future__ import annotations

import contextlib
import secrets

from group_embedding.files.connections import connect, naming


def create_file(url: str, content: bytes) -> None:
    """Writes a remote file that is not there: of several processes that do, one succeeds.

    Object stores decide it by a conditional write, HDFS by a rename that replaces nothing.

    Args:
        content: What no other process writes, so that a write whose answer was lost is known.

    Raises:
        FileExistsError: The file is there, with other content.
    """
    files, inside = connect(url)
    with naming(url):
        try:
            _create(files, inside, content)
        except Exception:
            # Clients have different errors for a file that is there.
            if not files.exists(inside):
                raise
            if files.cat_file(inside) != content:
                raise FileExistsError(inside) from None


def _create(files, inside, content):
    protocols = files.protocol if isinstance(files.protocol, tuple) else (files.protocol,)
    if not {"hdfs", "viewfs"} & set(protocols):
        files.pipe_file(inside, content, mode="create")
        return
    written = f"{inside}.writing-{secrets.token_hex(4)}"
    try:
        with files.open(written, "wb") as file:
            file.write(content)
        files.mv(written, inside)
    finally:
        with contextlib.suppress(Exception):
            files.rm(written)
