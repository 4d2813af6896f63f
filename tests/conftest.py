"""Setup of all tests: quiet TensorFlow, fixed seeds, and GPU tests that say why they are
skipped."""

import contextlib
import faulthandler
import fcntl
import gc
import importlib.metadata
import os
import pathlib
import random
import sys
import uuid

# Before anything imports TensorFlow, and for the ranks that tests start. Growth, because tests of
# several ranks share one GPU; a GPU's matrix products at float32's own precision, as an oracle's.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")
os.environ.setdefault("NVIDIA_TF32_OVERRIDE", "0")
# Programs and ranks that tests start import `support` as tests do.
os.environ["PYTHONPATH"] = os.pathsep.join(
    [os.path.dirname(os.path.abspath(__file__)), *filter(None, [os.environ.get("PYTHONPATH")])]
)

import hypothesis
import pytest
from support.servers.shared_server import shared_server
from support.session import schedule, seeds, stacks, tiers
from support.session.durations import BUDGET, Durations, send_budget
from support.session.folders import remove_folders
from support.session.leftovers import Leftovers
from support.session.shared_ranks import (  # noqa: F401
    four_ranks,
    pytest_runtest_teardown,
    several_ranks,
    start_ranks,
    starter,
    three_ranks,
    two_ranks,
)

SEED = int(os.environ.get("GROUP_EMBEDDING_TEST_SEED", "20240501"))
LEFTOVERS = pytest.StashKey()
STACKS = pytest.StashKey()  # the file for those of a test that hangs or crashes

# The same examples on every run; GROUP_EMBEDDING_TEST_SEED draws others. No deadline: the first
# example pays for tracing.
hypothesis.settings.register_profile(
    "repeatable",
    derandomize="GROUP_EMBEDDING_TEST_SEED" not in os.environ,
    deadline=None,
    database=None,
    print_blob=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("repeatable")


def _tensorflow_version():
    for name in ("tensorflow", "tensorflow-cpu"):
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def pytest_addoption(parser):
    parser.addoption(
        "--shuffle",
        nargs="?",
        type=int,
        const=-1,
        metavar="SEED",
        help="run files, and the tests of each, in a random order; SEED repeats one",
    )
    parser.addoption(
        "--on-hosts",
        action="store_true",
        help="ranks of tests/ranks/exchange are on several hosts: see tests/hosts/host_ranks.py",
    )
    parser.addoption(
        "--durations-file",
        type=pathlib.Path,
        default="build/durations.jsonl",
        help="where the seconds of each test are written: see tests/support/session/durations.py",
    )
    parser.addoption(
        "--file-budget",
        type=float,
        default=BUDGET,
        metavar="SECONDS",
        help="a file that takes longer fails the run",
    )
    parser.addoption(
        "--test-limit",
        type=float,
        default=600,
        metavar="SECONDS",
        help="a test that takes longer, but for soak tests, is taken for one that hangs: its "
        "process prints the stack of each thread and ends",
    )


def pytest_report_header(config):
    order = config.option.shuffle
    shuffled = "" if order is None else f", --shuffle {order}"
    return f"TensorFlow {_tensorflow_version()}, GROUP_EMBEDDING_TEST_SEED={SEED}{shuffled}"


def pytest_configure(config):
    if config.option.shuffle == -1:  # drawn once, for all workers
        config.option.shuffle = random.randrange(1 << 16)
    if (
        "GROUP_EMBEDDING_TEST_SEED" in os.environ
        and config.getoption("hypothesisseed", None) is None
    ):
        config.option.hypothesisseed = str(SEED)
    if not hasattr(config, "workerinput"):  # the process that starts the others
        config.pluginmanager.register(
            Durations(config.rootpath / config.option.durations_file, config.option.file_budget)
        )
        config.stash[LEFTOVERS] = Leftovers(config.rootpath)
    config.stash[STACKS] = stacks.open_file(config)


def pytest_sessionstart(session):
    faulthandler.enable(session.config.stash[STACKS])  # pytest has enabled it, for another file


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config):
    if LEFTOVERS in config.stash:
        stacks.show(config)


@pytest.hookimpl(trylast=True)  # when the workers have ended
def pytest_sessionfinish(session):
    remove_folders()
    if LEFTOVERS not in session.config.stash:
        gc.collect()  # tables that no test has any more: at its end a process removes no folders
        return
    for line in session.config.stash[LEFTOVERS].find():
        session.exitstatus = session.exitstatus or 1
        terminal = session.config.pluginmanager.get_plugin("terminalreporter")
        terminal.write_line(f"LEFT BEHIND by a test: {line}", red=True)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    return schedule.scheduler(config, log) if config.option.dist == "loadfile" else None


@pytest.hookimpl(tryfirst=True)  # before tests are left out by their marks
def pytest_collection_modifyitems(config, items):
    tiers.mark_slow(items)
    tiers.mark_without_tensorflow(items, pathlib.Path(__file__).parent)
    if config.option.shuffle is None:
        items[:] = schedule.first_ranks(items)
    else:
        items[:] = schedule.shuffled(items, config.option.shuffle)
    gpu_items = [item for item in items if item.get_closest_marker("gpu")]
    reason = _why_no_gpu() if gpu_items else None
    if reason:
        for item in gpu_items:
            item.add_marker(pytest.mark.skip(reason=reason))


def pytest_collection_finish():
    """Freezes the objects that exist by now, so that no collection of garbage looks at them."""
    gc.collect()
    gc.freeze()


def pytest_runtest_setup(item):
    send_budget(item)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    if not item.get_closest_marker("soak"):
        seconds, file = item.config.option.test_limit, item.config.stash[STACKS]
        faulthandler.dump_traceback_later(seconds, exit=True, file=file)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


def _why_no_gpu():
    import tensorflow as tf

    from group_embedding.ops import _library

    if not tf.config.list_physical_devices("GPU"):
        return "TensorFlow sees no GPU"
    if not _library.build_record(tf.__version__)["cuda"]:
        return "group_embedding was built without CUDA"
    return None


@pytest.fixture(autouse=True)
def turn(request, tmp_path_factory):
    """A test marked `timed` has the machine to itself: other workers' tests wait for it."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        yield
        return
    folder = tmp_path_factory.getbasetemp().parent  # of all workers
    how = fcntl.LOCK_EX if request.node.get_closest_marker("timed") else fcntl.LOCK_SH
    with contextlib.ExitStack() as held:
        with _locked(folder / "gate", fcntl.LOCK_EX):  # so that no test overtakes a timed one
            held.enter_context(_locked(folder / "turn", how))
        yield


@contextlib.contextmanager
def _locked(path, how):
    with open(path, "a") as file:
        fcntl.flock(file, how)
        try:
            yield
        finally:  # a process that the test has forked, and left behind, would hold it on
            fcntl.flock(file, fcntl.LOCK_UN)


@pytest.fixture(autouse=True)
def started_seeds():
    """Random numbers of every test start anew, and TensorFlow multiplies in float32."""
    seeds.start(SEED)
    tf = sys.modules.get("tensorflow")
    if tf is not None:
        tf.config.experimental.enable_tensor_float_32_execution(False)  # XLA's, too


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory):
    """An S3 server with an empty bucket, which clients find by the environment: its `endpoint`,
    the `url` of the bucket, and the `environment`."""
    folder = _session_folder(tmp_path_factory) / "s3"
    with shared_server(folder, "support.servers.s3_server.S3Server") as server:
        os.environ.update(server["environment"])
        yield server


@pytest.fixture(scope="session")
def hdfs_server(tmp_path_factory):
    """A namenode and a datanode: the `url` of their root."""
    folder = _session_folder(tmp_path_factory) / "hdfs"
    with shared_server(folder, "support.servers.hdfs_server.HdfsServer") as server:
        yield server


@pytest.fixture(scope="session")
def gs_server(tmp_path_factory):
    """A server of Google's protocol with an empty bucket, which clients find by the environment:
    the `url` of the bucket, and the `environment`."""
    folder = _session_folder(tmp_path_factory) / "gs"
    with shared_server(folder, "support.servers.gcs_server.GcsServer") as server:
        os.environ.update(server["environment"])
        config = pytest.importorskip("fsspec.config")
        config.set_conf_env(config.conf)
        yield server


@pytest.fixture
def gs_folder(gs_server):
    """The URL of an empty folder of the server of Google's protocol."""
    return f"{gs_server['url']}/{uuid.uuid4().hex}"


@pytest.fixture
def s3_folder(s3_server):
    """The URL of an empty folder of the S3 server."""
    return f"{s3_server['url']}/{uuid.uuid4().hex}"


@pytest.fixture
def hdfs_folder(hdfs_server):
    """The URL of an empty folder of HDFS."""
    return f"{hdfs_server['url']}/{uuid.uuid4().hex}"


def _session_folder(tmp_path_factory):
    """One folder for all workers of a test session."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
