"""Conversations and the endpoints that have them in their caches: consistent hashing with bounded loads.

Each conversation has an order of its own over the endpoints (rendezvous hashing, by slots and weight), which every
gateway finds alike without asking, and which an endpoint that comes or goes leaves as it is for all others. Loads are
bounded twice: requests in flight, so that no endpoint has more than 1.25 times its share while others could help, and
conversations, so that caches fill evenly. What a conversation was last sent to is remembered for a while: it need not
be the first of its order, and is where the cache is. Why: ADR 44.
"""

import math
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b

from covey_gateway.routing.load import IDLE, Load, measure_outstanding
from covey_gateway.routing.table import Target

# The most that an endpoint may have of its share.
LOAD_BOUND = 1.25
# So many are never too many for an endpoint that has a slot for each.
FEW = 4
# Conversations that are remembered, of all models: some 350 bytes each.
MAX_HOMES = 32_768
# Who was silent for so long finds its place in an engine's cache taken by others.
HOME_SECONDS = 900.0

_MASK = 2**64 - 1


class Homes:
    """Where conversations were last sent to, and whose each is. Who has most of them loses one when they are too many:
    whoever invents sessions makes no room but from its own."""

    def __init__(self) -> None:
        self._homes: OrderedDict[int, tuple[str, float, str]] = OrderedDict()
        self._owned: dict[str, OrderedDict[int, None]] = {}
        self._counts: dict[str, int] = {}

    def find(self, conversation: int) -> str | None:
        """The id of the endpoint."""
        home = self._homes.get(conversation)
        return None if home is None else home[0]

    def count(self, id_: str) -> int:
        """How many conversations are at an endpoint."""
        return self._counts.get(id_, 0)

    def remember(self, conversation: int, id_: str, now: float, owner: str = "") -> None:
        self._drop(conversation)
        self._homes[conversation] = (id_, now, owner)
        self._owned.setdefault(owner, OrderedDict())[conversation] = None
        self._counts[id_] = self._counts.get(id_, 0) + 1
        oldest = next(iter(self._homes))
        while now - self._homes[oldest][1] > HOME_SECONDS:
            self._drop(oldest)
            oldest = next(iter(self._homes))
        if len(self._homes) > MAX_HOMES:
            self._drop(next(iter(max(self._owned.values(), key=len))))

    def keep_only(self, ids: Collection[str]) -> None:
        """What was at other endpoints is nowhere."""
        if self._counts.keys() <= set(ids):
            return
        for conversation in [each for each, (id_, _, _) in self._homes.items() if id_ not in ids]:
            self._drop(conversation)

    def _drop(self, conversation: int) -> None:
        home = self._homes.pop(conversation, None)
        if home is None:
            return
        owned = self._owned[home[2]]
        del owned[conversation]
        if not owned:
            del self._owned[home[2]]
        left = self._counts[home[0]] - 1
        if left:
            self._counts[home[0]] = left
        else:
            del self._counts[home[0]]


def choose_home(free: Sequence[Target], loads: Mapping[str, Load], homes: Homes, conversation: int) -> Target:
    """Which of these endpoints, all of which may take it, gets a request of this conversation.

    1. Where it was, unless that has more than its bound of requests in flight.
    2. The first in its order that has a free slot, and is below its bounds of requests and of conversations.
    3. The least outstanding of those below their bound of requests; ties by its order.
    """
    size = sum(target.slots * target.weight for target in free)
    in_flight = sum(loads.get(target.id, IDLE).occupied for target in free) + 1
    share = LOAD_BOUND * in_flight / size
    if (home := homes.find(conversation)) is not None:
        for target in free:
            if target.id == home and loads.get(home, IDLE).occupied < bound_of(target, share):
                return target
    below = [target for target in free if loads.get(target.id, IDLE).occupied < bound_of(target, share)]
    kept = LOAD_BOUND * (sum(homes.count(target.id) for target in free) + 1) / size
    roomy = [
        target
        for target in below
        if loads.get(target.id, IDLE).occupied < target.slots and homes.count(target.id) < bound_of(target, kept)
    ]
    if roomy:
        return min(roomy, key=lambda target: measure_distance(target, conversation))
    return min(
        below,
        key=lambda target: (measure_outstanding(target, loads), measure_distance(target, conversation)),
    )


def bound_of(target: Target, share: float) -> int:
    """How many an endpoint may have; `share`: 1.25 times what each unit of its size would have.

    Never less than its part of all of them, so one endpoint is always below.
    """
    return max(math.ceil(share * target.slots * target.weight), min(target.slots, FEW))


def measure_distance(target: Target, conversation: int) -> float:
    """Of rendezvous hashing: the least is first. An endpoint is first as often as its size says."""
    mixed = ((_seed(target.instance_id) ^ conversation) * 0x9E3779B97F4A7C15) & _MASK
    mixed = ((mixed ^ (mixed >> 29)) * 0xBF58476D1CE4E5B9) & _MASK
    mixed ^= mixed >> 32
    return -math.log((mixed + 1) / 2**64) / (target.slots * target.weight)


@lru_cache(maxsize=4096)  # an endpoint each; of more than that the cost is a microsecond
def _seed(instance_id: str) -> int:
    return int.from_bytes(blake2b(instance_id.encode(), digest_size=8).digest())
