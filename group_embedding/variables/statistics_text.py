"""Statistics of keyed tables as TensorBoard's scalars, Prometheus's text, and a printed table."""

from __future__ import annotations

# {metric: (type, help)}
_METRICS = {
    "table_keys": ("gauge", "Keys that have a row."),
    "table_max_keys": ("gauge", "Keys that the budget allows; 0: there is none."),
    "table_bytes": ("gauge", "Bytes of rows, slots, metadata and index, by tier."),
    "table_load_factor": ("gauge", "How full the index is."),
    "table_looked_up_total": ("counter", "Ids of batches that were looked up."),
    "table_found_total": ("counter", "Ids that had a row when their batch came, by tier."),
    "table_admitted_total": ("counter", "Keys that got a row as they were trained."),
    "table_evicted_total": ("counter", "Keys that went, by policy."),
    "table_without_place_total": ("counter", "How often a new key found no place."),
    "table_missed_total": ("counter", "Evicted keys that were handed out to nobody."),
    "table_unique_share": ("gauge", "Different keys of a batch for each id, by samples."),
    "table_hottest_share": ("gauge", "Largest share of a key of a batch's ids, by samples."),
    "table_oldest_steps": ("gauge", "Steps for which a key was not trained, at most; -1: unknown."),
    "table_wait_seconds_total": ("counter", "Seconds that lookups waited for rows below memory."),
    "sent_bytes_total": ("counter", "Bytes sent to a rank through host memory."),
    "gpu_sent_bytes_total": ("counter", "Bytes of lookups sent to a rank by NCCL or peer buffers."),
    "exchange_wait_seconds_total": ("counter", "Seconds that calls waited for other ranks."),
}


def as_prometheus(statistics) -> str:
    """The text that a scraper of Prometheus reads."""
    samples: dict[str, list[str]] = {metric: [] for metric in _METRICS}

    def add(metric, value, **labels):
        labels = {**labels, "rank": str(statistics.rank)}
        text = ",".join(f'{label}="{_escaped(of)}"' for label, of in labels.items())
        samples[metric].append(f"group_embedding_{metric}{{{text}}} {value!r}")

    for table in statistics.tables.values():
        for metric, value, labels in _samples_of(table):
            add(metric, value, table=table.name, **labels)
    if statistics.exchange is not None:
        for to, (host, size, of_gpu) in enumerate(_sent_to_ranks(statistics.exchange)):
            add("sent_bytes_total", size, to_rank=str(to), to_host=host)
            add("gpu_sent_bytes_total", of_gpu, to_rank=str(to), to_host=host)
        add("exchange_wait_seconds_total", statistics.exchange.wait_seconds)
    lines = []
    for metric, (kind, what) in _METRICS.items():
        if samples[metric]:
            name = f"group_embedding_{metric}"
            lines += [f"# HELP {name} {what}", f"# TYPE {name} {kind}", *samples[metric]]
    return "\n".join([*lines, ""])


def as_scalars(statistics, before=None) -> dict[str, float]:
    """{tag: number}: sizes as they are, and hit rates since `before`."""
    scalars: dict[str, float] = {}
    for name, table in statistics.tables.items():
        former = None if before is None else before.tables.get(name)
        scalars |= {f"{name}/{tag}": value for tag, value in _scalars_of(table, former).items()}
    if statistics.exchange is not None:
        scalars["exchange/sent_bytes"] = sum(statistics.exchange.sent_bytes)
        scalars["exchange/gpu_sent_bytes"] = sum(statistics.exchange.gpu_sent_bytes)
        for to, (host, *sizes) in enumerate(_sent_to_ranks(statistics.exchange)):
            scalars[f"exchange/sent_bytes/{host}/rank{to}"] = sum(sizes)
        scalars["exchange/wait_seconds"] = statistics.exchange.wait_seconds
    return scalars


def as_table(statistics) -> str:
    """Lines of aligned columns: one for each table, and one for each rank that bytes went to."""
    lines = [_HEADER] + [_cells_of(table) for table in statistics.tables.values()]
    text = aligned(lines)
    if statistics.exchange is not None:
        lines = [["to rank", "host", "sent by host", "by GPU"]]
        for to, (host, *sizes) in enumerate(_sent_to_ranks(statistics.exchange)):
            lines.append([str(to), host, *map(bytes_as_text, sizes)])
        waited = f"calls waited {statistics.exchange.wait_seconds:.3f} s for other ranks"
        text += f"\n\nrank {statistics.rank}\n{aligned(lines)}\n{waited}"
    return text


_HEADER = [
    "table", "keys", "of", "bytes", "found", "unique", "hottest", "admitted", "evicted",
    "no place", "missed", "oldest", "waited",
]  # fmt: skip


def _sent_to_ranks(exchange):
    """(host, bytes sent through host memory, bytes sent by the GPU) for each rank"""
    return zip(exchange.hosts, exchange.sent_bytes, exchange.gpu_sent_bytes)


def _samples_of(table):
    """(metric, value, labels beside the table's name)"""
    yield "table_keys", table.keys, {}
    yield "table_max_keys", table.max_keys, {}
    for tier, size in table.bytes_by_tier.items():
        yield "table_bytes", size, {"tier": tier}
    yield "table_load_factor", table.load_factor, {}
    for policy, count in table.evicted.items():
        yield "table_evicted_total", count, {"policy": policy}
    yield "table_without_place_total", table.without_place, {}
    yield "table_missed_total", table.missed, {}
    yield "table_looked_up_total", table.looked_up, {}
    for tier, count in table.found.items():
        yield "table_found_total", count, {"tier": tier}
    yield "table_admitted_total", table.admitted, {}
    if table.unique_share is not None:
        yield "table_unique_share", table.unique_share, {}
        yield "table_hottest_share", table.hottest_share, {}
    yield "table_oldest_steps", table.oldest_steps, {}
    yield "table_wait_seconds_total", table.wait_seconds, {}


def _scalars_of(table, before):
    scalars = {
        "keys": table.keys,
        "memory_bytes": table.memory_bytes,
        "load_factor": table.load_factor,
        "looked_up": table.looked_up,
    }
    if len(table.tiers) > 1:
        scalars |= {f"bytes/{tier}": size for tier, size in table.bytes_by_tier.items()}
    if "disk" in table.tiers:
        scalars["disk_bytes"] = table.disk_bytes
    if table.max_keys > 0:
        scalars |= {"max_keys": table.max_keys, "without_place": table.without_place}
        scalars["missed"] = table.missed
    scalars |= {f"evicted/{policy}": count for policy, count in table.evicted.items()}
    scalars |= {f"hit_rate/{tier}": rate for tier, rate in table.hit_rates(before).items()}
    scalars["admitted"] = table.admitted
    if table.unique_share is not None:
        scalars["unique_share"] = table.unique_share
        scalars["hottest_share"] = table.hottest_share
    if table.oldest_steps >= 0:
        scalars["oldest_steps"] = table.oldest_steps
    if len(table.tiers) > 1:
        scalars["wait_seconds"] = table.wait_seconds
    return scalars


def _cells_of(table):
    cells = [
        table.name,
        f"{table.keys:,}",
        f"{table.max_keys:,}" if table.max_keys else "",
        " ".join(f"{tier} {bytes_as_text(size)}" for tier, size in table.bytes_by_tier.items()),
    ]
    evicted = " ".join(f"{policy} {count:,}" for policy, count in table.evicted.items())
    shares = (table.unique_share, table.hottest_share)
    return [
        *cells,
        " ".join(f"{tier} {rate:.1%}" for tier, rate in table.hit_rates().items()),
        *("" if share is None else f"{share:.1%}" for share in shares),
        f"{table.admitted:,}",
        evicted,
        f"{table.without_place:,}",
        f"{table.missed:,}",
        f"{table.oldest_steps:,} steps" if table.oldest_steps >= 0 else "",
        f"{table.wait_seconds:.3f} s",
    ]


def aligned(lines: list[list[str]]) -> str:
    """Lines of cells as text, each column as wide as its widest cell."""
    widths = [max(map(len, column)) for column in zip(*lines)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in lines
    )


def bytes_as_text(size: float) -> str:
    """Bytes with a unit, such as "1.5 GB"."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if size >= scale:
            return f"{size / scale:,.1f} {unit}"
    return f"{size:.0f} B"


def _escaped(text):
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
