"""What gateways say that keys have used, as they said it last, by boot: kept for the loop to add up, and for limits of
the day, which all gateways must know of sooner than a status is written.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from covey_api.access_key import AccessKey, CountedBoot, KeyCounts
from covey_api.messages import Demand, KeySpent, KeyUsage

from covey_controller.reconcile.world import Reported, Spending

# Processes of one gateway that are remembered: the present one, and those whose last words may not be stored yet.
MAX_BOOTS = 4
# Keys of one boot; as many as a report may have.
MAX_KEYS = 10_000


@dataclass(slots=True)
class _Gateway:
    boots: dict[str, Mapping[str, KeyUsage]] = field(default_factory=dict[str, Mapping[str, KeyUsage]])


class Usages:
    def __init__(self) -> None:
        self._gateways: dict[str, _Gateway] = {}
        self._spending: Mapping[str, Spending] = {}

    def hear(self, gateway: str, demand: Demand) -> None:
        if not demand.usage or not demand.boot:
            return
        boots = self._gateways.setdefault(gateway, _Gateway()).boots
        merged = dict(boots.pop(demand.boot, {}))
        for usage in demand.usage:
            known = merged.get(usage.hash)
            if known is None and len(merged) >= MAX_KEYS:
                continue
            # Two reports may come in the other order, as a process that stops sends a last one; counts only grow.
            if known is None or usage.requests >= known.requests:
                merged[usage.hash] = usage
        boots[demand.boot] = merged
        while len(boots) > MAX_BOOTS:
            del boots[next(iter(boots))]

    def forget(self, gateway: str) -> None:
        self._gateways.pop(gateway, None)

    def settle(self, keys: Iterable[AccessKey]) -> None:
        """Let go of what no sum needs any more. `keys`: all that there are, as they are stored.

        1. Keys that are gone. 2. What a process that ended counted, once it is in the sums: it grows no more.
        """
        stored = {key.spec.hash: key.status.usage.counted_of(key.spec.hash) for key in keys}
        for name, gateway in self._gateways.items():
            *ended, _ = gateway.boots
            for boot, usages in list(gateway.boots.items()):
                kept = usages if usages.keys() <= stored.keys() else {h: u for h, u in usages.items() if h in stored}
                if boot in ended:
                    kept = {h: u for h, u in kept.items() if not _is_counted(u, f"{name}/{boot}", stored[h])}
                if kept or boot not in ended:
                    gateway.boots[boot] = kept
                else:
                    del gateway.boots[boot]

    def observe(self) -> Reported:
        """A value: what is heard later doesn't change it. A gateway can't speak for another's boot."""
        return {
            f"{name}/{boot}": usages
            for name, gateway in self._gateways.items()
            for boot, usages in gateway.boots.items()
        }

    def remember(self, spending: Mapping[str, Spending]) -> None:
        """Of keys with a limit of the day, as the last plan counted them."""
        self._spending = spending

    def spent(self) -> tuple[KeySpent, ...]:
        """What the fleet has spent of each such limit, now."""
        reported = self.observe()
        found = [
            KeySpent(hash=hash_, day=each.day, tokens=each.with_reports(hash_, reported))
            for hash_, each in sorted(self._spending.items())
        ]
        return tuple(each for each in found if each.tokens)


def _is_counted(usage: KeyUsage, boot: str, counted: Iterable[CountedBoot]) -> bool:
    found = next((each for each in counted if each.boot == boot), KeyCounts())
    return all(getattr(found, name) >= getattr(usage, name) for name in KeyCounts.model_fields)
