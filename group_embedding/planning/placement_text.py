"""Placements of tables, printed."""

from __future__ import annotations

from group_embedding.variables.statistics_text import aligned, bytes_as_text


def as_table(placements) -> str:
    """Lines of aligned columns: a table each, and all of them; then the crossings and the step."""
    link = "hosts" if placements.hosts > 1 else "ranks"
    lines = [["table", "placement", f"sent between {link}", "memory of a rank", "reason"]]
    for table in placements.tables.values():
        sizes = bytes_as_text(table.sent_bytes), bytes_as_text(table.memory_bytes)
        lines.append([table.name, table.placement, *sizes, table.reason])
    sent = sum(table.sent_bytes for table in placements.tables.values())
    memory = sum(table.memory_bytes for table in placements.tables.values())
    lines.append(["all", "", bytes_as_text(sent), bytes_as_text(memory), ""])
    parts = ", ".join(f"{name} {ms:.2f}" for name, ms in placements.step.parts.items() if ms)
    return (
        f"placement of {_counted(len(placements.tables), 'table')} over "
        f"{_counted(placements.ranks, 'rank')} on {_counted(placements.hosts, 'host')}:\n"
        f"{aligned(lines)}\n"
        f"bytes are those of a rank and a step; a step of the tables crosses "
        f"{_counted(placements.crossings, 'time')}, one way each, and takes "
        f"{placements.step.total:.2f} ms ({parts or 'nothing'})"
    )


def _counted(number, noun):
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
