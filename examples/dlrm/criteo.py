"""Files in Criteo's format: a label, 13 integers I1..I13 and 26 hex categoricals C1..C26 a line.

A first field may hold an id, a first line the names; any field but the label may be empty.
"""

import csv
from pathlib import Path

import numpy as np

from dlrm.examples import Examples
from dlrm.features import Hashed, Numeric, Schema

INTEGERS = tuple(f"I{i}" for i in range(1, 14))
CATEGORICALS = tuple(f"C{i}" for i in range(1, 27))
FIELDS = ("Label", *INTEGERS, *CATEGORICALS)
DELIMITERS = {".csv": ",", ".tsv": "\t", ".txt": "\t"}

SCHEMA = Schema(
    numeric=tuple(Numeric(name, scale=5.0, log=True) for name in INTEGERS),
    categorical=tuple(Hashed(name, 10_000) for name in CATEGORICALS),
)


def load_criteo(path):
    """Reads a .csv or tab-separated .tsv or .txt file whole; returns its Examples, in its order.

    Raises:
      ValueError: another ending, or a line that is not in the format (it says which).
    """
    path = Path(path)
    if path.suffix not in DELIMITERS:
        raise ValueError(f"{path}: expected a name in {', '.join(DELIMITERS)}, got '{path.suffix}'")
    labels, integers, categoricals = [], [], []
    with open(path, encoding="utf-8", newline="") as lines:
        places = None
        for number, row in enumerate(csv.reader(lines, delimiter=DELIMITERS[path.suffix]), 1):
            if not row:
                continue
            where = f"{path}, line {number}"
            if places is None:
                places = field_columns(row, where)
                width = len(row)
                if is_header(row):
                    continue
            if len(row) != width:
                raise ValueError(f"{where}: expected {width} fields, got {len(row)}")
            label, *fields = (row[place] for place in places)
            if label not in ("0", "1"):
                raise ValueError(f"{where}: expected label 0 or 1, got '{label}'")
            labels.append(label == "1")
            integers.append([to_number(f, where, n) for f, n in zip(fields, INTEGERS)])
            categoricals.append([field.encode() for field in fields[len(INTEGERS) :]])
    if not labels:
        raise ValueError(f"{path}: expected lines of label, 13 integers, 26 categoricals, got none")
    by_name = dict(zip(INTEGERS, np.array(integers, np.float32).T))
    by_name |= {n: np.array(values) for n, values in zip(CATEGORICALS, zip(*categoricals))}
    return Examples(by_name, np.array(labels, np.float32))


def is_header(row):
    return any(field.lower() == "label" for field in row)


def field_columns(row, where):
    """The column of each of FIELDS: by the names of a header, else by their order."""
    if is_header(row):
        names = [field.lower() for field in row]
        missing = [field for field in FIELDS if field.lower() not in names]
        if missing:
            raise ValueError(f"{where}: the header lacks {', '.join(missing)}")
        return [names.index(field.lower()) for field in FIELDS]
    extra = len(row) - len(FIELDS)
    if extra not in (0, 1):
        raise ValueError(
            f"{where}: expected {len(FIELDS)} fields (label, 13 integers, 26 categoricals), "
            f"or one more with an id in front, got {len(row)}"
        )
    return range(extra, len(row))


def to_number(field, where, name):
    """An integer as a float; an empty field is 0."""
    try:
        return float(int(field or 0))
    except ValueError:
        raise ValueError(f"{where}: {name}: expected an integer, got '{field}'") from None
