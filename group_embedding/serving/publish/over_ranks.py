"""A publisher over ranks: ranks begin and end a version together, and each writes its own rows.

Between two steps the ranks meet, so that all do the same: begin a version, collect it, or raise.
Threads, in which exchanges cannot be used, meet in the target: rank 0 waits there for the files of
the others, and writes the record. In the next meeting all ranks learn whether it did. For a target
that is a service the place is a folder that all ranks reach, from which rank 0 sends the version.
"""

from __future__ import annotations

import os
import secrets
import shutil
import threading
import time
from typing import Any, NamedTuple

import tensorflow as tf

from group_embedding.serving.publish.one_process import _FAILURES, _POLL_SECONDS, OneProcess
from group_embedding.serving.publish.part_files import PartFiles, with_own
from group_embedding.serving.publish.rank_agreement import RankAgreement
from group_embedding.serving.publish.version_writer import Content
from group_embedding.serving.stores.background_call import BackgroundCall
from group_embedding.serving.stores.open_target import is_local, open_target
from group_embedding.serving.stores.targets import TargetError

_NONE, _RUNNING, _DONE, _FAILED = range(4)  # states of a rank's delivery
_TAKEN, _BUSY, _MADE_ANEW = range(3)  # results of a rank's snapshot
_MEET_SECONDS = 0.02  # between two meetings while ranks wait for a delivery
_MOST_STEPS = 1000  # without a meeting


class _Told(NamedTuple):
    """The numbers that a rank gives in a meeting. For the job as a whole, those of rank 0 count."""

    state: int = _NONE
    is_due: int = 0
    is_late: int = 0
    steps: int = 1  # until the next meeting
    needs_base: int = 0
    rewrites: int = 0
    version: int = 0  # the newest that rank 0 has written
    attempt: int = 0
    snapshot: int = _TAKEN


class OverRanks(OneProcess):
    """The work of a `Publisher` on one of several ranks.

    Args:
        model: A ModelOfRanks.
        exchange: The exchange of the ranks.
        **options: As of OneProcess.
    """

    def __init__(self, model, target, exchange, **options):
        self._rank = exchange.rank
        self._ranks = RankAgreement(exchange, len(_Told._fields))
        self._version = 0
        self._is_base = False  # what is being delivered
        self._cancelled = threading.Event()
        self._steps_left = self._steps_met = 1
        self._met_at = time.monotonic()
        super().__init__(model, target, **options)
        self._parts = PartFiles(self._target.uncommitted(), exchange.num_ranks)

    @property
    def version(self):
        return self._version

    def after_step(self, step):
        self._steps_left -= 1
        if self._steps_left > 0:
            return
        now = time.monotonic()
        told = self._meet(
            is_due=now - self._last_time >= self.every_seconds,
            is_late=now - self._last_time > self._timeout,
            steps=self._steps_until_due(now),
        )
        first = told[0]
        self._steps_left = self._steps_met = first.steps
        self._met_at = time.monotonic()
        if self.delivery is not None:
            states = [of_rank.state for of_rank in told]
            if _RUNNING not in states:
                self._try(lambda: self._end(told))
            elif _FAILED in states:
                self._cancelled.set()
            elif first.is_late:
                self._last_time = now
                self._try(self._raise_no_answer)
        if self.delivery is None and first.is_due:
            self._try(lambda: self._begin_at(now, step))

    def close(self):
        try:
            super().close()
        finally:
            self._ranks.close()

    def _open_target(self, url):
        if is_local(url):
            return open_target(url)
        folder = self._on_first_rank(self._make_folder)
        missing = [
            rank for rank, sees in enumerate(self._ranks.tell(os.path.isdir(folder))) if not sees
        ]
        if missing:
            raise ValueError(
                f"Publisher: expected a work_folder that all ranks reach, in which versions for "
                f"'{url}' are put together, got '{folder}', which rank {missing[0]} does not reach"
            )
        return open_target(url, folder)

    def _make_writer(self, name) -> Any:
        return self._on_first_rank(lambda: super(OverRanks, self)._make_writer(name), tells=False)

    def _steps_until_due(self, now):
        """Half of the steps until something is to be done, by the last steps' time."""
        seconds = self.every_seconds - (now - self._last_time)
        if self.delivery is not None:
            seconds = self.every_seconds / 8
        seconds_of_step = (now - self._met_at) / self._steps_met
        return int(min(max(seconds / 2 / max(seconds_of_step, 1e-6), 1), _MOST_STEPS))

    def _meet(self, **told):
        state = _NONE
        if self.delivery is not None:
            state = _RUNNING if self.delivery.is_alive() else _DONE
            if state == _DONE and self.delivery.error is not None:
                state = _FAILED
        # Looked at after the state: a delivery that has ended has set it.
        last = None if self._writer is None else self._writer.last
        version = 0 if last is None else last.version
        numbers = self._ranks.meet(_Told(state=state, version=version, **told))
        return [_Told(*row) for row in numbers.tolist()]

    def _on_first_rank(self, function, tells=True):
        """The result of a function that rank 0 calls, on all ranks; or its failure."""
        result, error = None, None
        if self._rank == 0:
            try:
                result = function()
            except _FAILURES as raised:
                error = raised
        told, message = self._ranks.tell(
            [result if tells else None, None if error is None else str(error)]
        )[0]
        if error is not None:
            raise error
        if message is not None:
            raise TargetError(f"rank 0: {message}")
        return told if tells else result

    def _raise_no_answer(self):
        raise TargetError(self._no_answer())

    def _collect(self, timeout=None):
        if self.delivery is None:
            return
        end = time.monotonic() + (self._timeout if timeout is None else timeout)
        while True:
            self.delivery.ends_within(_MEET_SECONDS)
            told = self._meet(is_late=time.monotonic() > end)
            states = [of_rank.state for of_rank in told]
            if _RUNNING not in states:
                return self._end(told)
            if _FAILED in states:
                self._cancelled.set()
            if told[0].is_late:
                self._raise_no_answer()

    def _end(self, told):
        """Ends a delivery on all ranks: acknowledges it, or raises why it failed."""
        delivery, self.delivery = self.delivery, None
        is_written = told[0].state == _DONE
        if not is_written or delivery.error is not None:
            for shard in self._model.shards.values():
                shard.fail()
        if not is_written:
            self._raise(delivery.error)
        self._version = told[0].version
        if self._is_base:
            self._needs_base = False
        if delivery.error is None:
            self._model.acknowledge(self._follower, delivery.result())
            for shard in self._model.shards.values():
                shard.acknowledge()

    def _raise(self, error):
        """Raises on all ranks: a failure of the target, unless a rank had another error."""
        is_failure = error is None or isinstance(error, _FAILURES)
        told = self._ranks.tell([None if error is None else str(error), is_failure])
        if error is not None and not is_failure:
            raise error
        words = "; ".join(f"rank {rank}: {text}" for rank, (text, _) in enumerate(told) if text)
        raise (TargetError if all(good for _, good in told) else RuntimeError)(words) from error

    def _begin(self, step, is_base, wait):
        step = self._model.step() if step is None else int(step)
        has_parent = True
        if is_base:
            has_parent = self._on_first_rank(lambda: self._ask_target(self._writer.is_newest))
        first = self._rank == 0
        all_told = self._meet(
            needs_base=self._needs_base or not has_parent,
            rewrites=is_base or (first and self._is_base_due()),
            attempt=secrets.randbits(62) | 1,
        )
        told = all_told[0]
        if any(of_rank.needs_base for of_rank in all_told):
            return self._export_base(step)
        found = self._take_together(step, wait)
        if found == _MADE_ANEW:
            return self._export_base(step)
        if found == _BUSY:
            return False
        content = Content(step, None, None, self._model.copy_variables(), bool(told.rewrites))
        shards = {key: shard.copy() for key, shard in self._model.shards.items()}
        self._start(is_base=bool(told.rewrites))
        self.delivery = BackgroundCall(lambda: self._write_part(content, shards, told))
        return True

    def _start(self, is_base):
        self._is_base = is_base
        self._cancelled = threading.Event()

    def _take_together(self, step, wait):
        """A snapshot on all ranks, or on none."""
        end = time.monotonic() + (self._timeout if wait else 0)
        while True:
            try:
                own = _TAKEN if self._model.snapshot(self._follower, step) else _BUSY
            except tf.errors.FailedPreconditionError:
                own = _MADE_ANEW
            told = self._meet(snapshot=own, is_late=time.monotonic() > end)
            worst = max(of_rank.snapshot for of_rank in told)
            if worst == _TAKEN:
                return worst
            if own == _TAKEN:
                self._model.drop(self._follower)
            if worst == _MADE_ANEW or not wait:
                return worst
            if told[0].is_late:
                raise TargetError(
                    f"not published: expected a running save to end within {self._timeout} s, it "
                    "goes on"
                )
            time.sleep(_POLL_SECONDS)

    def _export_base(self, step):
        self._needs_base = True
        work = self._on_first_rank(lambda: self._ask_target(self._target.work_folder))
        folder = os.path.join(work, "model")
        try:
            self._model.export(folder)
            self._model.follow(self._follower)
            shards = {key: shard.copy() for key, shard in self._model.shards.items()}
            content = Content(step, folder, None, self._model.copy_variables())
        except BaseException:
            shutil.rmtree(work, ignore_errors=True)
            raise
        self._start(is_base=True)
        self.delivery = BackgroundCall(lambda: self._write_base(content, shards, work))
        return True

    def _write_base(self, content, shards, work):
        """In a thread: rank 0 brings the base to the target; no marks, as `follow` has set them."""
        for key, values in shards.items():
            self._model.shards[key].start(values)
        if self._rank == 0:
            try:
                self._writer.write(content)
                self._retire()
            finally:
                shutil.rmtree(work, ignore_errors=True)
        return {}

    def _write_part(self, content, shards, told):
        """In a thread: brings this rank's part to the target; returns the marks of its tables."""
        model, version, attempt = self._model, told.version + 1, told.attempt
        tables = model.read(self._follower)
        changes = [model.shards[key].changes(values) for key, values in shards.items()]
        if self._rank > 0:
            self._parts.put(self._rank, version, attempt, tables, model.parts, changes)
        else:
            cancelled = self._cancelled

            def other_ranks():
                others = self._parts.wait(version, attempt, cancelled, self._timeout)
                return with_own(others, changes)

            self._writer.write(content._replace(tables=tables), model.parts, other_ranks, version)
            if content.is_base:
                self._retire()
        return {name: change.mark for name, change in tables.items()}
