"""python -m group_embedding checkpoint COMMAND PREFIX: checkpoints for people.

inspect     what the tables of a checkpoint hold, how often their keys were trained, and how many
            steps ago; --plot FILE.png draws it; exit status 1 if a file is damaged
verify      reads all their files to the end; exit status 1 if one is damaged
export      the rows of a table to a Parquet file
rename-ops  names the ops of a SavedModel GroupEmbedding>..., where it is older than these names

PREFIX is that of a checkpoint, such as runs/model.ckpt-100, also with .index behind it, or a
folder: of checkpoints, the newest of which is meant, or of a SavedModel. It may be on any file
system that TensorFlow has.

Where several tables have one name, all commands call the second NAME#2 and the third NAME#3, in
the order of their entries in the checkpoint.

The former spelling, python -m group_embedding.checkpoint, runs the same commands.
"""

import argparse
import os
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
        command.add_argument("--table", help="only this one, as inspect names it")
        if name == "inspect":
            command.add_argument("--plot", help="picture to write, of counts and ages of keys")
    command.add_argument("--out", required=True, help="the Parquet file to write")
    rename = commands.add_parser("rename-ops")
    rename.add_argument("prefix", metavar="FOLDER")
    options = parser.parse_args(arguments)

    import tensorflow as tf  # takes seconds, which --help does not need

    try:
        return _COMMANDS[options.command](options)
    # A disk that is full, a folder that may not be written, a URL that TensorFlow does not know.
    except (OSError, tf.errors.OpError) as error:
        raise SystemExit(f"group_embedding: {error}") from None


def _inspect(options):
    from group_embedding.checkpoint import key_histograms

    if options.plot:
        _check_folder("--plot", options.plot)
        key_histograms.check_picture(options.plot)
    tables = _tables(options)
    whole = _whole(tables, quiet=False)
    counted = {table["name"]: histograms for table in whole if (histograms := _show_keys(table))}
    left_out = ", ".join(f"'{table['name']}'" for table in tables if table["name"] not in counted)
    if left_out:
        print(f"not counted, for the reasons above: {left_out}")
    if options.plot and counted:
        key_histograms.draw(counted, options.plot)
    elif options.plot:
        print(f"{options.plot}: not drawn, as no table was counted")
    return int(len(whole) < len(tables))


def _verify(options):
    tables = _tables(options)
    return int(len(_whole(tables, quiet=True)) < len(tables))


def _export(options):
    from group_embedding.checkpoint import export

    if "://" not in options.out:
        _check_folder("--out", options.out)
    tables = _tables(options)
    if len(tables) != 1:
        names = ", ".join(table["name"] for table in tables)
        raise SystemExit(f"group_embedding: expected --table, one of {names}")
    (table,) = tables
    try:
        num_rows = export.export_parquet(table, options.out)
    except RuntimeError as error:
        raise SystemExit(f"group_embedding: table '{table['name']}': {error}") from None
    print(f"{options.out}: {num_rows:,} rows of table '{table['name']}'")
    return 0


def _rename_ops(options):
    from group_embedding.checkpoint import old_op_names

    try:
        num_renamed = old_op_names.rename_ops(options.prefix)
    except ValueError as error:
        raise SystemExit(f"group_embedding: {error}") from None
    print(f"{options.prefix}: {num_renamed} ops renamed")
    return 0


_COMMANDS = {
    "inspect": _inspect,
    "verify": _verify,
    "export": _export,
    "rename-ops": _rename_ops,
}


def _check_folder(option, path):
    """Refuses a local file that cannot be made, before there is work for it."""
    folder = os.path.dirname(path) or "."
    if not os.path.isdir(folder):
        raise SystemExit(
            f"group_embedding: {option} {path}: expected a file in a folder of this machine, there "
            f"is no folder '{folder}'; make it first"
        )
    if os.path.isdir(path):
        raise SystemExit(f"group_embedding: {option} {path}: expected a file, got a folder")


def _tables(options):
    """The tables that are meant, of `files.tables`."""
    import tensorflow as tf

    from group_embedding.checkpoint import checkpoint_files as files

    prefix = files.find(options.prefix)
    if prefix is None:
        raise SystemExit(
            "group_embedding: expected a checkpoint or a SavedModel in the folder "
            f"'{options.prefix}', it has none"
        )
    try:
        tables = files.tables(prefix)
    except (RuntimeError, tf.errors.OpError, ValueError) as error:
        reason = error if tf.io.gfile.exists(f"{prefix}.index") else _no_checkpoint(prefix)
        raise SystemExit(f"group_embedding: checkpoint '{prefix}': {reason}") from None
    if not tables:
        raise SystemExit(
            f"group_embedding: checkpoint '{prefix}': expected tables whose rows are found by "
            "key, it has none"
        )
    found = [table for table in tables if options.table in (None, table["name"])]
    if not found:
        names = [table["name"] for table in tables]
        raise SystemExit(
            f"group_embedding: checkpoint '{prefix}': expected a table {options.table}, it has "
            f"{names}"
        )
    return found


def _no_checkpoint(prefix):
    """Says what to give in place of a prefix that has no index."""
    reason = (
        "expected the prefix of a checkpoint, or a folder of checkpoints or of a SavedModel; there "
        f"is no file '{prefix}.index'"
    )
    if prefix.endswith((".keras", ".h5")):
        reason += (
            ". A file of Keras is not a checkpoint: load the model, save it by "
            "tf.train.Checkpoint(model=model).save(PREFIX), and give what that returns"
        )
    return reason


def _whole(tables, quiet):
    """Reads all files, and returns the tables of which each file is good."""
    whole = []
    for table in tables:
        print(f"table '{table['name']}', step {table['step']}, entry {table['entry']}")
        good = [_verify_file(table, file, quiet) for file in table["files"]]
        if all(good):
            whole.append(table)
    return whole


def _verify_file(table, file, quiet):
    from group_embedding.checkpoint import checkpoint_files as files

    try:
        found = files.verify_file(file["path"], table["table"], file)
    except RuntimeError as error:
        print(f"  {error}")
        return False
    weak = "" if file["id"] else ", of format version 1, which no save is bound to"
    print(f"  {file['path']}: good, {found['bytes']:,} bytes, crc {found['crc']:08x}{weak}")
    if not quiet:
        _describe(found)
    return True


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


def _show_keys(table):
    """Prints and returns the histograms of a table; None: its rows only serve."""
    from group_embedding.checkpoint import key_histograms

    print(f"table '{table['name']}'")
    try:
        histograms = key_histograms.histograms_of(table)
    except RuntimeError as error:
        print(f"  {error}")
        return None
    for histogram in histograms:
        print("\n".join(histogram.lines()))
    return histograms


if __name__ == "__main__":
    sys.exit(main())
