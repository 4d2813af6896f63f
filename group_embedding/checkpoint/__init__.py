"""Checkpoints of tables whose rows are found by key. README.md has the format of their files."""

from group_embedding.checkpoint import checkpoint_files as checkpoint_files
from group_embedding.checkpoint.background import BackgroundSave, save_changes
from group_embedding.checkpoint.by_name import manifest_name as manifest_name
from group_embedding.checkpoint.by_object import RowsOfParts as RowsOfParts
from group_embedding.checkpoint.by_object import SavedByObject as SavedByObject
from group_embedding.checkpoint.export import changed_keys as changed_keys
from group_embedding.checkpoint.hook import CheckpointSaverHook
from group_embedding.checkpoint.parts import part_of as part_of
from group_embedding.checkpoint.remote_folder import RemoteFolder
from group_embedding.checkpoint.remote_manifest import DamagedCheckpointError
from group_embedding.checkpoint.snapshots import changes_only
from group_embedding.ops import table_changes as table_changes

__all__ = [
    "BackgroundSave",
    "CheckpointSaverHook",
    "DamagedCheckpointError",
    "RemoteFolder",
    "changes_only",
    "save_changes",
]
