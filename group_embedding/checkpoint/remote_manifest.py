"""Manifests of checkpoints in remote folders: the record that makes an upload a checkpoint.

00000012.json               the manifest of upload 12, written last
files/00000012-a0b1/NAME    files that came with it, in a folder that no other upload writes to.
                            A manifest names files of earlier uploads too
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re

from group_embedding.files import remote_files
from group_embedding.files.connections import FileSystemError
from group_embedding.files.create_once import create_file
from group_embedding.files.transfers import StoredFile

_NAME = re.compile(r"(\d{8})\.json$")
FILES = "files"


class DamagedCheckpointError(FileSystemError):
    """A remote checkpoint is not what was uploaded; the message names the file."""


@dataclasses.dataclass(frozen=True)
class Manifest:
    """One upload.

    Attributes:
      number: 1 for the first upload into the folder, rising.
      checkpoint: The name that follows the local folder: "model.ckpt-100".
      files: By its local name, each file.
    """

    number: int
    checkpoint: str
    files: dict[str, StoredFile]

    @property
    def num_bytes(self) -> int:
        return sum(file.bytes for file in self.files.values())


def path_of(number: int) -> str:
    """The path of a manifest below its folder."""
    return f"{number:08}.json"


def write_manifest(url: str, manifest: Manifest) -> None:
    """Writes a manifest: with it the checkpoint exists.

    Raises:
        FileExistsError: Another process has written one of this number.
    """
    content = json.dumps(dataclasses.asdict(manifest), sort_keys=True)
    record = {"manifest": content, "sha256": hashlib.sha256(content.encode()).hexdigest()}
    path = remote_files.join(url, path_of(manifest.number))
    create_file(path, json.dumps(record).encode())


def read_manifest(url: str, number: int) -> Manifest:
    """Reads a manifest.

    Raises:
        DamagedCheckpointError: It is not what was written.
    """
    path = remote_files.join(url, path_of(number))
    with remote_files.open_file(path) as file:
        content = file.read()
    try:
        record = json.loads(content)
        text = record["manifest"]
        if hashlib.sha256(text.encode()).hexdigest() != record["sha256"]:
            raise ValueError("its checksum differs")
        fields = json.loads(text)
        files = {name: StoredFile(**file) for name, file in fields["files"].items()}
        return Manifest(fields["number"], fields["checkpoint"], files)
    except (KeyError, TypeError, ValueError) as error:
        raise DamagedCheckpointError(
            f"{path}: expected the manifest of a checkpoint, got another content: {error}"
        ) from None


def numbers_in(url: str) -> list[int]:
    """The numbers of all manifests in a folder, rising."""
    found = map(_NAME.match, remote_files.list_folder(url))
    return sorted(int(match[1]) for match in found if match)


def lacking(manifest: Manifest, present: dict[str, int]) -> list[str]:
    """The stored paths that a manifest names and that are missing, or of another length.

    Args:
        present: {path below the folder: bytes}, as `remote_files.files_below` returns it.
    """
    files = manifest.files.values()
    return sorted({file.stored for file in files if present.get(file.stored) != file.bytes})
