"""Runs of a config: training, evaluation, prediction, export, search."""

from group_embedding.recommender.runs.dry_run import describe_run
from group_embedding.recommender.runs.train import train
from group_embedding.recommender.runs.tune import tune

__all__ = ["describe_run", "train", "tune"]
