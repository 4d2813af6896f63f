"""MovieLens-100K, as the examples fetch it."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "examples"))


@pytest.fixture(scope="session")
def ratings():
    """The ratings of the first 80 users."""
    from model_zoo.histories import Ratings

    from dlrm.fetch import fetch_movielens

    try:
        folder = fetch_movielens()
    except RuntimeError as error:
        pytest.skip(f"no MovieLens-100K: {str(error)[:200]}")
    return Ratings(folder, num_users=80)
