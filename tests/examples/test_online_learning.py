"""A model that is updated while it is served is better than one that is not."""

import pytest

from buildtools import serving as build
from group_embedding.serving import server


@pytest.mark.soak
@pytest.mark.skipif(not server.PROGRAM.exists() and bool(build.missing()), reason="needs gRPC")
def test_the_updated_model_is_better(run_example, movielens_folder):
    # Given ratings of people and films, of which the first hundredth is trained in advance
    arguments = ["--first", 0.01, "--every-seconds", 0.1, "--parts", 4, "--pause", 0.1]
    # When the rest comes in the order of time
    ran = run_example("online_learning.py", "--data", movielens_folder, *arguments)
    # Then what was served learned from it
    updated, frozen = ran.results["updated"], ran.results["frozen"]
    assert updated["versions"] > 2 and len(updated["curve"]) == 4
    assert updated["auc"] > frozen["auc"] + 0.05
    assert updated["curve"][-1] > updated["curve"][0]
    assert "updated: AUC 0." in ran.output
