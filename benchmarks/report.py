"""The command line of a benchmark, and what it shows: a table, a JSON file, a picture."""

import argparse
import datetime
import importlib
import itertools
import json
import os
import platform
import sys
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
    """Prints dicts, whose keys are the headings: a table for rows with the same ones."""
    for headings, table in itertools.groupby(rows, tuple):
        lines = [headings, *([_text(value) for value in row.values()] for row in table)]
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
    if getattr(arguments, "plot", None):
        import matplotlib

        matplotlib.use("Agg")  # there may be no display
        plot(arguments.plot, about, rows)


def run_part(program, parts, doc):
    """Runs the part that the command line names, such as `bench_ranks.py hosts --delays 0 5`.

    Args:
        program: The first word of the names of the parts' modules: `ranks` for `ranks_hosts.py`.
        parts: The names of the parts. `add_options(parser)` of a part's module adds its options;
            `run(options)` returns what was measured on which machine, and the rows of its table;
            `plot(path, about, rows)`, if the module has it, draws them.
        doc: The docstring of the program, which `--help` shows.
    """
    shown = {"formatter_class": argparse.RawDescriptionHelpFormatter}
    parser = argparse.ArgumentParser(description=doc, **shown)
    parser.add_argument("part", choices=parts)
    part = parser.parse_args(sys.argv[1:2]).part
    module = importlib.import_module(f"parts.{program}_{part}")
    parser = argparse.ArgumentParser(f"{parser.prog} {part}", description=module.__doc__, **shown)
    module.add_options(parser)
    parser.add_argument("--json", help="file to write the figures to")
    if hasattr(module, "plot"):
        parser.add_argument("--plot", help="picture to write, a .png")
    options = parser.parse_args(sys.argv[2:])
    about, rows = module.run(options)
    print_table(rows)
    write_results(options, about, rows, getattr(module, "plot", None))
