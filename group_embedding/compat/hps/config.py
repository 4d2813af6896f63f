"""HPS's configuration file as what it is here: models, and the arguments of the server."""

from __future__ import annotations

import json
import os
import re
from typing import Any, NamedTuple

from group_embedding.compat.hps import keys as known
from group_embedding.compat.hps.databases import Databases
from group_embedding.compat.hugectr.fields import Fields

_NAME = re.compile(r"[a-zA-Z0-9_\-]{1,120}")  # of models and tables, as HPS has it
_FILTERS = ["^hps_.+$"]  # that HPS has where the file has none
_KEY_BYTES = 8


class HpsModel(NamedTuple):
    """A model of the file.

    Attributes:
        name: of the model.
        sparse_files: folders with `key` and `emb_vector`, of each table.
        tables: the tables' names.
        dims: of the tables.
        defaults: what a key without a row reads, of each table.
        network_file: HugeCTR's network; "": there is none, the model is tables alone.
        dense_file: the weights of its dense layers; "": there is no network.
        has_updates: whether it takes updates from the update source.
    """

    name: str
    sparse_files: tuple[str, ...]
    tables: tuple[str, ...]
    dims: tuple[int, ...]
    defaults: tuple[float, ...]
    network_file: str
    dense_file: str
    has_updates: bool


class HpsConfig(NamedTuple):
    """A deployment of HPS in the words of ge-serve.

    Attributes:
        models: in the order of the file.
        key_bits: 64, or 32 for unsigned keys.
        brokers: of Kafka, "host:port,host:port"; "": no update source.
        below: "rocksdb=FOLDER" or "redis=ADDRESSES" of --tiers; "": all rows are in memory.
        insert: of --tiers: "at_once", or "background".
        memory_share: of the rows, above what is below.
        memory_rows: of each table at most, above what is below; None: no limit.
        quantize: of --quantize; "": as trained.
        notes: {key of the file with its path: (its value, what it is here)}; no passwords.
    """

    models: tuple[HpsModel, ...]
    key_bits: int
    brokers: str
    below: str
    insert: str
    memory_share: float
    memory_rows: int | None
    quantize: str
    notes: dict[str, tuple[Any, str]]


def read_hps(path: str | os.PathLike[str], only: list[str] | None = None) -> HpsConfig:
    """Reads the configuration file of HPS, often called ps.json.

    Args:
        path: of the file.
        only: the names of the models that are read; None: all.

    Raises:
        ValueError: it is no such file, a key is unknown or of a wrong type, or has a value that
            nothing here is; the message names the key.
        OSError: it cannot be read.
    """
    path = os.fspath(path)
    with open(path, encoding="utf-8") as file:
        try:
            values = json.load(file)
        except ValueError as error:
            raise ValueError(f"{path}: expected JSON, {error}") from None
    return _Reader(path).read(values, only)


class _Reader:
    def __init__(self, path):
        self._path = path
        self._notes: dict[str, tuple[Any, str]] = {}

    def read(self, values, only):
        file = self._object("", values, known.FILE)
        if "supportlonglong" not in file:
            raise ValueError(f"{self._path}: expected the key 'supportlonglong'")
        volatile = self._object("volatile_db", file.get("volatile_db", {}), known.VOLATILE)
        persistent = self._object("persistent_db", file.get("persistent_db", {}), known.PERSISTENT)
        source = self._object("update_source", file.get("update_source", {}), known.UPDATE_SOURCE)
        databases = Databases(self._path, volatile, persistent, source)
        brokers = databases.brokers()
        models = self._models(file.get("models", []), only, brokers, databases.filters)
        raw = [values for _, values in models]
        return HpsConfig(
            tuple(model for model, _ in models),
            64 if file["supportlonglong"] else 32,
            brokers,
            databases.below(),
            databases.insert(raw),
            *databases.memory(raw),
            self._quantize(raw),
            self._notes,
        )

    def _object(self, owner, values, keys):
        """The keys of an object, each of which is noted."""
        fields = Fields(f"{self._path}, {owner}" if owner else self._path, values)
        found = {}
        for key, (kind, here) in keys.items():
            value = fields.take(key, kind, None)
            if value is not None:
                found[key] = value
                if kind is not dict and key != "models":
                    shown = "..." if key == "password" and value else value
                    self._notes[f"{owner}.{key}" if owner else key] = (shown, here)
        fields.end()
        return found

    def _wrong(self, key, expected, got):
        return ValueError(f"{self._path}, {key}: expected {expected}, got {got!r}")

    def _models(self, listed, only, brokers, filters):
        """[(HpsModel, its object in the file)]."""
        if not listed:
            raise ValueError(f"{self._path}: expected models, got none")
        found, names = [], []
        for number, values in enumerate(listed):
            name = values.get("model") if isinstance(values, dict) else None
            names.append(name)
            if only and name not in only:
                continue
            owner = f"models[{number}]"
            model = self._object(owner, values, known.MODEL)
            found.append((self._model(owner, model, brokers, filters), model))
        missing = [name for name in only or [] if name not in names]
        if missing or len(set(names)) < len(names):
            expected = f"a model '{missing[0]}'" if missing else "models of different names"
            raise ValueError(f"{self._path}: expected {expected}, got {', '.join(map(str, names))}")
        return found

    def _model(self, owner, model, brokers, filters):
        files = self._list(owner, model, "sparse_files", str)
        tables = self._list(
            *(owner, model, "embedding_table_names", str),
            default=[f"sparse_embedding{number}" for number in range(len(files))],
        )
        dims = self._list(owner, model, "embedding_vecsize_per_table", int)
        defaults = self._list(
            owner, model, "default_value_for_each_table", (int, float), default=[]
        )
        defaults = [*defaults, *[0.0] * (len(files) - len(defaults))][: len(files)]
        for key, values in (
            ("embedding_table_names", tables),
            ("embedding_vecsize_per_table", dims),
        ):
            if len(values) != len(files) or not files:
                what = f"{len(files)} values, one for each of sparse_files" if files else "files"
                raise self._wrong(f"{owner}.{key if files else 'sparse_files'}", what, values)
        for name in (model.get("model", ""), *tables):
            if not _NAME.fullmatch(name):
                raise self._wrong(owner, "names of 1 to 120 of a-z, A-Z, 0-9, '_' and '-'", name)
        if len(set(tables)) < len(tables):
            raise self._wrong(f"{owner}.embedding_table_names", "different names", tables)
        network, dense = model.get("network_file", ""), model.get("dense_file", "")
        if bool(network) != bool(dense):
            raise self._wrong(
                owner, "both of network_file and dense_file, or neither", network or dense
            )
        return HpsModel(
            *(model["model"], tuple(files), tuple(tables), tuple(dims)),
            *(tuple(map(float, defaults)), network, dense),
            bool(brokers) and self._has_updates(owner, model["model"], tables, filters),
        )

    def _list(self, owner, model, key, kind, default=None):
        values = model.get(key, default)
        if values is None:
            raise ValueError(f"{self._path}, {owner}: expected the key '{key}'")
        wrong = [v for v in values if not isinstance(v, kind) or isinstance(v, bool)]
        if wrong:
            word = "numbers" if kind is not str else "strings"
            raise self._wrong(f"{owner}.{key}", f"a list of {word}", values)
        return values

    def _has_updates(self, owner, name, tables, filters):
        """Returns whether the databases' filters let updates of the model through."""
        if not filters:
            return True
        passed = {
            any(
                re.search(one, f"hps_et.{name}.{table}")
                for of_database in filters
                for one in (_FILTERS if of_database is None else of_database)
            )
            for table in tables
        }
        if len(passed) > 1:
            raise self._wrong(
                "update_filters",
                f"all tables of {owner} or none, as a request is answered from one version of all",
                filters,
            )
        return passed == {True}

    def _quantize(self, models):
        quantized = {model.get("fp8_quant", False) for model in models}
        if len(quantized) > 1:
            raise self._wrong(
                "models",
                "fp8_quant in all models or in none, as --quantize is the server's; "
                "read them apart by --model",
                "both",
            )
        return "fp8" if quantized == {True} else ""


def memory_bytes(config: HpsConfig, tables: list[tuple[int, int]]) -> int:
    """The memory of --tiers for a model: `tables` are (rows, dim) of each."""
    total = 0
    for rows, dim in tables:
        kept = int(rows * config.memory_share)
        kept = kept if config.memory_rows is None else min(kept, config.memory_rows)
        total += kept * (_KEY_BYTES + dim * (1 if config.quantize else 4))
    return max(total, 1 << 20)
