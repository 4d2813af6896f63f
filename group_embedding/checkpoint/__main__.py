"""python -m group_embedding checkpoint COMMAND PREFIX: checkpoints for people.

inspect     what the tables of a checkpoint hold, how often their keys were trained, and how long
            ago; --plot FILE.png draws it
verify      reads all their files to the end; exit status 1 if one is damaged
export      the rows of a table to a Parquet file
rename-ops  names the ops of a SavedModel GroupEmbedding>..., where it is older than these names

PREFIX is that of a checkpoint, such as runs/model.ckpt-100, or a folder: of checkpoints, the newest
of which is meant, or of a SavedModel. It may be on any file system that TensorFlow has.

The former spelling, python -m group_embedding.checkpoint, runs the same commands.
"""

import argparse
import sys


def main(arguments=None):
    parser = argparse.ArgumentParser(
        prog="python -m group_embedding checkpoint",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("inspect", "verify", "export"):
        command = commands.add_parser(name)
        command.add_argument("prefix")
        command.add_argument("--table", help="only this one")
        if name == "inspect":
            command.add_argument("--plot", help="picture to write, of counts and ages of keys")
    command.add_argument("--out", required=True, help="the Parquet file to write")
    rename = commands.add_parser("rename-ops")
    rename.add_argument("prefix", metavar="FOLDER")
    options = parser.parse_args(arguments)
    if options.command == "rename-ops":
        return _rename_ops(options.prefix)
    tables = _tables(options.prefix, options.table)
    if options.command == "export":
        return _export(tables, options.out)
    if options.command == "verify":
        return _verify(tables, quiet=True)
    return _verify(tables, quiet=False) or _show_keys(tables, options.plot)


def _tables(prefix, name):
    import tensorflow as tf

    from group_embedding.checkpoint import checkpoint_files as files

    found = files.find(prefix)
    if found is None:
        raise SystemExit(
            f"group_embedding: expected a checkpoint or a SavedModel in the folder '{prefix}', it "
            "has none"
        )
    prefix = found
    try:
        tables = files.tables(prefix)
    except (RuntimeError, tf.errors.OpError, ValueError) as error:
        raise SystemExit(f"group_embedding: checkpoint '{prefix}': {error}") from None
    found = [table for table in tables if name in (None, table["table"])]
    if not found:
        names = [table["table"] for table in tables]
        raise SystemExit(
            f"group_embedding: checkpoint '{prefix}': expected a table {name or 'found by key'}, "
            f"it has {names}"
        )
    return found


def _verify(tables, quiet):
    from group_embedding.checkpoint import checkpoint_files as files

    status = 0
    for table in tables:
        print(f"table '{table['table']}', step {table['step']}")
        for file in table["files"]:
            try:
                found = files.verify_file(file["path"], table["table"], file)
            except RuntimeError as error:
                print(f"  {error}")
                status = 1
                continue
            weak = "" if file["id"] else ", of format version 1, which no save is bound to"
            print(f"  {file['path']}: good, {found['bytes']:,} bytes, crc {found['crc']:08x}{weak}")
            if not quiet:
                _describe(found)
    return status


def _show_keys(tables, picture):
    from group_embedding.checkpoint import key_histograms

    found = {table["table"]: key_histograms.histograms_of(table) for table in tables}
    for name, histograms in found.items():
        print(f"table '{name}'")
        for histogram in histograms:
            print("\n".join(histogram.lines()))
    if picture:
        key_histograms.draw(found, picture)
    return 0


def _describe(found):
    kind = "changes" if found["changes_only"] else "all rows"
    slots = ", ".join(f"{s['name']} [{s['width']}] {s['dtype']}" for s in found["slots"])
    print(f"    {kind}, part {found['part'] + 1} of {found['num_parts']}")
    keys = f"{found['num_rows']:,} keys ({found['key_dtype']})"
    print(f"    {keys}, dim {found['dim']}, {found['dtype']}")
    print(f"    slots: {slots or 'none'}")
    if found["changes_only"]:
        print(f"    {found['num_erased']:,} keys erased")
    if found["num_counted"] or found["counter_bytes"]:
        print(
            f"    not admitted yet: {found['num_counted']:,} keys counted, "
            f"{found['counter_bytes']:,} bytes of a Bloom filter"
        )


def _export(tables, path):
    from group_embedding.checkpoint import export

    if len(tables) != 1:
        names = ", ".join(table["table"] for table in tables)
        raise SystemExit(f"group_embedding: expected --table, one of {names}")
    num_rows = export.export_parquet(tables[0], path)
    print(f"{path}: {num_rows:,} rows of table '{tables[0]['table']}'")
    return 0


def _rename_ops(folder):
    from group_embedding.checkpoint import old_op_names

    try:
        num_renamed = old_op_names.rename_ops(folder)
    except ValueError as error:
        raise SystemExit(f"group_embedding: {error}") from None
    print(f"{folder}: {num_renamed} ops renamed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
