#!/usr/bin/env python3
"""Starts one rank of a job of several hosts, where another launcher than horovodrun starts a
process for each of them: Slurm's srun, or the pods of Kubernetes.

    python start_rank.py --rank R --hosts N [--ranks-of-host M] --address HOST_OF_RANK_0
                         [--port 29400] train.py [ARGUMENTS]

Rank 0 also runs the server by which Horovod's ranks find each other, on this port; the others wait
for it for five minutes. Exits as the script does.

Slurm, two ranks on each of two nodes:

    srun -N 2 --ntasks-per-node 2 sh -c 'python start_rank.py --rank $SLURM_PROCID \\
        --hosts $SLURM_NNODES --ranks-of-host 2 \\
        --address $(scontrol show hostnames $SLURM_JOB_NODELIST | head -1) train.py'

Kubernetes, a StatefulSet `train` of four pods with a headless service `train`:

    python start_rank.py --rank ${HOSTNAME##*-} --hosts 4 --address train-0.train train.py
"""

import argparse
import os
import signal
import socket
import subprocess
import sys
import threading
import time

WAIT_SECONDS = 300


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--rank", type=int, required=True, help="ranks of a host follow each other")
    parser.add_argument("--hosts", type=int, required=True)
    parser.add_argument("--ranks-of-host", type=int, default=1)
    parser.add_argument("--address", required=True, help="the name or address of rank 0's host")
    parser.add_argument("--port", type=int, default=29400)
    parser.add_argument("command", nargs=argparse.REMAINDER, help="a script and its arguments")
    job = parser.parse_args()
    if not 0 <= job.rank < job.hosts * job.ranks_of_host:
        parser.error(f"--rank: expected 0 to {job.hosts * job.ranks_of_host - 1}, got {job.rank}")
    if not job.command:
        parser.error("expected a script to run")
    address = address_of(job.address)
    if job.rank == 0:
        serve(job)
    wait_for_server(address, job.port)
    environment = {**os.environ, **variables(job, address)}
    rank = subprocess.Popen([sys.executable, *job.command], env=environment)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: rank.send_signal(number))
    code = rank.wait()
    return code if code >= 0 else 128 - code  # as a shell says which signal ended it


def serve(job):
    """Runs Horovod's rendezvous server in a thread, which ends with this process."""
    from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
    from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer

    hosts = ",".join(f"{name_of_host(n)}:{job.ranks_of_host}" for n in range(job.hosts))
    server = RendezvousHTTPServer(("", job.port), RendezvousHandler, 0)
    server.init(get_host_assignments(parse_hosts(hosts), job.hosts * job.ranks_of_host))
    threading.Thread(target=server.serve_forever, daemon=True).start()


def address_of(host):
    """The address of a host, whose name may not resolve before its pod runs."""
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        try:
            return socket.gethostbyname(host)
        except OSError as error:
            if time.monotonic() > deadline:
                raise SystemExit(
                    f"start_rank: the name '{host}' does not resolve: {error}"
                ) from None
            time.sleep(1)


def wait_for_server(address, port):
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        try:
            socket.create_connection((address, port), timeout=5).close()
            return
        except OSError as error:
            if time.monotonic() > deadline:
                raise SystemExit(
                    f"start_rank: expected rank 0 to listen at {address}, port {port}, within "
                    f"{WAIT_SECONDS} s: {error}"
                ) from None
            time.sleep(0.2)


def name_of_host(index):
    return f"host-{index}"


def variables(job, address):
    """Returns the environment variables that horovodrun sets for a rank."""
    host, local_rank = divmod(job.rank, job.ranks_of_host)
    values = {
        "RANK": job.rank,
        "SIZE": job.hosts * job.ranks_of_host,
        "LOCAL_RANK": local_rank,
        "LOCAL_SIZE": job.ranks_of_host,
        "CROSS_RANK": host,
        "CROSS_SIZE": job.hosts,
        "HOSTNAME": name_of_host(host),
        "GLOO_RENDEZVOUS_ADDR": address,
        "GLOO_RENDEZVOUS_PORT": job.port,
        "CONTROLLER": "gloo",
        "CPU_OPERATIONS": "gloo",
    }
    return {f"HOROVOD_{name}": str(value) for name, value in values.items()}


if __name__ == "__main__":
    sys.exit(main())
