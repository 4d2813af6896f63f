"""`enable_distributed_strategy` in a process that horovodrun did not launch."""

import os
import sys

import pytest
import tensorflow as tf

import group_embedding as ge
from group_embedding import exchange
from group_embedding.distributed import strategy
from group_embedding.ranks.exchange.active import set_current
from group_embedding.ranks.exchange.local import LocalExchange
from group_embedding.ranks.sharding.make_sharded_table import make_table
from group_embedding.ranks.sharding.sharded_table import sharded_table


@pytest.fixture
def one_process():
    set_current(LocalExchange())
    yield
    set_current(LocalExchange())


@pytest.mark.parametrize("word", ["mirrored", "", None])
def test_another_word_is_refused(word):
    with pytest.raises(ValueError, match=f"strategy: expected one of 'collective', got {word!r}"):
        ge.enable_distributed_strategy(word)


def test_without_horovod_the_install_command_is_told(monkeypatch, one_process):
    monkeypatch.setitem(sys.modules, "horovod", None)  # as if it were not installed
    monkeypatch.setitem(sys.modules, "horovod.tensorflow", None)
    monkeypatch.delitem(sys.modules, "group_embedding.ranks.exchange.horovod", raising=False)

    with pytest.raises(ImportError) as caught:
        ge.enable_distributed_strategy()

    message = str(caught.value)
    assert "Horovod is not installed" in message
    assert "HOROVOD_WITH_TENSORFLOW=1 HOROVOD_WITHOUT_PYTORCH=1" in message
    assert f"{sys.executable} -m pip install --no-build-isolation horovod==0.28.1" in message


def test_unlaunched_it_is_one_process_with_whole_tables(one_process):
    pytest.importorskip("horovod.tensorflow", reason="Horovod is not installed")

    ge.enable_distributed_strategy("collective")
    first = exchange.current()
    ge.enable_distributed_strategy()

    assert exchange.current() is first
    assert (first.rank, first.num_ranks) == (0, 1)
    table = make_table((4, 2), tf.zeros, lambda shape, initializer: tf.Variable(initializer(shape)))
    assert table.shape == (4, 2)
    assert sharded_table(table) is None


def test_ranks_share_the_cores_of_their_host(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)), raising=False)
    monkeypatch.setenv("TF_NUM_INTRAOP_THREADS", "5")

    strategy._share_cores(3)
    assert os.environ["TF_NUM_INTRAOP_THREADS"] == "5"  # as the user says

    for num_ranks, threads in ((3, "2"), (16, "1")):
        monkeypatch.delenv("TF_NUM_INTRAOP_THREADS")
        strategy._share_cores(num_ranks)
        assert os.environ["TF_NUM_INTRAOP_THREADS"] == threads
