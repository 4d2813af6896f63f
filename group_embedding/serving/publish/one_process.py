"""A publisher of one process: when a version begins, its delivery, and failures."""

from __future__ import annotations

import contextlib
import itertools
import shutil
import tempfile
import time
import warnings
import weakref
from typing import Any

import tensorflow as tf

from group_embedding.serving.publish.version_writer import Content, LostVersions, VersionWriter
from group_embedding.serving.stores.background_call import BackgroundCall
from group_embedding.serving.stores.open_target import is_local, open_target
from group_embedding.serving.stores.targets import TargetError
from group_embedding.serving.versions.old_versions import retire

_FAILURES = (OSError, TargetError)  # of targets: tried again with on_failure="keep"
_followers = itertools.count(1)
_POLL_SECONDS = 0.005


class OneProcess:
    """The work of a `Publisher`, whose arguments these are.

    Args:
        model: A TrainedModel or a TrainedGraph.
    """

    def __init__(
        self,
        model,
        target,
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
        self._keep_bases = keep_bases
        self._timeout = timeout
        self._model = model
        self._follower = next(_followers)
        self._needs_base = True
        self.delivery: BackgroundCall | None = None
        self._last_time = float("-inf")
        self._target = self._open_target(target)
        self._writer = self._make_writer(name)
        self._finalizer = weakref.finalize(self, _release, model, self._follower)

    @property
    def version(self):
        return 0 if self._writer.last is None else self._writer.last.version

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
        now = time.monotonic()
        is_late = now - self._last_time > self._timeout
        if self.delivery is not None and (is_late or not self.delivery.is_alive()):
            self._last_time = now if is_late else self._last_time
            self._try(lambda: self._collect(timeout=0))
        if self.delivery is None and now - self._last_time >= self.every_seconds:
            self._try(lambda: self._begin_at(now, step))

    def close(self):
        """Waits for a version that is being published, and gives the target up."""
        try:
            self._try(self._collect)
        finally:
            self._finalizer()
            self._target.close()
            self._remove_folder()

    def _open_target(self, url):
        return open_target(url, None if is_local(url) else self._make_folder())

    def _make_folder(self):
        """The folder in which versions for a service are put together."""
        folder = tempfile.mkdtemp(prefix="ge-versions-", dir=self._work_folder)
        self._remove_folder = weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        return folder

    def _make_writer(self, name) -> Any:
        return self._ask_target(lambda: VersionWriter(self._target, name))

    def _is_base_due(self):
        return self._base_every is not None and self._writer.num_deltas >= self._base_every

    def _try(self, action):
        """The version after an action, whose failures are dealt with as the user said."""
        try:
            action()
        except _FAILURES as error:
            if self._on_failure == "raise":
                raise
            warnings.warn(f"not published, and tried again later: {error}", stacklevel=4)
        return self.version

    def _begin_at(self, now, step):
        self._last_time, former = now, self._last_time
        if not self._begin(step, is_base=False, wait=False):
            self._last_time = former  # at the next step, then

    def _collect(self, timeout=None):
        """Ends a delivery: raises what it raised, or that it goes on."""
        delivery = self.delivery
        if delivery is None:
            return
        if not delivery.ends_within(self._timeout if timeout is None else timeout):
            raise TargetError(self._no_answer())
        self.delivery = None
        delivery.result()

    def _ask_target(self, function):
        call = BackgroundCall(function)
        if not call.ends_within(self._timeout):
            raise TargetError(self._no_answer())
        return call.result()

    def _no_answer(self):
        return f"target '{self._target.url}': expected an answer within {self._timeout} s, got none"

    def _begin(self, step, is_base, wait):
        """Begins to deliver a version of now; False: a table is being saved."""
        step = self._model.step() if step is None else int(step)
        has_parent = not is_base or self._ask_target(self._writer.is_newest)
        if self._needs_base or not has_parent:
            return self._export_base(step)
        try:
            if not self._take_snapshot(step, wait):
                return False
        except tf.errors.FailedPreconditionError:  # a table was made anew
            return self._export_base(step)
        is_base = is_base or self._is_base_due()
        self._deliver(Content(step, None, None, self._model.copy_variables(), is_base), True)
        return True

    def _export_base(self, step):
        """Begins to deliver a base without a parent."""
        self._needs_base = True
        folder = tempfile.mkdtemp(prefix="ge-base-")
        try:
            self._model.export(folder)  # which may evict keys, so it comes first
            self._model.follow(self._follower)
            content = Content(step, folder, None, self._model.copy_variables())
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        self._deliver(content, has_tables=False)
        return True

    def _take_snapshot(self, step, wait):
        """Takes a snapshot of the tables once no save runs; False: one does."""
        end = time.monotonic() + (self._timeout if wait else 0)
        while not self._model.snapshot(self._follower, step):
            if not wait:
                return False
            if time.monotonic() > end:
                raise TargetError(
                    f"not published: expected a running save to end within {self._timeout} s, it "
                    "goes on"
                )
            time.sleep(_POLL_SECONDS)
        return True

    def _deliver(self, content, has_tables):
        self.delivery = BackgroundCall(lambda: self._write(content, has_tables))

    def _retire(self):
        try:
            retire(self._target, self._keep_bases)
        except _FAILURES as error:
            warnings.warn(f"old versions stay for now: {error}", stacklevel=2)

    def _write(self, content, has_tables):
        """In a thread: brings the content to the target."""
        try:
            changes = self._model.read(self._follower) if has_tables else None
            self._writer.write(content._replace(tables=changes))
            if changes is not None:
                marks = {name: change.mark for name, change in changes.items()}
                self._model.acknowledge(self._follower, marks)
            if content.is_base:
                self._needs_base = False
                self._retire()
        except LostVersions:
            self._needs_base = True
            raise
        finally:
            if content.base is not None:
                shutil.rmtree(content.base, ignore_errors=True)


def _release(model, follower):
    """Lets the tables forget a publisher."""
    # The tables may be gone; and this may run where a function is traced.
    with contextlib.suppress(Exception), tf.init_scope():
        model.drop(follower, unfollow=True)
