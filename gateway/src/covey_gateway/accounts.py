"""What keys have asked for and what it came to: their limits at this gateway, their usage for the controller.

Usage only grows while the process runs, so a report that is lost or comes twice changes nothing: the controller adds
what is new since the one before of the same boot (ADR 40).
"""

import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from covey_api.messages import KeySpent, KeyUsage

from covey_gateway.records import Record
from covey_gateway.routing.quotas import DAY_SECONDS, NO_LIMITS, Limits, Quota, share_limits
from covey_gateway.routing.refusals import refuse_spent
from covey_gateway.routing.table import Key, RoutingTable
from covey_gateway.wire.allowances import Allowance
from covey_gateway.wire.errors import ApiError


@dataclass(slots=True)
class _Account:
    quota: Quota
    usage: KeyUsage
    spent_reported: int = 0
    """Of the day, in the report that is under way."""


class Accounts:
    """`clock` is monotonic, `wall` seconds since the epoch. By `namespace/name` of keys."""

    def __init__(self, clock: Callable[[], float], wall: Callable[[], float]) -> None:
        self.boot = secrets.token_hex(8)
        """Of what follows: it begins anew with the process."""
        self.own_name = ""
        """This gateway's, as the controller calls it."""
        self._clock = clock
        self._wall = wall
        self._limits: dict[str, Limits] = {}
        self._accounts: dict[str, _Account] = {}
        self._told: dict[str, KeyUsage] = {}
        """What the controller is known to have."""

    def apply_table(self, table: RoutingTable) -> None:
        """These keys there are, with their limits; those that are gone are forgotten once they are told of."""
        keys: Iterable[Key] = table.keys.values()
        self._limits = {
            key.full_name: share_limits(key.limits, table.gateways, self.own_name)
            for key in keys
            if key.limits != NO_LIMITS
        }
        known = {key.full_name for key in table.keys.values()}
        for name, account in list(self._accounts.items()):
            if name not in known and not account.quota.in_flight and self._told.get(name) == account.usage:
                del self._accounts[name]
                self._told.pop(name, None)

    def begin(self, key: str) -> ApiError | None:
        """A request of this key begins, or why it doesn't."""
        quota = self._account(key).quota
        spent = quota.admit(self._limits.get(key, NO_LIMITS), self._clock(), self._wall())
        return None if spent is None else refuse_spent(key, spent)

    def end(self, key: str) -> None:
        self._account(key).quota.end()

    def charge(self, record: Record) -> None:
        """What a request of a key came to."""
        account, cost = self._account(record.key), record.cost
        account.quota.charge(self._limits.get(record.key, NO_LIMITS), cost.total, self._clock(), self._wall())
        before = account.usage
        account.usage = before.model_copy(
            update={
                "requests": before.requests + 1,
                "estimated_requests": before.estimated_requests + cost.is_estimated,
                "prompt_tokens": before.prompt_tokens + cost.prompt,
                "cached_tokens": before.cached_tokens + cost.cached,
                "completion_tokens": before.completion_tokens + cost.completion,
            }
        )

    def allowances(self, key: str) -> tuple[Allowance | None, Allowance | None]:
        """Of requests and tokens of the minute."""
        limits = self._limits.get(key)
        return (None, None) if limits is None else self._account(key).quota.allowances(limits, self._clock())

    # What the controller hears and says.

    def forget_told(self) -> None:
        """Another leader, or a new connection: it is told all of it."""
        self._told = {}

    def observe_usage(self) -> tuple[KeyUsage, ...]:
        """What the controller doesn't have yet."""
        for account in self._accounts.values():
            account.spent_reported = account.quota.spent_today
        return tuple(
            account.usage
            for name, account in sorted(self._accounts.items())
            if account.usage.requests and self._told.get(name) != account.usage
        )

    def confirm_usage(self, told: tuple[KeyUsage, ...], spent: tuple[KeySpent, ...]) -> None:
        """The controller has this usage; `spent`: what the fleet has spent of each day's limit."""
        self._told |= {usage.key: usage for usage in told}
        for each in spent:
            account = self._account(each.key)
            account.quota.hear_fleet(each.day, each.tokens, account.spent_reported, self._wall())

    def _account(self, key: str) -> _Account:
        found = self._accounts.get(key)
        if found is None:
            quota = Quota(day=int(self._wall()) // DAY_SECONDS)
            found = self._accounts[key] = _Account(quota, KeyUsage(key=key))
        return found
