"""A server that is killed at any moment begins again at the version that it had, to the bit."""

import os
import random
import threading

import grpc
import numpy as np
import pytest
from support.cases.shop_models import Shop, answers, change, request
from support.servers.server_clients import Client

from group_embedding.serving import Publisher, server

SEED = int(os.environ.get("GROUP_EMBEDDING_TEST_SEED", "20240501"))
DELTAS_OF_A_LIFE = 6
LIFE = (0.1, 0.4)  # seconds after the server is ready


class Releases(threading.Thread):
    """Moves deltas to where the server finds them, at moments that are drawn."""

    def __init__(self, deltas, versions, draw):
        super().__init__()
        self._deltas, self._versions, self._draw = deltas, versions, draw
        self._ended = threading.Event()

    def run(self):
        for _ in range(DELTAS_OF_A_LIFE):
            if self._ended.wait(self._draw.uniform(0, LIFE[0])):
                return
            if self._deltas:
                delta = self._deltas.pop(0)
                delta.rename(self._versions / delta.name)

    def end(self):
        self._ended.set()
        self.join()


@pytest.mark.slow
@pytest.mark.parametrize("kills", [2, pytest.param(200, marks=pytest.mark.soak)])
def test_a_killed_server_goes_on(program, tmp_path, kills):
    # Given a target, deltas that come later, and what the trainer answered at each version
    if not program.with_name("libge_serving.so").exists():
        pytest.skip("libge_serving is not built: make build")
    model, target, later = Shop(), tmp_path / "target", tmp_path / "later"
    later.mkdir()
    inputs = request(20)
    with Publisher(model, target, signatures=model.serve, base_every=None) as publisher:
        expected = {publisher.publish(): answers(model, inputs)}
        for seed in range(2, kills * DELTAS_OF_A_LIFE // 2 + 3):
            change(model, seed)
            expected[publisher.publish()] = answers(model, inputs)
    versions = target / "versions"
    deltas = [d.rename(later / d.name) for d in sorted(versions.iterdir())[1:]]

    # When a server that follows the target is killed again and again
    (tmp_path / "state").mkdir()
    draw, newest = random.Random(SEED), 0
    for _ in range(kills):
        follow = {"sources": {"m": target}, "start_seconds": 120}
        arguments = ("--poll-seconds", "0.01", "--state", str(tmp_path / "state"))
        with server.ServerProcess({"m": target}, *arguments, **follow) as one, Client(one) as asked:
            releases = Releases(deltas, versions, draw)
            releases.start()
            timer = threading.Timer(draw.uniform(*LIFE), one.kill)
            timer.start()
            while True:
                try:
                    found, version = asked.predict(inputs)
                except grpc.RpcError:
                    break
                # Then its versions only rise, over all of its lives, and each is the trainer's
                assert version >= newest
                newest = version
                for name, value in expected[version].items():
                    np.testing.assert_array_equal(found[name], value, err_msg=name)
            timer.join()
            releases.end()

    # And it got further
    assert newest > kills
