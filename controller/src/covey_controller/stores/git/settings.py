"""What a git source is asked for, and how often its remote is asked."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from covey_controller.stores.git.address import GitAddress

# Asking a server twice a minute is what GitOps tools do; who can't wait has the webhook.
POLL_SECONDS = 30.0
# On this machine asking costs some milliseconds, and people wait for what they committed.
LOCAL_POLL_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class GitSettings:
    """What a git source was asked for."""

    address: GitAddress
    environment: Mapping[str, str]
    """Of the process: where git finds credentials, keys and certificates."""
    spread: Callable[[], float]
    """About 1, another each time: so that many fleets don't ask one server at once."""
    pushes: bool = False
    """Whether edits are pushed; else they stay in the clone."""
    poll_seconds: float | None = None
    """How often the remote is asked; None: as its kind deserves."""

    @property
    def wait_seconds(self) -> float:
        if self.poll_seconds is not None:
            return self.poll_seconds
        return LOCAL_POLL_SECONDS if self.address.scheme == "file" else POLL_SECONDS
