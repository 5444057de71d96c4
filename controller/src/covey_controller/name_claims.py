"""Which machine is heard when several report under one node's name.

A restarted agent looks just like another machine of the same name: a new boot of the node. It is told apart by the
stream of the boot before: a process that ended has none. While the holder's stream is open another boot is refused; it
is a rival, refused until the holder is silent, once the holder has gone on reporting beside it. Where a stream broke
and not its process, the boot that was replaced goes on reporting: then it is the holder again. Rejected: refusing a new
boot for as long as the old one is fresh (a restart would take ten seconds to be heard), and believing whoever spoke
last (Instances would be lost and found with each report).

Claims are this process's: where a controller begins anew whoever is heard first has the name. That is the holder,
unless it is unlucky: it dials again within a second of losing its stream, where one that was refused waits for ten.
Rejected: to keep the holder's boot in the Node's status (one more write for each start of an agent), and to believe
only who has the members that the store knows (a machine that was switched off meanwhile would be refused like another).

Two machines with one name come from equal host names, or from a copied state folder.
"""

from dataclasses import dataclass
from typing import Literal

from covey_api.messages import NODE_SILENCE_SECONDS

# A process that died may have had one report on its way; the second is of one that lives.
_PROOF = 2


class NameTaken(Exception):
    """Another machine is heard under this name. The words are for whoever runs the one that is refused."""

    def __init__(self, name: str, kind: Literal["node", "gateway"] = "node") -> None:
        self.kind = kind
        super().__init__(
            f"another machine is connected as {kind} '{name}', so this one is refused and the other goes on: "
            f"two machines must have two names. Give this one another with `--name` and join it with a state folder of "
            f"its own; or, if it is to be '{name}' from now on, stop the {'agent' if kind == 'node' else kind} of the "
            f"other: this one is heard {NODE_SILENCE_SECONDS:.0f} s later."
        )


@dataclass(slots=True)
class _Claim:
    holder: str
    heard: float
    elder: str = ""
    """The boot that the holder took the name from."""
    elder_reports: int = 0
    rival: str = ""
    rival_heard: float = 0.0
    contender: str = ""
    """The boot that was refused while the holder's stream was open."""
    reports_beside: int = 0
    """The holder's, since the contender was heard."""


class NameClaims:
    """Boots of nodes, by name: some strings for each node that ever reported. Times are the caller's clock."""

    def __init__(self) -> None:
        self._claims: dict[str, _Claim] = {}

    def admit(self, node: str, boot: str, now: float, *, is_streaming: bool = False) -> bool:
        """Whether this boot's report counts. `is_streaming`: the stream of the boot that holds the name is open.

        1. Nobody holds the name, or its holder is silent: it is taken. 2. The holder: yes. 3. A known rival: no.
        4. The holder's stream is open: no. 5. The boot that the holder replaced: no, and once that is no accident it is
        the holder, and the other a rival. 6. Any other boot: a restart, until 4 or 5 says otherwise.
        """
        claim = self._claims.get(node)
        if claim is None or now - claim.heard >= NODE_SILENCE_SECONDS:  # 1
            self._claims[node] = _Claim(boot, now)
            return True
        if boot == claim.holder:  # 2
            claim.heard = now
            claim.reports_beside += 1
            if claim.contender and claim.reports_beside >= _PROOF:
                claim.rival, claim.rival_heard, claim.contender = claim.contender, now, ""
            return True
        if boot == claim.rival:  # 3
            claim.rival_heard = now
            return False
        if is_streaming:  # 4
            if boot != claim.contender:
                claim.contender, claim.reports_beside = boot, 0
            return False
        if boot == claim.elder:  # 5
            claim.elder_reports += 1
            if claim.elder_reports < _PROOF:
                return False
            self._claims[node] = _Claim(boot, now, rival=claim.holder, rival_heard=now)
            return True
        claim.elder, claim.elder_reports, claim.holder = claim.holder, 0, boot  # 6
        claim.contender, claim.heard = "", now
        return True

    def may_stream(self, node: str, boot: str, now: float, *, is_streaming: bool) -> bool:
        """Whether this boot is sent assignments: as `admit`, but a stream alone takes no name and proves nothing."""
        claim = self._claims.get(node)
        if claim is None or boot == claim.holder or now - claim.heard >= NODE_SILENCE_SECONDS:
            return True
        return boot != claim.rival and not is_streaming

    def holder(self, node: str) -> str:
        """The boot that is heard; empty while none reported."""
        claim = self._claims.get(node)
        return claim.holder if claim else ""

    def rival_heard(self, node: str) -> float | None:
        """When another machine last reported under the name; None while none did."""
        claim = self._claims.get(node)
        return claim.rival_heard if claim and claim.rival else None
