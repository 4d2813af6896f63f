"""Folders of a test process, which are made when a module is imported and removed with the run."""

import tempfile

_made = []


def make_folder():
    """The path of an empty folder."""
    _made.append(tempfile.TemporaryDirectory(prefix="group_embedding_tests_"))
    return _made[-1].name


def remove_folders():
    while _made:
        _made.pop().cleanup()
