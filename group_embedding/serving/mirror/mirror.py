"""A mirror: copies versions from a source to a target, as a folder that servers follow."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable

from group_embedding.serving.mirror.mirror_status import MirrorStatus
from group_embedding.serving.stores import records
from group_embedding.serving.stores.interface import VersionStore
from group_embedding.serving.stores.records import DamagedVersion, Record
from group_embedding.serving.stores.targets import Target, TargetError
from group_embedding.serving.versions.deltas import NotConsecutive, Reader
from group_embedding.serving.versions.old_versions import named_files, retire, whole_records

_LOOK_SECONDS = 0.5  # the longest without a look at the source
_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 5.0  # seconds, where the source is away


class Mirror:
    """Keeps a target at the newest version of a source.

    Versions come one after the other, each complete and verified before it exists in the target.
    A mirror that is new, or finds a gap, fetches the base of the newest version and the deltas
    after it. It may be killed at any moment, and goes on where it was.

    Args:
        source: Where versions come from.
        target: Where they go to; nobody else writes there.
        status: receives the state of the source; None: nothing does.
        keep_bases: Versions before the newest so many bases are removed from the target.

    Attributes:
        version: The newest version of the target; 0: none yet.

    Raises:
        TargetError: Another mirror or publisher writes the target.
    """

    def __init__(
        self,
        source: VersionStore,
        target: Target,
        status: MirrorStatus | None = None,
        keep_bases: int = 2,
    ) -> None:
        self._source = source
        self._target = target
        self._status = status
        self._keep_bases = keep_bases
        target.lock()
        target.remove_leftovers(named_files(target))
        self.version = target.newest()
        self._last: Record | None = whole_records(target).get(self.version)
        if self.version and status is not None:
            source.start_after(self.version, status.position(self.version))
        self._refused: tuple[int, str] = (0, "")  # the newest version that was refused, and why
        self._is_sure = False  # that the source still has the newest version of the target

    def follow(self) -> int:
        """Copies the versions that are new in the source; returns the newest of the target.

        Raises:
            TargetError, OSError: The source, or the target, does not answer.
            DamagedVersion, NotConsecutive: A version cannot be used; those before it stay.
        """
        try:
            newest = self._source.newest()
            self._compare(newest)
        except (TargetError, OSError):
            self._is_sure = False  # it may have lost versions meanwhile
            raise
        if 0 < newest < self.version:
            raise NotConsecutive(
                f"source '{self._source.url}': expected version {self.version} or a later one, got "
                f"{newest}: it was made anew; stop the mirror, and remove '{self._target.url}'"
            )
        if newest and newest == self._refused[0]:
            raise NotConsecutive(self._refused[1])
        try:
            self._follow_to(newest)
        except (DamagedVersion, NotConsecutive, FileNotFoundError) as error:
            self._refused = newest, str(error)
            raise NotConsecutive(str(error)) from None
        return self.version

    def run(self, ends: Callable[[], bool]) -> None:
        """Follows the source until `ends()`; a source that is away is asked again and again."""
        pause = _FIRST_PAUSE
        while not ends():
            error = ""
            try:
                self.follow()
                self._tell(is_up=True)
                self._source.wait(_LOOK_SECONDS)
                pause = _FIRST_PAUSE
                continue
            except NotConsecutive as refused:
                self._tell(is_up=True, error=str(refused))
                time.sleep(_LOOK_SECONDS)
                continue
            except (TargetError, OSError) as failed:
                error = str(failed)
            self._tell(is_up=False, error=error)
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _compare(self, newest):
        """Refuses a source whose newest version has the target's number, and is another one."""
        if newest == self.version != 0 and not self._is_sure:
            if self._source.record(newest) != self._target.record(newest):
                raise NotConsecutive(
                    f"source '{self._source.url}': expected the version {newest} that was copied, "
                    "got another one: the source lost versions; the next one is followed"
                )
            self._is_sure = True

    def _follow_to(self, newest):
        for version in range(self.version + 1, newest + 1) if self.version else ():
            try:
                self._prefetch(version)
            except (DamagedVersion, NotConsecutive, FileNotFoundError):
                break
        if self.version < newest:
            self._prefetch(newest)

    def _prefetch(self, version):
        """Copies a version, and those that its content consists of, unless they are there."""
        for record in self._missing(self._record(version)):
            self._copy(record)
        self.version = version
        if self._status is not None:
            self._status.keep_position(version, self._source.position(version))
        if self._last.kind == records.BASE:
            retire(self._target, self._keep_bases)

    def _missing(self, record):
        """The records that the target lacks for a version, the version's own last."""
        last = self._last
        if record.kind == records.DELTA and last is not None:
            follows = (record.parent, record.parent_base_id) == (last.version, last.base_id)
            if follows and last.kind != records.ROLLBACK:
                return [record]
        content = record if record.content == record.version else self._record(record.content)
        there, missing = whole_records(self._target), []
        for number in range(content.base, content.version + 1):
            found = there.get(number)
            if found is not None and found.base_id != content.base_id:
                self._target.remove(number)  # of a source that was made anew
            elif found is not None:
                continue
            missing.append(self._record(number))
        return missing if record is content else [*missing, record]

    def _copy(self, record):
        """Copies the files of a version, verifies them, and makes the version exist."""
        version = record.version
        content = self._source.record(version)
        work = self._target.work_folder()
        try:
            base = os.path.join(work, "base")
            for number, file in enumerate(record.files):
                is_base_file = file.kind == records.MODEL_FILE
                path = os.path.join(base if is_base_file else work, file.path)
                self._fetch(version, number, file, path)
                if not is_base_file:
                    self._target.put_file(version, file.path, path)
            if record.kind == records.BASE:
                self._target.put_base(version, base)
            Reader(self._target).verify(record)
            self._target.commit(version, content)
        finally:
            shutil.rmtree(work, ignore_errors=True)
        self._last = record

    def _fetch(self, version, number, file, path):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as written:
            for block in self._source.read(version, number, file):
                written.write(block)
                if self._status is not None:
                    self._status.tell_alive()

    def _record(self, version):
        return records.decode(self._source.record(version), f"{self._source.url} {version}")

    def _tell(self, is_up, error=""):
        if self._status is not None:
            self._status.tell(is_up, error)
