"""python -m group_embedding train|evaluate|predict|export|tune CONFIG [key=value ...]
python -m group_embedding schema
python -m group_embedding checkpoint inspect|verify|export|rename-ops PREFIX
"""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; arguments and exit status are those of `command_line.main`."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    # Each import is needed by one command alone, and the other one starts without it.
    if arguments[:1] == ["checkpoint"]:
        from group_embedding.checkpoint.__main__ import main as run

        return run(arguments[1:])
    from group_embedding.recommender.runs.command_line import main as run

    return run(arguments)


if __name__ == "__main__":
    sys.exit(main())
