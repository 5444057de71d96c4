"""Which machine is heard when several report under one node's name.

A restarted agent looks just like another machine of the same name: a new boot of the node. It is told apart by what
follows: the boot that was replaced goes on reporting. Then the elder one is heard and the younger one's reports are
dropped, until the elder falls silent. Rejected: refusing a new boot while the old one is fresh (a restart would take
ten seconds to be heard), and believing whoever spoke last (Instances would be lost and found with each report).

Two machines with one name come from equal host names, or from a copied state folder.
"""

from dataclasses import dataclass

from covey_api.messages import NODE_SILENCE_SECONDS

# A process that died may have had one report on its way; the second is of one that lives.
_PROOF = 2


@dataclass(slots=True)
class _Claim:
    holder: str
    heard: float
    elder: str = ""
    """The boot that the holder took the name from."""
    elder_reports: int = 0
    rival: str = ""
    rival_heard: float = 0.0


class NameClaims:
    """Boots of nodes, by name: some strings for each node that ever reported. Times are the caller's clock."""

    def __init__(self) -> None:
        self._claims: dict[str, _Claim] = {}

    def admit(self, node: str, boot: str, now: float) -> bool:
        """Whether this boot's report counts.

        1. Nobody holds the name, or its holder is silent: it is taken. 2. The holder: yes. 3. A known rival: no.
        4. The boot that the holder replaced: no, and once that is no accident it is the holder, and the other a rival.
        5. Any other boot: a restart, until 4 says otherwise.
        """
        claim = self._claims.get(node)
        if claim is None or now - claim.heard >= NODE_SILENCE_SECONDS:  # 1
            self._claims[node] = _Claim(boot, now)
            return True
        if boot == claim.rival:  # 3
            claim.rival_heard = now
            return False
        if boot == claim.elder:  # 4
            claim.elder_reports += 1
            if claim.elder_reports < _PROOF:
                return False
            self._claims[node] = _Claim(boot, now, rival=claim.holder, rival_heard=now)
            return True
        if boot != claim.holder:  # 5
            claim.elder, claim.elder_reports, claim.holder = claim.holder, 0, boot
        claim.heard = now  # 2
        return True

    def rival_heard(self, node: str) -> float | None:
        """When another machine last reported under the name; None while none did."""
        claim = self._claims.get(node)
        return claim.rival_heard if claim and claim.rival else None
