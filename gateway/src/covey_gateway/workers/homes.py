"""Where conversations were last sent to, by whatever worker: the next turn may reach another one.

A table in the shared memory, of as many conversations as fit: for each its digest, its endpoint's, and when that was. A
conversation has a few places by its digest; the one that was there longest ago makes room. Nothing is locked: what two
write at a time is at worst an endpoint that has another conversation in its cache, and costs that conversation its own.

Each worker remembers its own besides, which one key that invents sessions can't push out (`Homes`).
"""

from collections.abc import Callable, Collection
from functools import lru_cache
from hashlib import blake2b

from covey_gateway.routing.affinity import HOME_SECONDS, Homes
from covey_gateway.workers.memory import Memory

_ROW = "homes"
# 384 kB.
PLACES = 16_384
_CELLS = 3
_WAYS = 8
_CONVERSATION, _ENDPOINT, _AT = range(_CELLS)
_MASK = 2**63 - 1


class SharedHomes(Homes):
    """`clock` is monotonic, the machine's."""

    def __init__(self, memory: Memory, clock: Callable[[], float]) -> None:
        super().__init__()
        self._cells = memory.row(_ROW, PLACES * _CELLS, 0).common
        self._clock = clock
        self._ids: dict[int, str] = {}

    def find(self, conversation: int) -> str | None:
        key, now = _key(conversation), round(self._clock() * 1000)
        for at in _places(key):
            if self._cells[at + _CONVERSATION] == key and now - self._cells[at + _AT] <= HOME_SECONDS * 1000:
                found = self._ids.get(self._cells[at + _ENDPOINT])
                if found is not None:
                    return found
        return super().find(conversation)

    def remember(self, conversation: int, id_: str, now: float, owner: str = "") -> None:
        super().remember(conversation, id_, now, owner)
        key, cells = _key(conversation), self._cells
        places = _places(key)
        at = next((each for each in places if cells[each + _CONVERSATION] == key), None)
        if at is None:
            at = min(places, key=lambda each: cells[each + _AT])
        cells[at + _ENDPOINT] = _digest(id_)
        cells[at + _CONVERSATION] = key
        cells[at + _AT] = max(1, round(self._clock() * 1000))

    def keep_only(self, ids: Collection[str]) -> None:
        super().keep_only(ids)
        self._ids = {_digest(id_): id_ for id_ in ids}


def _key(conversation: int) -> int:
    """Never that of an empty place."""
    return (conversation & _MASK) or 1


def _places(key: int) -> range:
    first = key % (PLACES // _WAYS) * _WAYS * _CELLS
    return range(first, first + _WAYS * _CELLS, _CELLS)


@lru_cache(maxsize=4096)  # an endpoint each
def _digest(id_: str) -> int:
    return (int.from_bytes(blake2b(id_.encode(), digest_size=8).digest()) & _MASK) or 1
