"""What no fault may break, looked at after every step. Each rule says what was found, in words for a person.

Rules that allow staleness ask for calm; the others hold at every moment.
"""

import json
import re
from collections.abc import Callable, Iterable

from covey_api.instance import Instance, InstanceGoal, InstanceSpec
from covey_api.messages import Order
from covey_api.reasons import EventReason
from covey_controller.reconcile.outcomes import Note
from covey_gateway.routing.table import Target

from covey_simulator.calm import Calm
from covey_simulator.engine import Engine
from covey_simulator.grouped import Groups
from covey_simulator.loop import Process
from covey_simulator.machine import Keeper, Machine
from covey_simulator.story import Story
from covey_simulator.wishes import Wishes

# A report, a plan and a table, each with its debounce, on wires that are whole.
STALE_SECONDS = 2.0
# A gateway that a fault touched may be away, or counted as away, for this long after it.
GATEWAY_CALM_SECONDS = 30.0
# An edit rests, vanishes and is read within this.
EDIT_SECONDS = 15.0
# A node is judged lost after a minute of silence: what silenced it ended at most this long ago.
LOST_CALM_SECONDS = 30.0
# How long a node may stay silent before what it runs is given up, by what is promised to users.
NODE_GRACE_SECONDS = 60.0
# What a node's facts said is believed for this long: until its agent looks again (64 s), was paused, and is heard.
BELIEF_SECONDS = 180.0
# In the note of what leaves for a model that is asked for.
SWAPPED = "which is asked for"
# In the note of what leaves for a Placement that comes before its own.
_DISPLACED = re.compile(r"it makes room for \S+ of priority (-?\d+); its own is (-?\d+)")
# Notes that tell of a stop. A drain is for good; a failed attempt says nothing of the one after it.
_DRAINS = frozenset({EventReason.DRAIN_STARTED, EventReason.DRAIN_ENDED})
_FAILURES = frozenset({EventReason.ATTEMPT_STARTED, EventReason.FAILED})


class Safety:
    def __init__(self, story: Story, machines: dict[str, Machine], wishes: Wishes) -> None:
        self.calm = Calm()
        self._groups = Groups(story, machines)
        self.instances: tuple[Instance, ...] = ()
        self._story = story
        self._machines = machines
        self._wishes = wishes
        self._told: dict[str, set[int]] = {}
        """By instanceId: attempts that a complete snapshot told to stop, or that a later one superseded."""
        self._attempts: dict[str, int] = {}
        self._names: dict[str, tuple[str, str]] = {}
        """By instanceId: namespace and name that it had last. One that is adopted beside another of its name gets a
        new one."""
        self._serials: dict[tuple[str, int, int], int] = {}
        self._orders: dict[str, Order] = {}
        self._notes: dict[tuple[str, str], dict[str, float]] = {}
        """By namespace and name of an Instance: when each reason was said since it was made; of a failure the last
        time, of anything else the first."""
        self._last_on_port: dict[int, Engine] = {}
        self._stamps: dict[str, InstanceSpec] = {}
        """By instanceId: as it was first seen."""
        self._licences: dict[tuple[str, str, str], int] = {}
        """By instanceId and pool: the most that its node's facts said when it was first seen."""
        self._known: set[str] = set()
        """instanceIds that a leader has stored."""

    # After every step.

    def check(self, instances: tuple[Instance, ...] | None, now: float) -> None:
        """Memory, and one engine for each Instance. `instances`: as the leader saw them last, if there is news."""
        engines = [engine for machine in self._machines.values() for engine in machine.engines()]
        if instances is not None:
            self._check_stamps(instances)
            self._check_places(instances, now)
            self._check_promises(instances, now)
            self.instances = instances
        alive: dict[tuple[str, str], int] = {}
        for machine in self._machines.values():
            for keeper in machine.keepers.values():
                engine = keeper.engine
                if not engine.is_alive:
                    continue
                key = engine.instance_id, keeper.member.name
                if other := alive.get(key):
                    self._story.violate(
                        f"two engines run for instance {engine.instance_id}, on ports {other}, {engine.port}"
                    )
                alive[key] = engine.port
        for engine in engines:
            if (last := self._last_on_port.get(engine.port)) not in (None, engine) and last.is_alive:
                self._story.violate(f"two engines run on port {engine.port}")
            self._last_on_port[engine.port] = engine
        for machine in self._machines.values():
            running = [engine for engine in engines if machine.owns_port(engine.port)]
            for pool, size in machine.pools.items():
                # Of facts that lied the agent's look at what is free is the corrective; it knows of no reserve.
                told = machine.most_claimed(pool, 0.0)
                was_lied_to = any(
                    self._licences.get((each.instance_id, machine.name, pool), told) > size for each in running
                )
                limit = size if was_lied_to else size - machine.reserve_bytes(pool)
                self._check_memory(machine, pool, limit, sum(each.taken[pool] for each in running), "engines that run")

        self._groups.check()

    def _check_promises(self, instances: tuple[Instance, ...], now: float) -> None:
        """What is promised of a pool fits into the most that its node's facts said when one of these was decided on.

        Facts that lied once are no licence for what is decided later. What runs already may be adopted again.
        """
        promised: dict[tuple[str, str], int] = {}
        licence: dict[tuple[str, str], int] = {}
        for instance in instances:
            for member in instance.spec.members:
                machine = self._machines[member.node]
                for pool in machine.pools:
                    key, here = (instance.spec.instance_id, machine.name, pool), (machine.name, pool)
                    if key not in self._licences:
                        self._licences[key] = machine.most_claimed(pool, now - BELIEF_SECONDS)
                    if count := member.bytes_in(pool):
                        promised[here] = promised.get(here, 0) + count
                        licence[here] = max(licence.get(here, 0), self._licences[key])
        for (name, pool), count in promised.items():
            machine = self._machines[name]
            limit = licence[name, pool] - machine.reserve_bytes(pool)
            self._check_memory(machine, pool, limit, count, "instances that are stored")

    def _check_stamps(self, instances: tuple[Instance, ...]) -> None:
        """An id is one Instance's, for ever: whatever may change of it, what was stamped does not."""
        seen: set[str] = set()
        for instance in instances:
            instance_id = instance.spec.instance_id
            stamp = instance.spec.model_copy(update={"goal": InstanceGoal.RUN, "attempt": 1, "term": 0})
            if instance_id in seen:
                self._story.violate(f"two instances that are stored have the id {instance_id}")
            if self._stamps.setdefault(instance_id, stamp) != stamp:
                self._story.violate(
                    f"{instance.metadata.name} is stamped otherwise than its id {instance_id} was before"
                )
            seen.add(instance_id)

    def _check_places(self, instances: tuple[Instance, ...], now: float) -> None:
        """Nothing new on a node that people have cordoned; what a node runs already may be adopted."""
        for instance in instances:
            instance_id = instance.spec.instance_id
            if instance_id in self._known:
                continue
            self._known.add(instance_id)
            for node in [member.node for member in instance.spec.members]:
                is_cordoned = self._wishes.cordons.get(node) and not self._wishes.broken
                if is_cordoned and now - self._wishes.changed_at[node] > EDIT_SECONDS and not self._is_held(instance):
                    self._story.violate(f"{instance.metadata.name} is placed on node {node}, which takes nothing new")

    def _is_held(self, instance: Instance) -> bool:
        machine = self._machines.get(instance.spec.members[0].node)
        return machine is not None and instance.spec.instance_id in machine.keepers

    def _check_memory(self, machine: Machine, pool: str, limit: int, taken: int, what: str) -> None:
        if taken > max(0, limit):  # a small machine may have less than is kept back
            self._story.violate(
                f"pool {pool} of node {machine.name} is over-committed: {what} hold {taken} of {limit} bytes"
            )

    # As it happens.

    def on_line(self, peer: str, controller: int, line: bytes) -> None:
        """A snapshot reaches a member."""
        snapshot = json.loads(line)
        term, serial = snapshot["term"], snapshot["serial"]
        key = (peer, controller, term)
        if serial < self._serials.get(key, 0):
            self._story.violate(f"serial goes back for {peer}: {serial} after {self._serials[key]} in term {term}")
        self._serials[key] = serial
        for member in snapshot.get("members", ()):
            spec = member["instance"]["spec"]
            instance_id, attempt = spec["instanceId"], spec["attempt"]
            metadata = member["instance"]["metadata"]
            self._names[instance_id] = metadata["namespace"], metadata["name"]
            if snapshot["complete"]:
                if member["goal"] == "Stop":
                    self._told.setdefault(instance_id, set()).add(attempt)
                self._attempts[instance_id] = max(attempt, self._attempts.get(instance_id, 0))

    def on_order(self, who: str, order: Order | None, *, is_new: bool) -> None:
        """What an agent or gateway acts on by now; `is_new`: its disk lost what was before."""
        before = self._orders.get(who)
        if not is_new and before is not None and (order is None or before.is_after(order)):
            self._story.violate(f"order falls for {who}: {order} after {before}")
        if order is not None:
            self._orders[who] = order

    def forget_order(self, who: str) -> None:
        self._orders.pop(who, None)
        self._groups.forget(who.removeprefix("agent "))

    def on_note(self, note: Note, now: float, heard_at: Callable[[str], float]) -> None:
        """`heard_at`: when the leader that says it last heard a node."""
        if note.key.kind != "Instance":
            return
        name = (note.key.namespace, note.key.name)
        if note.reason in (EventReason.CREATED, EventReason.ADOPTED):
            self._notes[name] = {}
        said = self._notes.setdefault(name, {})
        said[note.reason] = now if note.reason in _FAILURES else said.get(note.reason, now)
        if note.reason == EventReason.LOST:
            self._check_lost(note, now)
        if note.reason in (EventReason.LOST, EventReason.DELETED):
            self._check_silence(note, now, heard_at)
        if note.reason == EventReason.DRAIN_STARTED and SWAPPED in note.message:
            self._check_swap(note, now)
        displaced = _DISPLACED.match(note.message)
        if displaced and int(displaced[1]) <= int(displaced[2]):
            self._story.violate(f"{note.key.name} is displaced by what doesn't come before it: {note.message}")
        gone = re.match(r"placement '([^']+)' does not exist any more", note.message)
        if gone and note.reason == EventReason.DRAIN_STARTED:
            wished_at = self._wishes.wished_at.get((note.key.namespace, gone[1]))
            if wished_at is not None and now - wished_at > EDIT_SECONDS:
                self._story.violate(f"{note.key.name} drains for a placement that is wished: {note.message}")

    def _check_swap(self, note: Note, now: float) -> None:
        """What makes room has no request on it, and has served for as long as it may at least."""
        ids = {each.spec.instance_id for each in self.instances if each.metadata.name == note.key.name}
        for machine in self._machines.values():
            for engine in machine.engines():
                if engine.instance_id not in ids or engine.ready_told_at is None or engine.is_wedged:
                    continue
                for transport in engine.in_flight:
                    if self.calm.holds(now, GATEWAY_CALM_SECONDS, transport.gateway.name):
                        self._story.violate(f"{note.key.name} makes room in the middle of a request")
                parts = (f"agent {machine.name}", machine.name, "controller")
                is_calm = self.calm.holds(now, GATEWAY_CALM_SECONDS, *parts)
                if is_calm and now - engine.ready_told_at < (least := self._wishes.dwell_seconds):
                    self._story.violate(f"{note.key.name} makes room before it has served for {least} s")

    def _check_lost(self, note: Note, now: float) -> None:
        """A leader that heard nobody, because it was paused or away, blames nobody."""
        for each in self.instances:
            nodes = [member.node for member in each.spec.members]
            if each.key == note.key and all(
                self.calm.holds(now, LOST_CALM_SECONDS, node, f"agent {node}") for node in nodes
            ):
                self._story.violate(f"{note.key.name} is judged lost, and nothing is wrong with node {nodes[0]}")

    def _check_silence(self, note: Note, now: float, heard_at: Callable[[str], float]) -> None:
        """What a node runs, or may run, is given up only after a grace in which it was not heard."""
        for each in self.instances:
            if each.key != note.key:
                continue
            nodes = [member.node for member in each.spec.members]
            heard = [node for node in nodes if now - heard_at(node) < NODE_GRACE_SECONDS]
            # Of several members one that is silent is enough.
            is_lost = note.reason == EventReason.LOST and len(heard) == len(nodes)
            for node in heard:
                ids = {engine.instance_id for engine in self._machines[node].engines()}
                if is_lost or (note.reason == EventReason.DELETED and each.spec.instance_id in ids):
                    seconds = f"{now - heard_at(node):.0f} s"
                    self._story.violate(
                        f"{note.key.name} is given up, and node {node} was heard {seconds} ago: {note.message}"
                    )

    def on_agent_end(self, node: str, now: float) -> None:
        self._groups.on_agent_end(node, now)

    def on_start(self, machine: Machine, keeper: Keeper, now: float) -> None:
        """A keeper starts with its engine."""
        self._groups.on_start(machine, keeper, now)

    def on_stop(self, machine: Machine, keeper: Keeper, now: float) -> None:
        """An agent asks for the end of an engine."""
        engine = keeper.engine
        if not engine.is_alive or engine.is_wedged:
            return
        instance = keeper.instance
        key = self._names.get(engine.instance_id, (instance.metadata.namespace, instance.metadata.name))
        name = key[1]
        told = self._told.get(engine.instance_id, set())
        is_superseded = self._attempts.get(engine.instance_id, 0) > keeper.attempt
        ready_at = engine.ready_told_at
        # Of a group one alone is of no use.
        is_healthy = ready_at is not None and self._groups.is_whole(keeper)
        if is_healthy and not told and not is_superseded:
            self._story.violate(f"{name} on {machine.name} is stopped, and no complete snapshot said so")
        notes = self._notes.get(key, {})
        failures = [at for reason, at in notes.items() if reason in _FAILURES]
        # What was said of an attempt before it was ready is no cause to stop it, but for one that takes its place.
        has_cause = notes.keys() & _DRAINS or any(is_superseded or at >= (ready_at or 0.0) for at in failures)
        if is_healthy and not has_cause:
            self._story.violate(f"healthy {name} on {machine.name} is stopped without a note")
        if not self._groups.is_whole(keeper):
            return
        drained_at = notes.get(EventReason.DRAIN_STARTED)
        if drained_at is not None and now - drained_at >= instance.spec.drain_seconds:
            return
        for transport in engine.in_flight:
            if self.calm.holds(now, GATEWAY_CALM_SECONDS, transport.gateway.name):
                self._story.violate(f"a request of {transport.gateway.name} on {name} is cut by a stop")

    def check_routes(self, gateway: str, targets: Iterable[Target]) -> None:
        """Of a table that a gateway has: what it would send requests to has generated a token, whether or not one is
        sent. (What ended a while ago is looked at when it is dialled: that depends on the time alone.)"""
        for target in targets:
            self._groups.check_route(gateway, target)
            for machine in self._machines.values():
                engine = machine.ports.get(target.port) if machine.owns_port(target.port) else None
                if engine is None or engine.instance_id != target.instance_id or not engine.is_alive:
                    continue
                if engine.ready_told_at is None:
                    self._story.violate(
                        f"gateway {gateway} routes {target.instance_id} to port {target.port}, and its engine never "
                        "generated a token"
                    )

    def on_dial(self, gateway: Process, machine: Machine | None, port: int, now: float) -> None:
        """A gateway sends a request to an endpoint of its table."""
        engine = machine.ports.get(port) if machine else None
        if engine is not None:
            if engine.ready_told_at is None:
                self._story.violate(f"{gateway.name} routes to port {port}, whose engine never generated a token")
            return
        last = self._last_on_port.get(port)
        if machine is None or last is None or last.ended_at is None:
            return
        parts: Iterable[str] = (gateway.name, f"agent {machine.name}", machine.name, "controller")
        if now - last.ended_at > STALE_SECONDS and self.calm.holds(now, STALE_SECONDS, *parts):
            self._story.violate(
                f"{gateway.name} still routes to port {port}, whose engine ended at {last.ended_at:.3f}"
            )
