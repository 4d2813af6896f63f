"""A picture of step times: for each placement bars by the number of ranks, made of their parts."""

from __future__ import annotations

from group_embedding.files.pictures import load_matplotlib
from group_embedding.ranks.simulate.step_time import StepTime

_COLORS = {
    "launches": "#9aa5b1",
    "kernels": "#3b7dd8",
    "within_host": "#5bb98b",
    "between_hosts": "#e2703a",
    "waiting": "#c94f7c",
    "dense": "#8e6bbf",
    "host_memory": "#d9b44a",
}


def draw(found: dict[tuple[str, int], StepTime], path: str, title: str) -> None:
    """Writes the picture.

    Args:
      found: The step of each placement and number of ranks.
      path: A file name that matplotlib knows, such as steps.png.
      title: The line above the picture.

    Raises:
      SystemExit: matplotlib is not installed.
    """
    pyplot = load_matplotlib("--plot").pyplot
    placements = list(dict.fromkeys(placement for placement, _ in found))
    ranks = list(dict.fromkeys(count for _, count in found))
    figure, axes = pyplot.subplots(
        1, len(placements), sharey=True, squeeze=False, figsize=(2 + 2.6 * len(placements), 4)
    )
    for axis, placement in zip(axes[0], placements):
        _draw_bars(axis, [found[placement, count] for count in ranks])
        axis.set_title(placement.replace("_", " "), fontsize=10)
        axis.set_xticks(range(len(ranks)), [f"{count:,}" for count in ranks], rotation=45)
        axis.set_xlabel("ranks")
        axis.spines[["top", "right"]].set_visible(False)
    axes[0][0].set_ylabel("ms a step")
    axes[0][-1].legend(fontsize=8, frameon=False)
    figure.suptitle(title, fontsize=11)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def _draw_bars(axis, steps):
    bottom = [0.0] * len(steps)
    for name, color in _COLORS.items():
        heights = [step.parts[name] for step in steps]
        if not any(heights):
            continue
        axis.bar(
            range(len(steps)), heights, bottom=bottom, color=color, label=name.replace("_", " ")
        )
        bottom = [below + height for below, height in zip(bottom, heights)]
