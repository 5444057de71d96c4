"""What no fault may break of Instances of several members: they begin in order, serve together, and end together."""

from covey_api.instance import MemberRole
from covey_gateway.routing.table import Target

from covey_simulator.machine import Keeper, Machine
from covey_simulator.story import Story

# An agent has written down what it started by then.
RECORDED_SECONDS = 0.1


class Groups:
    def __init__(self, story: Story, machines: dict[str, Machine]) -> None:
        self._story = story
        self._machines = machines
        self._listened: set[tuple[str, int, str]] = set()
        """By instanceId, attempt and name: donors that were seen to listen."""
        self._started: dict[str, dict[tuple[str, int], float]] = {}
        """By node: when a member was started, by instanceId and attempt, as far as its agent can know."""

    def forget(self, node: str) -> None:
        """Its agent's disk lost what was."""
        self._started.pop(node, None)

    def on_agent_end(self, node: str, now: float) -> None:
        """It is killed: what it had no time to write down its successor takes for never done."""
        started = self._started.get(node, {})
        self._started[node] = {this: at for this, at in started.items() if at < now - RECORDED_SECONDS}

    def on_start(self, machine: Machine, keeper: Keeper, now: float) -> None:
        """A driver starts after all of its donors were ready in the same attempt, and each once in an attempt."""
        self._observe()
        if keeper.group is None:
            return
        started, this = self._started.setdefault(machine.name, {}), (keeper.engine.instance_id, keeper.attempt)
        if this in started:
            self._story.violate(
                f"a member of {this[0]} starts on {machine.name} again in attempt {this[1]}, which is over"
            )
        started[this] = now
        if keeper.member.role is not MemberRole.DRIVER:
            return
        instance_id = keeper.engine.instance_id
        for each in keeper.instance.spec.members:
            if each.role is MemberRole.DONOR and (instance_id, keeper.attempt, each.name) not in self._listened:
                self._story.violate(
                    f"the driver of {instance_id} starts on {machine.name} in attempt {keeper.attempt}, and its donor "
                    f"{each.name} was not ready in it"
                )

    def check(self) -> None:
        """Nothing answers in an attempt while a later one of the same Instance runs."""
        self._observe()
        latest: dict[str, int] = {}
        members = [keeper for keeper in self._members() if keeper.engine.is_alive]
        for keeper in members:
            instance_id = keeper.engine.instance_id
            latest[instance_id] = max(keeper.attempt, latest.get(instance_id, 0))
        for keeper in members:
            last = latest[keeper.engine.instance_id]
            if keeper.answers and keeper.engine.generates and keeper.attempt < last:
                self._story.violate(
                    f"attempt {keeper.attempt} of {keeper.engine.instance_id} answers, and attempt {last} runs already"
                )

    def check_route(self, gateway: str, target: Target) -> None:
        """What a table routes to had all of its members."""
        for keeper in self._members():
            if keeper.engine.instance_id != target.instance_id or keeper.engine.port != target.port:
                continue
            for each in keeper.instance.spec.members:
                if each.role is MemberRole.DONOR and not self._has_listened(keeper, each.name):
                    self._story.violate(f"gateway {gateway} routes half of {target.instance_id}: {each.name} never was")

    def is_whole(self, keeper: Keeper) -> bool:
        """Whether all members of its attempt live; what one serves is lost with any other."""
        found = {
            each.member.name
            for each in self._members()
            if each.engine.instance_id == keeper.engine.instance_id
            and each.attempt == keeper.attempt
            and each.engine.is_alive
        }
        return keeper.group is None or len(found) == len(keeper.instance.spec.members)

    def _has_listened(self, keeper: Keeper, name: str) -> bool:
        return (keeper.engine.instance_id, keeper.attempt, name) in self._listened

    def _observe(self) -> None:
        for keeper in self._members():
            if keeper.engine.ready_told_at is not None:
                self._listened.add((keeper.engine.instance_id, keeper.attempt, keeper.member.name))

    def _members(self) -> list[Keeper]:
        """Of Instances of several."""
        return [
            keeper
            for machine in self._machines.values()
            for keeper in machine.keepers.values()
            if keeper.group is not None
        ]
