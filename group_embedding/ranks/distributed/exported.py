"""Exports that one rank writes for all ranks."""

from group_embedding.ranks.exchange.active import unsharded
from group_embedding.ranks.exchange.gather_strings import gather_text


def export_by_first_rank(exchange, export):
    """Calls `export()` on the first rank alone, where tables are made whole; returns the path that
    it returns, a string, on all ranks when it has ended.

    Raises:
        RuntimeError: on the other ranks, if it raised on the first.
    """
    path, error = "", None
    if exchange.rank == 0:
        try:
            with unsharded():
                path = export()
        except Exception as raised:  # after the others know
            error = raised
    path = gather_text(exchange, path, "exported")[0]
    if error is not None:
        raise error
    if not path:
        raise RuntimeError("rank 0 could not export the model; its own error says why")
    return path
