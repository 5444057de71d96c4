"""Connections of members, who showed a certificate: bounded for each, its oldest makes room for another.

One that goes mad, or whose key was stolen, may not keep all others out. Rejected: to refuse the newest: a machine whose
power was cut has connections here that nobody ends for a while, and it needs new ones.
"""

from collections.abc import Callable

from covey_api.messages import CertificateRole

# An agent has two or three, a gateway as many.
MAX_OF_ONE_MEMBER = 32
_Who = tuple[CertificateRole, str]


class Members:
    """One event loop, no locks."""

    def __init__(self) -> None:
        self._present: dict[_Who, dict[int, Callable[[], None]]] = {}
        self._numbers = 0

    def enter(self, role: CertificateRole, name: str, end: Callable[[], None]) -> Callable[[], None]:
        """A connection began; what is returned is called when it has ended. `end` ends it now."""
        who = role, name
        own = self._present.setdefault(who, {})
        if len(own) >= MAX_OF_ONE_MEMBER:
            own.pop(next(iter(own)))()
        self._numbers += 1
        number = self._numbers
        own[number] = end
        return lambda: self._leave(who, number)

    def _leave(self, who: _Who, number: int) -> None:
        own = self._present.get(who)
        if own is not None:
            own.pop(number, None)
            if not own:
                del self._present[who]
