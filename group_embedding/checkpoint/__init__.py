"""Checkpoints of tables whose rows are found by key. README.md has the format of their files."""
