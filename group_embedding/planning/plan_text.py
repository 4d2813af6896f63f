"""A plan, printed and drawn."""

from __future__ import annotations

from group_embedding.files.pictures import load_matplotlib
from group_embedding.variables.statistics_text import aligned, bytes_as_text

_COLORS = {"hbm": "#e2703a", "dram": "#3b7dd8", "disk": "#9aa5b1"}


def as_table(plan) -> str:
    """Lines of aligned columns: the tables, the ranks' bytes, and the parts of a step."""
    lines = [["table", "keys", "bytes a key", "all ranks", "largest rank", "found in"]]
    for table in plan.tables.values():
        totals = [sum(tiers.values()) for tiers in table.bytes_by_rank]
        lines.append(
            [
                table.name,
                f"{table.keys:,}",
                f"{table.bytes_of_key:.0f}",
                bytes_as_text(sum(totals)),
                bytes_as_text(max(totals)),
                ", ".join(f"{tier} {share:.1%}" for tier, share in table.hit_rates.items()),
            ]
        )
    largest = max(plan.bytes_by_rank, key=lambda tiers: sum(tiers.values()))
    text = aligned(lines) + "\n\nlargest rank: "
    text += ", ".join(f"{tier} {bytes_as_text(size)}" for tier, size in largest.items())
    for rank, tiers in enumerate(plan.bytes_by_rank):
        if plan.hbm is not None and tiers.get("hbm", 0.0) > plan.hbm:
            text += f"\nrank {rank} does not fit: its tables take {bytes_as_text(tiers['hbm'])} of "
            text += f"GPU memory, of which it has {bytes_as_text(plan.hbm)} (hbm)"
    if plan.step is not None:
        parts = ", ".join(f"{name} {ms:.2f}" for name, ms in plan.step.parts.items() if ms)
        text += f"\nstep of the tables: {plan.step.total:.2f} ms ({parts}"
        text += f"; beside them program {plan.step.program:.2f})" if plan.step.program else ")"
    return text


def draw(plan, path: str) -> None:
    """Writes a picture: for each table a bar of the bytes of the largest rank, by tier.

    Raises:
        SystemExit: matplotlib is not installed.
    """
    pyplot = load_matplotlib("draw").pyplot
    tables = list(plan.tables.values())
    figure, axis = pyplot.subplots(figsize=(7, 1.2 + 0.5 * len(tables)))
    before = [0.0] * len(tables)
    for tier, color in _COLORS.items():
        sizes = [
            max(table.bytes_by_rank, key=lambda tiers: sum(tiers.values())).get(tier, 0.0) / 1e9
            for table in tables
        ]
        if any(sizes):
            axis.barh(range(len(tables)), sizes, left=before, color=color, label=tier)
        before = [b + s for b, s in zip(before, sizes)]
    for place, table in enumerate(tables):
        rates = ", ".join(f"{tier} {share:.0%}" for tier, share in table.hit_rates.items())
        axis.text(before[place], place, f"  found in {rates}", va="center", fontsize=8)
    axis.set_yticks(range(len(tables)), [table.name for table in tables])
    axis.invert_yaxis()
    axis.set_xlim(0, 1.45 * max(before))
    axis.set_xlabel("GB on the largest rank")
    axis.legend(frameon=False, fontsize=8, loc="lower right")
    axis.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
