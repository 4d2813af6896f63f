"""Downloads of checkpoints: verified before any of it replaces a file of the folder."""

from __future__ import annotations

import concurrent.futures
import hashlib
import os
import shutil

from tensorflow.python.checkpoint import checkpoint_management

from group_embedding.checkpoint.remote_manifest import DamagedCheckpointError, Manifest
from group_embedding.checkpoint.upload import Uploader, index_last
from group_embedding.files import remote_files
from group_embedding.files.progress_line import ProgressLine

_THREADS = 4


def download_checkpoint(
    url: str, manifest: Manifest, folder: str, uploader: Uploader, progress: bool
) -> str:
    """Brings a checkpoint into a folder, and makes it the newest one there.

    Returns:
        Its path.

    Raises:
        DamagedCheckpointError: A file is not what was uploaded.
    """
    work = os.path.join(uploader.work_folder, "fetching")
    shutil.rmtree(work, ignore_errors=True)
    os.makedirs(work)
    try:
        names = sorted(manifest.files, key=index_last)
        copies = {name: os.path.join(work, str(i)) for i, name in enumerate(names)}
        with (
            ProgressLine(f"{url}: fetch {manifest.number}", manifest.num_bytes, progress) as line,
            concurrent.futures.ThreadPoolExecutor(_THREADS) as pool,
        ):
            fetched = [
                pool.submit(_download, url, manifest.files[name], copies[name], line.add)
                for name in names
            ]
            for one in fetched:
                one.result()
        for name in names:
            path = remote_files.path_below(folder, name, url)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            os.replace(copies[name], path)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    prefix = os.path.join(folder, manifest.checkpoint)
    if prefix + ".index" in (os.path.join(folder, name) for name in names):
        checkpoint_management.update_checkpoint_state_internal(folder, prefix, [prefix])
    uploader.note(manifest)
    return prefix


def _download(url, file, path, on_bytes):
    checksum = hashlib.sha256()
    stored = remote_files.join(url, file.stored)
    remote_files.download(stored, path, on_bytes, checksum.update)
    if checksum.hexdigest() != file.sha256:
        raise DamagedCheckpointError(
            f"{stored}: expected sha256 {file.sha256[:16]}..., as uploaded, got "
            f"{checksum.hexdigest()[:16]}...; fetch another one of RemoteFolder.checkpoints()"
        )
