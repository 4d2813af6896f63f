"""The pictures of bench_dlrm.py, and what is computed of its figures and its peer's."""

import json
from pathlib import Path

STEPS = ("step_ms", "compiled_step_ms", "several_step_ms")


def add_peer(path, about, rows):
    """Adds the peer's best step to rows of its model, batch, precision and ranks, and says what it
    ran on."""
    peer = json.loads(Path(path).read_text())
    about["peer"] = peer["about"]
    best = {_case(row): row["best_ms"] for row in peer["rows"]}
    for row in rows:
        row["peer_ms"] = best.get(_case(row))


def add_scaling(rows):
    """Adds to rows of several ranks, for each kind of step, the time of one rank's by theirs."""
    of_one_rank = {_case(row): row for row in rows if row["ranks"] == 1}
    for row in rows:
        one = of_one_rank.get(_case(row | {"ranks": 1}))
        if one is None or row is one:
            continue
        for name in STEPS:
            if name in row:
                row[name.replace("step_ms", "scaling")] = round(one[name] / row[name], 3)


def _case(row):
    model, ranks = row.get("model", "dlrm"), row.get("ranks", 1)
    return model, row["batch"], row["precision"], ranks


def plot(path, about, rows):
    (_plot_compiled if "compiled_step_ms" in rows[0] else _plot_shares)(path, about, rows)


def _plot_compiled(path, about, rows):
    import matplotlib.pyplot as plt

    bars = {
        "step_ms": ("op by op", "lightgray"),
        "compiled_step_ms": ("ge.training, packed ids", "salmon"),
        "several_step_ms": ("the same, several steps a call", "tab:red"),
        "peer_ms": ("PyTorch and FBGEMM, its best", "tab:blue"),
    }
    figure, axis = plt.subplots(figsize=(9, 1.1 * len(rows) + 1.8))
    for i, (name, (label, color)) in enumerate(bars.items()):
        places = [at + 0.21 * (i - 1.5) for at in range(len(rows))]
        widths = [row.get(name) or 0 for row in rows]
        if not any(widths):
            continue
        rates = [
            row["batch"] * row.get("ranks", 1) / ms / 1e3 if ms else 0
            for row, ms in zip(rows, widths)
        ]
        axis.barh(places, rates, 0.19, label=label, color=color)
        for place, rate, ms, row in zip(places, rates, widths, rows):
            scaling = row.get(name.replace("step_ms", "scaling")) if name in STEPS else None
            text = f" {ms:.3g} ms" if ms else ""
            text += f", {scaling:.0%} of one's speed" if scaling else ""
            axis.text(rate, place, text, va="center", fontsize=8)
    labels = [_label(row) for row in rows]
    axis.set_yticks(range(len(rows)), labels, fontsize=8)
    axis.set_ylim(len(rows) - 0.4, -0.6)
    axis.margins(x=0.12)
    axis.set_xlabel("million samples a second")
    axis.legend(fontsize=8, loc="upper right")
    where = about.get("device") or about["cpu"]
    models = " and a ".join(dict.fromkeys(row.get("model", "dlrm").upper() for row in rows))
    axis.set_title(f"A training step of a {models} on {where}, {about['date']}", fontsize=10)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _label(row):
    ranks = row.get("ranks", 1)
    return f"{row['batch']:,}{f' x {ranks} ranks' if ranks > 1 else ''}, {row['precision']}"


def _plot_shares(path, about, rows):
    import matplotlib.pyplot as plt

    parts = {
        "embedding_share": ("this library's kernels", "tab:red"),
        "dense_share": ("dense layers", "tab:blue"),
        "outside_share": ("no kernel", "lightgray"),
    }
    figure, axis = plt.subplots(figsize=(9, 0.5 * len(rows) + 1.8))
    for at, row in enumerate(rows):
        begin = 0.0
        for part, (label, color) in parts.items() if parts.keys() <= row.keys() else ():
            width = row[part] * row["step_ms"]
            axis.barh(at, width, left=begin, color=color, label="" if at else label)
            begin += width
        axis.barh(at, row["step_ms"] - begin, left=begin, color="tab:blue")
        text = f" {row['step_ms']:.3g} ms, {row['samples_per_s'] / 1e6:.3g} M samples/s"
        axis.text(row["step_ms"], at, text, va="center", fontsize=8)
    axis.set_yticks(range(len(rows)), [_label(row) for row in rows], fontsize=8)
    axis.set_ylim(len(rows) - 0.4, -0.6)
    axis.set_xlim(0, 1.35 * max(row["step_ms"] for row in rows))
    axis.set_xlabel("ms a step")
    if axis.get_legend_handles_labels()[0]:
        axis.legend(fontsize=8, loc="lower right")
    place = about.get("device") or about["cpu"]
    model, ranks = rows[0].get("model", "dlrm").upper(), rows[0].get("ranks", 1)
    axis.set_title(f"A {model} on {ranks} x {place}, {about['date']}", fontsize=10)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)
