"""One blob that is looked for among other nodes: who is asked for it, and how long others are waited for (ADR 47)."""

from dataclasses import dataclass, field

from covey_api.messages import WantedAnswer

from covey_agent.artifacts.flight import Meter
from covey_agent.artifacts.partial import PartialFile

# Smaller ones are taken from who has them, and not waited for where there is an origin.
WORTH_WAITING_BYTES = 1024 * 1024
# Between questions while another node fetches it or all that have it are busy: times a random number from 0.5 to 1.5,
# and longer from one to the next. A thousand nodes that wait ask the leader a hundred times a second.
AGAIN_SECONDS = 2.0
LONGEST_AGAIN_SECONDS = 10.0
# In so long a node that fetches gets so much more, or one that is busy has a place:
# else the leader is asked for the turn.
PATIENCE_SECONDS = 300.0
PROGRESS_BYTES = 64 * 1024 * 1024
# Without a byte here, whatever others say. A model of 400 GB at 1 Gbit/s; an origin that is slower for one node may be
# quicker for another.
LONGEST_WAIT_SECONDS = 3600.0


@dataclass(slots=True)
class Search:
    """One blob that is looked for."""

    name: str
    sha256: str
    size_bytes: int
    partial: PartialFile
    meter: Meter
    tried: set[str] = field(default_factory=set[str])
    """Nodes that aren't asked again for it."""
    slow: set[str] = field(default_factory=set[str])
    """Nodes that are asked again when nobody else has it."""
    has_origin: bool = True
    """Whether its origin may be better than a slow node."""
    unreached: int = 0
    """Nodes that could not be reached, since the last byte."""
    shut: dict[str, int] = field(default_factory=dict[str, int])
    """How often each node ended a connection at once."""
    givers: set[str] = field(default_factory=set[str])
    """Nodes that what is there came from."""
    is_only_theirs: bool = True
    from_one: bool = False
    """It was wrong, and nobody knows whose fault that is: from now on it is taken whole from one node."""

    def start_over(self) -> None:
        self.partial.start_over()
        self.givers, self.is_only_theirs = set(), True

    @property
    def passed(self) -> set[str]:
        """Nodes that aren't wanted as holders now."""
        return self.tried | self.slow if self.has_origin else self.tried

    @property
    def is_large(self) -> bool:
        return self.size_bytes >= WORTH_WAITING_BYTES

    @property
    def is_whole(self) -> bool:
        return self.partial.done_bytes >= self.size_bytes


@dataclass(slots=True)
class Wait:
    """For others, without a byte here. What ends it is bounded, whatever they say."""

    since: float
    patient_since: float = 0.0
    again_seconds: float = field(default_factory=lambda: AGAIN_SECONDS)
    fetcher: str = ""
    fetched_bytes: int = 0
    busy: set[str] = field(default_factory=set[str])

    def __post_init__(self) -> None:
        self.patient_since = self.since

    def is_over(self, now: float) -> bool:
        """Whether it is time to ask for the turn."""
        return now - self.patient_since >= PATIENCE_SECONDS

    def is_at_end(self, now: float) -> bool:
        return now - self.since >= LONGEST_WAIT_SECONDS

    def observe(self, now: float, answer: WantedAnswer, busy: set[str], *, has_more: bool, is_anew: bool) -> None:
        """What the leader said, and the nodes it named."""
        self.busy = busy
        if has_more:
            self.since, self.again_seconds = now, AGAIN_SECONDS
        is_other = bool(answer.fetcher) and answer.fetcher != self.fetcher
        if is_other or answer.fetched_bytes >= self.fetched_bytes + PROGRESS_BYTES:
            self.fetcher, self.fetched_bytes = answer.fetcher, answer.fetched_bytes
        elif not (has_more or is_anew):
            return
        self.patient_since = now

    def lengthen(self) -> None:
        """The pause until the next question."""
        self.again_seconds = min(1.5 * self.again_seconds, LONGEST_AGAIN_SECONDS)
