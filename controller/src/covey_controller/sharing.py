"""Where a node gets a blob that it lacks: from others that reported it, or at its origin when it is its turn (ADR 47).

In the leader's memory only: a new leader hears of what is under way within seconds, and what it gets wrong until then
costs one download more. No plan depends on any of it.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from covey_api.messages import MAX_HOLDERS, NODE_SILENCE_SECONDS, Holder, Report, Wanted, WantedAnswer
from covey_fleet_client.machine import is_loopback

from covey_controller.ports import AgentSession

# Who fetches from the origin says so every 5 s: three times unheard, and it is another's turn.
TURN_SECONDS = 15.0
# Downloads of a large fleet at a time, several times over.
MAX_TURNS = 4096


@dataclass(frozen=True, slots=True)
class _Turn:
    node: str
    heard_at: float
    done_bytes: int = 0


class Sharing:
    """One event loop. `clock`: monotonic seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._turns: dict[str, _Turn] = {}
        """By digest: who fetches it from its origin."""
        self._listed: dict[str, tuple[str, ...]] = {}
        """By node: digests that it reported when it was looked at last."""
        self._holders: dict[str, dict[str, None]] = {}
        """By digest: nodes that reported it then."""

    def answer(self, node: str, wanted: Wanted, agents: Mapping[str, AgentSession]) -> WantedAnswer:
        """1. It says that it fetches it: the turn is its own, unless another has it already.

        2. Others have it, that it has not tried in vain: these, at most eight, not the same ones for every node.
        3. Another one fetches it, that it has not waited for in vain: that one is waited for. Whoever says that it
           fetches and doesn't loses its turn so, and to one node only.
        4. It is its turn, unless there is no origin that it could ask.
        """
        now = self._clock()
        turn = self._turns.get(wanted.sha256)
        is_taken = turn is not None and turn.node != node and now - turn.heard_at < TURN_SECONDS
        if wanted.fetching:
            if not is_taken:
                self._take(wanted.sha256, node, now, wanted.done_bytes)
            return WantedAnswer()
        if holders := self._find_holders(node, wanted, agents, now):
            return WantedAnswer(holders=holders)
        if turn is not None and is_taken and turn.node != wanted.passed:
            return WantedAnswer(fetcher=turn.node, fetched_bytes=turn.done_bytes)
        if not wanted.only_holders:
            self._take(wanted.sha256, node, now)
        return WantedAnswer()

    def _take(self, sha256: str, node: str, now: float, done_bytes: int = 0) -> None:
        if len(self._turns) >= MAX_TURNS:
            self._turns = {key: each for key, each in self._turns.items() if now - each.heard_at < TURN_SECONDS}
        if sha256 in self._turns or len(self._turns) < MAX_TURNS:
            self._turns[sha256] = _Turn(node, now, done_bytes)

    def _find_holders(
        self, node: str, wanted: Wanted, agents: Mapping[str, AgentSession], now: float
    ) -> tuple[Holder, ...]:
        asking = agents.get(node)
        machine = asking.report.machine if asking and asking.report else ""
        self._follow(agents)
        holding = (agents[name] for name in self._holders.get(wanted.sha256, ()) if name in agents)
        found = [
            Holder(node=session.node, address=session.report.address, port=session.report.blobs_port)
            for session in holding
            if (session.node != node or wanted.by_command)
            and session.node not in wanted.tried
            and session.report is not None
            and now - session.last_seen < NODE_SILENCE_SECONDS
            and _gives(session.report, machine)
        ]
        # By a hash of both names: the load is spread, and a node that asks again is told of the same ones.
        found.sort(key=lambda each: hashlib.sha256(f"{node}/{each.node}".encode()).digest())
        return tuple(found[:MAX_HOLDERS])

    def _follow(self, agents: Mapping[str, AgentSession]) -> None:
        """Lists that are other objects than the last ones: most nodes' are the same for hours."""
        for name, session in agents.items():
            blobs = (session.report.blobs if session.report else None) or ()
            if self._listed.get(name, ()) is not blobs:
                self._forget(name)
                if blobs:
                    self._listed[name] = blobs
                for digest in dict.fromkeys(blobs):
                    self._holders.setdefault(digest, {})[name] = None
        if len(self._listed) > len(agents) or not self._listed.keys() <= agents.keys():
            for name in [name for name in self._listed if name not in agents]:
                self._forget(name)

    def _forget(self, name: str) -> None:
        # A node may list a digest twice.
        for digest in dict.fromkeys(self._listed.pop(name, ())):
            holders = self._holders.get(digest, {})
            holders.pop(name, None)
            if not holders:
                self._holders.pop(digest, None)


def _gives(report: Report, machine: str) -> bool:
    """Whether it can be reached from that machine, and gives anything."""
    if not report.blobs_port or not report.address:
        return False
    return not is_loopback(report.address) or bool(machine and machine == report.machine)
