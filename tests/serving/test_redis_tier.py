"""Redis below memory when it is away, empty or full: the trainer's rows, or an error that says
where and why. test_redis_answers.py has late and wrong answers, test_redis_logins.py guarded
servers, test_redis_cluster.py clusters."""

import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import tensorflow as tf
from serving.square_tables import COUNT, assert_answers, assert_fails, some_keys, tiered

import group_embedding as ge
from group_embedding.serving.__main__ import main


def test_a_server_that_is_away_comes_back_with_its_rows(squares, new_redis):
    # Given a server that keeps its data, and a model that was asked for some keys
    redis = new_redis("--appendonly", "yes", "--appendfsync", "always")
    with tiered(squares, redis.address) as session:
        assert_answers(session, some_keys(1))
        for turn in range(2):
            # When it is killed, Then requests for other keys are errors that name it
            redis.stop()
            assert_fails(session, redis.address, "is Redis running there")
            # And when it is there again, Then every key has its row
            redis.start()
            for seed in range(3):
                assert_answers(session, some_keys(10 * turn + seed))


@pytest.mark.slow
@pytest.mark.parametrize("kills", [3, pytest.param(200, marks=pytest.mark.soak)])
def test_kills_make_no_wrong_answer(squares, new_redis, kills):
    # Given a server that keeps its data, and threads that ask
    redis = new_redis("--appendonly", "yes", "--appendfsync", "always")
    right, errors, wrong, stop = [], [], [], threading.Event()

    def ask(session, seed):
        while not stop.is_set():
            seed += 10
            try:
                assert_answers(session, some_keys(seed))
                right.append(seed)
            except tf.errors.UnavailableError as error:
                errors.append(str(error))
            except BaseException as error:
                wrong.append(error)
                raise

    with tiered(squares, redis.address) as session:
        threads = [threading.Thread(target=ask, args=(session, seed)) for seed in range(3)]
        for thread in threads:
            thread.start()
        # When it is killed again and again
        for _ in range(kills):
            answered, end = len(right), time.monotonic() + 60
            while len(right) < answered + 10 and not wrong and time.monotonic() < end:
                time.sleep(0.01)
            redis.stop()
            time.sleep(0.05)
            redis.start()
        stop.set()
        for thread in threads:
            thread.join()
        # Then every answer was right, or an error that names it
        assert not wrong
        assert errors and all(redis.address in error for error in errors)
        assert_answers(session, some_keys(1))


def test_a_server_that_comes_back_empty_answers_no_default_rows(squares, new_redis, capsys):
    # Given a server that keeps nothing, and an open model
    redis = new_redis()
    with tiered(squares, redis.address) as session:
        assert_answers(session, some_keys(1))
        # When it comes back empty, Then no trained key reads a default row
        redis.stop()
        redis.start()
        for _ in range(2):
            assert_fails(
                session, redis.address, "the rows are gone", "group_embedding.serving load"
            )
        # And when the rows are loaded again, Then the open model reads them
        assert main(["load", str(squares), "--tiers", f"memory=1kB,redis={redis.address}"]) == 0
        assert f"{2 * COUNT:,} rows of 2 tables" in capsys.readouterr().out
        for seed in range(3):
            assert_answers(session, some_keys(seed))


def test_rows_that_redis_gave_up_are_no_default_rows(squares, redis_server, redis_url):
    # Given an open model
    database = redis_url.rpartition("/")[2]
    with tiered(squares, redis_url) as session:
        assert_answers(session, some_keys(1))
        # When a table's hash is removed, as eviction does
        name = redis_server.ask("-n", database, "--raw", "KEYS", "group_embedding:rows:*same")
        assert redis_server.ask("-n", database, "DEL", name) == "1"
        # Then requests are errors
        assert_fails(session, redis_server.address, "redis_same", "the rows are gone")
    # And the next session writes them again
    with tiered(squares, redis_url) as session:
        assert_answers(session, some_keys(1))


def test_rows_in_an_earlier_form_are_written_again(squares, redis_server, redis_url):
    # Given rows that are described where a version described them that named their keys otherwise
    ask = ("-n", redis_url.rpartition("/")[2])
    tiered(squares, redis_url).close()
    for name in redis_server.ask(*ask, "--raw", "KEYS", "group_embedding:base:*").split():
        redis_server.ask(*ask, "RENAME", name, name.replace(":base:", ":table:"))
    before = redis_server.ask(*ask, "--raw", "KEYS", "group_embedding:rows:*").split()
    # When the model is opened, Then its rows are written beside them, and found
    with tiered(squares, redis_url) as session:
        assert_answers(session, some_keys(1))
    after = redis_server.ask(*ask, "--raw", "KEYS", "group_embedding:rows:*").split()
    assert len(after) == 2 * len(before) == 4


def test_default_rows_are_answered_and_counted_where_told(squares, new_redis):
    # Given a model with on_failure=default, whose server is away
    redis = new_redis()
    with tiered(squares, redis.address, ",on_failure=default") as session:
        redis.stop()
        # When it is asked, Then keys that are not in memory read defaults, and are counted
        found = session.predict({"keys": np.arange(100)})["same"]
        assert (found == -1).all()
        for table in session.info()["tables"]:
            assert table["defaulted"] == 100 and table["failures"] >= 1 and table["absent"] == 0


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("--maxmemory", "1", "--maxmemory-policy", "noeviction"), "OOM .*raise maxmemory"),
        (("--rename-command", "HSET", ""), "ERR unknown command 'HSET'"),
        (("--min-replicas-to-write", "1"), "NOREPLICAS"),
    ],
)
def test_a_server_that_takes_no_rows_is_unavailable(squares, new_redis, arguments, why):
    # Given a server that answers, and refuses what is written
    redis = new_redis(*arguments)
    # When a model is opened, or loaded by the command, Then the error names it and says why
    where = f"table 'redis_s.*', tier redis={redis.address}: {why}"
    with pytest.raises(tf.errors.UnavailableError, match=where):
        tiered(squares, redis.address)
    with pytest.raises(SystemExit, match=f"group_embedding: {where}"):
        main(["load", str(squares), "--tiers", f"memory=1kB,redis={redis.address}"])


@pytest.mark.slow
def test_processes_fill_one_database_at_a_time(squares, redis_url):
    # Given processes that open a model that nobody has loaded
    program = f"""
import numpy as np
from group_embedding.serving import InferenceSession
with InferenceSession({str(squares)!r}, tiers="memory=1kB,redis={redis_url}") as session:
    keys = np.arange({COUNT})
    assert (session.predict({{"keys": keys}})["same"][:, 3] == keys).all()
"""
    # When they open it at the same time, Then each has every row
    processes = [subprocess.Popen([sys.executable, "-c", program]) for _ in range(2)]
    assert [process.wait(120) for process in processes] == [0, 0]


def test_old_contents_expire(tmp_path, redis_server, redis_url):
    # Given three bases of a model, opened one after the other
    ask = ["-n", redis_url.rpartition("/")[2]]
    table = ge.get_embedding_variable("redis_bases", 2)

    class Model(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([None], tf.int64, name="keys")])
        def serve(self, keys):
            return {"rows": ge.group_embedding_lookup([self.table], [keys])[0]}

    model, fills = Model(), []
    model.table = table  # for the SavedModel
    for base in range(3):
        table.insert(np.arange(5), np.full([5, 2], base, np.float32))
        tf.saved_model.save(model, str(tmp_path / str(base)), signatures=model.serve)
        with tiered(tmp_path / str(base), redis_url) as session:
            rows = session.predict({"keys": np.arange(5)})["rows"]
            np.testing.assert_array_equal(rows, np.full([5, 2], base, np.float32))
        names = redis_server.ask(*ask, "--raw", "KEYS", "group_embedding:rows:*").split()
        fills += [name for name in names if name not in fills]
    assert len(fills) == 3
    # When their keys are asked how long they stay, Then the first one expires, the others do not
    stay = [int(redis_server.ask(*ask, "TTL", name)) for name in fills]
    assert 80_000 < stay[0] <= 86_400 and stay[1:] == [-1, -1]
    # And when the first one is opened again, Then it stays
    tiered(tmp_path / "0", redis_url).close()
    assert int(redis_server.ask(*ask, "TTL", fills[0])) == -1
