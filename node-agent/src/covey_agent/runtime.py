"""The shell of the supervisor: one loop that feeds it events, and carries its effects out as tasks that end in events.

Owns the tasks. Every decision is `step`'s, every deed `Performer`'s.
"""

import asyncio
import logging
import math
from collections.abc import Callable, Mapping
from pathlib import Path

from covey_api.messages import Assignments, MemberAssignment, Progress
from pydantic import ValidationError

from covey_agent.kept_file import KeptFile
from covey_agent.performer import Outside, Performer
from covey_agent.supervisor.advance import next_due
from covey_agent.supervisor.effects import CancelWork, CheckFit, Effect, EnsureEngine, FetchArtifact, Forget, Keep, Slow
from covey_agent.supervisor.events import (
    AssignmentsReceived,
    CloseAsked,
    Event,
    KeeperFound,
    KeeperStarted,
    Ticked,
)
from covey_agent.supervisor.kept import Kept
from covey_agent.supervisor.state import State
from covey_agent.supervisor.step import begin, step

logger = logging.getLogger(__name__)

# Members of a node times their effects under way, several times over: who sends waits when the loop falls behind.
MAX_WAITING_EVENTS = 1024
# How soon a disk that refused a write is tried again.
KEEP_AGAIN_SECONDS = 1.0


class Runtime:
    """`members`: the folder of members. `on_change` is called after each step that changed what is reported.

    `record` is told of each step: the states before and after it, and its time.
    """

    def __init__(
        self,
        outside: Outside,
        members: Path,
        kept_file: KeptFile,
        boot_id: str,
        on_change: Callable[[], None],
        record: Callable[[State, State, float], None] = lambda before, after, now: None,
    ) -> None:
        self._keepers = outside.keepers
        self._members = members
        self._performer = Performer(outside, members, lambda key: self.state.members.get(key))
        self._kept_file = kept_file
        self._boot_id = boot_id
        self._on_change = on_change
        self._record = record
        self._events: asyncio.Queue[Event] = asyncio.Queue(MAX_WAITING_EVENTS)
        self._cancellable: dict[str, set[asyncio.Task[None]]] = {}
        self._unkept: Kept | None = None
        self._refusal = ""
        self._has_begun = False
        self.state = State()
        self.spec_changed = asyncio.Event()
        """Set when the Node's spec is another; whoever looks at it clears it."""

    @property
    def is_finding(self) -> bool:
        """It isn't known yet what runs: a report would say that nothing does."""
        return not self._has_begun or self.state.is_finding

    @property
    def progress(self) -> Mapping[str, Progress]:
        """Of members that are being fetched for, by instance id."""
        return self._performer.progress

    async def receive(self, assignments: Assignments) -> None:
        await self._events.put(AssignmentsReceived(assignments))

    async def close(self) -> None:
        """Stop every member; `run` returns when all have ended."""
        await self._events.put(CloseAsked())

    async def run(self) -> None:
        """Until closed, or cancelled: then every keeper runs on."""
        self.state, effects = begin(self._kept_file.read(), self._observe_strays(), self._boot_id)
        self._has_begun = True
        self._sweep()
        loop = asyncio.get_running_loop()
        now = loop.time()
        self._record(State(), self.state, now)
        async with asyncio.TaskGroup() as group:
            self._begin_all(group, effects)
            while not self.state.is_closed:
                event = await self._next_event(now)
                before, now = self.state, loop.time()
                self.state, effects = step(before, event, now)
                log_transitions(before, self.state)
                self._record(before, self.state, now)
                if self.state.spec != before.spec or (before.order is None and self.state.order is not None):
                    self.spec_changed.set()
                self._begin_all(group, effects)
                if observe_news(self.state) != observe_news(before):
                    self._on_change()

    async def _next_event(self, now: float) -> Event:
        """What comes first: an event, or the time at which the supervisor wants to look again.

        `now` is the last step's, and not the clock's: what became due while effects were begun would be due for ever.
        """
        due = next_due(self.state, now)
        if self._unkept is not None:
            due = min(now + KEEP_AGAIN_SECONDS, due or math.inf)
        try:
            async with asyncio.timeout_at(due):
                return await self._events.get()
        except TimeoutError:
            return Ticked()

    def _observe_strays(self) -> tuple[MemberAssignment, ...]:
        """Members that live, as their own folders tell; those that are kept as well are known better from there."""
        strays: list[MemberAssignment] = []
        for instance_id, text in self._keepers.observe_living().items():
            try:
                strays.append(MemberAssignment.model_validate_json(text))
            except ValidationError:
                logger.error("instance id '%s' runs, but its `assignment.json` can't be read: not adopted", instance_id)
        return tuple(strays)

    def _sweep(self) -> None:
        """Remove what members left that ended and were forgotten just before an agent's death."""
        known = self.state.members.keys() | self._keepers.observe_living().keys()
        for folder in sorted(self._members.iterdir()) if self._members.is_dir() else ():
            if folder.name not in known:
                self._keepers.forget(folder.name)

    def _keep(self) -> None:
        """Write what is to be kept. A disk that refuses costs what a restart would then not know, and no engine."""
        if self._unkept is None:
            return
        try:
            self._kept_file.write(self._unkept)
            self._unkept, self._refusal = None, ""
        except OSError as error:
            refusal = error.strerror or str(error)
            if refusal != self._refusal:  # once, not each second of the hour in which a disk is full
                logger.error("the state could not be written, it is tried again: %s", error)
            self._refusal = refusal

    def _begin_all(self, group: asyncio.TaskGroup, effects: tuple[Effect, ...]) -> None:
        for effect in effects:
            if isinstance(effect, Keep):  # always the first
                self._unkept = effect.kept
        self._keep()
        for effect in effects:
            match effect:
                case Keep():
                    continue
                case Forget(key):
                    self._cancellable.pop(key, None)
                    self._performer.progress.pop(key, None)
                    self._keepers.forget(key)
                case CancelWork(key):
                    for task in self._cancellable.pop(key, set()):
                        task.cancel()
                    self._performer.progress.pop(key, None)
                case FetchArtifact(key) | EnsureEngine(key) | CheckFit(key):
                    task = group.create_task(self._carry_out(effect))
                    tasks = self._cancellable.setdefault(key, set())
                    tasks.add(task)
                    task.add_done_callback(tasks.discard)
                case _:
                    group.create_task(self._carry_out(effect))

    async def _carry_out(self, effect: Slow) -> None:
        event = await self._performer.carry_out(effect)
        if event is not None:
            await self._events.put(event)
        if isinstance(event, KeeperStarted | KeeperFound):
            await self._events.put(await self._performer.wait_exit(event.instance_id, event.process))


def observe_news(state: State) -> object:
    """What a report says of members, beyond progress: equal when there is nothing new to report."""
    members = [
        (
            *(key, member.assigned, member.spec.attempt, member.phase, member.failure, member.restarts),
            *(member.keeper, member.kept_port),
        )
        for key, member in state.members.items()
    ]
    return state.order, members


def log_transitions(before: State, after: State) -> None:
    """One line for each member that changed its phase."""
    for key, member in after.members.items():
        old = before.members.get(key)
        if old is not None and old.phase is member.phase:
            continue
        name = f"{member.assignment.instance.metadata.namespace}/{member.assignment.instance.metadata.name}"
        words = f" ({member.failure.cause}: {member.failure.message})" if member.failure else ""
        logger.info("instance %s attempt %d is %s%s", name, member.spec.attempt, member.phase, words)
