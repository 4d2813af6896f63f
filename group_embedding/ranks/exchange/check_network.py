"""Checks what Gloo, Horovod's transport between CPUs, needs of the network of this host.

Horovod's start ends the process without a Python error where a name does not resolve, or waits for
ever where a host gives the others its loopback.
"""

import ipaddress
import os
import socket


def check_network():
    """Checks the environment of a rank of Gloo; that of another process is fine.

    Raises:
        ConnectionError: Horovod's start would fail; with the host and what to do.
    """
    launcher = os.environ.get("HOROVOD_GLOO_RENDEZVOUS_ADDR")
    if launcher is None:
        return
    host, address_of_launcher = socket.gethostname(), _address_of(launcher)
    if address_of_launcher is None:
        raise ConnectionError(
            f"host {host}: expected HOROVOD_GLOO_RENDEZVOUS_ADDR to be an address of the "
            f"launcher's host, got '{launcher}', a name that does not resolve: give its IP "
            f"address, or add the name to /etc/hosts of host {host}"
        )
    address = _address_of(host)
    if address is None:
        raise ConnectionError(
            f"host {host}: its own name does not resolve, as Horovod needs it to: add the line "
            f"'<address of host {host}> {host}' to its /etc/hosts"
        )
    if _has_other_hosts(address_of_launcher) and _is_loopback(address):
        raise ConnectionError(
            f"host {host}: its own name resolves to {address}, where the other hosts do not reach "
            f"it: give its address in their network for '{host}' in its /etc/hosts, and no other"
        )
    interface = os.environ.get("HOROVOD_GLOO_IFACE")
    if interface is not None:
        _check_interface(host, interface)


def _check_interface(host, interface):
    known = [name for _, name in socket.if_nameindex()]
    if interface not in known:
        raise ConnectionError(
            f"host {host}: expected HOROVOD_GLOO_IFACE to be one of its network interfaces, "
            f"{', '.join(known)}, got '{interface}'"
        )


def _has_other_hosts(address_of_launcher):
    """Not where hosts are names of this one, such as `localhost` and `127.0.0.1`."""
    size, local_size = (os.environ.get(f"HOROVOD_{name}") for name in ("SIZE", "LOCAL_SIZE"))
    return size != local_size and not _is_loopback(address_of_launcher)


def _is_loopback(address):
    return ipaddress.ip_address(address).is_loopback


def _address_of(name):
    """The first one, which Gloo takes; None: the name does not resolve."""
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            return socket.getaddrinfo(name, None, family)[0][4][0]
        except socket.gaierror:
            continue
    return None
