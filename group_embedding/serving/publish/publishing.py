"""The work of a publisher on one rank or several: when a version begins and ends, and failures.

Ranks begin and end a version together, and each writes its own rows. Between two steps they meet,
so that all do the same: begin a version, collect it, or raise. Threads, in which exchanges cannot
be used, meet in the target: rank 0 waits there for the files of the others, and writes the record.
In the next meeting all ranks learn whether it did. For a target that is a service the place is a
folder that all ranks reach, from which rank 0 sends the version. One rank meets nobody, and its
meetings cost nothing.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
import shutil
import tempfile
import threading
import time
import warnings
import weakref
from typing import Any, NamedTuple

import tensorflow as tf

from group_embedding.serving.publish.rank_agreement import RankAgreement
from group_embedding.serving.publish.rank_part import FAILURES, RankPart
from group_embedding.serving.publish.version_writer import Content, LostVersions, VersionWriter
from group_embedding.serving.stores.background_call import BackgroundCall
from group_embedding.serving.stores.open_target import is_local, open_target
from group_embedding.serving.stores.targets import TargetError

_followers = itertools.count(1)
_POLL_SECONDS = 0.005
_NONE, _RUNNING, _DONE, _FAILED = range(4)  # states of a rank's delivery
_TAKEN, _BUSY, _MADE_ANEW = range(3)  # results of a rank's snapshot
_MEET_SECONDS = 0.02  # between two meetings while ranks wait for a delivery
_MOST_STEPS = 1000  # without a meeting


class _Report(NamedTuple):
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


class Publishing:
    """The work of a `Publisher`, whose arguments these are, on each rank.

    Args:
        model: A TrainedModel or a TrainedGraph; over ranks a ModelOfRanks or a GraphOfRanks.
        exchange: The exchange of the ranks.

    Attributes:
        delivery: The BackgroundCall that brings a version to the target; None: there is none.
    """

    def __init__(
        self,
        model,
        target,
        exchange,
        *,
        every_seconds,
        on_failure,
        name,
        base_every,
        keep_bases,
        timeout,
        work_folder,
    ):
        self.every_seconds = every_seconds
        self._work_folder = work_folder
        self._remove_folder = lambda: None
        self._on_failure = on_failure
        self._base_every = base_every
        self._timeout = timeout
        self._model = model
        self._follower = next(_followers)
        self._needs_base = True
        self.delivery: BackgroundCall | None = None
        self._last_time = float("-inf")
        self._rank, self._num_ranks = exchange.rank, exchange.num_ranks
        self._ranks = RankAgreement(exchange, len(_Report._fields))
        self._version = 0
        self._is_base = False  # what is being delivered
        self._cancelled = threading.Event()
        self._steps_left = self._steps_met = 1
        self._met_at = time.monotonic()
        self._target = self._open_target(target)
        self._writer = self._make_writer(name)  # of rank 0
        self._part = RankPart(
            model, self._follower, self._target, self._writer, exchange, timeout, keep_bases
        )
        self._finalizer = weakref.finalize(self, _release, model, self._follower)

    @property
    def version(self):
        return self._written() if self._num_ranks == 1 else self._version

    def publish(self, step, is_base):
        """Publishes a version of now; returns the newest that the target has acknowledged."""
        self._try(self._collect)
        if self.delivery is not None:  # the target does not answer
            return self.version

        def publish():
            self._begin(step, is_base, wait=True)
            self._collect()

        return self._try(publish)

    def after_step(self, step):
        """Publishes in the background once `every_seconds` have passed."""
        self._steps_left -= 1
        if self._steps_left > 0:
            return
        now = time.monotonic()
        reports = self._meet(
            is_due=now - self._last_time >= self.every_seconds,
            is_late=now - self._last_time > self._timeout,
            steps=self._steps_until_due(now),
        )
        first = reports[0]
        self._steps_left = self._steps_met = first.steps
        self._met_at = time.monotonic()
        if self.delivery is not None:
            states = [of_rank.state for of_rank in reports]
            if _RUNNING not in states:
                self._try(lambda: self._end(reports))
            elif _FAILED in states:
                self._cancelled.set()
            elif first.is_late:
                self._last_time = now
                self._try(self._raise_no_answer)
        if self.delivery is None and first.is_due:
            self._try(lambda: self._begin_at(now, step))

    def close(self):
        """Waits for a version that is being published, and gives the target up."""
        try:
            self._try(self._collect)
        finally:
            self._finalizer()
            self._target.close()
            self._remove_folder()
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

    def _make_folder(self):
        """The folder in which versions for a service are put together."""
        folder = tempfile.mkdtemp(prefix="ge-versions-", dir=self._work_folder)
        self._remove_folder = weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        return folder

    def _make_writer(self, name) -> Any:
        made: list[Any] = [None]

        def make():
            made[0] = self._ask_target(lambda: VersionWriter(self._target, name))

        self._on_first_rank(make)
        return made[0]

    def _on_first_rank(self, function):
        """The result of a function that rank 0 calls, on all ranks; or its failure."""
        return self._ranks.from_first_rank(
            function, FAILURES, lambda message: TargetError(f"rank 0: {message}")
        )

    def _ask_target(self, function):
        call = BackgroundCall(function)
        if not call.ends_within(self._timeout):
            self._raise_no_answer()
        return call.result()

    def _raise_no_answer(self):
        raise TargetError(
            f"target '{self._target.url}': expected an answer within {self._timeout} s, got none"
        )

    def _try(self, action):
        """The version after an action, whose failures are dealt with as the user said."""
        try:
            action()
        except FAILURES as error:
            if self._on_failure == "raise":
                raise
            warnings.warn(f"not published, and tried again later: {error}", stacklevel=4)
        return self.version

    def _written(self):
        """The newest version that this rank has written; 0: none."""
        last = None if self._writer is None else self._writer.last
        return 0 if last is None else last.version

    def _meet(self, **values):
        state = _NONE
        if self.delivery is not None:
            state = _RUNNING if self.delivery.is_alive() else _DONE
            if state == _DONE and self.delivery.error is not None:
                state = _FAILED
        # Looked at after the state: a delivery that has ended has set it.
        numbers = self._ranks.meet(_Report(state=state, version=self._written(), **values))
        return [_Report(*row) for row in numbers.tolist()]

    def _steps_until_due(self, now):
        """Half of the steps until something is to be done, by the last steps' time."""
        if self._num_ranks == 1:
            return 1
        seconds = self.every_seconds - (now - self._last_time)
        if self.delivery is not None:
            seconds = self.every_seconds / 8
        seconds_of_step = (now - self._met_at) / self._steps_met
        return int(min(max(seconds / 2 / max(seconds_of_step, 1e-6), 1), _MOST_STEPS))

    def _begin_at(self, now, step):
        self._last_time, former = now, self._last_time
        if not self._begin(step, is_base=False, wait=False):
            self._last_time = former  # at the next step, then

    def _begin(self, step, is_base, wait):
        """Begins to deliver a version of now; False: a table is being saved."""
        step = self._model.step() if step is None else int(step)
        has_parent = True
        if is_base:
            has_parent = self._on_first_rank(lambda: self._ask_target(self._writer.is_newest))
        reports = self._meet(
            needs_base=self._needs_base or not has_parent,
            rewrites=is_base or self._is_base_due(),
            attempt=secrets.randbits(62) | 1,
        )
        first = reports[0]
        if any(of_rank.needs_base for of_rank in reports):
            return self._export_base(step)
        found = self._take_together(step, wait)
        if found == _MADE_ANEW:
            return self._export_base(step)
        if found == _BUSY:
            return False
        content = Content(step, None, None, self._model.copy_variables(), bool(first.rewrites))
        shards = {key: shard.copy() for key, shard in self._model.shards.items()}
        self._cancelled = cancelled = threading.Event()
        self._deliver(
            lambda: self._part.write(content, shards, first.version + 1, first.attempt, cancelled),
            is_base=bool(first.rewrites),
        )
        return True

    def _is_base_due(self):
        every, writer = self._base_every, self._writer
        return every is not None and writer is not None and writer.num_deltas >= every

    def _take_together(self, step, wait):
        """A snapshot on all ranks, once no save runs, or on none."""
        end = time.monotonic() + (self._timeout if wait else 0)
        while True:
            try:
                own = _TAKEN if self._model.snapshot(self._follower, step) else _BUSY
            except tf.errors.FailedPreconditionError:
                own = _MADE_ANEW
            reports = self._meet(snapshot=own, is_late=time.monotonic() > end)
            worst = max(of_rank.snapshot for of_rank in reports)
            if worst == _TAKEN:
                return worst
            if own == _TAKEN:
                self._model.drop(self._follower)
            if worst == _MADE_ANEW or not wait:
                return worst
            if reports[0].is_late:
                raise TargetError(
                    f"not published: expected a running save to end within {self._timeout} s, it "
                    "goes on"
                )
            time.sleep(_POLL_SECONDS)

    def _export_base(self, step):
        """Begins to deliver a base without a parent."""
        self._needs_base = True
        work = self._make_export_folder()
        folder = os.path.join(work, "model")
        try:
            self._model.export(folder)  # which may evict keys, so it comes first
            self._model.follow(self._follower)
            shards = {key: shard.copy() for key, shard in self._model.shards.items()}
            content = Content(step, folder, None, self._model.copy_variables())
        except BaseException:
            shutil.rmtree(work, ignore_errors=True)
            raise
        self._deliver(lambda: self._part.write_base(content, shards, work), is_base=True)
        return True

    def _make_export_folder(self):
        """A folder that all ranks reach; of one rank one that needs no target."""
        if self._num_ranks == 1:
            return tempfile.mkdtemp(prefix="ge-base-")
        return self._on_first_rank(lambda: self._ask_target(self._target.work_folder))

    def _deliver(self, function, is_base):
        self._is_base = is_base
        self.delivery = BackgroundCall(function)

    def _collect(self):
        """Waits for a delivery, and ends it."""
        end = time.monotonic() + self._timeout
        while self.delivery is not None:
            self.delivery.ends_within(_MEET_SECONDS)
            reports = self._meet(is_late=time.monotonic() > end)
            states = [of_rank.state for of_rank in reports]
            if _RUNNING not in states:
                return self._end(reports)
            if _FAILED in states:
                self._cancelled.set()
            if reports[0].is_late:
                self._raise_no_answer()

    def _end(self, reports):
        """Ends a delivery on all ranks: acknowledges it, or raises why it failed."""
        delivery, self.delivery = self.delivery, None
        is_written = reports[0].state == _DONE
        if not is_written or delivery.error is not None:
            for shard in self._model.shards.values():
                shard.fail()
        if not is_written:
            self._needs_base |= isinstance(delivery.error, LostVersions)
            self._raise(delivery.error)
        self._version = reports[0].version
        if self._is_base:
            self._needs_base = False
        if delivery.error is None:
            self._model.acknowledge(self._follower, delivery.result())
            for shard in self._model.shards.values():
                shard.acknowledge()

    def _raise(self, error):
        """Raises on all ranks: a failure of the target, unless a rank had another error."""
        is_failure = error is None or isinstance(error, FAILURES)
        reports = self._ranks.tell([None if error is None else str(error), is_failure])
        if error is not None and (not is_failure or self._num_ranks == 1):
            raise error
        words = "; ".join(f"rank {rank}: {text}" for rank, (text, _) in enumerate(reports) if text)
        raise (TargetError if all(good for _, good in reports) else RuntimeError)(words) from error


def _release(model, follower):
    """Lets the tables forget a publisher."""
    # The tables may be gone; and this may run where a function is traced.
    with contextlib.suppress(Exception), tf.init_scope():
        model.drop(follower, unfollow=True)
