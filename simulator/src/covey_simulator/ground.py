"""What simulated machines stand on: what each is, how fast it is, and what artifacts say of themselves."""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Protocol

from covey_api.engines import Lane
from covey_api.instance import Instance
from covey_api.model import Geometry, ResolvedArtifact
from covey_api.node import NodeFacts

Headers = Callable[[str], tuple[ResolvedArtifact, Geometry]]
"""By source; raises AgentError where it can't be read."""


class Pace(Protocol):
    """How long things take. What is drawn is drawn from `random`."""

    def load_seconds(self, instance: Instance, random: Random) -> float: ...

    def fetch_seconds(self, size_bytes: int, random: Random) -> float: ...


@dataclass(frozen=True, slots=True)
class Ground:
    facts: NodeFacts
    lanes: tuple[Lane, ...]
    reserve_bytes: int
    """Of the host's memory, left to everything else on the machine."""
    pace: Pace
    headers: Headers
    used_percent: int = 0
    """What engines take of the host's memory, of each hundred that are computed for them; 0: nobody can tell."""
