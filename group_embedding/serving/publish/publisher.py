"""Publishes versions of a model while it is trained."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from group_embedding.ranks.exchange import current
from group_embedding.serving.publish.publishing import Publishing
from group_embedding.serving.publish.trained_graph import TrainedGraph
from group_embedding.serving.publish.trained_model import TrainedModel
from group_embedding.serving.publish.trained_ranks import ModelOfRanks
from group_embedding.serving.stores.open_target import is_local


class Publisher:
    """Publishes what changed in a model since the last version that its target acknowledged.

    The first version is a base, a SavedModel; later ones are deltas: changed rows, erased and
    evicted keys, and dense variables. A version is of the instant between two steps at which a
    method of the publisher was called. What a failed publish had is in the next one. Checkpoints
    and other publishers of the same model are independent of this one.

    Over several ranks each rank has a publisher with the same arguments, and all ranks call its
    methods between the same steps. Each rank writes the rows that it owns; rank 0 writes the
    version's record once all ranks have written. A failure is raised, or kept, on all ranks.

    Args:
        model: A Keras model or a `tf.Module`. What its signatures read is published.
        target: A folder, or a URL: `file:///...`, `kafka://BROKERS/TOPIC`,
            `redis://HOST:PORT/STREAM`, `s3://BUCKET/FOLDER`, `gs://...`, `hdfs://...`. A folder is
            one that all ranks reach. See `docs/reference/deltas.md`.
        every_seconds: With `after_step`: publish at most this often; None: not by time.
        on_failure: What happens if the target fails or does not answer: "raise" raises, "keep"
            warns and tries again at the next time. Nothing is queued meanwhile.
        name: The name of the model, for records.
        signatures: As of `tf.saved_model.save`.
        base_every: A new base comes after so many deltas, written from the base before it and the
            deltas while training goes on; None: only by `publish_base`.
        keep_bases: Versions before the newest so many bases are removed.
        timeout: Seconds that a call waits for the target and for a running save at most. A save's
            snapshot that nobody has begun to write for half of that is dropped.
        build: Needed over ranks alone: a function without arguments that makes the model anew, and
            returns it or (model, signatures). Rank 0 calls it inside `ge.exchange.unsharded()` for
            the first base, restores the ranks' checkpoint into the model, and exports it.
        work_folder: If the target is a service: a folder in which versions are put together before
            they are sent, and which keeps the newest base and the deltas since. Over ranks one that
            all reach: each puts its rows there, and rank 0 sends the version as a whole. None: the
            machine's folder for temporary files, which is enough for ranks of one machine.

    Raises:
        ValueError: An argument is wrong, or there are several ranks and no `build`.
        TargetError: The target does not answer, or another publisher has it.

    Example:

    ```python
    publisher = ge.serving.Publisher(model, "/runs/published", every_seconds=1)
    for batch in batches:
        step(batch)
        publisher.after_step()
    publisher.close()
    ```
    """

    def __init__(
        self,
        model: Any,
        target: str | os.PathLike[str],
        *,
        every_seconds: float | None = None,
        on_failure: str = "raise",
        name: str = "model",
        signatures: Any = None,
        base_every: int | None = 1000,
        keep_bases: int = 2,
        timeout: float = 60.0,
        build: Callable[[], Any] | None = None,
        work_folder: str | os.PathLike[str] | None = None,
    ) -> None:
        if on_failure not in ("raise", "keep"):
            raise ValueError(
                f"Publisher: expected on_failure to be 'raise' or 'keep', got {on_failure!r}"
            )
        _check_number("every_seconds", every_seconds, least=0, is_optional=True)
        _check_number("base_every", base_every, least=1, is_optional=True)
        _check_number("keep_bases", keep_bases, least=1)
        _check_number("timeout", timeout, least=0.001)
        if work_folder is not None and is_local(target):
            raise ValueError(
                f"Publisher: expected no work_folder for '{os.fspath(target)}', a folder in which "
                f"versions are put together, got '{os.fspath(work_folder)}'"
            )
        options = {
            "every_seconds": every_seconds,
            "on_failure": on_failure,
            "name": name,
            "base_every": base_every,
            "keep_bases": keep_bases,
            "timeout": timeout,
            "work_folder": work_folder,
        }
        exchange = current()
        if exchange.num_ranks == 1:
            if not isinstance(model, TrainedGraph):
                model = TrainedModel(model, signatures, timeout / 2)
        else:
            _check_are_processes(exchange)
            if not isinstance(model, TrainedGraph):
                model = ModelOfRanks(model, _checked(build, exchange), exchange, timeout / 2)
        self._work = Publishing(model, target, exchange, **options)

    @property
    def every_seconds(self) -> float | None:
        """The least seconds between two versions of `after_step`; None: not by time."""
        return self._work.every_seconds

    @property
    def version(self) -> int:
        """The number of the newest version that the target has acknowledged; 0: none yet."""
        return self._work.version

    def publish(self, step: int | None = None) -> int:
        """Publishes a version of now, and waits until the target has acknowledged it.

        Args:
            step: The trainer's step, for the version's record. None: that of the model's optimizer.

        Returns:
            The number of the newest version that the target has acknowledged: the new one, or the
            one before, after a failure with `on_failure="keep"`.

        Raises:
            TargetError: The target fails, or does not answer within `timeout` seconds.
        """
        return self._work.publish(step, is_base=False)

    def publish_base(self, step: int | None = None) -> int:
        """Publishes a new base, and waits as `publish` does.

        The base is written from the base before it and the deltas since. Where there is none, or
        another writer's version is the newest, the model is exported.
        """
        return self._work.publish(step, is_base=True)

    def after_step(self, step: int | None = None) -> None:
        """Called between two steps: publishes in the background once `every_seconds` have passed.

        A later call raises a failure of the target. Over ranks, rank 0's clock counts, and
        ranks meet every few steps alone.

        Args:
            step: As of `publish`.

        Raises:
            ValueError: The publisher has no `every_seconds`.
            TargetError: The target failed, or has not answered for `timeout` seconds.
        """
        if self.every_seconds is None:
            raise ValueError("Publisher.after_step: expected every_seconds to be set, got None")
        self._work.after_step(step)

    def close(self) -> None:
        """Waits for a version that is being published, and gives the target up."""
        self._work.close()

    def __enter__(self) -> Publisher:
        return self

    def __exit__(self, *raised: Any) -> None:
        self.close()


def _check_are_processes(exchange):
    if exchange.strategy is not None:
        raise ValueError(
            f"Publisher: expected ranks that are processes, got {exchange.num_ranks} replicas of a "
            "MirroredStrategy; save a checkpoint and export the model of one process"
        )


def _checked(build: Any, exchange: Any) -> Callable[[], Any]:
    if not callable(build):
        raise ValueError(
            "Publisher: expected build=, a function that makes the model anew, as there are "
            f"{exchange.num_ranks} ranks, got {build!r}"
        )
    return build


def _check_number(argument, number, least, is_optional=False):
    is_good = isinstance(number, (int, float)) and not isinstance(number, bool) and number >= least
    if not is_good and not (is_optional and number is None):
        raise ValueError(f"Publisher: expected {argument} to be at least {least}, got {number!r}")
