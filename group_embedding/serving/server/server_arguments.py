"""The arguments of a server, taken apart: which models, and where their paths and sources lie."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from group_embedding.files import DataSourceParams

DATA_SOURCE = "--data-source"


def pairs_of(arguments: Sequence[str]) -> list[tuple[str, str]]:
    """[(name, value)] of the arguments, with `--name=value` taken apart; "": there is none."""
    pairs, at = [], 0
    while at < len(arguments):
        name, equals, value = arguments[at].partition("=")
        name = name.replace("_", "-")
        at += 1
        if not equals:
            value = arguments[at] if at < len(arguments) and name not in ("-h", "--help") else ""
            at += 1
        pairs.append((name, value))
    return pairs


def arguments_of(pairs: Iterable[tuple[str, str]]) -> list[str]:
    """The arguments of such pairs."""
    return [text for name, value in pairs for text in ((name, value) if value else (name,))]


def with_urls(arguments: Sequence[str]) -> list[str]:
    """Gives models' paths and sources the URLs of `--data-source`, which is taken out.

    Args:
        arguments: of a server, of which one may be `--data-source KIND[,SERVER[,PORT]]`: the
            arguments of a DataSourceParams.

    Raises:
        ValueError: the data source is none, or a path cannot be its.
    """
    pairs = pairs_of(arguments)
    given = [value for name, value in pairs if name == DATA_SOURCE]
    if not given:
        return list(arguments)
    if len(given) > 1:
        raise ValueError(f"{DATA_SOURCE}: expected it once, got {len(given)} of them")
    if any(name == "--model-config-file" for name, _ in pairs):
        raise ValueError(
            f"{DATA_SOURCE}: expected models by --model, got --model-config-file, whose paths are "
            "of this machine"
        )
    source = _source_of(given[0])
    changed = []
    for name, value in pairs:
        if name == "--model":
            model, _, path = value.partition("=")
            value = f"{model}={source.url(path)}"
        elif name == "--source":
            value = source.url(value)
        if name != DATA_SOURCE:
            changed.append((name, value))
    return arguments_of(changed)


def text_of(source: DataSourceParams) -> str:
    """The value of `--data-source` that means this one."""
    return f"{source.source.name},{source.server},{source.port}"


def _source_of(text):
    kind, _, where = text.partition(",")
    server, comma, port = where.rpartition(",")
    if not comma:
        return DataSourceParams(kind, where)
    if not port.isdigit():
        raise ValueError(
            f"{DATA_SOURCE}: expected KIND[,SERVER[,PORT]], as HDFS,namenode,9000, got '{text}'"
        )
    return DataSourceParams(kind, server, int(port))
