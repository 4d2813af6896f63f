"""A rank's part of each version, which a thread of the publisher brings to the target."""

from __future__ import annotations

import shutil
import threading
import warnings
from typing import Any

import numpy as np

from group_embedding.serving.publish.part_files import PartFiles, with_own
from group_embedding.serving.publish.version_writer import Content, VersionWriter
from group_embedding.serving.stores.targets import Target, TargetError
from group_embedding.serving.versions.old_versions import retire

FAILURES = (OSError, TargetError)  # of targets


class RankPart:
    """The part that a rank has in the versions of a model.

    Args:
        model: The model as this rank trains it.
        follower: By which the model's tables know the publisher.
        target: Where versions go.
        writer: On rank 0 the writer of versions; None on other ranks.
        exchange: The exchange of the ranks.
        timeout: Seconds that rank 0 waits for the parts of other ranks.
        keep_bases: Versions before the newest so many bases are removed.
    """

    def __init__(
        self,
        model: Any,
        follower: int,
        target: Target,
        writer: VersionWriter | None,
        exchange: Any,
        timeout: float,
        keep_bases: int,
    ) -> None:
        self._model, self._follower = model, follower
        self._target, self._writer = target, writer
        self._rank, self._num_ranks = exchange.rank, exchange.num_ranks
        self._files = PartFiles(target.uncommitted(), exchange.num_ranks)
        self._timeout, self._keep_bases = timeout, keep_bases

    def write_base(
        self, content: Content, shards: dict[str, np.ndarray], work: str
    ) -> dict[str, np.ndarray]:
        """Brings a base without a parent to the target, on rank 0, and removes its folder `work`.

        Returns:
            No marks of tables: `follow` has set them.
        """
        for key, values in shards.items():
            self._model.shards[key].start(values)
        if self._writer is not None:
            try:
                self._writer.write(content)
                self._retire()
            finally:
                shutil.rmtree(work, ignore_errors=True)
        return {}

    def write(
        self,
        content: Content,
        shards: dict[str, np.ndarray],
        version: int,
        attempt: int,
        is_cancelled: threading.Event,
    ) -> dict[str, np.ndarray]:
        """Brings changes since the version before to the target.

        Args:
            content: This rank's content, without its tables.
            shards: {key: rows of this rank} of tables that are spread by row number.
            version, attempt: The numbers by which rank 0 finds the parts of the others.
            is_cancelled: Set once another rank has failed.

        Returns:
            {name: mark} of this rank's tables, which acknowledges what was written.
        """
        model = self._model
        tables = model.read(self._follower)
        changes = [model.shards[key].changes(values) for key, values in shards.items()]
        content = content._replace(tables=tables)

        def other_ranks():
            others = self._files.wait(version, attempt, is_cancelled, self._timeout)
            return with_own(others, changes)

        if self._num_ranks == 1:
            self._writer.write(content, model.parts)
        elif self._writer is not None:
            self._writer.write(content, model.parts, other_ranks, version)
        else:
            self._files.put(self._rank, version, attempt, tables, model.parts, changes)
        if self._writer is not None and content.is_base:
            self._retire()
        return {name: change.mark for name, change in tables.items()}

    def _retire(self):
        try:
            retire(self._target, self._keep_bases)
        except FAILURES as error:
            warnings.warn(f"old versions stay for now: {error}", stacklevel=2)
