"""Logs as they are published, as Parquet files of the rows that the example trains on."""

import calendar
import collections
import csv
import gzip
import json
import time

import pyarrow as pa
import pyarrow.parquet

MOST_BEFORE = 8  # items of a history, the newest ones
ROWS_OF_A_GROUP = 50_000
SHOP = {name: pa.int64() for name in ("time", "user", "item", "category")}
SHOP |= {"price": pa.float32(), "seen": pa.list_(pa.int64()), "cart": pa.int64()}
SHOP |= {"purchase": pa.int64()}
NEWS = {name: pa.int64() for name in ("time", "user", "news", "topic")}
NEWS |= {"read": pa.list_(pa.int64()), "read_topics": pa.list_(pa.int64()), "click": pa.int64()}


def write_shop(logs, path):
    """Writes a row for each view of a shop's log: whether a cart or a purchase followed it.

    A cart or a purchase counts for a view of the same product in the same session that is not after
    it. `seen` has the products that the user viewed before, the oldest first.

    Args:
        logs: CSV files in the order of time, .gz or not, of events with the columns event_time,
            event_type (view, cart or purchase), product_id, category_id, price, user_id and
            user_session. They are read twice; the last cart and purchase of each product of a
            session are kept in memory.
        path: the Parquet file.

    Returns:
        The number of rows.
    """
    last = {"cart": {}, "purchase": {}}
    for event in _events(logs):
        if event["event_type"] in last:
            product = event["user_session"], event["product_id"]
            last[event["event_type"]][product] = event["event_time"]
    return _write(path, SHOP, _views(logs, last))


def _events(logs):
    for log in logs:
        with gzip.open(log, "rt") if str(log).endswith(".gz") else open(log) as file:
            yield from csv.DictReader(file)


def _views(logs, last):
    """Generates the rows of `write_shop`."""
    viewed = collections.defaultdict(lambda: collections.deque(maxlen=MOST_BEFORE))
    for event in _events(logs):
        if event["event_type"] != "view":
            continue
        item, seen = int(event["product_id"]), viewed[event["user_id"]]
        product = event["user_session"], event["product_id"]
        followed = [int(last[kind].get(product, "") >= event["event_time"]) for kind in last]
        moment = _seconds(event["event_time"].removesuffix(" UTC"), "%Y-%m-%d %H:%M:%S")
        ids = moment, int(event["user_id"]), item, int(event["category_id"])
        yield *ids, float(event["price"] or "nan"), list(seen), *followed
        seen.append(item)


def write_news(news, behaviors, path):
    """Writes a row for each news of each impression: whether it was clicked.

    Args:
        news: MIND's news.tsv files: the id of each, and its category.
        behaviors: a behaviors.tsv file of MIND: impression, user, time, history, impressions.
        path: the Parquet file. Categories are numbered by name; `path`.topics.json has the names.

    Returns:
        The number of rows.
    """
    category_of = {}
    for file in news:
        with open(file) as lines:
            for line in lines:
                name, category, _ = line.split("\t", 2)
                category_of[_number(name)] = category
    topics = sorted(set(category_of.values()))
    with open(f"{path}.topics.json", "w") as file:
        json.dump(topics, file)
    numbers = {topic: number for number, topic in enumerate(topics)}
    topic_of = {name: numbers[category] for name, category in category_of.items()}
    return _write(path, NEWS, _impressions(behaviors, topic_of))


def _impressions(behaviors, topic_of):
    """Generates the rows of `write_news`."""
    with open(behaviors) as lines:
        for line in lines:
            _, user, moment, history, shown = line.rstrip("\n").split("\t")
            read = [_number(name) for name in history.split()[-MOST_BEFORE:]]
            read_topics = [topic_of[name] for name in read]
            first = _seconds(moment, "%m/%d/%Y %I:%M:%S %p"), _number(user)
            for one in shown.split():
                name, click = one.rsplit("-", 1)
                news = _number(name)
                yield *first, news, topic_of[news], read, read_topics, int(click)


def _number(name):
    """N12 is 12, as U12 is."""
    return int(name[1:])


def _seconds(text, form):
    """Seconds since 1970 of a time in UTC."""
    return calendar.timegm(time.strptime(text, form))


def _write(path, columns, rows):
    count, group = 0, []
    with pa.parquet.ParquetWriter(path, pa.schema(list(columns.items()))) as writer:
        for row in rows:
            group.append(row)
            if len(group) == ROWS_OF_A_GROUP:
                writer.write_table(_table(columns, group))
                count, group = count + len(group), []
        if group:
            writer.write_table(_table(columns, group))
    return count + len(group)


def _table(columns, rows):
    values = zip(*rows)
    return pa.table({name: pa.array(of, columns[name]) for name, of in zip(columns, values)})
