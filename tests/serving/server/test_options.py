"""The command line: its errors are one sentence each."""

import socket
import subprocess

import numpy as np
import pytest
from support.servers.server_clients import Client

INPUTS = {"x": np.ones([1, 3], np.float32), "n": np.array([4])}

CONFIG = """
model_config_list {
  config { name: "a" base_path: "%s/a" model_platform: "tensorflow"
           model_version_policy { specific { versions: 1 versions: 3 } }
           version_labels { key: "stable" value: 1 } }
  config { name: "b" base_path: "%s/b" model_version_policy { latest { num_versions: 2 } } }
  config { name: "c" base_path: "%s/b" model_version_policy { all {} } }
}
"""


def run(program, *arguments):
    done = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=60)
    return done.returncode, done.stderr


BAD = {
    "no model": ([], "no model: expected --model NAME=PATH"),
    "unknown": (["--modle", "m=p"], "unknown argument '--modle'"),
    "no value": (["--model"], "--model: expected a value behind it"),
    "no name": (["--model", "=p"], "--model: expected NAME=PATH, got '=p'"),
    "name": (["--model", "a/b=p"], "model 'a/b': expected a name without '/'"),
    "twice": (["--model", "m=p", "--model=m=q"], "two models are named 'm'"),
    "source first": (["--source", "p"], "expected --model in front of it"),
    "two sources": (["--model", "m=p", "--source", "a", "--source", "b"], "got two"),
    "scheme": (["--model", "m=p", "--source", "ftp://a"], "file://FOLDER, got 'ftp://a'"),
    "port": (["--grpc-port", "65536"], "--grpc-port: expected a number from 0 to 65535"),
    "number": (["--threads", "2x"], "expected a number from 0 to 4096, got '2x'"),
    "part": (["--queue", "1.5"], "got '1.5'"),
    "tls": (["--model", "m=p", "--tls-key", "k"], "expected both of --tls-certificate and"),
    "ca": (["--model", "m=p", "--tls-client-ca", "k"], "--tls-client-ca needs"),
    "config": (["--model-config-file", "/nowhere"], "cannot read '/nowhere'"),
    "library": (["--model", "m=p", "--library", "/nowhere.so"], "cannot load libge_serving"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_arguments(program, name):
    arguments, words = BAD[name]

    status, error = run(program, *arguments)

    assert status == 1
    assert error.startswith("ge-serve: ") and error.count("\n") == 1
    assert words in error


def test_help(program):
    done = subprocess.run([program, "--help"], capture_output=True, text=True)

    assert done.returncode == 0
    assert "--model-config-file FILE" in done.stdout


def test_a_port_in_use_and_a_folder_without_a_model(program, double, model, tmp_path):
    # Given a port that somebody listens on
    library = ["--library", double, "--rest-port", "-1"]
    path = f"m={model(tmp_path / '1')}"
    with socket.socket() as used:
        used.bind(("127.0.0.1", 0))
        used.listen()
        port = str(used.getsockname()[1])

        # When servers start there, or without a model
        status, error = run(program, "--model", path, "--grpc-port", port, *library)
    empty = run(program, "--model", f"m={tmp_path / 'none'}", "--grpc-port", "0", *library)

    # Then the errors say so
    assert status == empty[0] == 1
    assert f"gRPC cannot listen on 127.0.0.1:{port}" in error
    assert "model 'm': cannot read folder" in empty[1]


def test_model_config_file(start, model, tmp_path):
    # Given three models with policies, in TensorFlow Serving's format
    for name in ("a/1", "a/2", "a/3", "b/1", "b/2", "b/30"):
        model(tmp_path / name)
    config = tmp_path / "models.config"
    config.write_text(CONFIG % (tmp_path, tmp_path, tmp_path))

    # When a server reads it; TensorFlow Serving writes arguments with underscores
    server = start({}, f"--model_config_file={config}")

    # Then each model has the versions of its policy, and labels name versions
    with Client(server) as client:
        versions = {name: sorted(client.states(model=name)) for name in "abc"}
        assert versions == {"a": [1, 3], "b": [2, 30], "c": [1, 2, 30]}
        x, n = [[0.0, 1, 2]], [10]
        inputs = {"x": x, "n": np.array(n)}
        assert client.predict(inputs, model="a")[1] == 3
        assert client.predict(inputs, model="a", label="stable")[1] == 1
        assert client.predict(inputs, model="b", version=2)[1] == 2


BAD_CONFIGS = {
    "words": ("model_config_list { confg {} }", "line 1, column 27"),
    "none": ("", "expected model_config_list"),
    "name": ('model_config_list { config { base_path: "p" } }', "expected a name"),
    "path": ('model_config_list { config { name: "m" } }', "model 'm': expected a base_path"),
    "platform": (
        'model_config_list { config { name: "m" base_path: "p" model_platform: "onnx" } }',
        "expected model_platform 'tensorflow', got 'onnx'",
    ),
    "versions": (
        'model_config_list { config { name: "m" base_path: "p" '
        "model_version_policy { specific {} } } }",
        "expected versions in its policy",
    ),
}


@pytest.mark.parametrize("name", BAD_CONFIGS)
def test_bad_model_config_files(program, tmp_path, name):
    text, words = BAD_CONFIGS[name]
    config = tmp_path / "models.config"
    config.write_text(text)

    status, error = run(program, "--model-config-file", config)

    assert status == 1
    assert words in error and str(config) in error
