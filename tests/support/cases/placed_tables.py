"""Features whose tables want different placements, and batches of their ids."""

import numpy as np

import group_embedding as ge

SAMPLES = 256


def features(weights=False):
    """Two features of one table among them, and a table of keys."""
    clicks = ge.TableConfig("clicks", None, 32)
    weight = "history_weights" if weights else None
    return [
        ge.FeatureConfig("day", ge.TableConfig("days", 7, 16)),
        ge.FeatureConfig(
            "history", ge.TableConfig("history", 200_000, 64), "sum", weights_feature=weight
        ),
        ge.FeatureConfig("seen", clicks, "mean"),
        ge.FeatureConfig("bought", clicks, "mean"),
        ge.FeatureConfig("user", ge.TableConfig("users", None, 16)),
        ge.FeatureConfig("hot", ge.TableConfig("hot", 10_000, 16)),
        ge.FeatureConfig("wide", ge.TableConfig("wide", 5000, 192), "mean"),
        ge.FeatureConfig("placed", ge.TableConfig("placed", 9000, 16, placement="localized:1")),
    ]


def batches(features, seed, number=2):
    """Ids of 7 days, of many and of few different ones."""
    random = np.random.default_rng(seed)
    drawn = {
        "day": lambda: random.integers(0, 7, [SAMPLES, 1]),
        "history": lambda: random.integers(0, 200_000, [SAMPLES, 40]),
        "seen": lambda: random.integers(0, 1 << 40, [SAMPLES, 30]),
        "bought": lambda: random.integers(0, 1 << 40, [SAMPLES, 20]),
        "user": lambda: random.integers(0, 1 << 40, [SAMPLES, 1]),
        "hot": lambda: random.integers(0, 50, [SAMPLES, 30]),
        "wide": lambda: random.integers(0, 5000, [SAMPLES, 30]),
        "placed": lambda: random.integers(0, 9000, [SAMPLES, 1]),
        "frozen": lambda: random.integers(0, 5000, [SAMPLES, 1]),
    }
    names = [feature.name for feature in features]
    return [{name: drawn[name]() for name in names} for _ in range(number)]
