"""What gateways say that keys have used, as they said it last, by boot: kept for the loop to add up, and for limits of
the day, which all gateways must know of sooner than a status is written.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

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
        merged = {**boots.pop(demand.boot, {}), **{usage.hash: usage for usage in demand.usage}}
        if len(merged) <= MAX_KEYS:
            boots[demand.boot] = merged
        while len(boots) > MAX_BOOTS:
            del boots[next(iter(boots))]

    def forget(self, gateway: str) -> None:
        self._gateways.pop(gateway, None)

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
