"""Ports that Covey wants on this machine: free, Covey's own already, or somebody else's."""

import errno
import socket
from collections.abc import Iterable

from covey_agent.keeper.front import PORTS

from covey.doctor.finding import Finding, Level, ok
from covey.doctor.place import Place

# A front for each engine that others reach: more run on a machine at once than this only where models are small.
_ENOUGH_FRONTS = 8


def look_at_ports(place: Place) -> list[Finding]:
    return [_look_at_gateway(place), _look_at_fronts()]


def _look_at_gateway(place: Place) -> Finding:
    host, port = place.gateway
    record = place.read_record()
    why = _refusal(host, port)
    if record.get("gatewayUrl"):
        if why == errno.EADDRINUSE:
            return ok("ports", f"the gateway of this state folder listens on {host}:{port}")
        words = f"nobody listens on {host}:{port}, where the gateway of this state folder should"
        fix = f"see '{place.state / 'log' / 'gateway.log'}'"
        return Finding("ports", Level.BROKEN, words, "clients reach no model by this machine", fix)
    if not why:
        return ok("ports", f"{host}:{port} is free for the gateway")
    words = f"{host}:{port} is taken by another process" if why == errno.EADDRINUSE else f"{host}:{port} can't be used"
    fix = "stop what uses it, or choose another: `covey up --port`, `covey join --listen`"
    return Finding("ports", Level.WARNING, words, "a gateway with the default address doesn't start", fix)


def _look_at_fronts() -> Finding:
    free = count_free("0.0.0.0", PORTS)  # noqa: S104 - as the fronts listen that know no address yet
    span = f"{PORTS.start}-{PORTS.stop - 1}"
    if free >= _ENOUGH_FRONTS:
        return ok("ports", f"{free} of the ports {span} are free for engines that other machines reach")
    words = f"only {free} of the ports {span} are free"
    consequence = "engines without one are reached from this machine alone"
    return Finding("ports", Level.WARNING, words, consequence, "stop what uses them")


def count_free(host: str, ports: Iterable[int]) -> int:
    return sum(not _refusal(host, port) for port in ports)


def _refusal(host: str, port: int) -> int:
    """Why a listener can't have it, as an errno; 0: it can."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as Covey's own: a port in TIME_WAIT is free
            probe.bind((host, port))
    except OSError as error:
        return error.errno or errno.EINVAL
    return 0
