"""The picture of bench_serving.py: how long answers take, and p99 over time across versions."""

COLORS = ("#2a6fbb", "#d9822b", "#999999", "#5a9e6f", "#8e5ea2")


def plot(path, about, rows):
    """Draws a panel for each part that has histograms, and one for updates."""
    import matplotlib.pyplot as plt

    panels = [
        (part, [row for row in rows if row["part"] == part and "histogram" in row])
        for part in ("single", "joined", "many", "open")
    ]
    panels = [(part, found) for part, found in panels if found]
    updates = [row for row in rows if "over time" in row]
    count = len(panels) + bool(updates)
    if count == 0:
        panels, count = [("no part with a picture", [])], 1
    columns = min(count, 2)
    lines = -(-count // columns)
    figure, axes = plt.subplots(lines, columns, figsize=(5 * columns, 3.2 * lines), squeeze=False)
    axes = axes.ravel()
    for axis in axes[count:]:
        axis.set_axis_off()
    for axis, (part, found) in zip(axes, panels):
        _histograms(axis, part, found)
    if updates:
        _across_versions(axes[count - 1], updates)
    figure.suptitle(f"ge-serve, {about['cpu']}, {about['cores']} cores shared with the client")
    figure.tight_layout()
    figure.savefig(path, dpi=100)


def _histograms(axis, part, rows):
    titles = {
        "single": "a sample a request, one in flight",
        "joined": "a sample a request, 32 in flight",
        "many": "300 features, 100 samples",
        "open": "26 keyed tables, half of saturation",
    }
    if (drawn := {"single": 1, "joined": 32}.get(part)) is not None:
        rows = [row for row in rows if row["in flight"] == drawn]
    for row, color in zip(rows, COLORS):
        edges, counts = zip(*row["histogram"])
        total = sum(counts)
        share = [100 * count / total for count in counts]
        name = row.get("model") or row["arrivals"]
        axis.step(edges, share, where="post", color=color, label=name)
        axis.axvline(row["p99 ms"], color=color, linestyle=":", linewidth=1)
    axis.set_xscale("log")
    _plain_numbers(axis.xaxis)
    axis.set_title(titles.get(part, part), fontsize=9)
    axis.set_xlabel("ms; dotted: p99")
    axis.set_ylabel("% of answers")
    if rows:
        axis.legend(fontsize=7)


def _plain_numbers(axis):
    """1, 2, 5, 10 in the place of powers of ten."""
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axis.set_minor_formatter(NullFormatter())


def _across_versions(axis, rows):
    for row, color in zip(rows, COLORS):
        times, p99 = zip(*row["over time"])
        axis.plot(times, p99, color=color, marker=".", label=row["model"])
        for commit in row["commits"]:
            axis.axvline(commit, color=color, linestyle=":", linewidth=0.8)
    axis.set_yscale("log")
    _plain_numbers(axis.yaxis)
    axis.set_title("p99 across versions (dotted)", fontsize=9)
    axis.set_xlabel("seconds")
    axis.set_ylabel("p99 of 0.25 s, ms")
    axis.legend(fontsize=7)
