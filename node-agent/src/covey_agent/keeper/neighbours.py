"""The other members of this member's attempt: how they are reached, and that all end when one does.

    dials    members whose fronts this keeper dials: a tunnel for the engine's bytes, and a link
    admits   members whose keepers dial this one's front: their engines' bytes, and a link each

Ranks of a ring start at once, and each both dials the next and admits the one before: what isn't there yet is waited
for until then.

Ending an attempt asks nobody: each keeper holds a link to each neighbour, and a neighbour's end, a closed link or
silence ends the own member, with the controller and both agents dead. Beginning one is bounded: a neighbour without a
link by `formSeconds` counts as ended too, and the words say who was missing and what was met.
"""

import selectors
import time
from collections.abc import Callable
from typing import Any

from covey_agent.keeper.credentials import Credentials
from covey_agent.keeper.dialling import Dial, DialError, Target
from covey_agent.keeper.front import Log
from covey_agent.keeper.links import PING_SECONDS, MembersLink
from covey_agent.keeper.sides import PeerSide
from covey_agent.keeper.tunnel import Tunnel
from covey_agent.keeper.ways import Watch

# Between two tries to reach a neighbour.
AGAIN_SECONDS = 1.0
# Between two looks at a ring that isn't there yet: its streams wait for its links.
FORMING_SECONDS = 0.2


class Reach:
    """The link to one member that is dialled, tried again until it is there. `on_end` hears once."""

    def __init__(
        self,
        selector: selectors.BaseSelector,
        target: Target,
        form_until: float,
        on_end: Callable[[str], None],
        on_wait: Callable[[str], None],
    ) -> None:
        self.target = target
        self.form_until = form_until
        self.met = "it was not tried"
        """What the last try met."""
        self.certificate: dict[str, Any] = {}
        self._selector = selector
        self._on_end = on_end
        self._on_wait = on_wait
        self._dial: Dial | None = None
        self._link: MembersLink | None = None
        self._again_at: float | None = 0.0
        self._watch = Watch(selector, self._advance)

    @property
    def is_formed(self) -> bool:
        """Whether each has heard the other."""
        return self._link is not None and self._link.has_heard

    def check(self, now: float) -> None:
        if self._link is not None:
            self._link.check(now)
        elif self._dial is not None and now >= self._dial.deadline:
            self._miss(self._dial.explain_late())
        elif self._again_at is not None and now >= self._again_at:
            self._begin()

    def explain_missing(self) -> str:
        return f"{self.target.words} could not be reached in time ({self.met})"

    def tell_wait(self) -> None:
        if self._link is not None:
            self._link.tell_wait()

    def tell_end(self, words: str, *, is_own: bool) -> None:
        if self._link is not None:
            self._link.tell_end(words, is_own=is_own)
        else:
            self.close()

    def close(self) -> None:
        self._again_at = None
        self._drop_dial()
        if self._link is not None:
            self._link.close()

    def _begin(self) -> None:
        self._again_at = None
        try:
            self._dial = Dial(self.target, self.target.link_name)
        except DialError as error:
            self._miss(str(error))
        else:
            self._dial.listen(self._watch)

    def _advance(self) -> None:
        dial = self._dial
        if dial is None:
            return
        try:
            if not dial.advance():
                dial.listen(self._watch)
                return
        except DialError as error:
            self._miss(str(error))
            return
        self._watch.set(dial.peer.socket)
        self._dial = None
        self.certificate = dial.certificate
        self._link = MembersLink(
            self._selector, dial.peer, self.target.words, self._hear_end, hears_on=True, on_wait=self._on_wait
        )
        self._link.begin()

    def _hear_end(self, why: str) -> None:
        """Of a link on which nothing was said: the other end refused it."""
        if self._link is not None and self._link.has_heard:
            self._on_end(why)
        else:
            self._link = None
            self._miss(f"it took no link: {why.removeprefix(self.target.words).strip()}")

    def _miss(self, why: str) -> None:
        self.met = why
        self._drop_dial()
        self._again_at = time.monotonic() + AGAIN_SECONDS

    def _drop_dial(self) -> None:
        if self._dial is not None:
            self._watch.drop(self._dial.peer.socket)
            self._dial = None


class Neighbours:
    """`group`: of the keeper's launch. `on_end` hears, in words, whose end ends this member; once. `on_wait`: whose
    engine ended since a step with the others took too long.

    OSError when a port of loopback for a tunnel can't be had.
    """

    def __init__(
        self,
        selector: selectors.BaseSelector,
        group: dict[str, Any],
        on_end: Callable[[str], None],
        on_wait: Callable[[str], None],
    ) -> None:
        self.log = Log()
        self.met = ""
        """Why the engine's last connection to a neighbour did not get there; empty: none failed."""
        self.link_name = str(group["linkName"])
        self.names = (str(group["streamName"]), self.link_name)
        """What is asked for at this member's front."""
        self.admitted: dict[str, str] = {each["node"]: each["member"] for each in group["admits"]}
        """Members that come to this front, by node."""
        self.ring_port = int(group.get("ringPort", 0))
        """Where a rank's engine listens for the one before; 0: it is no rank."""
        self.front_port = int(group.get("frontPort", 0))
        """Of this member's front, as the others were told; 0: whichever is free."""
        self.answers = bool(group.get("answers", False))
        """Whether gateways come in too."""
        self.due = time.monotonic()
        """When `check` is to be called next, monotonic."""
        self._selector = selector
        self._on_end = on_end
        self._on_wait = on_wait
        form_seconds = group["formSeconds"]
        self._form_until = float("inf") if form_seconds is None else time.monotonic() + form_seconds
        self._taken: dict[str, tuple[dict[str, Any], MembersLink]] = {}
        self._has_told = False
        """Neighbours know of this member's end."""
        self._is_over = False
        """Whose end it was is settled."""
        self._admission = Credentials(
            group["identity"], None, self.log.write, "agent", "node", frozenset(self.admitted)
        )
        targets = [self._target(group["identity"], each) for each in group["dials"]]
        self._reaches = [Reach(selector, target, self._form_until, self._hear_end, on_wait) for target in targets]
        self._tunnels = [
            Tunnel(selector, each.target, self._complain, each if self.ring_port else None) for each in self._reaches
        ]

    def _target(self, identity: str, each: dict[str, Any]) -> Target:
        credentials = Credentials(identity, None, self.log.write, "agent", "node", frozenset({each["node"]}))
        names = each["streamName"], each["linkName"]
        return Target(
            each["member"], each["node"], each["address"], each["port"], *names, each["localPort"], credentials
        )

    def observe_patience(self) -> float:
        """Seconds for which the engine may not listen yet to those who come in."""
        return max(0.0, self._form_until - time.monotonic()) if self.ring_port else 0.0

    def explain_full(self, node: str) -> str:
        """Why no link of this node is taken; empty: one is."""
        if self._is_over or self._has_told:
            return "this member has ended"
        return "its member has a link here already" if node in self._taken else ""

    def take(self, node: str, certificate: dict[str, Any], peer: PeerSide) -> None:
        """A link that a neighbour dialled; who it is has been proven."""
        link = MembersLink(
            self._selector,
            peer,
            self._words(node),
            lambda why: self._hear_taken_end(node, why),
            on_wait=self._on_wait,
        )
        self._taken[node] = certificate, link
        link.begin()

    def _hear_taken_end(self, node: str, why: str) -> None:
        """Whoever dialled and said nothing didn't mean this member: it may come again."""
        _, link = self._taken[node]
        if link.has_heard:
            self._hear_end(why)
        else:
            del self._taken[node]

    def _words(self, node: str) -> str:
        return f"member '{self.admitted[node]}' on node '{node}'"

    def check(self, now: float) -> None:
        if now < self.due:
            return
        is_forming = self.ring_port and not all(each.is_formed for each in self._reaches)
        self.due = now + (FORMING_SECONDS if is_forming else PING_SECONDS)
        for tunnel in self._tunnels:
            tunnel.check(now)
        if self._is_over or self._has_told:
            return
        for reach in self._reaches:
            reach.check(now)
            if reach.certificate and (why := reach.target.credentials.explain_refusal(reach.certificate)):
                self._hear_end(f"{reach.target.words} is out: {why}")
        for node, (certificate, link) in list(self._taken.items()):
            link.check(now)
            if why := self._admission.explain_refusal(certificate):
                self._hear_end(f"{self._words(node)} is out: {why}")
        if now >= self._form_until and not self._is_over:
            self._check_formed()

    def _check_formed(self) -> None:
        """The time to meet is over: whoever isn't there is named, with what was met on the way to each."""
        missing = [reach for reach in self._reaches if not reach.is_formed]
        words = [reach.explain_missing() for reach in missing]
        absent = sorted(self.admitted.keys() - self._taken.keys())
        words += [f"{self._words(node)} did not come in time" for node in absent]
        for reach in missing:
            reach.close()
        if words:
            self._hear_end("; ".join(words))

    @property
    def engine_spoke_at(self) -> float:
        """When the engine last had a byte for a member that it dials, monotonic."""
        return max((each.engine_spoke_at for each in self._tunnels), default=0.0)

    def tell_wait(self) -> None:
        """The engine waited for the others in vain."""
        for reach in self._reaches:
            reach.tell_wait()
        for _, link in self._taken.values():
            link.tell_wait()

    def tell_end(self, words: str, *, is_own: bool) -> None:
        """This member ends: every neighbour is told at once. Not `is_own`: it does for another's, which is named.

        Until `close`, `on_end` may still hear of a member that was dialled and ended before this one.
        """
        self._has_told = True
        for reach in self._reaches:
            reach.tell_end(words, is_own=is_own)
        for _, link in self._taken.values():
            link.tell_end(words, is_own=is_own)

    def close(self) -> None:
        """The engine has ended: nothing is carried any more. What was said to neighbours stays said."""
        self._is_over = True
        for tunnel in self._tunnels:
            tunnel.close()
        self._tunnels = []

    def _complain(self, words: str) -> None:
        self.met = words
        self.log.write(words)

    def _hear_end(self, words: str) -> None:
        if not self._is_over:
            self._is_over = True
            self.log.write(words)
            self._on_end(words)
