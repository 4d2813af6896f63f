"""python -m group_embedding.data describe FILES: what columns of files of samples hold.

Prints for each column how many values are missing and different, the lengths of lists, the share of
all occurrences that the most frequent 1% of the values have, and a table that would suit it.
"""

import argparse
import sys


def main(arguments=None):
    parser = argparse.ArgumentParser(
        prog="python -m group_embedding.data",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("describe")
    command.add_argument("files", nargs="+", help="files, folders or globs")
    command.add_argument("--format", help="parquet, csv, tsv, criteo, tfrecord, hugectr, torchrec")
    command.add_argument("--label", action="append", help="the name of a label; may be repeated")
    command.add_argument("--schema", help="the YAML or JSON file to write the schema to")
    command.add_argument("--picture", help="the picture to draw, by matplotlib")
    options = parser.parse_args(arguments)

    from group_embedding.recommender.data.describe import describe

    try:
        described = describe(
            options.files, labels=options.label, format=options.format, progress=_progress
        )
    except (ImportError, OSError, ValueError) as error:
        raise SystemExit(f"group_embedding: {error}") from None
    print(file=sys.stderr)
    print(as_text(described))
    if options.schema:
        described.schema().save(options.schema)
        print(f"{options.schema}: the schema")
    if options.picture:
        draw(described, options.picture)
        print(f"{options.picture}: how often the values occur")
    return 0


def _progress(num_rows, share):
    print(f"\r{num_rows:,} rows, {share:.0%}", end="", file=sys.stderr, flush=True)


_TITLES = ("column", "dtype", "missing", "different", "top 1%", "range or lengths", "suggested")


def as_text(described):
    """A table of a `Description`."""
    rows = [_TITLES, *(_row_of(one, described.num_rows) for one in described.columns)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(_TITLES))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)) for row in rows]
    bad = f", {described.num_bad:,} bad rows left out" if described.num_bad else ""
    return "\n".join([f"{described.num_rows:,} rows{bad}", *(line.rstrip() for line in lines)])


def _row_of(one, num_rows):
    distinct = "" if one.distinct is None else f"{'' if one.exact else '~'}{one.distinct:,}"
    spread = "" if one.least is None else f"{one.least:.6g} to {one.most:.6g}"
    if one.lengths:
        spread = f"{one.lengths[0]} to {one.lengths[2]}, mean {one.lengths[1]:.1f}"
    return (
        one.column.name,
        f"[{one.column.dtype}]" if one.column.is_list else one.column.dtype,
        f"{one.missing / max(num_rows, 1):.1%}" if one.missing else "",
        distinct,
        "" if one.top_share is None else f"{one.top_share:.0%}",
        spread,
        _suggested(one.feature),
    )


def _suggested(feature):
    if feature.kind != "categorical":
        return feature.kind
    size = f"num_ids {feature.num_ids:,}" if feature.num_ids else f"hash_size {feature.hash_size:,}"
    return f"{size}, dim {feature.dim}"


def draw(described, path):
    """Draws, for each categorical column, the share of occurrences of its most frequent values."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError:
        raise SystemExit(
            "group_embedding: --picture needs matplotlib: pip install matplotlib"
        ) from None
    figure, axes = pyplot.subplots(figsize=(8, 5), layout="constrained")
    for one in described.columns:
        if one.feature.kind == "categorical" and one.counts is not None and len(one.counts):
            share = one.counts.cumsum() / one.counts.sum()
            keys = [(i + 1) / len(share) for i in range(len(share))]
            axes.plot(keys, share, label=f"{one.column.name} ({one.distinct:,})")
    axes.set(xlabel="share of the different values, most frequent first", xscale="log")
    axes.set(ylabel="share of all occurrences", ylim=(0, 1.02))
    if axes.lines:
        axes.legend(fontsize=7, ncols=2)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


if __name__ == "__main__":
    sys.exit(main())
