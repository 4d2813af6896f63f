"""The file system of a whole job, named as HugeCTR's users name it."""

import types

import pytest
import tensorflow as tf
from support.cases import sample_files

import group_embedding as ge
from group_embedding.files import remote_files


def test_paths_become_urls():
    kinds = ge.data.FileSystemType_t
    for source, server, path, url in (
        (kinds.HDFS, "node", "/shop/day", "hdfs://node:9000/shop/day"),
        ("HDFS", "", "shop/day", "hdfs://localhost:9000/shop/day"),
        (types.SimpleNamespace(name="HDFS"), "node", "hdfs://other:1/day", "hdfs://other:1/day"),
        ("S3", "us-east-1", "/bucket/day", "s3://bucket/day"),
        ("S3", "us-east-1", "s3://bucket/day", "s3://bucket/day"),
        ("GCS", "storage.googleapis.com", "/bucket/day", "gs://bucket/day"),
        ("Local", "", "/shop/day", "/shop/day"),
        (kinds.Local, "", "file:///shop/day%201", "/shop/day 1"),
    ):
        assert ge.data.DataSourceParams(source, server, 9000).url(path) == url


def test_a_source_that_nobody_knows_is_refused():
    with pytest.raises(ValueError, match="expected one of 'Local', 'HDFS', 'S3', 'GCS', got 'NFS'"):
        ge.data.DataSourceParams("NFS")


def test_readers_take_paths_of_a_namenode(hdfs_server, hdfs_folder, tmp_path):
    # Given files on HDFS
    folder = sample_files.write_parquet(tmp_path / "samples")
    for path in folder.iterdir():
        remote_files.upload(str(path), f"{hdfs_folder}/{path.name}")
    host, port = hdfs_server["url"].removeprefix("hdfs://").split(":")
    source = ge.data.DataSourceParams(ge.data.FileSystemType_t.HDFS, host, int(port))

    # When a reader is given their path and the namenode
    path = hdfs_folder.removeprefix(hdfs_server["url"])
    reader = ge.data.Reader(f"{path}/part-*.parquet", 50, ["user"], data_source=source)

    # Then it reads them
    assert sum(sample_files.users(reader), []) == list(range(sum(sample_files.SIZES)))


def test_readers_take_buckets_of_a_server(s3_server, s3_folder, tmp_path, monkeypatch):
    # Given files in a bucket, at a server that no environment names
    folder = sample_files.write_csv(tmp_path / "samples")
    for path in folder.iterdir():
        remote_files.upload(str(path), f"{s3_folder}/{path.name}")
    monkeypatch.delenv("AWS_ENDPOINT_URL_S3")
    host, port = s3_server["endpoint"].removeprefix("http://").split(":")

    # When a reader is given the server
    source = ge.data.DataSourceParams("S3", host, int(port))
    reader = ge.data.Reader(s3_folder.removeprefix("s3://"), 50, ["user"], data_source=source)

    # Then it reads them
    assert sum(sample_files.users(reader), []) == list(range(sum(sample_files.SIZES)))


def test_sessions_take_models_of_a_server(s3_server, s3_folder, monkeypatch):
    # Given a model in a bucket, at a server that no environment names
    model = tf.Module()
    model.rows = tf.Variable(tf.reshape(tf.range(8.0), [4, 2]))
    model.serve = tf.function(
        lambda key: {"rows": tf.gather(model.rows, key)},
        input_signature=[tf.TensorSpec([None], tf.int64, name="key")],
    )
    host, port = s3_server["endpoint"].removeprefix("http://").split(":")
    job = ge.data.DataSourceParams("S3", host, int(port))
    monkeypatch.delenv("AWS_ENDPOINT_URL_S3")
    path = s3_folder.removeprefix("s3:/") + "/7"
    with ge.serving.export_to(path, data_source=job, progress=False) as folder:
        tf.saved_model.save(model, folder, signatures=model.serve)

    # When a session is given the path and the server
    with ge.serving.InferenceSession(path, data_source=job) as session:
        # Then it answers, in the model's version
        assert session.version == 7
        assert session.predict({"key": [3]})["rows"].tolist() == [[6, 7]]
