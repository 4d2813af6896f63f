"""Downloads of checkpoints: verified before any of it replaces a file of the folder."""

from __future__ import annotations

import os
import shutil

from tensorflow.python.checkpoint import checkpoint_management

from group_embedding.checkpoint.remote_manifest import DamagedCheckpointError, Manifest
from group_embedding.checkpoint.upload import Uploader, index_last
from group_embedding.files import remote_files
from group_embedding.files.progress_line import ProgressLine
from group_embedding.files.transfers import receive_files


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
        stored = {copies[name]: manifest.files[name] for name in names}
        label = f"{url}: fetch {manifest.number}"
        with ProgressLine(label, manifest.num_bytes, progress) as line:
            receive_files(url, stored, line.add, _damaged)
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


def _damaged(text):
    return DamagedCheckpointError(f"{text}; fetch another one of RemoteFolder.checkpoints()")
