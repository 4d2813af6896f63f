"""Statistics over HTTP, while a thread trains."""

import urllib.error
import urllib.request

import pytest
import tensorflow as tf
from variables.test_statistics import trainer

import group_embedding as ge
from group_embedding.variables import statistics_server


def test_a_server_answers_while_a_thread_trains():
    table = ge.keyed_table("scraped", 4)
    train = trainer(table)
    with ge.StatisticsServer() as server:
        url = f"http://127.0.0.1:{server.port}"
        for step in range(3):
            train([step])
            with urllib.request.urlopen(f"{url}/metrics", timeout=30) as answer:
                text = answer.read().decode()
                assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            assert f'group_embedding_table_keys{{table="scraped",rank="0"}} {step + 1}\n' in text
            head = urllib.request.Request(f"{url}/metrics", method="HEAD")
            with urllib.request.urlopen(head, timeout=30) as answer:
                assert (answer.headers["Content-Length"], answer.read()) == (str(len(text)), b"")
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"{url}/other", timeout=30)
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(f"{url}/metrics", timeout=30)


def test_a_server_whose_tables_cannot_be_read_says_so(monkeypatch):
    def fail():
        raise tf.errors.InternalError(None, None, "table 'users', disk tier: <truncated>")

    monkeypatch.setattr(statistics_server, "statistics", fail)
    with ge.StatisticsServer() as server, pytest.raises(urllib.error.HTTPError) as raised:
        urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics", timeout=30)

    assert raised.value.code == 500
    assert "table 'users', disk tier: &lt;truncated&gt;" in raised.value.read().decode()
