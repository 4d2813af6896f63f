"""The identity of a process, and of a network, on this machine and on others: machines may
have one hostname, and their processes one number."""

import os
import socket
from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")  # drawn when the machine starts
_START_TIME = 19  # its place in /proc/<process>/stat, after the name of the process


def identity_of(process):
    """A text that no other process has which this one could meet by the number: boot id, namespace
    of process numbers, start time. Empty: there is no such process, or it cannot be read."""
    try:
        namespace = os.stat("/proc/self/ns/pid").st_ino
        start = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[_START_TIME]
        return f"{_BOOT_ID.read_text().strip()} {namespace} {start}"
    except OSError:
        return ""


def network_of_host():
    """A text that is the same for all processes which reach each other by the loopback."""
    try:
        return f"{_BOOT_ID.read_text().strip()} {os.stat('/proc/self/ns/net').st_ino}"
    except OSError:
        return socket.gethostname()
