"""Which TensorFlow has wheels for which Python, 64-bit Linux on x86."""

import sys

# Minor version of TensorFlow: (its newest patch, the Pythons that PyPI has wheels for).
TENSORFLOWS = {
    "2.15": ("2.15.1", ["3.9", "3.10", "3.11"]),
    "2.16": ("2.16.2", ["3.9", "3.10", "3.11", "3.12"]),
    "2.17": ("2.17.1", ["3.9", "3.10", "3.11", "3.12"]),
    "2.18": ("2.18.1", ["3.9", "3.10", "3.11", "3.12"]),
    "2.19": ("2.19.1", ["3.9", "3.10", "3.11", "3.12"]),
    "2.20": ("2.20.0", ["3.9", "3.10", "3.11", "3.12", "3.13"]),
    "2.21": ("2.21.0", ["3.10", "3.11", "3.12", "3.13"]),
}


def minor_of(version):
    """ "2.15" of "2.15.1"."""
    return ".".join(version.split(".")[:2])


def tensorflows_of(python):
    """The versions of TensorFlow that have wheels for a Python such as "3.12", oldest first."""
    return [version for version, pythons in TENSORFLOWS.values() if python in pythons]


def why_not(tensorflow, python):
    """None, or why pip will not find this TensorFlow for this Python."""
    pythons = TENSORFLOWS.get(minor_of(tensorflow), (None, []))[1]
    if not pythons or python in pythons:
        return None
    return f"TensorFlow {tensorflow} needs Python {' or '.join(pythons)}, this is {python}"


def main():
    """Says whether this Python will do: `python buildtools/versions.py 2.15.1`."""
    python = f"{sys.version_info[0]}.{sys.version_info[1]}"
    reason = why_not(sys.argv[1], python)
    if reason:
        newest = TENSORFLOWS[minor_of(sys.argv[1])][1][-1]
        sys.exit(f"{reason} ({sys.executable}): name another with `make PYTHON=python{newest}`")


if __name__ == "__main__":
    main()
