"""`PYTHONPATH=tests python -m programs 17`: runs the program of a seed, and prints the smallest
one that differs in its way."""

import argparse
import sys
import time
import traceback

from .compare import run
from .draw import DRAWN, draw


def main():
    parser = argparse.ArgumentParser(prog="programs")
    parser.add_argument("first", type=int)
    parser.add_argument("count", type=int, nargs="?", default=1)
    parser.add_argument("--without", default="")
    args = parser.parse_args()
    drawn = {name for name in DRAWN if not any(w and w in name for w in args.without.split(","))}
    start = time.time()
    for seed in range(args.first, args.first + args.count):
        program = draw(seed, drawn)
        try:
            run(program)
        except Exception as e:
            print(seed, program.way, program.optimizer.name, type(e).__name__, str(e)[:300])
            if args.count == 1:
                print(program.text())
                traceback.print_exc()
    print(f"{(time.time()-start)/args.count:.3f} s per program", file=sys.stderr)


main()
