"""Checkpoints of tables whose rows are found by key. README.md has the format of their files."""

from group_embedding.checkpoint.background import BackgroundSave, save_changes
from group_embedding.checkpoint.hook import CheckpointSaverHook
from group_embedding.checkpoint.snapshots import changes_only

__all__ = ["BackgroundSave", "CheckpointSaverHook", "changes_only", "save_changes"]
