"""The real data sets: downloads that are checked, and logs as rows to train on."""

import gzip
import io
import json
import tarfile
import zipfile

import fetch_files as fetch
import pyarrow.parquet as pq
import pytest

from from_files import generated, logs
from from_files.data_sets import DATA_SETS

HEADER = "event_time,event_type,product_id,category_id,category_code,brand,price,user_id,"
HEADER += "user_session\n"
EVENTS = [
    ("2019-10-01 00:00:01 UTC", "view", 7, 2053013555631882655, "", "", "9.50", 1, "a"),
    ("2019-10-01 00:00:02 UTC", "view", 8, 2053013555631882655, "", "", "", 1, "a"),
    ("2019-10-01 00:00:03 UTC", "cart", 7, 2053013555631882655, "", "", "9.50", 1, "a"),
    ("2019-10-01 00:00:04 UTC", "view", 7, 2053013555631882655, "", "", "9.50", 1, "a"),
    ("2019-10-01 00:00:05 UTC", "view", 7, 2053013555631882655, "", "", "9.50", 2, "b"),
    ("2019-10-01 00:00:06 UTC", "purchase", 7, 2053013555631882655, "", "", "9.50", 1, "a"),
]
NEWS = "N1\tsports\tgolf\tA title\nN2\tautos\tcars\tA title\nN3\tsports\tgolf\tA title\n"
BEHAVIORS = "1\tU13\t11/13/2019 8:36:57 AM\tN3 N2\tN1-1 N2-0\n"
BEHAVIORS += "2\tU7\t11/13/2019 1:00:00 PM\t\tN3-0\n"


def write_log(path, events):
    text = HEADER + "".join(",".join(map(str, event)) + "\n" for event in events)
    path.write_bytes(gzip.compress(text.encode()))
    return path


def views(count):
    """Events of one user, who views another product every second."""
    return [
        (f"2019-10-01 00:00:{i:02} UTC", "view", i, 5, "", "", "1", 1, "a") for i in range(count)
    ]


def test_views_of_a_shop(tmp_path):
    # Given a log of two sessions, when it is read:
    log = write_log(tmp_path / "log.csv.gz", EVENTS)
    assert logs.write_shop([log], tmp_path / "rows.parquet") == 4
    rows = pq.read_table(tmp_path / "rows.parquet").to_pydict()
    # Then each view has what the user saw before, and what followed in the session.
    assert rows["item"] == [7, 8, 7, 7] and rows["user"] == [1, 1, 1, 2]
    assert rows["seen"] == [[], [7], [7, 8], []]
    assert rows["cart"] == [1, 0, 0, 0]
    assert rows["purchase"] == [1, 0, 1, 0]
    assert rows["price"][0] == 9.5 and rows["price"][1] != rows["price"][1]
    assert rows["time"][0] == 1569888001


def test_histories_keep_the_newest(tmp_path):
    logs.write_shop([write_log(tmp_path / "log.csv.gz", views(12))], tmp_path / "rows.parquet")
    seen = pq.read_table(tmp_path / "rows.parquet")["seen"].to_pylist()
    assert seen[-1] == list(range(3, 11))


def test_impressions_of_news(tmp_path):
    # Given MIND's files, when they are read:
    (tmp_path / "news.tsv").write_text(NEWS)
    (tmp_path / "behaviors.tsv").write_text(BEHAVIORS)
    path = tmp_path / "rows.parquet"
    assert logs.write_news([tmp_path / "news.tsv"], tmp_path / "behaviors.tsv", path) == 3
    rows = pq.read_table(path).to_pydict()
    # Then each news of an impression is a row, with the history of its user.
    assert rows["news"] == [1, 2, 3] and rows["user"] == [13, 13, 7]
    assert rows["read"] == [[3, 2], [3, 2], []] and rows["click"] == [1, 0, 0]
    assert rows["topic"] == [1, 0, 1] and rows["read_topics"] == [[1, 0], [1, 0], []]
    assert json.loads((tmp_path / "rows.parquet.topics.json").read_text()) == ["autos", "sports"]
    assert rows["time"] == [1573634217, 1573634217, 1573650000]


def test_generated_files_have_the_schema_of_real_ones(tmp_path):
    for name, real in (("shop", logs.SHOP), ("news", logs.NEWS)):
        DATA_SETS[name].write(tmp_path / name, 20, 1)
        made = {field.name: field.type for field in pq.read_schema(tmp_path / name)}
        assert made == {column: of for column, of in real.items() if column != "time"}


@pytest.fixture
def places(tmp_path, monkeypatch):
    """Small archives in place of the published ones."""
    source = tmp_path / "source"
    source.mkdir()
    write_log(source / "log.csv.gz", views(21))
    generated.write_criteo(source / "train.txt", 70, seed=1)
    with tarfile.open(source / "criteo.tar.gz", "w:gz") as archive:
        archive.add(source / "train.txt", "dac/train.txt")
    for name in ("a.zip", "b.zip"):
        with zipfile.ZipFile(source / name, "w") as archive:
            archive.writestr("news.tsv", NEWS)
            archive.writestr("behaviors.tsv", BEHAVIORS)
    files = {"criteo": ["criteo.tar.gz"], "shop": ["log.csv.gz"], "news": ["a.zip", "b.zip"]}
    found = {name: [(source / file).as_uri() for file in of] for name, of in files.items()}
    monkeypatch.setattr(fetch, "PLACES", found)
    return source


@pytest.mark.parametrize("name", DATA_SETS)
def test_fetched_files_are_read_by_the_example(name, places, tmp_path, monkeypatch, capsys):
    # Given a folder without files, when the script runs:
    folder = tmp_path / "data"
    monkeypatch.setattr("sys.argv", ["fetch_files.py", name, "--folder", str(folder)])
    fetch.main()
    # Then both files that it names have batches with all features and labels.
    train, test = (word for word in capsys.readouterr().out.split() if not word.startswith("--"))
    counts = []
    for path in (train, test):
        reader = DATA_SETS[name].reader(path, 8)
        assert len(next(iter(reader))) == 2
        counts.append(reader.num_rows)
    assert min(counts) >= 1 and sum(counts) == {"criteo": 70, "shop": 21, "news": 6}[name]


def test_another_file_is_refused(places, tmp_path):
    # Given a folder that was fetched once, and fetched again
    folder = tmp_path / "data"
    for _ in range(2):
        (path,) = fetch.fetch("shop", folder)
    assert len((folder / "SHA256SUMS").read_text().splitlines()) == 1

    # When the file is another one, Then it is refused by its sum
    path.write_bytes(path.read_bytes() + b"x")
    with pytest.raises(ValueError, match="log.csv.gz: expected sha256 [0-9a-f]{64}, as .*, got"):
        fetch.fetch("shop", folder)


def test_a_place_without_the_file_is_named(places, tmp_path):
    (places / "log.csv.gz").unlink()
    with pytest.raises(OSError, match="log.csv.gz: .*; download it by hand, and put it into"):
        fetch.fetch("shop", tmp_path / "data")
    assert not any((tmp_path / "data").glob("log.csv.gz"))


def test_members_of_the_archive(places, tmp_path):
    with tarfile.open(places / "criteo.tar.gz", "w:gz") as archive:
        member = tarfile.TarInfo("readme.txt")
        member.size = 2
        archive.addfile(member, io.BytesIO(b"hi"))
    paths = fetch.fetch("criteo", tmp_path / "data")
    with pytest.raises(ValueError, match="expected a member train.txt, got readme.txt"):
        fetch.prepare_criteo(paths, tmp_path / "data")
