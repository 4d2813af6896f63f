"""Checkpoints of tables whose rows are found by key. README.md has the format of their files."""

from group_embedding.checkpoint.background import BackgroundSave, save_changes
from group_embedding.checkpoint.hook import CheckpointSaverHook
from group_embedding.checkpoint.remote_folder import RemoteFolder
from group_embedding.checkpoint.remote_manifest import DamagedCheckpointError
from group_embedding.checkpoint.snapshots import changes_only

__all__ = [
    "BackgroundSave",
    "CheckpointSaverHook",
    "DamagedCheckpointError",
    "RemoteFolder",
    "changes_only",
    "save_changes",
]
