"""Runs programs apart from pytest: `PYTHONPATH=tests python -m programs --help`."""

import argparse
import sys
import time
from pathlib import Path

from .compare import run
from .draw import DRAWN, draw
from .program import from_text
from .shrink import shrink


def main():
    args = _arguments()
    if args.first.isdecimal():
        drawn = DRAWN - set(args.without)
        programs = (draw(int(args.first) + i, drawn) for i in range(args.count))
    else:
        programs = [from_text(Path(args.first).read_text())]
    failed = 0
    start = time.monotonic()
    for program in programs:
        difference = _difference(program)
        if difference is None:
            continue
        failed += 1
        print(f"seed {program.seed}: {difference}", flush=True)
        if args.shrink:
            smallest = _smallest(program, _kind(difference))
            print(f"{smallest.text()}\n{_difference(smallest)}", flush=True)
    print(f"{failed} programs differ; {time.monotonic() - start:.0f} s")
    sys.exit(failed > 0)


def _arguments():
    parser = argparse.ArgumentParser(prog="programs", description=__doc__)
    parser.add_argument("first", help="the first seed, or a file with a program that was printed")
    parser.add_argument("count", type=int, nargs="?", default=1, help="of seeds")
    parser.add_argument("--shrink", action="store_true", help="print the smallest program as well")
    parser.add_argument(
        "--without", action="append", default=[], choices=sorted(DRAWN), help="not to be drawn"
    )
    return parser.parse_args()


def _difference(program):
    """The sentence that says what is wrong, or None."""
    try:
        run(program)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def _smallest(program, kind):
    return shrink(program, lambda smaller: _kind(_difference(smaller)) == kind)


def _kind(difference):
    """Smaller programs are to differ in the same way, if at another place."""
    return difference and difference.partition(":")[0]


if __name__ == "__main__":
    main()
