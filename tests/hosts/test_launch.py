"""Launchers of ranks on several hosts: `horovodrun -H`, by what stands in for ssh, and
`examples/start_rank.py`, as Slurm's and Kubernetes' processes run it."""

import stat
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
START_RANK = ROOT / "examples" / "start_rank.py"
HOROVODRUN = Path(sys.executable).with_name("horovodrun")

# Trains a table on all ranks, and prints what it became.
TRAIN = """
import sys
sys.path.insert(0, {root!r})
import tensorflow as tf
import group_embedding as ge

ge.enable_distributed_strategy(timeout_seconds=20)
ranks = ge.exchange.current()
table = ge.get_embedding_variable("user", 2, initializer=tf.ones_initializer())
optimizer = ge.DistributedOptimizer(ge.optimizers.wrap(tf.keras.optimizers.SGD(1.0)))
with tf.GradientTape() as tape:
    (rows,) = ge.group_embedding_lookup([table], [tf.constant([ranks.rank, 7], tf.int64)])
    loss = tf.reduce_sum(rows)
optimizer.apply_gradients(zip(tape.gradient(loss, [table]), [table]))
(row,) = ge.group_embedding_lookup([table], [tf.constant([7], tf.int64)])
found = [type(ranks).__name__, ranks.local_rank, ranks.ranks_of_host, row.numpy()[0].tolist()]
print(f"rank {{ranks.rank}} of {{ranks.num_ranks}}: {{found}}", flush=True)
"""

# A server in the place of sshd: runs a command for each connection, whose output it sends.
SHELL_SERVER = """
import os, signal, socketserver, subprocess, sys

class Shell(socketserver.StreamRequestHandler):
    def handle(self):
        command = self.rfile.readline().decode()
        process = subprocess.Popen(command, shell=True, executable="/bin/bash",
                                   stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, start_new_session=True)
        try:
            for line in process.stdout:
                self.wfile.write(line)
            self.wfile.write(b"\\0%d" % process.wait())
        except OSError:  # the caller has ended
            os.killpg(process.pid, signal.SIGKILL)

class Server(socketserver.ThreadingTCPServer):
    daemon_threads = allow_reuse_address = True

server = Server(("", 7022), Shell)
print("listens", flush=True)
server.serve_forever()
"""

# In the place of ssh: `ssh -o OPTION ... HOST COMMAND`.
SHELL_CLIENT = """#!{python}
import socket, sys

words = sys.argv[1:]
while words[0].startswith("-"):
    del words[:2]
host, *words = words
if words[0] == "-o":  # horovodrun writes some options behind the host
    del words[:2]
with socket.create_connection((host, 7022)) as connection:
    connection.sendall(" ".join(words).replace("\\n", " ").encode() + b"\\n")
    with connection.makefile("rb") as answer:
        output, _, code = answer.read().rpartition(b"\\0")
sys.stdout.buffer.write(output)
sys.exit(int(code))
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(TRAIN.format(root=str(ROOT)))
    return path


def expected_lines(num_ranks, ranks_of_host):
    """All ranks of a job train row 7 by the mean of their gradients, 1."""
    return {
        f"rank {rank} of {num_ranks}: "
        f"{['MessageExchange', rank % ranks_of_host, ranks_of_host, [0.0, 0.0]]}"
        for rank in range(num_ranks)
    }


@pytest.mark.slow
@pytest.mark.parametrize("num_hosts, ranks_of_host", [(2, 1), (2, 2), (3, 1)])
def test_ranks_that_another_launcher_starts(make_bed, script, num_hosts, ranks_of_host):
    # Given hosts, and processes on them that know their number, as SLURM_PROCID says it
    bed = make_bed(num_hosts)
    job = ["--hosts", num_hosts, "--ranks-of-host", ranks_of_host, "--address", "a"]
    # When each starts its rank
    processes = [
        host.start(
            [sys.executable, START_RANK, "--rank", n * ranks_of_host + i, *job, script],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for n, host in enumerate(bed.hosts.values())
        for i in range(ranks_of_host)
    ]
    outputs = [process.communicate(timeout=120)[0] for process in processes]
    # Then the ranks find each other and train one table
    assert [process.returncode for process in processes] == [0] * len(processes), outputs
    found = {line for output in outputs for line in output.splitlines() if "rank" in line[:4]}
    assert found == expected_lines(num_hosts * ranks_of_host, ranks_of_host), outputs


def test_a_rank_that_cannot_be_is_refused(tmp_path):
    command = [sys.executable, START_RANK, "--rank", "4", "--hosts", "2", "--address", "localhost"]

    done = subprocess.run([*command, "train.py"], capture_output=True, text=True)

    assert done.returncode == 2 and "--rank: expected 0 to 1, got 4" in done.stderr


@pytest.mark.slow
def test_horovodrun_starts_ranks_on_hosts(make_bed, script, tmp_path):
    # Given two hosts that run commands for each other
    bed = make_bed(2)
    for host in bed.hosts.values():
        server = host.start([sys.executable, "-c", SHELL_SERVER], stdout=subprocess.PIPE, text=True)
        assert server.stdout.readline() == "listens\n"
    ssh = tmp_path / "bin" / "ssh"
    ssh.parent.mkdir()
    ssh.write_text(SHELL_CLIENT.format(python=sys.executable))
    ssh.chmod(ssh.stat().st_mode | stat.S_IXUSR)
    # When horovodrun starts two ranks on each
    command = ["-np", "4", "-H", "a:2,b:2", "--network-interfaces", "eth0", sys.executable, script]
    path = f"PATH={ssh.parent}:/usr/bin:/bin"
    launcher = ["env", path, sys.executable, HOROVODRUN, *command]
    process = bed.hosts["a"].start(
        launcher, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    output, _ = process.communicate(timeout=240)
    # Then the ranks find each other and train one table
    for line in expected_lines(4, 2):
        assert line in output, output
