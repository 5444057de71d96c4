"""The agent's flags."""

import argparse
import os
import re
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from covey_fleet_client.join import Admission

from covey_agent.peers.serving import PORT

# How long engines run on without an agent: a restart, an upgrade, a person who looks into it.
ORPHAN_GRACE_SECONDS = 300.0
ADDRESS = re.compile(r"^([A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?|[0-9A-Fa-f:]{2,39})$")
MAX_PORT = 65_535
GRACE_VARIABLE = "COVEY_ORPHAN_GRACE_SECONDS"


@dataclass(frozen=True, slots=True)
class Options:
    state: Path
    controller: str
    admission: Admission
    cache: Path
    name: str
    address: str
    """Empty: as `observe_address` finds it."""
    blobs_port: int
    lifeline: int | None
    orphan_grace_seconds: float
    stop_all: bool


def parse_options(arguments: list[str]) -> Options:
    parser = argparse.ArgumentParser(prog="covey agent", description="Covey's node agent.")
    parser.add_argument("--version", action="version", version=f"%(prog)s, version {version('covey-agent')}")
    parser.add_argument("--controller", metavar="URL", help="the controller's fleet API, https://HOST:PORT")
    parser.add_argument("--token-file", metavar="FILE", type=Path, help="a join token, or a pod's ServiceAccount token")
    parser.add_argument("--authority-file", metavar="FILE", type=Path, help="whom to show a ServiceAccount token (PEM)")
    parser.add_argument("--state", metavar="DIR", type=Path, required=True, help="the state folder")
    parser.add_argument("--cache", metavar="DIR", type=Path, help="artifact cache ($COVEY_CACHE, or the user's)")
    parser.add_argument("--name", help="name of the Node, or of Kubernetes' node (default: as before, else the host's)")
    parser.add_argument(
        "--address",
        metavar="HOST",
        help="where gateways of other machines reach this one (default: the address from which it reaches the "
        "controller); unless it is 127.0.0.1, engines are served there by mutual TLS on a port of 52500-52599",
    )
    parser.add_argument(
        "--blobs-port",
        metavar="PORT",
        type=int,
        default=PORT,
        help=f"where other nodes of the fleet get models and engines that are here (default: {PORT}, or one that is "
        "free; 0: any)",
    )
    parser.add_argument("--lifeline", metavar="FD", type=int, help="end when this pipe ends")
    parser.add_argument(
        "--orphan-grace-seconds",
        metavar="N",
        type=float,
        # A text: argparse parses it as it does a flag's.
        default=os.environ.get(GRACE_VARIABLE, str(ORPHAN_GRACE_SECONDS)),
        help=f"engines' life without an agent (${GRACE_VARIABLE}, or 300)",
    )
    parser.add_argument("--stop-all", action="store_true", help="end every keeper of the state folder, and exit")
    found = parser.parse_args(arguments)
    if not found.stop_all and not found.controller:
        parser.error("--controller is needed, unless --stop-all is given")
    if not found.orphan_grace_seconds > 0:
        parser.error(f"`--orphan-grace-seconds` must be above 0; got {found.orphan_grace_seconds:g}")
    if not 0 <= found.blobs_port <= MAX_PORT:
        parser.error(f"`--blobs-port` must be from 0 to {MAX_PORT}; got {found.blobs_port}")
    address = (found.address or "").strip("[]")
    if found.address is not None and not ADDRESS.match(address):
        parser.error(f"`--address` must be a host name or an IP address, without a port; got '{found.address}'")
    return Options(
        state=found.state.absolute(),
        controller=found.controller or "",
        admission=Admission(found.token_file, found.authority_file),
        cache=(found.cache or default_cache()).absolute(),
        name=found.name or "",
        address=address,
        blobs_port=found.blobs_port,
        lifeline=found.lifeline,
        orphan_grace_seconds=found.orphan_grace_seconds,
        stop_all=found.stop_all,
    )


def default_cache() -> Path:
    if named := os.environ.get("COVEY_CACHE"):
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "covey"
