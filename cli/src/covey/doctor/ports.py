"""Ports that Covey wants on this machine: free, Covey's own already, or somebody else's."""

import errno
import socket
import time
from collections.abc import Iterable
from http.client import HTTPConnection, HTTPException

from covey_agent.keeper.front import PORTS
from covey_api.access_key import KEY_PREFIX

from covey.doctor.finding import Finding, Level, ok
from covey.doctor.place import Place
from covey.doctor.unchecked import unchecked_connection

# A front for each engine that others reach: more run on a machine at once than this only where models are small.
_ENOUGH_FRONTS = 8
# A parent has its record before it joins, which may take a minute, and before its gateway listens.
_STARTING_SECONDS = 120.0
_WAIT_SECONDS = 10.0
_WAIT_PAUSE_SECONDS = 0.2
_ANSWER_SECONDS = 3.0
_ANSWER_BYTES = 4096


def look_at_ports(place: Place) -> list[Finding]:
    return [_look_at_gateway(place), _look_at_fronts()]


def _look_at_gateway(place: Place) -> Finding:
    host, port = place.gateway
    record = place.read_record()
    why = _refusal(host, port)
    if record.get("gatewayUrl"):
        wait_until = time.monotonic() + _WAIT_SECONDS
        while (is_starting := _is_starting(place)) and why != errno.EADDRINUSE and time.monotonic() < wait_until:
            time.sleep(_WAIT_PAUSE_SECONDS)
            why = _refusal(host, port)
        if why == errno.EADDRINUSE:
            return ok("ports", f"the gateway of this state folder listens on {host}:{port}")
        if is_starting:
            words = f"the gateway of this state folder starts, and doesn't listen on {host}:{port} yet"
            fix = "wait for a minute, then `covey doctor` again"
            return Finding("ports", Level.WARNING, words, "clients reach no model by this machine until it does", fix)
        words = f"nobody listens on {host}:{port}, where the gateway of this state folder should"
        fix = f"see '{place.state / 'log' / 'gateway.log'}'"
        return Finding("ports", Level.BROKEN, words, "clients reach no model by this machine", fix)
    if not why:
        return ok("ports", f"{host}:{port} is free for the gateway")
    if why == errno.EADDRINUSE and _is_gateway(host, port):
        return ok("ports", f"a gateway of Covey's listens on {host}:{port} that isn't this state folder's parent's")
    words = f"{host}:{port} is taken by another process" if why == errno.EADDRINUSE else f"{host}:{port} can't be used"
    fix = "stop what uses it, or choose another: `covey up --port`, `covey join --listen`"
    return Finding("ports", Level.WARNING, words, "a gateway with the default address doesn't start", fix)


def _is_starting(place: Place) -> bool:
    """The parent that holds the state folder began lately."""
    try:
        began = (place.state / "up.json").stat().st_mtime
    except OSError:
        return False
    return 0 <= time.time() - began < _STARTING_SECONDS


def _is_gateway(host: str, port: int) -> bool:
    """Whether who listens there is a gateway, as one that is a service of its own, by HTTP or HTTPS."""
    plain = HTTPConnection(host, port, timeout=_ANSWER_SECONDS)
    return _answers_as_gateway(plain) or _answers_as_gateway(unchecked_connection(host, port, _ANSWER_SECONDS))


def _answers_as_gateway(connection: HTTPConnection) -> bool:
    """A gateway says what it is to a key of nobody's."""
    try:
        connection.request("GET", "/v1/models", headers={"authorization": f"Bearer {KEY_PREFIX}doctor"})
        return b"`covey key create`" in connection.getresponse().read(_ANSWER_BYTES)
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()


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
