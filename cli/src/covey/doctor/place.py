"""What is looked at: folders, environment, and the fleet that this machine is in, as far as its files say."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from covey_fleet_client.identity import read_controller_url

from covey.paths import is_held
from covey.up.left import has_controller, observe_agent

DEFAULT_PORT = 52415


@dataclass(frozen=True, slots=True)
class Place:
    state: Path
    cache: Path
    environment: Mapping[str, str]
    home: Path
    controller: str = ""
    """As the user says; empty: as the machine joined."""

    @property
    def controller_url(self) -> str:
        """The fleet API of the fleet that this machine is in; empty while it is in none."""
        if self.controller:
            return self.controller
        found = (read_controller_url(self.state / part) for part in ("agent", "gateway"))
        return next(filter(None, found), "")

    @property
    def is_own_controller(self) -> bool:
        """The controller is one of this state folder's own parts, as under `covey up`."""
        return not self.controller and (self.state / "controller").is_dir()

    def read_record(self) -> dict[str, str]:
        """What the parent that holds the state folder wrote of itself; empty when none does."""
        if not is_held(self.state):
            return {}
        try:
            return {str(key): str(value) for key, value in json.loads((self.state / "up.json").read_text()).items()}
        except (OSError, ValueError, AttributeError):
            return {}

    @property
    def gateway(self) -> tuple[str, int]:
        """Where a gateway of this machine listens, or would by default."""
        listen = urlsplit(self.read_record().get("gatewayUrl", ""))
        try:
            return listen.hostname or "127.0.0.1", listen.port or DEFAULT_PORT
        except ValueError:
            return "127.0.0.1", DEFAULT_PORT

    def describe_running(self) -> str:
        """What runs in the state folder now; empty: nothing."""
        if is_held(self.state):
            record = self.read_record()
            what = "covey up" if "source" in record else "covey join"
            return f"`{what}` runs here (pid {record.get('pid', 'unknown')})"
        parts = [
            *([f"an agent (pid {pid})"] if (pid := observe_agent(self.state)) else []),
            *(["a controller"] if has_controller(self.state) else []),
        ]
        return f"{' and '.join(parts)} of this state folder runs" if parts else ""
