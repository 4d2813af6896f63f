"""Runs whose `checkpoints.folder` is a URL: trained in a local folder, and kept there."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from group_embedding.checkpoint import RemoteFolder
from group_embedding.files import join, remote_files
from group_embedding.ranks import exchange
from group_embedding.recommender.config.read import Config

_CHECKPOINTS = ("checkpoints", "best")
_FILES = ("config.json", "result.json", "pipeline")


def fetch_run(config: Config) -> None:
    """Brings a run from its URL into its local folder, where it is not there: the config, the
    preprocessing, the newest checkpoint and the best one. Without a URL nothing happens. All ranks
    call it."""
    if config.url is None:
        return
    ranks = exchange.current()
    if ranks.rank == 0:
        for name in remote_files.files_below(config.url):
            path = remote_files.path_below(str(config.folder), name, config.url)
            if name.split("/")[0] in _FILES and not os.path.exists(path):
                os.makedirs(os.path.dirname(path), exist_ok=True)
                remote_files.download(join(config.url, name), path)
        for folder in _folders(config):
            os.makedirs(folder.folder, exist_ok=True)
            folder.fetch()
    if ranks.num_ranks > 1:
        ranks.barrier("fetched_run")


def upload_files(config: Config) -> None:
    """Uploads the files of a run that are no checkpoints. Without a URL nothing happens."""
    if config.url is None or exchange.current().rank:
        return
    for name in _FILES:
        path = config.folder / name
        files = [file for file in path.rglob("*") if file.is_file()] if path.is_dir() else [path]
        for file in files:
            if file.exists():
                remote_files.upload(
                    str(file), join(config.url, str(file.relative_to(config.folder)))
                )


@contextlib.contextmanager
def kept_run(config: Config) -> Iterator[None]:
    """Inside, checkpoints that are finished are uploaded to the run's URL, if it has one."""
    with contextlib.ExitStack() as entered:
        for folder in _folders(config) if config.url is not None else ():
            entered.enter_context(folder)
        yield


def _folders(config):
    keep = {"checkpoints": config["checkpoints"]["keep"], "best": 1}
    return [
        RemoteFolder(join(config.url, name), config.folder / name, keep[name])
        for name in _CHECKPOINTS
    ]
