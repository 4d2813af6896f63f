"""Pictures that are drawn into files, without a display."""

from __future__ import annotations

from typing import Any


def load_matplotlib(option: str) -> Any:
    """The package matplotlib, with `pyplot`.

    Args:
        option: what the caller was given, such as "--plot", for the message.

    Raises:
        SystemExit: matplotlib is not installed.
    """
    try:
        import matplotlib

        matplotlib.use("Agg")
        import matplotlib.backend_bases
        import matplotlib.pyplot
    except ImportError:
        raise SystemExit(
            f"group_embedding: {option} needs matplotlib: pip install matplotlib"
        ) from None
    return matplotlib
