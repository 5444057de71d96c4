"""Which loopback this process sees, and by which address others would reach it.

Two processes with equal `observe_machine` reach each other on 127.0.0.1: they run under one boot of one kernel, in one
network namespace. Addresses alone don't tell (two machines behind one, containers with the host's), and a boot id alone
doesn't either: containers of one host share it and not its loopback.
"""

import errno
import hashlib
import os
import socket
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

_LOOPBACK = ("127.0.0.1", "::1", "localhost")
# `sysctl` answers from memory.
_SYSCTL_SECONDS = 5.0


def observe_machine() -> str:
    """32 hex digits; empty where it can't be told: then nobody is taken to be on this machine."""
    try:
        if sys.platform == "darwin":
            # The path in full: it is not in every service's PATH.
            command = ["/usr/sbin/sysctl", "-n", "kern.bootsessionuuid"]
            boot = subprocess.run(command, capture_output=True, text=True, timeout=_SYSCTL_SECONDS, check=True).stdout
            namespace = 0
        else:
            boot = Path("/proc/sys/kernel/random/boot_id").read_text()
            namespace = os.stat("/proc/self/ns/net").st_ino
    except (OSError, subprocess.SubprocessError):
        return ""
    return hashlib.sha256(f"{boot.strip()}/{namespace}".encode()).hexdigest()[:32]


def observe_address(controller_url: str) -> str:
    """The address from which this machine reaches the controller: others of the fleet reach it there, most likely.

    A connected UDP socket tells, and sends nothing. Empty while there is no route or no name.
    """
    parts = urlsplit(controller_url)
    try:
        found = socket.getaddrinfo(parts.hostname, parts.port or 443, type=socket.SOCK_DGRAM)
        family, kind, number, _, address = found[0]
        with socket.socket(family, kind, number) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    except OSError:
        return ""


def has_address(address: str) -> bool:
    """Whether this machine has it now. A name counts as such: whom it means isn't looked up."""
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(family, address)
        except OSError:
            continue
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.bind((address, 0))
        except OSError as error:
            return error.errno != errno.EADDRNOTAVAIL
        return True
    return True


def is_loopback(address: str) -> bool:
    """Whether it is this machine's to itself. Others of 127.0.0.0/8 are somebody's choice, and count as any."""
    return address in _LOOPBACK
