"""Shows a benchmark's figures: a table, a JSON file, a picture."""

import datetime
import json
import os
import platform
from pathlib import Path

RESULTS = Path(__file__).resolve().parent / "results"


def machine():
    """Describes the machine, as far as the standard library knows it."""
    model = platform.processor()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next(line.split(": ", 1)[1] for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    return {
        "date": datetime.date.today().isoformat(),
        "cpu": model,
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
    }


def print_table(rows):
    """Rows are dicts with the same keys, which are the headings."""
    if not rows:
        return
    headings = list(rows[0])
    lines = [headings, *([_text(row[h]) for h in headings] for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(headings))]
    for line in lines:
        print("  ".join(cell.rjust(width) for cell, width in zip(line, widths)), flush=True)


def _text(value):
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1000 else f"{value:.0f}"
    return "" if value is None else str(value)


def write_json(path, about, rows):
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    lines = ",\n  ".join(json.dumps(row) for row in rows)
    Path(path).write_text(f'{{"about": {json.dumps(about)},\n "rows": [\n  {lines}\n]}}\n')


def write_results(arguments, about, rows, plot):
    """Writes the files of `--json` and `--plot`. plot(path, about, rows) draws the picture."""
    if arguments.json:
        write_json(arguments.json, about, rows)
    if arguments.plot:
        import matplotlib

        matplotlib.use("Agg")  # there may be no display
        plot(arguments.plot, about, rows)
