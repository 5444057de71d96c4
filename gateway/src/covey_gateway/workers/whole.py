"""What the controller hears of a gateway of several workers: one demand, made of theirs."""

from collections.abc import Callable, Iterable
from typing import Protocol

from covey_api.messages import Cancel, Demand, EndpointDemand, ModelDemand, Order

from covey_gateway.cancels import Cancels
from covey_gateway.routing.access import AccessPolicy
from covey_gateway.traffic import Traffic
from covey_gateway.workers.shared import Shared


class Reported(Protocol):
    """A worker that runs."""

    @property
    def applied(self) -> Order | None:
        """The table that it serves by, or a newer one; None: it has none."""
        ...

    @property
    def report(self) -> Demand | None: ...

    @property
    def reported_at(self) -> float: ...


class Staff(Protocol):
    """The workers."""

    def observe(self) -> Iterable[Reported]: ...

    def tell_name(self, name: str) -> None: ...

    def end_everywhere(self, cancel: Cancel, *, by_operator: bool) -> None: ...


class _PassedDown(Cancels):
    """Nothing is asked here: what the controller wants to be ended is at the workers."""

    def __init__(self, staff: Staff) -> None:
        super().__init__()
        self._staff = staff

    def end(self, cancel: Cancel, *, by_operator: bool = False) -> int:
        self._staff.end_everywhere(cancel, by_operator=by_operator)
        return 0


class Whole(Traffic):
    """The parent's: it serves nobody. Tables that are applied to it are only looked at."""

    def __init__(self, policy: AccessPolicy, clock: Callable[[], float], shared: Shared, staff: Staff) -> None:
        super().__init__(policy, clock, shared=shared)
        self._staff = staff
        self.ledger.figures.observe = lambda: self.observe_figures(0, 0)
        self.cancels = _PassedDown(staff)

    def name_gateway(self, name: str) -> None:
        super().name_gateway(name)
        self._staff.tell_name(name)

    def tell_news(self) -> None:
        """A worker has some."""
        self._on_news()

    def observe_applied(self) -> Order | None:
        """What all of them have applied."""
        if not self.has_table:
            return None
        oldest = self.table.order
        for each in self._staff.observe():
            if each.applied is None:
                return None
            if oldest.is_after(each.applied):
                oldest = each.applied
        return oldest

    def observe_demand(self) -> tuple[EndpointDemand, ...]:
        """Theirs, with the ways to nodes that are looked at here."""
        found = {each.instance_id: each for each in super().observe_demand()}
        for worker, age in self._observe_reports():
            for each in worker.endpoints:
                known = found.get(each.instance_id, EndpointDemand(instance_id=each.instance_id, in_flight=0))
                heard = None if each.last_byte_seconds is None else each.last_byte_seconds + age
                silent = None if each.oldest_silent_seconds is None else each.oldest_silent_seconds + age
                found[each.instance_id] = known.model_copy(
                    update={
                        "in_flight": known.in_flight + each.in_flight,
                        "unreachable": known.unreachable or each.unreachable,
                        "last_byte_seconds": _choose(min, known.last_byte_seconds, heard),
                        "oldest_silent_seconds": _choose(max, known.oldest_silent_seconds, silent),
                    }
                )
        return tuple(found.values())

    def observe_models(self) -> tuple[ModelDemand, ...]:
        found: dict[tuple[str, str], ModelDemand] = {}
        for worker, age in self._observe_reports():
            for each in worker.models:
                name = (each.namespace, each.name)
                known = found.get(name, ModelDemand(namespace=each.namespace, name=each.name))
                refused = None if each.refused_seconds is None else each.refused_seconds + age
                found[name] = ModelDemand(
                    namespace=each.namespace,
                    name=each.name,
                    held=known.held + each.held,
                    oldest_seconds=max(known.oldest_seconds, each.oldest_seconds + age if each.held else 0.0),
                    refused_seconds=_choose(min, known.refused_seconds, refused),
                )
        return tuple(found[name] for name in sorted(found))

    def _observe_reports(self) -> Iterable[tuple[Demand, float]]:
        now = self.now()
        for each in self._staff.observe():
            if each.report is not None:
                yield each.report, now - each.reported_at


def _choose(choose: Callable[[float, float], float], first: float | None, second: float | None) -> float | None:
    if first is None or second is None:
        return second if first is None else first
    return choose(first, second)
