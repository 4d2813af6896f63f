"""python -m group_embedding train|evaluate|predict|export|tune CONFIG [key=value ...]"""

import sys

from group_embedding.recommender.runs.command_line import main

if __name__ == "__main__":
    sys.exit(main())
