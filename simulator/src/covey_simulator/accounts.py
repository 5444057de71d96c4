"""What is written down of a scenario's run: the timeline, how long replicas were short, what clients met.

It decides nothing. Times are seconds since the fleet had settled for the first time; before that they are negative.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from covey_api.kinds import ObjectKey
from covey_api.meta import DEFAULT_NAMESPACE
from covey_api.placement import Placement
from covey_api.reasons import ModelReason, NodeReason, ReadyReason
from covey_controller.reconcile.outcomes import Note

# One request in trouble is told; those after it are counted until none was lost for this long.
MENDED_SECONDS = 10.0
ANSWERED = "200"
# What a fleet is on its way through, every time: who reads what happened wants to know what came of it.
_ON_THE_WAY = frozenset(
    {
        ReadyReason.ARTIFACTS_PENDING,
        ReadyReason.ENGINE_STARTING,
        ReadyReason.DRAINING,
        ModelReason.GEOMETRY_PENDING,
        NodeReason.FACTS_PENDING,
    }
)


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the timeline."""

    at: float
    who: str
    reason: str
    """Empty for what no part said."""
    message: str


@dataclass(slots=True)
class Shortage:
    """A time in which fewer replicas served than were wished."""

    since: float
    most: int
    """How many were missing, at the most."""
    until: float | None = None


@dataclass(slots=True)
class ModelAccount:
    """What clients of one model met."""

    outcomes: Counter[str] = field(default_factory=Counter[str])
    lost_since: float | None = None
    """Since when requests are lost; None while all are answered."""
    lost_last: float = 0.0
    lost_now: int = 0
    """How many were lost since then."""

    @property
    def asked(self) -> int:
        return self.outcomes.total()

    @property
    def answered(self) -> int:
        return self.outcomes[ANSWERED]


class Accounts:
    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` is the loop's."""
        self._clock = clock
        self.began_at = 0.0
        """By the loop's clock: when the fleet had settled first, or was taken for it."""
        self.unsettled = ""
        """What was still to happen then, at the latest time that is waited for."""
        self.ended_at: float | None = None
        """When nothing was left to happen; requests that were asked by then are waited for."""
        self.entries: list[Entry] = []
        self.shortages: dict[ObjectKey, list[Shortage]] = {}
        self.models: dict[str, ModelAccount] = {}

    def begin(self, unsettled: str) -> None:
        """From now on time counts; what came before becomes negative. `unsettled`: what was still to happen."""
        self.began_at, self.unsettled = self._clock(), unsettled
        self.entries = [Entry(each.at - self.began_at, each.who, each.reason, each.message) for each in self.entries]
        self.shortages.clear()

    def end(self) -> None:
        self.ended_at = self.now()

    def now(self) -> float:
        return self._clock() - self.began_at

    def tell(self, who: str, message: str, reason: str = "") -> None:
        self.entries.append(Entry(self.now(), who, reason, message))

    def on_note(self, note: Note) -> None:
        """The controller says why. What goes its ordinary way is left out, unless something has failed."""
        if note.warning or note.reason not in _ON_THE_WAY:
            self.tell(name_object(note.key), note.message, note.reason)

    def on_counts(self, serving: dict[ObjectKey, int], wished: dict[ObjectKey, int]) -> None:
        """How many replicas serve, and how many are wished, of each Placement."""
        for key in self.shortages.keys() | wished.keys():
            missing = wished.get(key, 0) - serving.get(key, 0)
            found = self.shortages.setdefault(key, [])
            is_short = bool(found) and found[-1].until is None
            if missing > 0 and not is_short:
                found.append(Shortage(self.now(), missing))
            elif missing > 0:
                found[-1].most = max(found[-1].most, missing)
            elif is_short:
                found[-1].until = self.now()

    def on_outcome(self, model: str, outcome: str) -> None:
        """A client's request has ended, one way or another."""
        account = self.models.setdefault(model, ModelAccount())
        account.outcomes[outcome] += 1
        now = self.now()
        if outcome != ANSWERED:
            if account.lost_since is None:
                account.lost_since = now
                self.tell("clients", f"requests for '{model}' are lost: {outcome}")
            account.lost_last = now
            account.lost_now += 1
        elif account.lost_since is not None and now - account.lost_last >= MENDED_SECONDS:
            self.close(model)

    def close(self, model: str) -> None:
        """Requests are answered again, or none will follow."""
        account = self.models[model]
        if account.lost_since is not None:
            within = f" within {max(1.0, account.lost_last - account.lost_since):.0f} s" if account.lost_now > 1 else ""
            self.tell("clients", f"requests for '{model}' are answered again: {account.lost_now} lost{within}")
            account.lost_since, account.lost_now = None, 0


def name_object(key: ObjectKey) -> str:
    """As people write it, with the namespace where it isn't the usual one."""
    return f"{key}" if key.namespace in ("", DEFAULT_NAMESPACE) else f"{key.kind.lower()}/{key.namespace}/{key.name}"


def count_wished(placements: dict[ObjectKey, Placement]) -> dict[ObjectKey, int]:
    return {key: count_replicas(item) for key, item in placements.items()}


def count_replicas(placement: Placement) -> int:
    """Those that are wished whoever asks."""
    spec = placement.spec
    if spec.suspend:
        return 0
    return spec.replicas if spec.scaling is None else spec.scaling.min
