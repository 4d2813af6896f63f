"""How often the keys of a checkpoint were trained, and how long ago: counted, printed, drawn."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import numpy as np

from group_embedding.checkpoint.export import kept_rows
from group_embedding.files.pictures import load_matplotlib

_NUM_BINS = 65  # 0, 1, 2 to 3, 4 to 7, ...
_BAR = 40  # characters of the longest
_KNOWN, _UNKNOWN = "#3b7dd8", "#a0a0a0"  # colors of bars
_MIN_BARS = 4  # as wide as each picture: a single bar would fill it


@dataclasses.dataclass
class Histogram:
    """How many keys have a number in each bin: 0, 1, 2 to 3, 4 to 7 and so on.

    Attributes:
        title: what is counted.
        bins: int64 [65].
        unknown: how many keys have no such number.
    """

    title: str
    bins: np.ndarray
    unknown: int = 0

    def add(self, numbers: np.ndarray) -> None:
        """Counts numbers; negative ones are unknown."""
        known = numbers[numbers >= 0]
        self.unknown += len(numbers) - len(known)
        places = np.frexp(known.astype(np.float64))[1]  # 0: 0, 1: 1, 2 and 3: 2, ...
        self.bins += np.bincount(np.minimum(places, _NUM_BINS - 1), minlength=_NUM_BINS)

    def rows(self) -> list[tuple[str, int]]:
        """(which numbers, how many keys) from the first bin that has a key to the last one."""
        (filled,) = np.nonzero(self.bins)
        if not len(filled):
            return []
        places = range(filled[0], filled[-1] + 1)
        return [(_numbers_of(place), int(self.bins[place])) for place in places]

    def lines(self) -> list[str]:
        """The bins with bars of characters."""
        rows = self.rows()
        most = max((keys for _, keys in rows), default=1)
        lines = [
            f"{numbers:>25} {keys:>15,} {'#' * round(_BAR * keys / most)}".rstrip()
            for numbers, keys in rows
        ]
        if self.unknown:
            lines.append(f"{'unknown':>25} {self.unknown:>15,}")
        return [f"{self.title:>25} {'keys':>15}", *lines]


def histograms_of(table: dict[str, Any]) -> list[Histogram]:
    """The histograms of counts, and of steps since keys were trained, of one of `files.tables`.

    A key without a step has no age. The age of a key that was trained in the last step is 0: in
    the step before that of the save, or that of the newest key where the save has none.

    Raises:
        RuntimeError: a file is damaged, or has rows that only serve.
    """
    counts = Histogram("times trained", np.zeros(_NUM_BINS, np.int64))
    ages = Histogram("steps since", np.zeros(_NUM_BINS, np.int64))
    # The step of a save is the next one to train. A program that counts steps itself may have
    # trained in that of the save, so a key may be newer.
    last = max([table["step"] - 1, *(int(v.max()) for _, v in _kept(table) if len(v))])
    for of_counts, versions in _kept(table):
        counts.add(of_counts)
        ages.add(np.where(versions < 0, -1, last - versions))
    return [counts, ages]


def check_picture(path: str) -> None:
    """Refuses a picture that cannot be drawn, before anything is counted.

    Raises:
        SystemExit: matplotlib is not installed, or knows no such suffix.
    """
    known = sorted(
        load_matplotlib("--plot").backend_bases.FigureCanvasBase.get_supported_filetypes()
    )
    suffix = os.path.splitext(path)[1].lstrip(".").lower()
    if suffix and suffix not in known:
        raise SystemExit(
            f"group_embedding: --plot {path}: expected a suffix of a picture, one of "
            f"{', '.join(known)}, got {suffix}"
        )


def draw(histograms: dict[str, list[Histogram]], path: str) -> None:
    """Writes a picture: for each table a row with its histograms.

    Args:
        histograms: those of each table.
        path: a file name that `check_picture` takes, such as keys.png.
    """
    pyplot = load_matplotlib("--plot").pyplot
    figure, axes = pyplot.subplots(
        len(histograms), 2, squeeze=False, figsize=(10, 1 + 2.4 * len(histograms))
    )
    for line, (name, of_table) in zip(axes, histograms.items()):
        for axis, histogram in zip(line, of_table):
            _draw_one(axis, name, histogram)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def _draw_one(axis, name, histogram):
    # A name of a table may have the signs of formulas.
    axis.set_title(f"{name}: {histogram.title}", fontsize=10, parse_math=False)
    rows = histogram.rows()
    colors = [_KNOWN] * len(rows)
    if histogram.unknown:
        rows, colors = [*rows, ("unknown", histogram.unknown)], [*colors, _UNKNOWN]
    if not rows:
        axis.set_axis_off()
        axis.text(0.5, 0.5, "no keys", transform=axis.transAxes, ha="center", fontsize=10)
        return
    axis.bar(range(len(rows)), [keys for _, keys in rows], color=colors)
    axis.set_xticks(range(len(rows)), [numbers for numbers, _ in rows], rotation=45)
    axis.set_xlim(-0.6, max(len(rows), _MIN_BARS) - 0.4)
    axis.yaxis.get_major_locator().set_params(integer=True)
    axis.tick_params(labelsize=8)
    axis.set_ylabel("keys")
    axis.spines[["top", "right"]].set_visible(False)


def _kept(table):
    """(counts, versions) of each block of rows, as they are after changes."""
    for _, block, kept in kept_rows(table):
        yield block["counts"][kept], block["versions"][kept]


def _numbers_of(place):
    if place < 2:
        return str(place)
    return f"{2 ** (place - 1):,} to {2**place - 1:,}"
