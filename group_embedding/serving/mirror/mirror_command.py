"""`python -m group_embedding.serving mirror SOURCE TARGET`: copies versions as they come."""

from __future__ import annotations

import argparse
import signal
import sys
import threading

from group_embedding.serving.mirror.mirror import Mirror
from group_embedding.serving.mirror.mirror_status import MirrorStatus
from group_embedding.serving.stores import VersionStore, open_store
from group_embedding.serving.stores.folder import Folder
from group_embedding.serving.stores.open_target import is_local, open_target
from group_embedding.serving.stores.records import DamagedVersion
from group_embedding.serving.stores.targets import FileTarget, TargetError
from group_embedding.serving.versions.deltas import NotConsecutive


def add_mirror(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Copies versions from SOURCE to TARGET as they come: complete, verified, one after the "
        "other. Servers follow a TARGET that is a folder by --source file://FOLDER."
    )
    parser.add_argument("source", help="a folder, or a URL such as kafka://BROKERS/TOPIC")
    parser.add_argument("target", help="a folder, or a URL")
    parser.add_argument("--once", action="store_true", help="end at the newest version of now")
    parser.add_argument("--keep-bases", type=int, default=2, metavar="N", help="default 2")
    parser.set_defaults(run=_run)


def open_source(url: str) -> VersionStore:
    """The source that a path or a URL names; it is not connected yet.

    Raises:
        ValueError, ImportError: As `open_store`.
    """
    return Folder(url) if is_local(url) else open_store(url)


def _run(options):
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    try:
        source, target = open_source(options.source), open_target(options.target)
        source.connect()
        folder = target.folder if isinstance(target, FileTarget) else None
        mirror = Mirror(source, target, MirrorStatus(folder), options.keep_bases)
        if options.once:
            print(f"version {mirror.follow()}")
        else:
            mirror.run(ended.is_set)
    except (ValueError, ImportError, TargetError, OSError, DamagedVersion, NotConsecutive) as error:
        print(f"group_embedding: {error}", file=sys.stderr)
        return 1
    target.close()
    source.close()
    return 0
