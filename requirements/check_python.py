"""Says in one sentence when a Python is not one that the wanted TensorFlow has a wheel for."""

import sys

PYTHONS = {"2.15": ["3.9", "3.10", "3.11"], "2.21": ["3.10", "3.11", "3.12", "3.13"]}

tensorflow = sys.argv[1]
pythons = PYTHONS.get(".".join(tensorflow.split(".")[:2]))
python = f"{sys.version_info.major}.{sys.version_info.minor}"
if pythons and python not in pythons:
    sys.exit(
        f"TensorFlow {tensorflow} needs Python {' or '.join(pythons)}, "
        f"{sys.executable} is {python}: "
        f"name another with `make PYTHON=python{pythons[-1]}`"
    )
