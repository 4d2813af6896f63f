"""Which exchange is in use."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator

from group_embedding.ranks.exchange.interface import Exchange
from group_embedding.ranks.exchange.local import LocalExchange

_LOCAL = LocalExchange()
_of_process: list[Exchange] = [_LOCAL]
_of_context: contextvars.ContextVar[Exchange | None] = contextvars.ContextVar(
    "group_embedding_exchange", default=None
)


def current() -> Exchange:
    """The exchange that tables made now are sharded over: of one rank, `LocalExchange`, until
    `ge.enable_distributed_strategy`."""
    return _of_context.get() or _of_process[0]


def of_process() -> Exchange:
    """The process's exchange, also inside of `unsharded`."""
    return _of_process[0]


def set_current(exchange: Exchange) -> None:
    """Makes `exchange` the exchange of the process; existing tables keep theirs."""
    _of_process[0] = exchange


@contextlib.contextmanager
def unsharded() -> Iterator[None]:
    """Inside, in this thread, this process works alone: tables are made whole, and optimizers and
    savers made here are those of one process.

    For what one rank does by itself, such as exporting a model: the checkpoints of `ge.Saver` hold
    whole tables, so that a model built here restores them.

    >>> if ge.exchange.current().rank == 0:
    ...     with ge.exchange.unsharded():
    ...         estimator.export_saved_model("export", receiver_fn)
    """
    token = _of_context.set(_LOCAL)
    try:
        yield
    finally:
        _of_context.reset(token)
