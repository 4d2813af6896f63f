"""python -m group_embedding.convert FORMAT PATH [--out PREFIX]: tables of other libraries.

Lists the tables of a checkpoint or a folder of TFRA, DeepRec, SOK, HugeCTR or TorchRec, of a text
file of vectors, or of a checkpoint of this package. With --out it writes them to a checkpoint, from
which keyed tables can start; with --to-..., with keys or values of another type, or another dim.
"""

import argparse
import dataclasses
import sys


def main(arguments=None):
    options = _parser().parse_args(arguments)
    from group_embedding.compat import convert

    try:
        tables = convert.open_tables(options.format, options.path, **_format_options(options))
        tables = _chosen(tables, options.table, dict(options.rename))
        new_types = (options.to_key_dtype, options.to_value_dtype, options.to_dim)
        tables = [convert.change_types(table, *new_types) for table in tables]
        for table in tables:
            print(f"{table.name}: {table.num_rows:,} rows of dim {table.dim}, {table.dtype.name}")
        if options.out:
            convert.write_checkpoint(tables, options.out, _progress_lines())
            print(f"{options.out}: checkpoint with {len(tables)} tables")
        if options.vocabulary:
            _write_vocabulary(options.path, options.vocabulary)
    except (OSError, RuntimeError, ValueError) as error:
        raise SystemExit(f"group_embedding: {error}") from None
    return 0


def _parser():
    parser = argparse.ArgumentParser(
        prog="python -m group_embedding.convert",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "format", help="checkpoint (of this package), deeprec, hugectr, sok, text, tfra or torchrec"
    )
    parser.add_argument("path", help="the prefix of a checkpoint, a folder or a file")
    parser.add_argument("--out", metavar="PREFIX", help="of the checkpoint to write")
    parser.add_argument("--table", action="append", help="only this one; may be repeated")
    parser.add_argument(
        "--rename",
        action="append",
        type=_pair,
        default=[],
        metavar="OLD=NEW",
        help="the name of a table in the checkpoint; may be repeated",
    )
    parser.add_argument("--key-dtype", help="hugectr, tfra: of a folder's keys (default: int64)")
    parser.add_argument("--value-dtype", help="tfra: of a folder's values (default: float32)")
    parser.add_argument("--to-key-dtype", help="write keys as int32, int64, uint32 or uint64")
    parser.add_argument("--to-value-dtype", help="write values as float32, float16 or bfloat16")
    parser.add_argument(
        "--to-dim", type=int, help="write the first columns, or add columns of zeros"
    )
    parser.add_argument("--keys", help="text: integers (default), lines or hashes")
    parser.add_argument("--vocabulary", help="text: the file to write the words to, one a line")
    return parser


def _pair(text):
    old, equals, new = text.partition("=")
    if not (old and equals and new):
        raise argparse.ArgumentTypeError(f"expected OLD=NEW, got '{text}'")
    return old, new


def _format_options(options):
    """The options of the format that were given."""
    of_format = {
        "hugectr": ("key_dtype",),
        "tfra": ("key_dtype", "value_dtype"),
        "text": ("keys", "vocabulary"),
    }
    for name in sorted({name for names in of_format.values() for name in names}):
        owners = [format for format, names in of_format.items() if name in names]
        if getattr(options, name) is not None and options.format not in owners:
            argument = f"--{name.replace('_', '-')}"
            raise ValueError(f"{argument} is of {' and '.join(owners)}, not {options.format}")
    names = [name for name in of_format.get(options.format, ()) if name != "vocabulary"]
    given = {name: getattr(options, name) for name in names}
    return {name: value for name, value in given.items() if value is not None}


def _chosen(tables, names, new_names):
    found = [table.name for table in tables]
    for name in [*(names or []), *new_names]:
        if name not in found:
            raise ValueError(f"expected a table '{name}', got {', '.join(found)}")
    return [
        dataclasses.replace(table, name=new_names.get(table.name, table.name))
        for table in tables
        if not names or table.name in names
    ]


def _write_vocabulary(path, vocabulary):
    from group_embedding.compat.convert import word_vectors

    with open(vocabulary, "w", encoding="utf-8") as file:
        file.writelines(f"{word}\n" for word in word_vectors.words(path))


def _progress_lines():
    """A function that shows the rows of each table, as `write_checkpoint` tells them."""
    from group_embedding.files import ProgressLine

    lines, done_before = {}, {}

    def show(table, done, total):
        if table not in lines:
            lines[table] = ProgressLine(table, total, sys.stderr.isatty(), unit="rows")
        lines[table].add(done - done_before.get(table, 0))
        done_before[table] = done
        if done == total:
            lines[table].end()

    return show


if __name__ == "__main__":
    sys.exit(main())
