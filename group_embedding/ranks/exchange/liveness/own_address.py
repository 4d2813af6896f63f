"""The address of this host by which the other hosts of a job reach it."""

import ipaddress
import os
import socket

LAUNCHER = "HOROVOD_GLOO_RENDEZVOUS_ADDR"  # who set it reaches all ranks by it


def listening_address(hosts):
    """The address on which a rank listens: the loopback where all ranks reach each other by it.

    Args:
        hosts: (hostname, `identity.network_of_host()`) of each rank.

    Raises:
        ConnectionError: as `own_address`.
    """
    names, networks = zip(*hosts)
    return "127.0.0.1" if len(set(networks)) == 1 else own_address(names)


def own_address(hosts):
    """The address of this host on its route to the launcher, or to another host of the job.

    This host's own name is not asked for: many systems have it as 127.0.1.1 in /etc/hosts.

    Args:
        hosts: names of all hosts of the job.

    Raises:
        ConnectionError: there is no such route.
    """
    own_name = socket.gethostname()
    launcher = os.environ.get(LAUNCHER)
    targets = [launcher] if launcher else sorted(set(hosts) - {own_name})
    for target in targets:
        address = _address_on_route_to(target)
        if address is not None and not ipaddress.ip_address(address).is_loopback:
            return address
    raise ConnectionError(
        f"host {own_name}: expected an address by which the other hosts reach it, got the loopback "
        f"on the way to {', '.join(targets) or 'any other host'}: set {LAUNCHER} on all ranks to "
        f"the address of host {own_name} in their network"
    )


def _address_on_route_to(host):
    """The address from which packets to a host are sent; None: there is no route."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, 9))  # nothing is sent
            return probe.getsockname()[0]
        except OSError:
            return None
