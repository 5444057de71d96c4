"""A fleet that is reached, whichever way led there."""

from dataclasses import dataclass
from pathlib import Path

from covey.errors import CommandError
from covey.ports import Objects, Questions


@dataclass(frozen=True, slots=True)
class GatewayAddress:
    """Where a gateway is reached: a URL, or a path behind a Unix socket."""

    url: str
    socket: Path | None = None


@dataclass(frozen=True, slots=True)
class Connection:
    """A fleet that is reached."""

    objects: Objects
    questions: Questions
    namespace: str
    """Where objects are looked for when nobody says."""

    def find_gateway(self) -> GatewayAddress:
        """A gateway that is connected to this controller. CommandError while none is."""
        for gateway in self.questions.list_gateways():
            if gateway.get("connected") and gateway.get("address"):
                return GatewayAddress(str(gateway["address"]))
        raise CommandError("no gateway is connected to this Covey yet; try again, or give --url")
