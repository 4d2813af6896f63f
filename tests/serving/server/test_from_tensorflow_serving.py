"""Start commands, files and clients of TensorFlow Serving, as its users have them."""

import re
import socket
import ssl
import subprocess
from pathlib import Path

import grpc
import numpy as np
import pytest
from support.servers.server_clients import Client, http, rest, wait_for

INPUTS = {"x": np.ones([1, 3], np.float32), "n": np.array([4])}
INSTANCE = {"x": [1, 1, 1], "n": 4}

# The arguments of KServe's runtime kserve-tensorflow-serving, and of the container that Bitnami's
# Helm chart starts; the ports and the folders are the test's.
KSERVE = """
--model_name={name}
--port=0
--rest_api_port={rest}
--model_base_path={models}
--rest_api_timeout_in_ms=60000
"""
HELM = """
--port=0
--rest_api_port={rest}
--model_config_file={config}
--monitoring_config_file={monitoring}
--file_system_poll_wait_seconds=5
"""
CONFIG = """
model_config_list: {
  config: {
    name: "clicks",
    base_path: "%s",
    model_platform: "tensorflow"
  }
}
"""
MONITORING = """
prometheus_config: {
  enable: true,
  path: "%s"
}
"""
OTHERS = """
--model_name=clicks
--model_base_path={models}
--port=0
--rest_api_timeout_in_ms=2500
--tensorflow_session_parallelism=2
--monitoring_config_file={monitoring}
--grpc_max_threads=8
--enable_model_warmup=true
--allow_version_labels_for_unavailable_models
--max_num_load_retries=5
--per_process_gpu_memory_fraction=0.5
--prefer_tflite_model=true
--use_alts_credentials=false
--enable_batching=true
--batching_parameters_file={batching}
"""
BATCHING = "max_batch_size { value: 64 } batch_timeout_micros { value: 100 }"


@pytest.fixture
def command(start, model, tmp_path):
    """Starts a server by a text of arguments."""

    def begin(text, path="/monitoring/prometheus/metrics"):
        model(tmp_path / "clicks" / "3")
        (tmp_path / "models.config").write_text(CONFIG % (tmp_path / "clicks"))
        (tmp_path / "monitoring.config").write_text(MONITORING % path)
        (tmp_path / "batching.config").write_text(BATCHING)
        # --rest-port 0 is any free port; TensorFlow Serving's 0 is none
        names = {"name": "clicks", "rest": 8501, "models": tmp_path / "clicks"}
        names |= {
            "config": tmp_path / "models.config",
            "monitoring": tmp_path / "monitoring.config",
            "batching": tmp_path / "batching.config",
        }
        return start({}, *text.format(**names).split(), "--rest-port", "0")

    return begin


@pytest.mark.parametrize("text", [KSERVE, HELM, OTHERS], ids=["KServe", "Helm", "others"])
def test_start_commands_as_they_are(command, text):
    # Given a server that was started by a command for tensorflow_model_server
    server = command(text)

    # When the stock clients ask, Then they get answers
    with Client(server) as client:
        assert client.predict(INPUTS, model="clicks")[1] == 3
        assert client.states(model="clicks") == {3: ("AVAILABLE", "")}
        assert "serving_default" in client.metadata(model="clicks")[0]
    status, answer = rest(server, "/v1/models/clicks:predict", {"instances": [INSTANCE]})
    assert (status, answer) == (200, {"predictions": [7.0]})
    assert rest(server, "/v1/models/clicks")[0] == 200
    assert http(server, "/monitoring/prometheus/metrics")[0] == 200


def test_flags_without_a_meaning_print_one_line(command):
    server = command(OTHERS)

    wait_for(lambda: "--max-num-load-retries" in server.errors())
    log = server.errors()
    for flag in ("grpc-max-threads", "prefer-tflite-model", "per-process-gpu-memory-fraction"):
        assert log.count(f"--{flag} ") == 1
    for flag in ("port", "monitoring-config-file", "use-alts-credentials", "enable-batching"):
        assert f"--{flag} " not in log


@pytest.mark.parametrize(
    "flag, words",
    [
        ("--use_alts_credentials", "is not taken here: ALTS asks a service"),
        ("--platform_config_file=/p.txt", "is not taken here: it exchanges the code"),
        ("--ssl_config_file=/nowhere.txt", "cannot read '/nowhere.txt'"),
        ("--monitoring_config_file=/nowhere.txt", "cannot read '/nowhere.txt'"),
        ("--rest_api_timeout_in_ms=soon", "expected a number"),
    ],
)
def test_flags_that_cannot_be_obeyed_are_refused(program, flag, words):
    arguments = [program, "--model_base_path=/m", flag]

    done = subprocess.run(arguments, capture_output=True, text=True, timeout=60)

    assert done.returncode == 1
    assert words in done.stderr
    assert done.stderr.count("\n") == 1


BAD_FILES = {
    "key": ("ssl", "server_cert: 'a'", "expected server_key and server_cert"),
    "authority": ("ssl", "server_key: 'a' server_cert: 'b' client_verify: true", "custom_ca"),
    "pem": ("ssl", "server_key: 'a' server_cert: 'b'", "gRPC cannot use the certificate"),
    "field": ("ssl", "server_name: 'a'", "line 1, column 12"),
    "path": ("monitoring", "prometheus_config { enable: true path: 'm' }", "begins with '/'"),
    "text": ("monitoring", "prometheus_config {", "line 1"),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_files_that_are_wrong(program, double, tmp_path, case):
    kind, text, words = BAD_FILES[case]
    (tmp_path / "file").write_text(text)
    arguments = [f"--{kind}_config_file={tmp_path / 'file'}", "--model", "m=/m", "--grpc-port", "0"]

    done = subprocess.run(
        [program, *arguments, "--library", double, "--rest-port=-1"],
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert done.returncode == 1
    assert words in done.stderr


@pytest.fixture(scope="module")
def pems(tmp_path_factory):
    """Texts of an authority, and of a certificate of it for a server and for a client."""
    folder = tmp_path_factory.mktemp("pems")

    def openssl(*arguments):
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    new = ["-newkey", "rsa:2048", "-nodes", "-subj"]
    openssl("req", "-x509", *new, "/CN=authority", "-keyout", "ca.key", "-out", "ca.pem")
    (folder / "names").write_text("subjectAltName=DNS:localhost")
    for name in ("server", "client"):
        openssl("req", *new, f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr")
        sign = ["-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "names"]
        openssl("x509", "-req", "-in", f"{name}.csr", *sign, "-out", f"{name}.pem")
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("verify", [False, True])
def test_an_ssl_config_file(start, model, tmp_path, pems, verify):
    # Given TensorFlow Serving's file, which has PEM texts
    lines = ["server_key: %r", "server_cert: %r", "custom_ca: %r"]
    names = ["server.key", "server.pem", "ca.pem"]
    text = "\n".join(line % pems[name].decode() for line, name in zip(lines, names, strict=True))
    (tmp_path / "ssl.txt").write_text(f"{text}\nclient_verify: {str(verify).lower()}")

    # When a server has it
    server = start({"m": model(tmp_path / "1")}, f"--ssl_config_file={tmp_path / 'ssl.txt'}")

    # Then gRPC is TLS, with certificates of clients if they are verified; REST is plain, as there
    def ask(*own):
        with Client(server, grpc.ssl_channel_credentials(pems["ca.pem"], *own)) as client:
            return client.predict(INPUTS, seconds=5)[1]

    assert ask(pems["client.key"], pems["client.pem"]) == 1
    if verify:
        with pytest.raises(grpc.RpcError):
            ask()
    else:
        assert ask() == 1
    with Client(server) as plain, pytest.raises(grpc.RpcError):
        plain.predict(INPUTS, seconds=2)
    assert http(server, "/healthz")[0] == 200


def test_a_client_of_tls_that_does_not_speak_http2(start, model, tmp_path, pems):
    # Given a server with TLS
    for name in ("server.key", "server.pem"):
        (tmp_path / name).write_bytes(pems[name])
    files = [f"--tls-key={tmp_path / 'server.key'}", f"--tls-certificate={tmp_path / 'server.pem'}"]
    server = start({"m": model(tmp_path / "1")}, *files)

    # When a client asks for another protocol at gRPC's port
    context = ssl.create_default_context(cadata=pems["ca.pem"].decode())
    context.set_alpn_protocols(["http/1.1"])

    # Then the handshake fails, and others are answered
    address = ("localhost", server.grpc_port)
    with socket.create_connection(address) as plain, pytest.raises(OSError):
        context.wrap_socket(plain, server_hostname="localhost")
    with Client(server, grpc.ssl_channel_credentials(pems["ca.pem"])) as client:
        assert client.predict(INPUTS)[1] == 1


def test_metrics_by_their_names(command):
    # Given a server with metrics at a path of its own, and requests of both protocols
    server = command(HELM, path="/own/metrics")
    with Client(server) as client:
        for _ in range(3):
            client.predict(INPUTS, model="clicks")
        with pytest.raises(grpc.RpcError):
            client.predict({}, model="clicks")
    rest(server, "/v1/models/clicks:predict", {"instances": [INSTANCE]})
    examples = [{"a": 1}, {"a": 2}]
    body = {"signature_name": "regress", "examples": examples}
    assert rest(server, "/v1/models/clicks:regress", body)[0] == 200

    # When Prometheus reads them
    status, page = http(server, "/own/metrics")
    found = {}
    for line in page.splitlines():
        if not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            assert name not in found
            found[name] = float(value)

    # Then names, labels and bounds are TensorFlow Serving's
    assert status == 200
    assert http(server, "/monitoring/prometheus/metrics")[0] == 404
    count = ':tensorflow:serving:request_count{model_name="clicks",status="%s"}'
    assert (found[count % "OK"], found[count % "INVALID_ARGUMENT"]) == (5, 1)
    latency = ':tensorflow:serving:request_latency_%s{model_name="clicks",API="%s",entrypoint="%s"}'
    assert found[latency % ("count", "Predict", "GRPC")] == 4
    assert found[latency % ("count", "predict", "REST")] == 1
    assert found[latency % ("count", "regress", "REST")] == 1
    assert found[latency % ("sum", "Predict", "GRPC")] > 0
    bounds = re.findall(r':request_latency_bucket{.*"GRPC",le="(.*)"}', page)
    assert bounds[:4] == ["10", "18", "32.4", "58.32"] and "708235" in bounds
    assert bounds[-1] == "+Inf" and len(bounds) == 34
    assert found[':tensorflow:serving:request_example_count_total{model="clicks"}'] == 2
    assert found[':tensorflow:serving:request_example_counts_bucket{model="clicks",le="1"}'] == 0
    assert found[':tensorflow:serving:request_example_counts_bucket{model="clicks",le="2"}'] == 1
    assert found[":tensorflow:core:graph_runs{}"] >= 5
    assert found[":tensorflow:core:graph_run_time_usecs{}"] > 0
    assert found[':tensorflow:core:graph_run_time_usecs_histogram_bucket{le="+Inf"}'] >= 5
    assert any(name.startswith("ge_serve_requests_total") for name in found)


def test_metrics_that_are_not_wanted(command, tmp_path):
    server = command(HELM.replace("{monitoring}", "/dev/null"))

    assert http(server, "/monitoring/prometheus/metrics")[0] == 404
    assert "ge_serve_" in http(server, "/metrics")[1]


GUIDE = Path(__file__).parents[3] / "docs" / "guides" / "server.md"
VALUES = {
    "port": "0",
    "rest_api_port": "8501",
    "rest_api_timeout_in_ms": "30000",
    "model_base_path": "/m",
    "file_system_poll_wait_seconds": "1",
    "use_alts_credentials": "true",
    "enable_batching": "true",
}


def rows_of_the_guide():
    """{flag: whether the guide's table says that it is refused}."""
    text = GUIDE.read_text().partition("## From TensorFlow Serving")[2].partition("\n### ")[0]
    rows = [line.split("|") for line in text.splitlines() if line.startswith("| `--")]
    return {
        flag: row[2].strip().startswith("refused")
        for row in rows
        for flag in re.findall(r"`--(\w+)`", row[1])
    }


@pytest.mark.parametrize("flag", sorted(rows_of_the_guide()))
def test_each_flag_of_the_guide(program, tmp_path, flag):
    # Given a flag of tensorflow_model_server with a value that it takes there
    files = {
        "model_config_file": CONFIG % "/m",
        "monitoring_config_file": MONITORING % "/m",
        "batching_parameters_file": BATCHING,
        "ssl_config_file": "server_key: 'k' server_cert: 'c'",
    }
    value = VALUES.get(flag, "1")
    if flag in files:
        value = tmp_path / flag
        value.write_text(files[flag])

    # When the program reads its arguments
    arguments = [program, f"--{flag}={value}", "--help"]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=60)

    # Then it is taken, or refused, as the guide says
    assert (done.returncode != 0) == rows_of_the_guide()[flag], done.stderr


def test_the_guide_has_all_flags(program):
    # The flags of TensorFlow Serving 2.19 that the program knows
    known = (GUIDE.parents[2] / "cc/serving/server/operations/foreign_flags.cc").read_text()
    flags = {name.replace("-", "_") for name in re.findall(r'\{"([a-z-]+)",', known)}
    own = {"grpc_socket_path", "ssl_config_file", "monitoring_config_file", "model_config_file"}
    own |= {"enable_batching", "batching_parameters_file"}

    assert set(rows_of_the_guide()) == flags | own
    assert len(flags | own) == 48


def test_calls_that_are_not_here(shared):
    # Given the two calls of TensorFlow Serving that change models or join answers
    with Client(shared) as client:
        for method in (
            "PredictionService/MultiInference",
            "ModelService/HandleReloadConfigRequest",
        ):
            with pytest.raises(grpc.RpcError) as error:
                client.raw(f"tensorflow.serving.{method}")

            # Then each says so
            assert error.value.code() == grpc.StatusCode.UNIMPLEMENTED
            assert method in error.value.details()
