"""`python -m group_embedding.serving quantize`: a SavedModel whose rows take fewer bytes."""

from __future__ import annotations

import argparse
import os
import shutil

from group_embedding.serving.session.session import InferenceSession
from group_embedding.serving.stores import records
from group_embedding.serving.stores.targets import BASE_RECORD, FileTarget
from group_embedding.serving.versions.deltas import Reader
from group_embedding.serving.versions.rewrite_model import rewrite_base, rewrite_model

FORMATS = ("int8", "fp8", "bfloat16")


def add_quantize(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Writes a SavedModel whose rows are stored as InferenceSession(quantize=) stores them, for "
        "InferenceSession and ge-serve alone. The model is opened once, to see which variables "
        "lookups alone read: these are tables. All other variables stay as trained."
    )
    parser.add_argument("path", help="a SavedModel, or a publisher's target: its newest version")
    parser.add_argument("out", help="the folder to write, which does not exist")
    parser.add_argument("--to", choices=FORMATS, required=True, help="the format of rows")
    parser.set_defaults(run=lambda options: _run(options.path, options.out, options.to))


def _run(path, out, to):
    try:
        quantize(path, out, to)
    except (ValueError, RuntimeError, OSError) as error:
        raise SystemExit(f"group_embedding: not quantised: {error}") from None
    before, after = _bytes_below(_model_of(path)), _bytes_below(out)
    print(f"'{out}': {after:,} bytes, {after / before:.3f} of the {before:,} of '{path}'")
    return 0


def quantize(path: str | os.PathLike[str], out: str | os.PathLike[str], to: str) -> None:
    """Writes a SavedModel whose rows are quantised.

    Args:
        path: The folder of a SavedModel, or a publisher's target, of which the newest version is
            taken. Later deltas of the target can be applied to what is written.
        out: The folder to write, which does not exist.
        to: "int8", "fp8" or "bfloat16".

    Raises:
        ValueError: `path` is neither, `out` exists, or a version is damaged.
    """
    path, out = os.fspath(path), os.path.abspath(os.fspath(out))
    if to not in FORMATS:
        raise ValueError(f"to: expected one of {', '.join(FORMATS)}, got {to!r}")
    if os.path.exists(out):
        raise ValueError(f"'{out}': expected a folder that does not exist, got one that does")
    work = f"{out}.quantize-{os.getpid()}"
    os.makedirs(work)
    try:
        if os.path.isdir(os.path.join(path, "versions")):
            _quantize_newest(path, work, to)
        else:
            _quantize_model(path, work, to)
        os.rename(work, out)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _quantize_model(path, folder, to):
    if not os.path.exists(os.path.join(path, "saved_model.pb")):
        raise ValueError(f"'{path}': expected the folder of a SavedModel, or a publisher's target")
    rewrite_model(path, folder, {}, [], to, _tables_by_row_number(path))
    record = os.path.join(path, BASE_RECORD)
    if os.path.exists(record):
        os.makedirs(os.path.dirname(os.path.join(folder, BASE_RECORD)), exist_ok=True)
        shutil.copyfile(record, os.path.join(folder, BASE_RECORD))


def _quantize_newest(path, folder, to):
    target = FileTarget(path)
    reader = Reader(target)
    newest = max(reader.versions(), default=0)
    if newest == 0:
        raise ValueError(f"target '{path}': expected versions, it has none")
    chain = reader.chain(newest)
    for record in chain:
        reader.verify(record)
    tables = _tables_by_row_number(target.base_path(chain[0].version))
    rewrite_base(target, chain, {}, [], folder, to, tables)
    # A base of the newest version's number, which the deltas after that version follow.
    last = chain[-1]
    base = last._replace(kind=records.BASE, parent=-1, parent_base_id=0, files=())
    os.makedirs(os.path.dirname(os.path.join(folder, BASE_RECORD)), exist_ok=True)
    with open(os.path.join(folder, BASE_RECORD), "wb") as file:
        file.write(records.encode(base))


def _tables_by_row_number(path):
    """The keys of variables that a server keeps as tables."""
    with InferenceSession(path) as session:
        return [table["variable"] for table in session.info()["tables"] if table["variable"]]


def _model_of(path):
    """The folder whose bytes are compared: a SavedModel, of a target the newest base."""
    if not os.path.isdir(os.path.join(path, "versions")):
        return path
    reader = Reader(FileTarget(path))
    return FileTarget(path).base_path(reader.chain(max(reader.versions()))[0].version)


def _bytes_below(folder):
    return sum(
        os.path.getsize(os.path.join(path, name))
        for path, _, names in os.walk(folder)
        for name in names
    )
