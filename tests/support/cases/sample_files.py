"""Files of samples for tests of readers: row i of all files has values that follow from i."""

import gzip

import numpy as np
import pytest

SIZES = (100, 7, 260, 33)  # rows of the files


def columns_of(rows):
    """By name, the columns of the rows with these numbers."""
    return {
        "user": np.array(rows, np.int64),
        "age": np.array(rows, np.float32) / 4,
        "clicks": [[int(i) * 10 + j for j in range(i % 4)] for i in rows],
        "word": [f"word {i}" for i in rows],
        "label": np.array(rows, np.int32) % 2,
    }


def write_parquet(folder, sizes=SIZES, row_group_size=32):
    """Writes files of these sizes; returns the folder."""
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet

    folder.mkdir(exist_ok=True)
    begin = 0
    for number, size in enumerate(sizes):
        table = pa.table(columns_of(range(begin, begin + size)))
        path = folder / f"part-{number}.parquet"
        pyarrow.parquet.write_table(table, path, row_group_size=row_group_size)
        begin += size
    return folder


def csv_lines(rows):
    columns = columns_of(rows)
    for i in range(len(rows)):
        clicks = "|".join(str(click) for click in columns["clicks"][i])
        values = [columns["user"][i], columns["age"][i], clicks, columns["word"][i]]
        yield ",".join(str(value) for value in [*values, columns["label"][i]])


def write_csv(folder, sizes=SIZES, compressed=False):
    pytest.importorskip("pyarrow")
    folder.mkdir(exist_ok=True)
    begin = 0
    for number, size in enumerate(sizes):
        lines = ["user,age,clicks,word,label", *csv_lines(range(begin, begin + size))]
        text = ("\n".join(lines) + "\n").encode()
        path = folder / f"part-{number}.csv"
        if compressed:
            path, text = path.with_suffix(".csv.gz"), gzip.compress(text)
        path.write_bytes(text)
        begin += size
    return folder


def users(batches):
    """The numbers of the rows of each batch, a list of lists."""
    return [batch["user"].numpy().tolist() for batch in batches]
