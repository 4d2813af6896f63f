"""Models at URLs, and the file system of a whole job, under the server."""

import os
import time
from pathlib import Path

import numpy as np
import pytest
from support.cases.written_versions import Writer
from support.servers.server_clients import Client, wait_for

from group_embedding.data import DataSourceParams
from group_embedding.files import remote_files
from group_embedding.serving import server

INPUTS = {"x": np.ones([1, 3], np.float32), "n": np.array([4])}


@pytest.fixture
def at_url(s3_folder, model, tmp_path):
    """Copies a model to a path of a bucket: `at_url("7")` is its URL."""

    def copy(path):
        local = model(tmp_path / "local" / path)
        for name in os.listdir(local):
            remote_files.upload(str(local / name), f"{s3_folder}/{path}/{name}")
        return f"{s3_folder}/{path}"

    return copy


def copies_of(process):
    """The folder of the copies that a server uses."""
    arguments = Path(f"/proc/{process.pid}/cmdline").read_text().split("\0")
    (model,) = (one for one in arguments if one.startswith("m="))
    return next(parent for parent in Path(model[2:]).parents if "ge-models-" in parent.name)


def test_models_at_urls_are_served(at_url, start):
    # Given models at URLs
    for number in ("6", "10", "9"):
        url = at_url(f"clicks/{number}")
    # When a server is given one of them, and the folder of all
    running = start({"one": url, "m": url.rpartition("/")[0]})
    with Client(running) as client:
        # Then it serves that, and the newest
        assert client.predict(INPUTS, model="one")[1] == 9
        assert client.predict(INPUTS)[1] == 10
    # And its copies are gone once it has ended, however it does
    copies = copies_of(running)
    assert copies.exists()
    running.kill()
    wait_for(lambda: not copies.exists())


def test_a_job_on_one_file_system(at_url, s3_server, s3_folder, start, tmp_path, monkeypatch):
    # Given a model and a publisher's target in a bucket, at a server that no environment names
    at_url("clicks/7")
    writer = Writer(f"{s3_folder}/target", tmp_path)
    writer.base()
    writer.delta()
    monkeypatch.delenv("AWS_ENDPOINT_URL_S3")
    host, port = s3_server["endpoint"].removeprefix("http://").split(":")
    job = DataSourceParams("S3", host, int(port))
    below = s3_folder.removeprefix("s3:/")

    # When a server is given their paths and that server
    models = {"alone": f"{below}/clicks/7", "m": f"{below}/clicks"}
    running = start(models, data_source=job, sources={"m": f"{below}/target"})

    # Then it serves them
    with Client(running) as client:
        assert client.predict(INPUTS, model="alone")[1] == 7
        wait_for(lambda: client.predict(INPUTS)[1] == 2)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--data-source", "NFS", "--model", "m=/x"], "expected one of 'Local', 'HDFS'"),
        (["--data-source=HDFS,node,port", "--model", "m=/x"], "expected KIND"),
        (["--data-source=S3", "--model-config-file=f"], "whose paths are of this machine"),
        (["--data-source=S3", "--data_source=GCS", "--model=m=/x"], "expected it once"),
        (["--model", "m=memory://nowhere/7"], "model 'm': memory://nowhere/7: expected a SavedM"),
    ],
)
def test_what_cannot_be_is_refused(program, arguments, why, capfd, tmp_path, monkeypatch):
    # Given arguments that name no model
    if "memory://" in why:
        pytest.importorskip("fsspec")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    # When the server is asked for, Then it ends, says why, and leaves nothing
    start = time.monotonic()
    assert server.main(arguments) == 1
    assert why in capfd.readouterr().err
    assert not list(tmp_path.iterdir()) and time.monotonic() - start < 20
