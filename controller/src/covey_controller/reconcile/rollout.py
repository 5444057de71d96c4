"""Which replicas of one Placement go, and how many may come: counting alone, no nodes and no bytes.

A healthy replica is kept. A roll surges: one replica of the new revision beside the old ones, and an old one leaves
when a new one is Ready. Nothing that serves leaves before what replaces it serves; what serves nobody leaves first.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

# Replicas beyond the wished number while a roll is under way.
SURGE = 1
EVICTED = "its deletion, or its node's, was asked for"


class Standing(IntEnum):
    """How much a replica is worth keeping, least first."""

    FAILED = 0
    """Its attempt is over."""
    LOST = 1
    """Its node has been silent beyond the grace."""
    STARTING = 2
    """It has not served yet."""
    RECOVERING = 3
    """It served, and its agent brings it back; or it serves, and its node is silent."""
    READY = 4


@dataclass(frozen=True, slots=True)
class Replica:
    """One Instance with goal Run, as far as counting goes."""

    name: str
    age: tuple[str, int]
    """Creation time and ordinal: larger is newer."""
    standing: Standing
    is_current: bool
    """Of the wished revision (all are while the revision isn't known), and to stay where it is."""
    is_evicted: bool = False
    """Its own deletion, or its node's, was asked for: it is not current. What serves stays until it is replaced."""


@dataclass(frozen=True, slots=True)
class Leaving:
    name: str
    why: str


def choose_leaving(replicas: Sequence[Replica], wanted: int) -> tuple[Leaving, ...]:
    """Who drains now.

    1. No replica wished, or a deletion was asked for and it doesn't serve: drained.
    2. Of an old revision and never served, or failed: drained; it serves nobody.
    3. More of the current revision than wished, or of old ones: what serves least, then the newest; lost ones don't
       count.
    4. As many ready as wished: lost ones and old ones that recover are drained.
    5. More ready than wished: old ones, oldest first, down to the wished number.
    """
    leaving: dict[str, str] = {}
    for replica in replicas:
        if wanted == 0:
            leaving[replica.name] = "no replica is wished"
        elif replica.is_evicted and replica.standing is not Standing.READY:
            leaving[replica.name] = EVICTED
        elif not replica.is_current and replica.standing in (Standing.FAILED, Standing.STARTING):
            leaving[replica.name] = "its revision is no longer wished and it serves nobody"
    _leave_surplus([r for r in replicas if r.name not in leaving], wanted, leaving)
    _leave_replaced([r for r in replicas if r.name not in leaving], wanted, leaving)
    return tuple(Leaving(name, leaving[name]) for name in sorted(leaving))


def _leave_surplus(replicas: Sequence[Replica], wanted: int, leaving: dict[str, str]) -> None:
    for is_current in (True, False):
        counted = [r for r in replicas if r.is_current is is_current and r.standing is not Standing.LOST]
        newest_first = sorted(counted, key=lambda r: r.age, reverse=True)
        for replica in sorted(newest_first, key=lambda r: r.standing)[: max(0, len(counted) - wanted)]:
            leaving[replica.name] = "more replicas than wished"


def _leave_replaced(replicas: Sequence[Replica], wanted: int, leaving: dict[str, str]) -> None:
    ready = [r for r in replicas if r.standing is Standing.READY]
    if len(ready) < wanted:
        return
    for replica in replicas:
        if replica.standing is Standing.LOST:
            leaving[replica.name] = "its node is lost and enough others are ready"
        elif not replica.is_current and replica.standing is Standing.RECOVERING:
            leaving[replica.name] = "the new revision is ready"
    olds = sorted((r for r in ready if not r.is_current), key=lambda r: r.age)
    for replica in olds[: len(ready) - wanted]:
        leaving[replica.name] = "what replaces it is ready" if replica.is_evicted else "the new revision is ready"


def choose_evicted(replicas: Sequence[Replica]) -> tuple[str, ...]:
    """Who serves and has to go, while nothing is on its way that could replace it."""
    if any(r.is_current and r.standing in (Standing.STARTING, Standing.RECOVERING) for r in replicas):
        return ()
    return tuple(r.name for r in replicas if r.is_evicted)


def count_missing(replicas: Sequence[Replica], wanted: int) -> int:
    """Replicas of the current revision that are not there. Failed ones are: their breaker decides."""
    return max(0, wanted - sum(r.is_current and r.standing is not Standing.LOST for r in replicas))


def count_creatable(replicas: Sequence[Replica], wanted: int) -> int:
    """How many may be created now: all that are missing, within `SURGE` of the wished number while old ones stay."""
    standing = [r for r in replicas if r.standing is not Standing.LOST]
    limit = wanted + (SURGE if any(not r.is_current for r in standing) else 0)
    return max(0, min(count_missing(replicas, wanted), limit - len(standing)))


def order_of_leaving(replicas: Sequence[Replica]) -> tuple[Replica, ...]:
    """Old ones, in the order in which a roll without room for a surge lets them go."""
    olds = [r for r in replicas if not r.is_current]
    return tuple(sorted(olds, key=lambda r: (r.standing, r.age)))
