"""One simulated fleet: people, a controller, machines with agents, gateways, clients, and the wires between them."""

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from covey_api.instance import Instance
from covey_api.kinds import Kind, ObjectKey
from covey_controller.reconcile.begin import FIRST_REPORTS_SECONDS, LOST_STORE_SECONDS
from covey_controller.reconcile.outcomes import Note
from covey_controller.stores.files.store import store_paths
from covey_gateway.routing.table import RoutingTable

from covey_simulator.chance import seeded
from covey_simulator.control import Controller
from covey_simulator.disk import SimDisk
from covey_simulator.engine import EngineTransport
from covey_simulator.gateway import Gateway, Request
from covey_simulator.ground import Ground
from covey_simulator.loop import PROCESS, Process, running_loop, wait_until
from covey_simulator.machine import Keeper, Machine
from covey_simulator.neighbours import Neighbours
from covey_simulator.network import Link, Network, SimFleet
from covey_simulator.node import Agent
from covey_simulator.safety import Safety
from covey_simulator.story import Story, Violation
from covey_simulator.wishes import Wishes

# A leader publishes no table before it has seen its fleet whole.
SEEN_WHOLE_SECONDS = FIRST_REPORTS_SECONDS + 2.0
LOST_SEEN_WHOLE_SECONDS = LOST_STORE_SECONDS + 2.0
# From an agent's start until it has taken in what runs.
ADOPTION_SECONDS = 3.0


class World:
    """Everything is decided by `seed`; `folder` is empty and on a fast disk.

    Machines and gateways are added before it begins; people write into `source` and say in `wishes` what they wrote.
    """

    def __init__(self, seed: int, folder: Path, story: Story) -> None:
        self.story = story
        self.folder = folder
        self.random = seeded(f"{seed} world")
        self.loop = running_loop()
        self.loop.dial = self._dial
        self.source = folder / "source"
        self.source.mkdir()
        self.wishes = Wishes()
        self.do_clients_wait = False
        """Whether requests for a model that isn't ready may be held."""
        self._seed = seed
        self.machines: dict[str, Machine] = {}
        self.neighbours = Neighbours(self.machines)
        self.safety = Safety(story, self.machines, self.wishes)
        self.calm = self.safety.calm
        self.network = Network(seeded(f"{seed} network"), story, self._on_line)
        self.links: dict[str, Link] = {}
        self.disk = SimDisk()
        self.controller: Controller | None = None
        self.elders: list[Controller] = []
        """Leaders that were paused while another took their place."""
        self.agents: dict[str, Agent] = {}
        self.gateways: dict[str, Gateway] = {}
        self.gateway_names: list[str] = []
        self.cut_paths: set[str] = set()
        """Machines whose engines no gateway reaches."""
        self.outcomes: dict[str, int] = {}
        self.on_note: Callable[[Note], None] | None = None
        """Hears all that the controller says."""
        self.leaders = 0
        self._seen: Mapping[ObjectKey, Kind] = {}
        self._has_news = self._has_changed = False
        """Whether anything is to look at since the last look, and whether engines started or ended."""
        self._tables: dict[str, RoutingTable] = {}

    def add_machine(self, name: str, ground: Ground) -> None:
        folder = self.folder / name
        folder.mkdir()
        random = seeded(f"{self._seed} {name}")
        self.machines[name] = Machine(
            name, len(self.machines), ground, random, self.story, folder, self._on_change, self._on_start
        )

    def now(self) -> float:
        return self.loop.time()

    def begin(self) -> None:
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
            seeded(f"{self.leaders} {self.random.random()}"),
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
            seeded(f"{name} {self.random.random()}"),
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
            self.safety.on_agent_end(name, self.now())
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

    def processes(self) -> list[Process]:
        parts = [*self.agents.values(), *self.gateways.values()]
        controllers = [*self.elders, *([self.controller] if self.controller else [])]
        return [part.process for part in (*parts, *controllers)]

    async def end(self) -> None:
        """Every process of it."""
        for name in list(self.gateways):
            await self.kill_gateway(name)
        for name in list(self.agents):
            await self.kill_agent(name)
        await self.kill_controller()
        for elder in list(self.elders):
            await self.end_elder(elder)
        self.neighbours.end()

    # What is seen.

    def check(self) -> None:
        """Violation if a rule was broken, or a process ended by itself."""
        for process in self.processes():
            if process.has_ended and not process.is_dying:
                self.story.violate(f"{process.name} ended by itself: {process.failure!r}")
        if self.story.violations:
            raise Violation(self.story.violations[0])

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
        has_changed, self._has_changed = self._has_changed, False
        if instances is not None or has_changed:
            self.safety.check(instances, self.now())
        for name, gateway in self.gateways.items():
            if has_changed or gateway.traffic.table is not self._tables.get(name):
                routed = gateway.traffic.table.targets.values()
                self.safety.check_routes(name, (target for targets in routed for target in targets))
            if gateway.traffic.table is not self._tables.get(name):
                self._tables[name] = gateway.traffic.table
                self.safety.on_order(f"gateway {name}", gateway.traffic.table.order, is_new=False)

    def _on_start(self, machine: Machine, keeper: Keeper) -> None:
        self.safety.on_start(machine, keeper, self.now())
        self.neighbours.watch(machine, keeper)

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
        if self.on_note is not None:
            self.on_note(note)

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
        if gateway is None:
            raise RuntimeError("a process dials, and nobody else")
        machine = next((one for one in self.machines.values() if one.owns_port(port)), None)
        if machine is not None and gateway.name == f"agent {machine.name}":
            return self._look_at_donor(protocol_factory, machine, port, gateway)
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

    def _look_at_donor(
        self, protocol_factory: Callable[[], asyncio.Protocol], machine: Machine, port: int, agent: Process
    ) -> tuple[asyncio.Transport, asyncio.Protocol]:
        """An agent asks whether one of its own listens: that is all that is asked of a donor."""
        engine = machine.ports.get(port)
        if engine is None or not engine.is_loaded(self.now()):
            raise ConnectionRefusedError("nobody listens there")
        engine.ready_told_at = engine.ready_told_at or self.now()
        protocol = protocol_factory()
        transport = EngineTransport(engine, protocol, agent, self.random)
        protocol.connection_made(transport)
        return transport, protocol

    async def ask(self, name: str, model: str) -> str:
        """One request of a client; its outcome, or `gone` when its gateway is not there (any more)."""
        gateway = self.gateways.get(name)
        if gateway is None or gateway.process.is_paused or gateway.process.is_dying:
            return "gone"
        request = Request(model, self.now())
        stream = self.random.random() < 0.5
        gateway.process.context.run(partial(gateway.ask, request, wants_stream=stream, waits=self.do_clients_wait))
        try:
            async with asyncio.timeout(60.0):
                await request.answered.wait()
        except TimeoutError:
            return "gone" if self.gateways.get(name) is not gateway else "silent"
        self.outcomes[request.outcome] = self.outcomes.get(request.outcome, 0) + 1
        return request.outcome
