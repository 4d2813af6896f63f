"""Small configs, and files of clicks that depend on their features."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet

SIZES = {"user": 40, "item": 60, "clicks": 60}
SCHEMA = {
    "features": [
        {"name": "user", "kind": "categorical", "dtype": "int64", "num_ids": 40},
        {"name": "item", "kind": "categorical", "dtype": "int64", "num_ids": 60, "table": "items"},
        {
            **{"name": "clicks", "kind": "categorical", "dtype": "int64", "is_list": True},
            **{"num_ids": 60, "table": "items"},
        },
        {"name": "country", "kind": "categorical", "dtype": "string", "hash_size": 16},
        {"name": "age", "kind": "continuous", "dtype": "float32"},
        {"name": "click", "kind": "label", "dtype": "int64"},
    ]
}


def write_clicks(path, num_rows, seed=0):
    """Writes rows whose click depends on user, item and age; returns the path."""
    random = np.random.default_rng(seed)
    weights = {n: np.random.default_rng(7).normal(size=s) * 1.5 for n, s in SIZES.items()}
    user, item = (random.zipf(1.2, num_rows) % SIZES[name] for name in ("user", "item"))
    age = random.normal(size=num_rows).astype(np.float32)
    logit = weights["user"][user] + weights["item"][item] + age
    columns = {
        "user": user.astype(np.int64),
        "item": item.astype(np.int64),
        "clicks": [list(random.integers(0, 60, n)) for n in random.integers(0, 4, num_rows)],
        "country": [f"country {i}" for i in random.integers(0, 9, num_rows)],
        "age": age,
        "click": (random.random(num_rows) < 1 / (1 + np.exp(-logit))).astype(np.int64),
    }
    columns["clicks"] = pa.array(columns["clicks"], pa.list_(pa.int64()))
    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pa.table(columns), path, row_group_size=max(1, num_rows // 5))
    return path


def config_of(folder, **sections):
    """The values of a config of a DLRM on files in a folder, with sections changed key by key."""
    values = {
        "data": {
            "train": "train.parquet",
            "validation": "validation.parquet",
            "batch_size": 128,
            "shuffle_rows": 400,
        },
        "schema": SCHEMA,
        "model": {"name": "dlrm", "dim": 4, "bottom": [8], "top": [8]},
        "optimizer": {"name": "adam", "learning_rate": 0.03},
        "training": {"epochs": 2, "seed": 3},
        "checkpoints": {"folder": str(folder / "run")},
        "logging": {"every": 5, "tensorboard": False},
    }
    for name, changed in sections.items():
        values[name] = {**values.get(name, {}), **changed} if isinstance(changed, dict) else changed
    return values


def write_config(folder, values, name="config.json"):
    path = folder / name
    path.write_text(json.dumps(values))
    return path
