"""Jobs of which a rank is killed, stopped or raises: they end, or go on with the others."""

import os
import signal
import stat
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from ranks.exchange.gpu_processes import on_gpus
from support.programs import ranks
from support.session.tiers import by_day

from group_embedding.testing import launch, stop

pytest.importorskip("horovod", reason="Horovod, whose launcher starts these jobs, is not installed")

PROGRAM = Path(__file__).with_name("broken_rank.py")
LOST = 1


class Job:
    """broken_rank.py on ranks of this machine, started by horovodrun."""

    def __init__(self, folder, *arguments, num_ranks=3, launcher=None):
        self.folder, self.num_ranks = folder, num_ranks
        command = [sys.executable, str(PROGRAM), str(folder), *arguments]
        with open(folder / "output", "w") as output:
            self.job = launch(command, num_ranks, output, launcher)

    def has_ended(self):
        return self.job.poll() is not None

    def process(self, rank, num_ranks=3, seconds=90):
        """Waits until a rank has begun; its process and the step from which it trains."""
        file = self.folder / f"began_{num_ranks}_{rank}"
        deadline = time.monotonic() + seconds
        while not file.exists() or not file.read_text():
            assert not self.has_ended() and time.monotonic() < deadline, self.output()
            time.sleep(0.05)
        process, step = map(int, file.read_text().split())
        return process, step

    def processes(self):
        return [self.process(rank, self.num_ranks)[0] for rank in range(self.num_ranks)]

    def output(self):
        return (self.folder / "output").read_text(errors="replace")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        stop(self.job, grace=0)


class FastJob(Job):
    """`test_broken_rank` on copies of one process."""

    def __init__(self, starter, folder, *arguments):
        self.folder, self.num_ranks = folder, 3
        command = (PROGRAM, folder, *arguments)
        where = ["localhost"] * self.num_ranks
        self.job = ranks.Job(starter, where, folder / "job", ranks.run_script, command, timeout=180)

    def has_ended(self):
        return self.job.has_ended()

    def output(self):
        return self.job.all_output()

    def __exit__(self, *_):
        self.job.end(grace=0)


def wait_until_gone(processes, seconds):
    deadline = time.monotonic() + seconds
    while any(Path(f"/proc/{process}/status").exists() for process in processes):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


WHERE = [
    pytest.param([], 3, id="by_key"),
    pytest.param(["by_row"], 2, id="on_gpus", marks=[pytest.mark.gpu, *on_gpus(2)]),
]


@pytest.mark.parametrize("arguments, num_ranks", WHERE)
@pytest.mark.parametrize("what", by_day(["killed", "stopped", "raises"], ["killed", "raises"]))
def test_the_other_ranks_end_and_say_why(starter, tmp_path, what, arguments, num_ranks):
    (tmp_path / "endless").touch()
    on_cpu = not arguments  # CUDA cannot be used in a copy of a process
    start = FastJob(starter, tmp_path) if on_cpu else Job(tmp_path, *arguments, num_ranks=num_ranks)
    with start as job:
        processes = job.processes()
        if what == "raises":
            (tmp_path / f"raise_{LOST}").touch()
        else:
            os.kill(processes[LOST], signal.SIGKILL if what == "killed" else signal.SIGSTOP)

        others_ended = wait_until_gone([p for p in processes if p != processes[LOST]], seconds=60)
        if what == "stopped":
            os.kill(processes[LOST], signal.SIGKILL)
        output = job.output()

    assert others_ended, output
    reason = {
        "killed": "died",
        "stopped": "has not answered for 5 s",
        "raises": "raised ValueError: no such feature",
    }[what]
    assert f"rank {LOST} (process {processes[LOST]}" in output
    assert reason in output


@pytest.mark.parametrize("num_ranks", [pytest.param(2, marks=[pytest.mark.gpu, *on_gpus(2)])])
def test_a_table_that_is_full_on_one_rank_ends_all(tmp_path, num_ranks):
    # Given ranks that train a table of little space on their GPUs
    (tmp_path / "endless").touch()
    with Job(tmp_path, "on_gpu", num_ranks=num_ranks) as job:
        processes = job.processes()
        # When one rank is asked for more keys than fit
        (tmp_path / "fill").touch()
        # Then both end, and it is said which and why
        assert wait_until_gone(processes, seconds=60), job.output()
    assert f"rank {LOST} (process {processes[LOST]}" in job.output()
    assert "raised ResourceExhaustedError" in job.output()
    assert "table 'keys'" in job.output() and "StorageOption" in job.output()


@pytest.mark.parametrize("what", by_day(["killed", "stopped"], (), nightly=["stopped"]))
def test_an_elastic_job_goes_on_from_the_last_checkpoint(tmp_path, what):
    # Two names of this machine, as a host whose rank died gets no other.
    hosts = tmp_path / "hosts.sh"
    hosts.write_text("#!/bin/sh\necho localhost:2\necho 127.0.0.1:1\n")
    hosts.chmod(hosts.stat().st_mode | stat.S_IXUSR)
    elastic = ["-np", "3", "--min-np", "2", "--host-discovery-script", str(hosts)]
    (tmp_path / "endless").touch()
    with Job(tmp_path, "elastic", launcher=elastic) as job:
        processes = job.processes()
        lost = next(p for p in processes if _host_of(p) == "127.0.0.1")
        latest = tmp_path / "saved" / "checkpoint"  # written after the files of a save
        while not (latest.exists() and "model-3" in latest.read_text()):
            time.sleep(0.05)
        os.kill(lost, signal.SIGKILL if what == "killed" else signal.SIGSTOP)

        _, first_step = job.process(0, num_ranks=2)
        (tmp_path / "endless").unlink()
        code = job.job.wait(90)

    assert code == 0, job.output()
    assert first_step >= 15
    assert "trained on 2 ranks" in job.output()
    ends = [np.load(tmp_path / f"end_{rank}.npz") for rank in range(2)]
    steps = int(ends[0]["step"])
    keys = np.concatenate([end["keys"] for end in ends])
    values = np.concatenate([end["values"] for end in ends])
    np.testing.assert_array_equal(np.sort(keys), np.arange(12))
    # Each step takes a hundredth, on however many ranks: the mean of their equal gradients.
    np.testing.assert_allclose(values, -0.01 * steps, rtol=1e-4)


def _host_of(process):
    environment = Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
    (host,) = [e.partition(b"=")[2] for e in environment if e.startswith(b"HOROVOD_HOSTNAME=")]
    return host.decode()
