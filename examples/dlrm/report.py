"""The closing table, and the same figures as JSON."""

import json
from pathlib import Path

COLUMNS = (
    # heading, key, format
    ("", "model", "{}"),
    ("AUC", "auc", "{:.4f}"),
    ("log loss", "log_loss", "{:.4f}"),
    ("examples/s", "examples_per_second", "{:,.0f}"),
    ("ops in the graph", "ops_in_graph", "{:,}"),
)


def table(results):
    """The results as lines of text, one row each, in the columns that all of them have."""
    columns = [c for c in COLUMNS if all(c[1] in result for result in results)]
    rows = [[heading for heading, _, _ in columns]]
    for result in results:
        rows.append([form.format(result[key]) for _, key, form in columns])
        if result.get("num_ranks", 1) > 1:
            rows[-1][0] += f", {result['num_ranks']} ranks"
    widths = [max(map(len, column)) for column in zip(*rows)]
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths)) for row in rows
    )


def answers(result):
    """The SavedModel's outputs for a few test examples, as lines of text."""
    lines = [f"{result['saved_model']}, loaded back, answers"]
    lines += [f"  label {label:.0f}  probability {p:.3f}" for label, p in result["answers"]]
    return "\n".join(lines)


def write(results, folder):
    """Writes `results.json`; returns its path."""
    path = Path(folder) / "results.json"
    path.write_text(json.dumps(results, indent=2) + "\n")
    return path
