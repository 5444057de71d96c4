"""Every figure of the controller, in a registry of its own: two in one process never meet.

Two kinds: what happens is counted where it happens (`record_turn`, `record_write`); what is (objects, nodes, streams)
is looked at when somebody asks, so that a controller that nobody scrapes does nothing for it. Labels have the values of
closed lists only, never the name of an object: a fleet of a thousand models has as many series as one of two.

Rejected: the library's global registry (state of a process, filled at import), and pushing to OTLP (a second protocol,
and somebody to push to, before anybody has asked for it).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from covey_api.instance import Instance, InstancePhase
from covey_api.kinds import Kind
from covey_api.messages import CertificateRole
from covey_api.meta import ConditionStatus, Status
from covey_api.registry import KINDS
from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from covey_controller.ports import Conflict, Refused

# From a quiet turn on a laptop to one that meets the store's deadline of 30 s.
TURN_BUCKETS_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_PREFIX = "covey_controller"


class Verb(StrEnum):
    CREATE = "create"
    UPDATE = "update"
    DELETE = "delete"
    STATUS = "status"


class Outcome(StrEnum):
    DONE = "done"
    CONFLICT = "conflict"
    """Somebody else wrote first: it is observed again and planned anew."""
    REFUSED = "refused"
    """A rule that isn't Covey's forbids it."""
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class WatchView:
    """How the objects are followed in Kubernetes."""

    listed_age_seconds: float
    """Since the last whole list; infinite before the first."""
    restarts: int
    """Of the watch, since the process began."""


@dataclass(frozen=True, slots=True)
class ControllerView:
    """What is, at one moment."""

    is_leader: bool = False
    term: int = 0
    objects: Iterable[Kind] = field(default=())
    """As the leader saw them last; none on a replica that doesn't lead, so that a sum over replicas is the fleet."""
    streams: dict[CertificateRole, int] = field(default_factory=dict[CertificateRole, int])
    """Agents and gateways that follow this process."""
    watch: WatchView | None = None
    """None in files mode."""


class ControllerMetrics:
    """`observe` is asked once for each scrape."""

    def __init__(self, observe: Callable[[], ControllerView]) -> None:
        self.registry = CollectorRegistry()
        self._turns = Counter(
            f"{_PREFIX}_reconcile_turns",
            "Turns of the reconciler, by how they ended.",
            ["outcome"],
            registry=self.registry,
        )
        self._turn_seconds = Histogram(
            f"{_PREFIX}_reconcile_turn_duration_seconds",
            "How long a turn took, its writes included.",
            buckets=TURN_BUCKETS_SECONDS,
            registry=self.registry,
        )
        self._writes = Counter(
            f"{_PREFIX}_writes",
            "Writes to the store, by kind of object, what was done, and the outcome.",
            ["kind", "verb", "outcome"],
            registry=self.registry,
        )
        self.registry.register(_Levels(observe))

    def record_turn(self, seconds: float, error: Exception | None) -> None:
        self._turns.labels(outcome_of(error)).inc()
        self._turn_seconds.observe(seconds)

    def record_write(self, kind: str, verb: Verb, error: Exception | None) -> None:
        self._writes.labels(kind, verb, outcome_of(error)).inc()


def outcome_of(error: Exception | None) -> Outcome:
    match error:
        case None:
            return Outcome.DONE
        case Conflict():
            return Outcome.CONFLICT
        case Refused():
            return Outcome.REFUSED
        case _:
            return Outcome.FAILED


class _Levels:
    """A collector of the library: what is, when it is asked."""

    def __init__(self, observe: Callable[[], ControllerView]) -> None:
        self._observe = observe

    def collect(self) -> Iterator[Metric]:
        view = self._observe()
        yield _single("leader", "1 on the replica that leads, 0 on the others.", int(view.is_leader))
        yield _single("term", "Term of the leadership; 0 where this replica doesn't lead.", view.term)
        yield from _collect_objects(tuple(view.objects))
        streams = {str(role): view.streams.get(role, 0) for role in (CertificateRole.AGENT, CertificateRole.GATEWAY)}
        yield _gauge("connected_streams", "Agents and gateways that follow this replica.", "role", streams)
        if view.watch is not None:
            words = "Since the API server's objects were last listed whole; Kubernetes mode only."
            yield _single("listed_age_seconds", words, view.watch.listed_age_seconds)
            words = "How often the watch of the API server's objects was begun anew; Kubernetes mode only."
            yield CounterMetricFamily(f"{_PREFIX}_watch_restarts", words, value=view.watch.restarts)


def _collect_objects(objects: tuple[Kind, ...]) -> Iterator[Metric]:
    """All series are there at any time, also those that are zero: a rule on one that is missing never fires."""
    kinds = dict.fromkeys(KINDS, 0)
    phases = {str(phase): 0 for phase in InstancePhase}
    ready = {kind: {str(status): 0 for status in ConditionStatus} for kind in ("Node", "Placement")}
    for item in objects:
        kind = item.key.kind
        kinds[kind] += 1
        if isinstance(item, Instance):
            phases[item.status.phase] += 1
        elif kind in ready:
            ready[kind][_ready_of(item)] += 1
    yield _gauge("objects", "Objects by kind.", "kind", kinds)
    yield _gauge("nodes", "Nodes by their condition `Ready`.", "ready", ready["Node"])
    yield _gauge("placements", "Placements by their condition `Ready`.", "ready", ready["Placement"])
    yield _gauge("instances", "Instances by phase.", "phase", phases)


def _ready_of(item: Kind) -> ConditionStatus:
    status: Status | None = getattr(item, "status", None)
    conditions = status.conditions if status is not None else ()
    return next((each.status for each in conditions if each.type == "Ready"), ConditionStatus.UNKNOWN)


def _single(name: str, words: str, value: float) -> Metric:
    return GaugeMetricFamily(f"{_PREFIX}_{name}", words, value=value)


def _gauge(name: str, words: str, label: str, counts: Mapping[str, int]) -> Metric:
    family = GaugeMetricFamily(f"{_PREFIX}_{name}", words, labels=[label])
    for value, count in counts.items():
        family.add_metric([value], count)
    return family
