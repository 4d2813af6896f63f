"""ge-serve above a tier that is slow or fails: errors by name, or counted defaults."""

import contextlib
import re
import time

import grpc
import numpy as np
import pytest
import tensorflow as tf
from support.cases.shop_models import Versions
from support.servers.server_clients import Client, http, wait_for
from support.servers.slow_rocksdb import SlowRocksdb

from group_embedding.serving import server

KEYS = Versions.KEYS
NOWHERE = 63
TIMEOUT = 0.2  # seconds, of the tier
SLOW = "sleep 0.7"


@pytest.fixture(scope="module")
def tier(program, tmp_path_factory):
    return SlowRocksdb(tmp_path_factory.mktemp("rocksdb"))


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A SavedModel whose first table has rows of 8; a key that is nowhere reads 1."""
    folder = tmp_path_factory.mktemp("versions")
    module = Versions()
    module.first.insert(KEYS, np.full([64, 4], 8, np.float32))
    module.first.erase(np.array([NOWHERE]))
    tf.saved_model.save(module, str(folder / "1"), signatures=module.serve)
    return folder


@pytest.fixture(scope="module")
def start(tier, model, tmp_path_factory):
    """Starts a server with more options of its tiers; the same options share a server."""
    started = {}
    with contextlib.ExitStack() as opened:

        def begin(options, *arguments):
            if options not in started:
                tier.be("well")
                rows = tmp_path_factory.mktemp("rows")
                tiers = f"memory=1,rocksdb={rows},timeout={TIMEOUT * 1000:.0f}ms{options}"
                with pytest.MonkeyPatch.context() as patch:
                    for name, value in tier.environment.items():
                        patch.setenv(name, value)
                    process = server.ServerProcess({"m": model}, "--tiers", tiers, *arguments)
                    started[options] = opened.enter_context(process)
            return started[options]

        yield begin
        tier.be("well")


def first(client, keys, **options):
    """The rows of the first table."""
    return client.predict({"key": np.array(keys)}, **options)[0]["rows"][:, 0].tolist()


def metric(served, name):
    """{value of the labels `table` and `found`: number} of a metric."""
    found = re.findall(rf"^{name}{{(.*)}} (\S+)$", http(served, "/metrics")[1], re.M)
    labels = [dict(re.findall(r'(\w+)="([^"]*)"', text)) for text, _ in found]
    return {
        (one["table"], one.get("found")): float(number)
        for one, (_, number) in zip(labels, found)
        if one["model"] == "m"
    }


@pytest.mark.parametrize("inter_op_threads", ["0", "2"])
def test_errors_by_name(start, tier, inter_op_threads):
    # Given a server whose lower tier is well; a request's ops run on its thread, or on others
    insert = "background" if inter_op_threads == "0" else "off"
    served = start(f",insert={insert}", "--inter-op-threads", inter_op_threads)
    with Client(served) as client:
        assert first(client, [3]) == [8]
        # When it fails, Then the error names the table and the tier
        tier.be("fail")
        with pytest.raises(grpc.RpcError) as failed:
            first(client, [4])
        assert failed.value.code() == grpc.StatusCode.UNAVAILABLE
        assert re.match("table 'first', tier rocksdb=.*the disk is gone$", failed.value.details())
        # When it is slow, Then the error names the deadline too, which is the tier's
        tier.be(SLOW)
        start_time = time.monotonic()
        with pytest.raises(grpc.RpcError) as failed:
            first(client, [5])
        assert time.monotonic() - start_time < 0.6
        assert failed.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        assert re.match("table 'first', tier rocksdb=.* 200 ms$", failed.value.details())
        # And the client's, where that is shorter
        start_time = time.monotonic()
        with pytest.raises(grpc.RpcError) as failed:
            first(client, [6], seconds=0.08)
        assert time.monotonic() - start_time < 0.18
        assert failed.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        # And once it is well, every key reads its row
        tier.be("well")
        wait_for(lambda: first(client, [3, 4, 5, 6, NOWHERE]) == [8, 8, 8, 8, 1])
    assert metric(served, "ge_serve_tier_failures_total")["first", None] == 1
    assert metric(served, "ge_serve_tier_timeouts_total")["first", None] >= 2
    assert metric(served, "ge_serve_tier_defaults_total")["first", None] == 0


def test_defaults_are_counted_and_not_remembered(start, tier):
    # Given a server that answers with defaults, whose lower tier is slow, then fails
    served = start(",on_failure=default")
    with Client(served) as client:
        for mood in (SLOW, "fail"):
            before = metric(served, "ge_serve_tier_defaults_total")["first", None]
            tier.be(mood)
            # When keys are asked for, Then they read what an unknown key does, and are counted
            assert first(client, [10, 11, 10]) == [1, 1, 1]
            assert metric(served, "ge_serve_tier_defaults_total")["first", None] == before + 3
            # And once the tier is well, they read their rows
            tier.be("well")
            wait_for(lambda: first(client, [10, 11, 12]) == [8, 8, 8])
            first(client, range(64))  # others leave memory for these
    # And the page has the numbers
    page = http(served, "/")[1]
    assert "<th>defaults</th>" in page and "<td>rocksdb</td>" in page


def test_metrics_of_tiers(start, tier):
    # Given a server
    served = start(",expire=1s")
    with Client(served) as client:
        before = metric(served, "ge_serve_tier_keys_total")
        # When rows, and a key that is nowhere, are asked for
        assert first(client, [20, 20, 21, NOWHERE]) == [8, 8, 8, 1]
        # Then each key is counted where it was found
        after = metric(served, "ge_serve_tier_keys_total")
        gained = {where: after[where] - before[where] for where in after if where[0] == "first"}
        assert gained["first", "rocksdb"] + gained["first", "memory"] == 3
        assert gained["first", "nowhere"] == 1
        # And the reads of the tier have a histogram, and rows leave memory
        assert metric(served, "ge_serve_tier_seconds_count")["first", None] >= 1
        assert metric(served, "ge_serve_tier_seconds_sum")["first", None] > 0
        wait_for(lambda: metric(served, "ge_serve_cache_expired_total")["first", None] >= 1)
        assert metric(served, "ge_serve_cache_rows")["first", None] == 0
        assert metric(served, "ge_serve_cache_bytes")["first", None] == 0
