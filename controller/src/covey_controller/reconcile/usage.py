"""What keys have used: gateways' counts, which only grow, added up in the AccessKeys' status (ADR 40).

The status says of each boot how much of its count is in the sums, so counting the same report twice adds nothing, and
neither does another leader that begins with the stored status. It is written at most once a minute, and not at all
while nobody asks.
"""

from datetime import date, datetime, timedelta

from covey_api.access_key import MAX_TOTAL, AccessKey, CountedBoot, KeyCounts, KeyUsageStatus

from covey_controller.reconcile.draft import Draft
from covey_controller.reconcile.world import Reported, Spending

WRITE_SECONDS = 60
# Boots that one key's status remembers; more than anybody runs gateways. First all that are reported, then those that
# were most lately: a leader that has just begun hears of those in a moment, and one that was forgotten counts twice.
MAX_BOOTS = 64
_FIELDS = tuple(KeyCounts.model_fields)
_EPOCH = date(1970, 1, 1)
_NONE = KeyCounts()


def count_key(draft: Draft, key: AccessKey) -> KeyUsageStatus:
    """The key's usage as it is to be stored: as it is, until it is due."""
    stored = key.status.usage
    counted = add_reports(stored, key.spec.hash, draft.world.usage, draft.world.timestamp)
    if key.spec.tokens_per_day is not None:
        draft.spending[key.spec.hash] = _observe_spending(counted, key.spec.hash, draft.world.timestamp)
    if counted is stored:
        return stored
    due = _seconds_until_due(stored, draft.world.timestamp)
    if due > 0:
        draft.wake_at(draft.now + due)
        return stored
    return counted


def add_reports(stored: KeyUsageStatus, hash_: str, reported: Reported, timestamp: str) -> KeyUsageStatus:
    """With all that was reported; what is new is of the day that `timestamp` is in."""
    before = stored.counted_of(hash_)
    known: dict[str, KeyCounts] = {each.boot: each for each in before}
    day = timestamp[:10]
    total, today = stored.total, stored.today if stored.day == day else KeyCounts()
    present: list[CountedBoot] = []
    is_more = False
    here = {boot: found for boot, usages in reported.items() if (found := usages.get(hash_)) is not None}
    # One that was counted goes on to be, however many there are: it would count twice when it came back.
    for boot in sorted(here, key=lambda boot: (boot not in known, boot))[:MAX_BOOTS]:
        found = here[boot]
        new = _less(found, known.get(boot, KeyCounts()))
        is_more = is_more or new != _NONE
        total, today = _plus(total, new), _plus(today, new)
        present.append(CountedBoot(boot=boot, **_values(found)))
    if not is_more:
        return stored
    absent = [each for each in before if each.boot not in here]
    dropped = max(0, len(absent) + len(present) - MAX_BOOTS)
    counted = (*absent[dropped:], *present)
    return KeyUsageStatus(total=total, day=day, today=today, counted_at=timestamp, counted=counted, hash=hash_)


def _observe_spending(usage: KeyUsageStatus, hash_: str, timestamp: str) -> Spending:
    today = usage.today if usage.day == timestamp[:10] else KeyCounts()
    day = (date.fromisoformat(timestamp[:10]) - _EPOCH).days
    return Spending(day, today.tokens, {each.boot: each.tokens for each in usage.counted_of(hash_)})


def _seconds_until_due(stored: KeyUsageStatus, timestamp: str) -> float:
    """What was never written, or in a time that can't be read or lies ahead, is due."""
    try:
        written, now = datetime.fromisoformat(stored.counted_at), datetime.fromisoformat(timestamp)
        left = written + timedelta(seconds=WRITE_SECONDS) - now
    except (ValueError, TypeError):
        return 0
    return left.total_seconds() if left.total_seconds() <= WRITE_SECONDS else 0


def _values(counts: KeyCounts) -> dict[str, int]:
    return {name: getattr(counts, name) for name in _FIELDS}


def _plus(one: KeyCounts, other: KeyCounts) -> KeyCounts:
    """At most what a status holds: a sum that can't be stored would end every turn."""
    return KeyCounts(**{name: min(MAX_TOTAL, getattr(one, name) + getattr(other, name)) for name in _FIELDS})


def _less(one: KeyCounts, other: KeyCounts) -> KeyCounts:
    return KeyCounts(**{name: max(0, getattr(one, name) - getattr(other, name)) for name in _FIELDS})
