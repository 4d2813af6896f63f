"""MovieLens-100K: 100,000 ratings of 1,682 movies by 943 people; liked means 4 stars or more."""

import csv
import re
from datetime import datetime, timezone

import numpy as np

from dlrm.examples import Examples
from dlrm.features import Bucketized, Crossed, Hashed, Identity, Numeric, Schema, Vocabulary

GENRES = (
    "Action Adventure Animation Children's Comedy Crime Documentary Drama Fantasy Film-Noir "
    "Horror Musical Mystery Romance Sci-Fi Thriller War Western unknown"
)
OCCUPATIONS = (
    "administrator artist doctor educator engineer entertainment executive healthcare homemaker "
    "lawyer librarian marketing none other programmer retired salesman scientist student "
    "technician writer"
)
USER = Identity("user_id", 944)
ITEM = Identity("item_id", 1683)
GENDER = Vocabulary("gender", ("F", "M"))
AGE = Bucketized("age_range", "age", (18, 21, 25, 30, 35, 40, 45, 50, 56))
OCCUPATION = Vocabulary("occupation", tuple(OCCUPATIONS.split()))
YEARS = (1930, 1950, 1960, 1970, 1980, 1985, 1990, 1992, 1993, 1994, 1995, 1996, 1997, 1998)
YEAR = Bucketized("release", "release_year", YEARS)
GENRE = Vocabulary("genres", tuple(GENRES.split()))
HOUR = Identity("hour", 24)
WEEKDAY = Identity("weekday", 7)

SCHEMA = Schema(
    numeric=(
        Numeric("age", shift=35, scale=20),
        Numeric("release_year", shift=1990, scale=10),
    ),
    categorical=(
        USER,
        ITEM,
        GENDER,
        AGE,
        OCCUPATION,
        Hashed("zip_prefix", 2000),
        YEAR,
        GENRE,
        Hashed("title_words", 5000),
        HOUR,
        WEEKDAY,
        Crossed("user_x_genre", (USER, GENRE), 20000),
        Crossed("age_x_gender_x_genre", (AGE, GENDER, GENRE), 1000),
        Crossed("occupation_x_genre", (OCCUPATION, GENRE), 1000),
        Crossed("hour_x_weekday", (HOUR, WEEKDAY), 500),
    ),
    open_ended=(USER, ITEM),
)


def load_movielens(folder):
    """Reads ml-100k.inter, .user and .item; returns all Examples, the earliest first."""
    users = {row["user_id"]: row for row in read(folder / "ml-100k.user")}
    items = {row["item_id"]: row for row in read(folder / "ml-100k.item")}
    ratings = sorted(read(folder / "ml-100k.inter"), key=lambda row: float(row["timestamp"]))
    return to_examples(ratings, users, items)


def read(path):
    """The rows of a tab-separated file whose header holds `name:type` fields."""
    with open(path, encoding="utf-8", newline="") as lines:
        header, *rows = csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
    names = [field.split(":")[0] for field in header]
    for number, row in enumerate(rows, 2):
        if len(row) != len(names):
            raise ValueError(f"{path}, line {number}: expected {len(names)} fields, got {len(row)}")
    return [dict(zip(names, row)) for row in rows]


def to_examples(ratings, users, items):
    """Joins each rating with its user and its item."""
    user = {key: user_features(row) for key, row in users.items()}
    item = {key: item_features(row) for key, row in items.items()}
    joined = [user[r["user_id"]] | item[r["item_id"]] | time_features(r) for r in ratings]
    features = {
        name: padded([row[name] for row in joined])
        if isinstance(first, list)
        else np.array([row[name] for row in joined])
        for name, first in joined[0].items()
    }
    labels = np.array([float(r["rating"]) >= 4 for r in ratings], np.float32)
    return Examples(features, labels)


def user_features(row):
    return {
        "user_id": int(row["user_id"]),
        "gender": row["gender"].encode(),
        "age": np.float32(row["age"]),
        "occupation": row["occupation"].encode(),
        "zip_prefix": row["zip_code"][:2].encode(),
    }


def item_features(row):
    year = row["release_year"]
    return {
        "item_id": int(row["item_id"]),
        "release_year": np.float32(year if year.isdigit() else 0),  # a few are not known
        "genres": row["class"].encode().split(),
        "title_words": [w.encode() for w in re.findall(r"[\w']+", row["movie_title"].lower())],
    }


def time_features(row):
    time = datetime.fromtimestamp(float(row["timestamp"]), timezone.utc)
    return {"hour": time.hour, "weekday": time.weekday()}


def padded(lists):
    """[n, width] of the lists, each filled up with b"" to the longest."""
    width = max(map(len, lists))
    return np.array([values + [b""] * (width - len(values)) for values in lists])
