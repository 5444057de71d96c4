"""What people said last, as far as rules of safety depend on it. Whoever writes the source keeps it true."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class Wishes:
    wished_at: dict[tuple[str, str], float] = field(default_factory=dict[tuple[str, str], float])
    """By namespace and name: since when each Placement is in the last valid set."""
    cordons: dict[str, bool] = field(default_factory=dict[str, bool])
    """Nodes that have a document, and whether they take nothing new."""
    changed_at: dict[str, float] = field(default_factory=dict[str, float])
    """When the document of each node changed last."""
    broken: str = ""
    """What they did to the source; empty while it is valid."""
    dwell_seconds: float = 0.0
    """How long every Instance that scales serves at least before it makes room for another."""
