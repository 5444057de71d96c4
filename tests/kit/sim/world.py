"""One simulated fleet: people, a controller, machines with agents, gateways, clients, and the wires between them."""

import asyncio
import shutil
import sqlite3
from collections.abc import Callable, Coroutine, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from covey_api.engines import HOST_POOL
from covey_api.instance import Instance
from covey_api.kinds import Kind, ObjectKey
from covey_controller.reconcile.begin import FIRST_REPORTS_SECONDS, LOST_STORE_SECONDS
from covey_controller.reconcile.outcomes import Note
from covey_controller.stores.files.store import store_paths
from covey_gateway.routing.table import RoutingTable

from kit.sim.control import Controller
from kit.sim.engine import EngineTransport
from kit.sim.gateway import Gateway, Request
from kit.sim.loop import PROCESS, Process, running_loop, wait_until
from kit.sim.machine import RESERVE_BYTES, Keeper, Machine
from kit.sim.network import Link, Network, SimFleet
from kit.sim.node import DEVICE_POOL, Agent
from kit.sim.people import MODELS, People, SimDisk
from kit.sim.safety import Safety
from kit.sim.story import Story

MIB = 2**20
# Of machines, those with an accelerator that has memory of its own.
DEVICE_SHARE = 0.3
# Of seeds, those in which Placements scale and clients wait for models.
SCALED_EVERY, SCALED_REST = 8, 4
# A leader publishes no table before it has seen its fleet whole.
SEEN_WHOLE_SECONDS = FIRST_REPORTS_SECONDS + 2.0
LOST_SEEN_WHOLE_SECONDS = LOST_STORE_SECONDS + 2.0
# From an agent's start until it has taken in what runs.
ADOPTION_SECONDS = 3.0
# A store that is taken away is noticed at the next look.
LOOK_SECONDS = 6.0


class World:
    """Everything is decided by `seed`; `folder` is empty and on a fast disk."""

    def __init__(self, seed: int, folder: Path, story: Story) -> None:
        self.story = story
        self.folder = folder
        self.random = Random(f"{seed} world")
        self.loop = running_loop()
        self.loop.dial = self._dial
        self.source = folder / "source"
        self.source.mkdir()
        self.people = People(self.source, Random(f"{seed} people"), story)
        if seed % SCALED_EVERY == SCALED_REST:
            self.people.scaling = Random(f"{seed} scaling")
        self.machines: dict[str, Machine] = {}
        self.safety = Safety(story, self.machines, self.people)
        self.calm = self.safety.calm
        self.network = Network(Random(f"{seed} network"), story, self._on_line)
        self.links: dict[str, Link] = {}
        self.disk = SimDisk()
        self.controller: Controller | None = None
        self.elders: list[Controller] = []
        """Leaders that were paused while another took their place."""
        self.agents: dict[str, Agent] = {}
        self.gateways: dict[str, Gateway] = {}
        self.gateway_names = [f"g{index}" for index in range(self.random.choice((1, 2)))]
        self.cut_paths: set[str] = set()
        """Machines whose engines no gateway reaches."""
        self.outcomes: dict[str, int] = {}
        self.leaders = 0
        self._seen: Mapping[ObjectKey, Kind] = {}
        self._has_news = self._has_changed = False
        """Whether anything is to look at since the last look, and whether engines started or ended."""
        self._tables: dict[str, RoutingTable] = {}
        count = self.random.choice((2, 3, 3, 4, 5))
        for index in range(count if self.people.scaling is None else self.people.scaling.choice((1, 2))):
            self._build_machine(seed, index)

    def _build_machine(self, seed: int, index: int) -> None:
        name = "abcde"[index]
        folder = self.folder / name
        folder.mkdir()
        pools = {HOST_POOL: RESERVE_BYTES + self.random.choice((500, 700, 900, 1400)) * MIB}
        if self.people.scaling is not None:  # so little that they take turns
            pools = {HOST_POOL: RESERVE_BYTES + self.people.scaling.choice((350, 500)) * MIB}
        if self.random.random() < DEVICE_SHARE:
            pools[DEVICE_POOL] = self.random.choice((500, 900, 1400)) * MIB
        self.machines[name] = Machine(name, index, pools, Random(f"{seed} {name}"), self.story, folder, self._on_change)

    def now(self) -> float:
        return self.loop.time()

    async def begin(self) -> None:
        count = self.random.choice((1, 2, 2, 3))
        self.people.begin(count if self.people.scaling is None else 3)
        self.start_controller()
        for name in self.machines:
            self.start_agent(name)
        for name in self.gateway_names:
            self.start_gateway(name)

    # Processes.

    def start_controller(self) -> None:
        self.leaders += 1
        is_lost = not store_paths(self.source, self.folder / "controller")[0].exists()
        seconds = LOST_SEEN_WHOLE_SECONDS if is_lost else SEEN_WHOLE_SECONDS
        self.controller = Controller(
            self.source,
            self.folder / "controller",
            Random(f"{self.leaders} {self.random.random()}"),
            self.disk,
            self._on_note,
            self._on_news,
            self.leaders,
        )
        self.network.controller = self.controller
        self.calm.end("controller", "killed", self.now() + seconds)
        self.story.tell("controller", "starts")

    async def kill_controller(self) -> None:
        controller = self.controller
        if controller is None or controller.process.is_dying:
            return
        self.calm.begin("controller", "killed")
        self.story.tell("controller", "is killed")
        await controller.process.kill()
        self.controller = self.network.controller = None

    def replace_controller(self) -> Controller | None:
        """The leader is paused and its lock file removed; another leads. The paused one; None if there was none."""
        elder = self.controller
        if elder is None or elder.process.is_paused or elder.process.is_dying:
            return None
        self.calm.begin("controller", f"elder {elder.number}")
        elder.process.pause()
        self.story.tell("controller", "is paused, and its lock file is removed")
        _, lock = store_paths(self.source, self.folder / "controller")
        lock.unlink(missing_ok=True)
        self.elders.append(elder)
        self.start_controller()
        return elder

    async def end_elder(self, elder: Controller) -> None:
        if elder in self.elders:
            self.story.tell("controller", "that led before is killed")
            await elder.process.kill()
            self.elders.remove(elder)
            self.calm.end("controller", f"elder {elder.number}", self.now() + SEEN_WHOLE_SECONDS)

    def start_agent(self, name: str) -> None:
        machine = self.machines[name]
        if name in self.agents or not machine.is_on:
            return
        if machine.has_lost_memory:
            self.safety.forget_order(f"agent {name}")
        link = self.links.setdefault(name, Link(name))
        self.calm.end(f"agent {name}", "killed", self.now())
        self.story.tell(f"agent {name}", "starts")
        living = [keeper for keeper in machine.keepers.values() if machine.is_living(keeper)]
        agent = self.agents[name] = Agent(
            machine,
            SimFleet(self.network, link),
            Random(f"{name} {self.random.random()}"),
            self._on_stop,
            self._on_agent,
        )
        self.loop.call_later(ADOPTION_SECONDS, self._check_adopted, agent, living)

    def _check_adopted(self, agent: Agent, living: list[Keeper]) -> None:
        """What ran when it started is its own by now, whatever the controller says."""
        machine, part = agent.machine, f"agent {agent.machine.name}"
        if self.agents.get(machine.name) is not agent or not self.calm.holds(self.now(), ADOPTION_SECONDS, part):
            return
        for keeper in living:
            if keeper.engine.is_alive and machine.is_living(keeper) and not keeper.is_claimed:
                self.story.violate(f"{part} has not adopted {keeper.engine.instance_id}, which ran when it started")

    async def kill_agent(self, name: str) -> None:
        agent = self.agents.get(name)
        if agent is not None and not agent.process.is_dying:
            self.calm.begin(f"agent {name}", "killed")
            self.story.tell(f"agent {name}", "is killed")
            await agent.kill()
            del self.agents[name]

    def start_gateway(self, name: str) -> None:
        if name in self.gateways:
            return
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        link = self.links.setdefault(name, Link(name))
        self.calm.end(f"gateway {name}", "killed", self.now())
        self.safety.forget_order(f"gateway {name}")
        self.story.tell(f"gateway {name}", "starts")
        gateway = self.gateways[name] = Gateway(name, folder, SimFleet(self.network, link), self._on_news)
        if (folder / "table.json").exists() and not gateway.traffic.has_table:
            self.story.violate(f"gateway {name} has a table on its disk and does not route by it")

    async def kill_gateway(self, name: str) -> None:
        gateway = self.gateways.get(name)
        if gateway is None or gateway.process.is_dying:
            return
        self.calm.begin(f"gateway {name}", "killed")
        self.story.tell(f"gateway {name}", "is killed")
        await gateway.process.kill()
        for machine in self.machines.values():
            for engine in machine.engines():
                for transport in [one for one in engine.transports if one.gateway is gateway.process]:
                    transport.abort()
        del self.gateways[name]

    def lose_store(self) -> None:
        path, _ = store_paths(self.source, self.folder / "controller")
        for ending in ("", "-wal", "-shm"):
            path.with_name(path.name + ending).unlink(missing_ok=True)
        if self.controller is not None:
            self.calm.end("controller", "store", self.now() + LOOK_SECONDS + LOST_SEEN_WHOLE_SECONDS)
        self.story.tell("people", "delete the store's file")

    def back_up_store(self) -> Path | None:
        """A copy of the store as it is; None while there is none."""
        path, _ = store_paths(self.source, self.folder / "controller")
        if not path.exists():
            return None
        copy = self.folder / f"backup-{self.leaders}.sqlite"
        with closing(sqlite3.connect(path)) as store, closing(sqlite3.connect(copy)) as backup:
            store.backup(backup)
        return copy

    def put_back_store(self, copy: Path) -> None:
        """The controller must be away."""
        path, _ = store_paths(self.source, self.folder / "controller")
        for ending in ("-wal", "-shm"):
            path.with_name(path.name + ending).unlink(missing_ok=True)
        shutil.copyfile(copy, path)
        self.story.tell("people", "put an older copy of the store back")

    def processes(self) -> list[Process]:
        parts = [*self.agents.values(), *self.gateways.values()]
        controllers = [*self.elders, *([self.controller] if self.controller else [])]
        return [part.process for part in (*parts, *controllers)]

    # What is seen.

    def look(self) -> None:
        """After every turn of the loop: the rules that hold at every moment."""
        if not self._has_news:
            return
        self._has_news = False
        history = self.controller.history if self.controller else None
        instances = None
        if history is not None and history.objects is not self._seen:
            self._seen = history.objects
            instances = tuple(item for item in history.objects.values() if isinstance(item, Instance))
        if instances is not None or self._has_changed:
            self._has_changed = False
            self.safety.check(instances, self.now())
        for name, gateway in self.gateways.items():
            if gateway.traffic.table is not self._tables.get(name):
                self._tables[name] = gateway.traffic.table
                self.safety.on_order(f"gateway {name}", gateway.traffic.table.order, is_new=False)

    def _on_change(self) -> None:
        self._has_news = self._has_changed = True

    def _on_news(self) -> None:
        """A leader saw other objects, or a gateway took a table."""
        self._has_news = True

    def _on_line(self, peer: str, controller: int, line: bytes) -> None:
        self.safety.on_line(peer, controller, line)

    def _on_note(self, controller: Controller, note: Note) -> None:
        self.story.tell("controller", f"{note.key}: {note.reason}: {note.message}")
        self.safety.on_note(note, self.now(), controller.heard_at)

    def _on_agent(self, agent: Agent) -> None:
        self.safety.on_order(f"agent {agent.machine.name}", agent.runtime.state.order, is_new=False)

    def _on_stop(self, machine: Machine, keeper: Keeper) -> None:
        self.story.tell(f"agent {machine.name}", f"stops the engine of {keeper.engine.instance_id}")
        self.safety.on_stop(machine, keeper, self.now())

    # Requests.

    async def _dial(
        self, protocol_factory: Callable[[], asyncio.Protocol], port: int
    ) -> tuple[asyncio.Transport, asyncio.Protocol]:
        gateway = PROCESS.get()
        assert gateway is not None
        machine = next((one for one in self.machines.values() if one.owns_port(port)), None)
        self.safety.on_dial(gateway, machine, port, self.now())
        await asyncio.sleep(0.001)
        await wait_until(lambda: machine is None or (machine.name not in self.cut_paths and machine.is_on), 0.5)
        engine = machine.ports.get(port) if machine else None
        if engine is None:
            raise ConnectionRefusedError("nobody listens there")
        protocol = protocol_factory()
        transport = EngineTransport(engine, protocol, gateway, self.random)
        protocol.connection_made(transport)
        return transport, protocol

    async def ask(self, name: str, model: str) -> str:
        """One request of a client; its outcome, or `gone` when its gateway is not there (any more)."""
        gateway = self.gateways.get(name)
        if gateway is None or gateway.process.is_paused or gateway.process.is_dying:
            return "gone"
        request = Request(model, self.now())
        stream = self.random.random() < 0.5
        gateway.process.context.run(
            partial(gateway.ask, request, wants_stream=stream, waits=self.people.scaling is not None)
        )
        try:
            async with asyncio.timeout(60.0):
                await request.answered.wait()
        except TimeoutError:
            return "gone" if self.gateways.get(name) is not gateway else "silent"
        self.outcomes[request.outcome] = self.outcomes.get(request.outcome, 0) + 1
        return request.outcome

    def choose_model(self) -> str:
        return self.random.choice(MODELS)


Fault = Callable[[World, Random], Coroutine[Any, Any, None]]
