"""What keys have asked for and what it came to: their limits at this gateway, their usage for the controller.

Usage only grows while the process runs, so a report that is lost or comes twice changes nothing: the controller adds
what is new since the one before of the same boot (ADR 40).
"""

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from covey_api.access_key import MAX_TOTAL
from covey_api.messages import KeySpent, KeyUsage

from covey_gateway.records import Record
from covey_gateway.routing.quotas import DAY_SECONDS, NO_LIMITS, Limits, Quota, share_limits
from covey_gateway.routing.refusals import refuse_spent
from covey_gateway.routing.table import RoutingTable
from covey_gateway.wire.allowances import Allowance
from covey_gateway.wire.errors import ApiError

if TYPE_CHECKING:
    from covey_gateway.workers.keys import SharedCounts, SharedKeys

# In one report, of those that it may have; the others come with the next.
MAX_REPORTED = 4096


@dataclass(slots=True)
class _Counts:
    """A key's usage as it grows: a message of its own a request would cost more than the rest of the counting."""

    requests: int = 0
    estimated_requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0

    def add(self, estimated: bool, prompt: int, cached: int, completion: int) -> None:
        self.requests += 1
        self.estimated_requests += estimated
        self.prompt_tokens += prompt
        self.cached_tokens += cached
        self.completion_tokens += completion

    def look(self) -> tuple[int, int, int, int, int]:
        """In the order of the fields."""
        return (
            self.requests,
            self.estimated_requests,
            self.prompt_tokens,
            self.cached_tokens,
            self.completion_tokens,
        )


def _render_usage(hash_: str, counts: "_Counts | SharedCounts") -> KeyUsage:
    """One that stands still at the most is better than a report that the controller must refuse from then on."""
    requests, estimated, prompt, cached, completion = (min(MAX_TOTAL, each) for each in counts.look())
    return KeyUsage(
        hash=hash_,
        requests=requests,
        estimated_requests=estimated,
        prompt_tokens=prompt,
        cached_tokens=cached,
        completion_tokens=completion,
    )


class Accounts:
    """`clock` is monotonic, `wall` seconds since the epoch. Quotas by `namespace/name` of keys, usage by their hash.

    `shared`: what is counted together with other workers; None: there are none.
    """

    def __init__(
        self, clock: Callable[[], float], wall: Callable[[], float], shared: "SharedKeys | None" = None
    ) -> None:
        self.boot = secrets.token_hex(8)
        """Random per process: the controller tells by it this one from another of its name; counts begin with it."""
        self._own_name = ""
        self._shared = shared
        self._clock = clock
        self._wall = wall
        self._limits: dict[str, Limits] = {}
        self._hashes: dict[str, str] = {}
        self._quotas: dict[str, Quota] = {}
        self._usage: dict[str, _Counts | SharedCounts] = {}
        self._told: dict[str, KeyUsage] = {}
        """What the leader that is connected has."""
        self._spent_told: dict[str, int] = {}
        """Of the day, in the report that is under way."""

    def apply_table(self, table: RoutingTable) -> None:
        """These keys there are, with their limits. One that is gone, or was made anew, starts from nothing."""
        keys = {key.full_name: key for key in table.keys.values()}
        self._limits = {
            name: share_limits(key.limits, table.gateways, self._own_name)
            for name, key in keys.items()
            if key.limits != NO_LIMITS
        }
        before, self._hashes = self._hashes, {name: f"sha256:{key.digest.hex()}" for name, key in keys.items()}
        for name, quota in list(self._quotas.items()):
            if self._hashes.get(name) == before.get(name):
                continue
            del self._quotas[name]
            if in_flight := quota.in_flight:  # they end under this name
                quota.carry(0)
                self._quota(name).carry(in_flight)
        known = set(self._hashes.values())
        self._usage = {hash_: usage for hash_, usage in self._usage.items() if hash_ in known}
        self._told = {hash_: usage for hash_, usage in self._told.items() if hash_ in known}

    def count_sharers(self, table: RoutingTable) -> int:
        """Gateways that serve by this table, this one too."""
        return len({*table.gateways, self._own_name})

    def name_gateway(self, name: str, table: RoutingTable) -> None:
        """How the controller calls this gateway: shares are by name. `table`: in force, perhaps of the last run."""
        self._own_name = name
        self.apply_table(table)

    def begin(self, key: str) -> ApiError | None:
        """A request of this key begins, or why it doesn't."""
        spent = self._quota(key).admit(self._limits.get(key, NO_LIMITS), self._clock(), self._wall())
        return None if spent is None else refuse_spent(key, spent)

    def end(self, key: str) -> None:
        quota = self._quota(key)
        quota.end()
        if not quota.in_flight and key not in self._hashes:
            del self._quotas[key]

    def charge(self, record: Record) -> None:
        """What a request of a key came to. One of a key that was deleted meanwhile is nobody's."""
        cost, hash_ = record.cost, self._hashes.get(record.key)
        if hash_ is None:
            return
        limits = self._limits.get(record.key, NO_LIMITS)
        self._quota(record.key).charge(limits, cost.total, self._clock(), self._wall())
        counts = self._usage.get(hash_)
        if counts is None:
            counts = self._usage[hash_] = _Counts() if self._shared is None else self._shared.counts(hash_)
        counts.add(cost.is_estimated, cost.prompt, cost.cached, cost.completion)

    def allowances(self, key: str) -> tuple[Allowance | None, Allowance | None]:
        """Of requests and tokens of the minute."""
        limits = self._limits.get(key)
        return (None, None) if limits is None else self._quota(key).allowances(limits, self._clock())

    # What the controller hears and says.

    def forget_told(self) -> None:
        """Another leader: it is told all of it."""
        self._told = {}

    def observe_usage(self) -> tuple[KeyUsage, ...]:
        """What the leader doesn't have yet."""
        if self._shared is not None:
            self._look_for_used(self._shared)
        # Before the usage: what is counted meanwhile at another worker must not be taken for told.
        spent_today = {
            self._hashes[name]: each.look_spent() for name, each in self._quotas.items() if name in self._hashes
        }
        usage = (_render_usage(hash_, counts) for hash_, counts in sorted(self._usage.items()))
        news = [each for each in usage if self._told.get(each.hash) != each]
        left_over = {each.hash for each in news[MAX_REPORTED:]}
        before = self._spent_told
        self._spent_told = {
            hash_: min(before.get(hash_, 0), spent) if hash_ in left_over else spent
            for hash_, spent in spent_today.items()
        }
        return tuple(news[:MAX_REPORTED])

    def _look_for_used(self, shared: "SharedKeys") -> None:
        """Keys that other workers counted."""
        for name, hash_ in self._hashes.items():
            if shared.has(hash_):
                self._quota(name)
                if hash_ not in self._usage:
                    self._usage[hash_] = shared.counts(hash_)

    def confirm_usage(self, told: tuple[KeyUsage, ...], spent: tuple[KeySpent, ...]) -> None:
        """The leader has this usage; `spent`: what the fleet has spent of each day's limit."""
        self._told |= {usage.hash: usage for usage in told}
        names = {hash_: name for name, hash_ in self._hashes.items()}
        for each in spent:
            if (name := names.get(each.hash)) is not None:
                self._quota(name).hear_fleet(each.day, each.tokens, self._spent_told.get(each.hash, 0), self._wall())

    def _quota(self, key: str) -> Quota:
        found = self._quotas.get(key)
        if found is None:
            day, hash_ = int(self._wall()) // DAY_SECONDS, self._hashes.get(key)
            shared = self._shared
            found = Quota(day=day) if shared is None or hash_ is None else shared.quota(hash_, day)
            self._quotas[key] = found
        return found
