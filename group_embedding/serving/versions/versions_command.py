"""`python -m group_embedding.serving inspect|verify|rollback TARGET`: versions for people."""

from __future__ import annotations

import argparse
import time

from group_embedding.serving.stores import records
from group_embedding.serving.stores.open_target import open_target
from group_embedding.serving.stores.records import DamagedVersion, Record
from group_embedding.serving.stores.targets import TargetError
from group_embedding.serving.versions.deltas import NotConsecutive, Reader


def add_inspect(parser: argparse.ArgumentParser) -> None:
    parser.description = "The versions of a target, their tables, rows and sizes."
    parser.add_argument("target")
    parser.set_defaults(run=lambda options: _verify(options.target, is_brief=False))


def add_verify(parser: argparse.ArgumentParser) -> None:
    parser.description = "Reads all files to their ends; exit status 1 if a version is damaged."
    parser.add_argument("target")
    parser.set_defaults(run=lambda options: _verify(options.target, is_brief=True))


def add_rollback(parser: argparse.ArgumentParser) -> None:
    parser.description = "Publishes a new version whose content is that of an older one."
    parser.add_argument("target")
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument("--to", type=int, metavar="VERSION", help="the version to go back to")
    chosen.add_argument("--by", type=int, metavar="N", help="so many versions back; default 1")
    parser.set_defaults(run=lambda options: _rollback(options.target, options.to, options.by))


def _verify(url, is_brief):
    reader = Reader(open_target(url))
    numbers = reader.versions()
    if not numbers:
        raise SystemExit(f"group_embedding: expected versions in the target '{url}', it has none")
    status = 0
    for number in numbers:
        try:
            record = reader.record(number)
            tables = reader.verify(record)
            reader.chain(number)
        except (DamagedVersion, NotConsecutive) as error:
            print(f"version {number}: {error}")
            status = 1
            continue
        print(f"version {number}: {_described(record)}")
        if not is_brief:
            _print_files(record, tables)
    return status


def _described(record):
    kind = records.KINDS[record.kind]
    if record.kind == records.ROLLBACK:
        kind = f"rollback to version {record.content}"
    if record.kind == records.DELTA:
        kind = f"delta of base {record.base}"
    step = "" if record.step < 0 else f", step {record.step}"
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(record.time / 1e6))
    size = sum(file.bytes for file in record.files)
    return f"{kind}{step}, {when} UTC, {len(record.files)} files, {size:,} bytes, good"


def _print_files(record, tables):
    for found in tables:
        part = f" part {found['part'] + 1} of {found['num_parts']}" * (found["num_parts"] > 1)
        print(
            f"  table '{found['table']}'{part}: {found['num_rows']:,} rows of dim {found['dim']}, "
            f"{found['dtype']}, {found['num_erased']:,} erased keys"
        )
    for file in record.files:
        if file.kind != records.MODEL_FILE:
            print(f"  {file.path}: {file.bytes:,} bytes, crc {file.crc:08x}")


def _rollback(url, to, by):
    target = open_target(url)
    reader = Reader(target)
    numbers = reader.versions()
    newest = numbers[-1] if numbers else 0
    if to is None:
        to = newest - (1 if by is None else by)
    if to not in numbers or to == newest:
        raise SystemExit(
            f"group_embedding: target '{url}': expected a version before the newest, one of "
            f"{numbers[:-1]}, got {to}"
        )
    try:
        chain = reader.chain(to)
        for record in chain:
            reader.verify(record)
        made = rollback_record(newest + 1, chain[-1])
        target.commit(made.version, records.encode(made))
    except (DamagedVersion, NotConsecutive, TargetError) as error:
        raise SystemExit(f"group_embedding: not rolled back: {error}") from None
    print(f"version {made.version} has the content of version {made.content}")
    return 0


def rollback_record(version: int, content: Record) -> Record:
    """The record of a version whose content is that of `content`, which is not a rollback."""
    return Record(
        kind=records.ROLLBACK,
        model=content.model,
        version=version,
        parent=-1,
        parent_base_id=0,
        base=content.base,
        base_id=content.base_id,
        content=content.version,
        step=content.step,
        time=time.time_ns() // 1000,
    )
