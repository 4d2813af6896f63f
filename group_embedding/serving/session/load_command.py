"""`python -m group_embedding.serving load`: rows below memory, before a server starts."""

from __future__ import annotations

import argparse
import time

import tensorflow as tf

from group_embedding.serving.session.session import InferenceSession


def add_load(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Writes the rows of a SavedModel's keyed tables to the tiers below memory. A server that "
        "opens the model with the same --tiers and --quantize then reads no table files. Rows that "
        "are there are not written again."
    )
    parser.add_argument("path", help="the folder of a SavedModel")
    parser.add_argument(
        "--tiers",
        required=True,
        help="memory=SIZE,rocksdb=FOLDER, or redis=HOST:PORT[,HOST:PORT...] for the folder",
    )
    parser.add_argument("--quantize", choices=("bfloat16", "int8", "fp8"))
    parser.set_defaults(run=lambda options: _load(options.path, options.tiers, options.quantize))


def _load(path, tiers, quantize):
    start = time.monotonic()
    try:
        with InferenceSession(path, tiers=tiers, quantize=quantize) as session:
            tables = [table for table in session.info()["tables"] if "cached" in table]
    except (OSError, ValueError, tf.errors.OpError) as error:
        raise SystemExit(f"group_embedding: {getattr(error, 'message', error)}") from None
    rows = sum(table["rows"] for table in tables)
    took = time.monotonic() - start
    print(f"{path}: {rows:,} rows of {len(tables)} tables are below memory ({took:.1f} s)")
    return 0
