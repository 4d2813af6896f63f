"""Files in Criteo's format: each field, each form of file, each wrong line."""

import pytest

from dlrm import criteo

INTEGERS = ["1", "-2", "", "0", "1382", "4", "15", "2", "181", "1", "2", "", "7"]
CATEGORICALS = [f"{i:08x}" for i in range(25)] + [""]
FIRST = ["1", *INTEGERS, *CATEGORICALS]
SECOND = ["0", *[""] * 13, *[""] * 26]


@pytest.fixture
def write(tmp_path):
    def write(name, *rows):
        path = tmp_path / name
        delimiter = "," if path.suffix == ".csv" else "\t"
        path.write_text("".join(delimiter.join(row) + "\n" for row in rows))
        return path

    return write


def check(examples):
    """Checks that the examples are FIRST and SECOND."""
    assert examples.labels.tolist() == [1, 0]
    integers = [examples.features[f"I{i}"].tolist() for i in range(1, 14)]
    assert integers == [[float(field or 0), 0] for field in INTEGERS]
    categoricals = [examples.features[f"C{i}"].tolist() for i in range(1, 27)]
    assert categoricals == [[field.encode(), b""] for field in CATEGORICALS]


@pytest.mark.parametrize("name", ["rows.csv", "rows.tsv", "rows.txt"])
@pytest.mark.parametrize("has_header", [False, True])
@pytest.mark.parametrize("has_id", [False, True])
def test_fields(write, name, has_header, has_id):
    rows = ([list(criteo.FIELDS)] if has_header else []) + [FIRST, SECOND]
    if has_id:
        rows = [[f"Id{number}", *row] for number, row in enumerate(rows)]
    check(criteo.load_criteo(write(name, *rows)))


def test_header_decides_the_order(write):
    header = [field.lower() for field in criteo.FIELDS]
    path = write("rows.csv", header[::-1], FIRST[::-1], SECOND[::-1])
    check(criteo.load_criteo(path))


def test_empty_lines_and_windows_line_ends(write):
    path = write("rows.csv", FIRST, [], SECOND)
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    check(criteo.load_criteo(path))


@pytest.mark.parametrize(
    "rows, message",
    [
        ([FIRST, FIRST[:-1]], "line 2: expected 40 fields, got 39"),
        ([FIRST[:-1]], r"line 1: expected 40 fields \(label.*\), or one more .*, got 39"),
        ([FIRST, ["2", *FIRST[1:]]], "line 2: expected label 0 or 1, got '2'"),
        ([["1", "1", "x", *FIRST[3:]]], "line 1: I2: expected an integer, got 'x'"),
        ([list(criteo.FIELDS[:-2])], "line 1: the header lacks C25, C26"),
        ([list(criteo.FIELDS)], "expected lines of label, .*, got none"),
        ([], "expected lines of label, .*, got none"),
    ],
)
def test_wrong_lines_are_named(write, rows, message):
    path = write("rows.csv", *rows)
    with pytest.raises(ValueError, match=f"rows.csv.*{message}"):
        criteo.load_criteo(path)


def test_other_ending_is_refused(write):
    with pytest.raises(ValueError, match=r"expected a name in .csv, .tsv, .txt, got '.parquet'"):
        criteo.load_criteo(write("rows.parquet", FIRST))
