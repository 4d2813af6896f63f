"""Models at URLs: copied to this machine before a server starts."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Sequence

from group_embedding.files import is_remote, join, remote_files
from group_embedding.serving.server.child_process import run_in_child
from group_embedding.serving.server.server_arguments import arguments_of, pairs_of
from group_embedding.serving.session.saved_models import local_model

_FILES = ("saved_model.pb", "saved_model.pbtxt")


def are_in(arguments: Sequence[str]) -> bool:
    """Returns whether a `--model` in the arguments of a server has a URL."""
    return any(_is_url(name, value) for name, value in pairs_of(arguments))


def with_copies(arguments: Sequence[str]) -> tuple[list[str], str]:
    """Copies each model that has a URL, and gives the copy in its place.

    Of a folder of numbered models the newest is copied. Checksums are compared, as `local_model`
    says.

    Args:
        arguments: Of `ge-serve`, with a `--model NAME=URL` of any file system.

    Returns:
        The arguments with folders in place of URLs, and the temporary folder that has the copies;
        "": there are none.

    Raises:
        OSError: A model cannot be copied. The message names the URL.
    """
    if not are_in(arguments):
        return list(arguments), ""
    temporary = tempfile.mkdtemp(prefix="ge-models-")
    pairs = pairs_of(arguments)
    models = dict(value.split("=", 1) for name, value in pairs if _is_url(name, value))
    child = run_in_child(lambda: _copy_all(models, temporary))
    if os.waitpid(child, 0)[1] != 0:
        shutil.rmtree(temporary, ignore_errors=True)
        raise OSError(f"expected models at {', '.join(models.values())}; see above what is wrong")
    changed = []
    for name, value in pairs:
        if _is_url(name, value):
            model = value.partition("=")[0]
            (version,) = os.listdir(os.path.join(temporary, model))
            value = f"{model}={os.path.join(temporary, model, version)}"
        changed.append((name, value))
    return arguments_of(changed), temporary


def _is_url(name, value):
    return name == "--model" and is_remote(value.partition("=")[2])


def _copy_all(models, folder):
    for name, url in models.items():
        try:
            with local_model(_newest(url.rstrip("/"))) as copy:
                os.mkdir(os.path.join(folder, name))
                shutil.move(copy, os.path.join(folder, name))
        except (OSError, ValueError, ImportError) as error:
            print(f"group_embedding: model '{name}': {error}", file=sys.stderr)
            return False
    return True


def _newest(url):
    """The URL of a SavedModel: this one, or the one with the highest number below it."""
    if any(remote_files.exists(join(url, file)) for file in _FILES):
        return url
    found = (path.split("/") for path in remote_files.files_below(url))
    numbers = [int(path[0]) for path in found if path[0].isdigit() and path[1:] == [_FILES[0]]]
    return join(url, str(max(numbers))) if numbers else url
