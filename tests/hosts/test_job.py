"""Jobs on hosts: ranks run on the hosts of the job, form one Horovod, and end on command."""

import os
import signal
import socket
import time

import pytest
from support.session.tiers import by_day

import group_embedding as ge

LAYOUTS = by_day(["ab", "aabb", "abc"], ["aabb"], nightly=["ab", "abc"])


def tell_place():
    ge.enable_distributed_strategy()
    exchange = ge.exchange.current()
    print("this is rank", exchange.rank)
    return socket.gethostname(), exchange.rank, exchange.local_rank, exchange.ranks_of_host


def end_otherwise():
    """Rank 0 returns, 1 raises, 2 is killed, 3 hangs."""
    rank = int(os.environ["HOROVOD_RANK"])
    if rank == 1:
        raise ValueError("no such feature")
    if rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    while rank == 3:
        time.sleep(1)
    return rank


@pytest.mark.parametrize("where", LAYOUTS)
def test_ranks_run_on_their_hosts(make_bed, start_job, where):
    bed = make_bed(len(set(where)))

    outcomes = start_job(bed, where, tell_place).outcomes()

    for rank, (code, result, output) in enumerate(outcomes):
        host = where[rank]
        assert code == 0, output
        assert result == (host, rank, where[:rank].count(host), where.count(host))
        assert f"this is rank {rank}\n" in output


def test_ranks_that_end_otherwise(make_bed, start_job):
    job = start_job(make_bed(2), "aabb", end_otherwise, timeout=4)

    outcomes = job.outcomes()

    assert [o.code for o in outcomes] == [0, 1, -signal.SIGKILL, "timed out"]
    assert [o.result for o in outcomes] == [0, None, None, None]
    assert "ValueError: no such feature" in outcomes[1].output
    assert "in end_otherwise" in outcomes[3].output  # where it hung
    with pytest.raises(AssertionError, match="no such feature"):
        job.results()
