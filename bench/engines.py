"""What Covey adds to an engine: to its start, and beside it while it runs. One JSON line a figure, for each engine.

What is added to a start lies outside the engine's own: from the assignment to the engine's process; from its page's
saying that it is loaded to the first token, less what the same takes of the same command started bare, in turn with it;
and from there to the report that says `Ready`. How long the engine loads cancels out, which on a noisy machine is more
than all the rest. At rest: the agent, and the keeper of that engine, by `/proc`.

`LlamaCpp` and `Mlx` are measured where the tests' cache has them (`make engines`), and named as skipped where not.
Usage: `engines.py [ENGINE …]`.
"""

import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil

TESTS = Path(__file__).parents[1] / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "integration")]

import pytest  # noqa: E402 the tests' kit is no installed package
from agent_rig import A, AgentRig, running_with  # noqa: E402
from covey_agent.artifacts.cache import Cache  # noqa: E402
from covey_agent.artifacts.download import Downloader  # noqa: E402
from covey_agent.artifacts.hub import observe_hub_settings  # noqa: E402
from covey_agent.artifacts.index import observe_index_settings  # noqa: E402
from covey_agent.artifacts.node import NodeArtifacts  # noqa: E402
from covey_agent.artifacts.web import Patience, Web  # noqa: E402
from covey_agent.engines.adapter import Adapter  # noqa: E402
from covey_agent.engines.descriptions import DESCRIPTIONS  # noqa: E402
from covey_agent.launching import choose_port  # noqa: E402
from covey_agent.main import ANEW  # noqa: E402
from covey_api.engines import EngineName, KvCacheType  # noqa: E402
from covey_api.instance import Costs, Instance, Member, MemberPhase  # noqa: E402
from covey_api.messages import MemberAssignment, MemberGoal  # noqa: E402
from covey_api.model import Geometry, ResolvedArtifact  # noqa: E402
from covey_api.node import EngineOverride, NodeSpec  # noqa: E402
from covey_planner.fit.options import stamp_options  # noqa: E402
from kit.cache import shared_cache  # noqa: E402
from kit.processes import observe_pss_bytes  # noqa: E402
from kit.real import provide_real_parts  # noqa: E402
from kit.real_engines import given_llama_cpp, llama_cpp_packages, mlx_model, mlx_packages  # noqa: E402

ENGINES = (EngineName.LLAMA_SERVER, EngineName.LLAMA_CPP, EngineName.MLX)
REPEATS = 5
LOOK_SECONDS = 0.005
START_SECONDS = 180.0
SETTLE_SECONDS = 15.0
REST_SECONDS = 30.0
# What a person is promised.
BOUNDS = {
    "start added": 300.0,
    "agent CPU": 1.0,
    "agent memory": 80.0,
    "keeper CPU": 0.1,
    "keeper memory": 15.0,
}


@dataclass(frozen=True, slots=True)
class Subject:
    engine: EngineName
    spec: NodeSpec
    artifact: ResolvedArtifact
    geometry: Geometry


@dataclass(frozen=True, slots=True)
class Bare:
    """Seconds of a start without Covey."""

    until_answered: float
    """From its being loaded to the first token."""
    whole: float


@dataclass(frozen=True, slots=True)
class Start:
    """Seconds of a start by the agent."""

    until_spawned: float
    """From the assignment to the engine's process."""
    until_answered: float
    """From its being loaded to the first token: what the engine takes, and how often the agent asks."""
    until_told: float
    """From the answer to the report that says `Ready`."""
    whole: float


def say(engine: EngineName, figure: str, value: float, unit: str, **more: object) -> None:
    figures = {"value": round(value, 2), "unit": unit, "bound": BOUNDS[figure], "load_1m": round(os.getloadavg()[0], 1)}
    print(json.dumps({"bench": "engines", "engine": engine, "figure": figure, **figures, **more}), flush=True)


async def prepare(engine: EngineName) -> Subject:
    path, program = await asyncio.to_thread(provide, engine)
    override = EngineOverride(engine=engine, path=program or None)
    web, store = Web(observe_index_settings(os.environ, Path.home()), Patience()), Cache(shared_cache())
    artifacts = NodeArtifacts(web, store, Downloader(web, store), observe_hub_settings(os.environ, Path.home()))
    try:
        artifact, geometry = await artifacts.read_header(f"file://{path}", "")
    finally:
        await artifacts.close()
        await web.close()
    return Subject(engine, NodeSpec(engines=(override,)), artifact, geometry)


def provide(engine: EngineName) -> tuple[Path, str]:
    """Weights, and a program where the agent doesn't bring its own."""
    parts = provide_real_parts()
    if engine is EngineName.LLAMA_SERVER:
        return parts.model, str(parts.program.path)
    if engine is EngineName.MLX:
        mlx_packages()
        return mlx_model(), ""
    if not given_llama_cpp():
        llama_cpp_packages()
    return parts.model, given_llama_cpp()


class Bench:
    def __init__(self, rig: AgentRig, subject: Subject) -> None:
        self._rig, self._subject = rig, subject
        self._attempt = 0
        (description,) = (each for each in DESCRIPTIONS if each.engine is subject.engine)
        self._adapter = Adapter(description, httpx.AsyncClient(trust_env=False, limits=ANEW))

    async def measure(self) -> None:
        engine = self._subject.engine
        await self._start()  # the agent asks a program once what it is
        await self._stop()
        kept: list[Start] = []
        bare: list[Bare] = []
        for _ in range(REPEATS):
            kept.append(await self._start())
            launch = self._read_launch()
            await self._stop()
            bare.append(await self._start_bare(*launch))
        spawned, answered, told = (
            statistics.median(getattr(each, name) for each in kept)
            for name in ("until_spawned", "until_answered", "until_told")
        )
        asked = max(0.0, answered - statistics.median(each.until_answered for each in bare))
        parts = {
            "until_spawned_ms": round(1000 * spawned),
            "until_asked_ms": round(1000 * asked),
            "until_told_ms": round(1000 * told),
            "whole_s": round(statistics.median(each.whole for each in kept), 2),
            "bare_s": round(statistics.median(each.whole for each in bare), 2),
        }
        say(engine, "start added", 1000 * (spawned + asked + told), "ms", repeats=REPEATS, **parts)
        await self._start()
        await self._measure_rest()
        await self._stop()

    def _assignment(self) -> MemberAssignment:
        options = stamp_options(
            self._subject.geometry,
            cpu_cores=2,
            context_tokens=1024,
            slots=1,
            kv_cache_type=KvCacheType.F16,
        )
        costs = (Costs(weights_bytes=self._subject.artifact.size_bytes, kv_cache_bytes=100 * 2**20),)
        return self._rig.assign(
            A,
            engine=self._subject.engine,
            artifact=self._subject.artifact,
            options=options,
            attempt=self._attempt,
            members=(Member(node="a", costs=costs),),
        )

    @property
    def _instance(self) -> Instance:
        return self._assignment().instance

    async def _start(self) -> Start:
        self._attempt += 1
        began, began_at = time.monotonic(), time.clock_gettime(time.CLOCK_BOOTTIME)
        self._rig.board.wish(self._assignment())
        async with asyncio.TaskGroup() as group:
            healthy = group.create_task(self._wait_healthy())
            await self._wait(MemberPhase.READY)
            ended = time.monotonic()
        pid, answered = self._rig.board.members[A].pid, self._read_answered()
        return Start(spawned_at(pid) - began_at, answered - healthy.result(), ended - answered, ended - began)

    def _read_answered(self) -> float:
        """When the agent saw the first token, by its flight recorder: the machine's own clock."""
        lines = (self._rig.members / A / "timeline.jsonl").read_text().splitlines()
        ready = [entry for entry in map(json.loads, lines) if entry["phase"] == MemberPhase.READY]
        return float(ready[-1]["monotonicSeconds"])

    async def _wait_healthy(self) -> float:
        """When the engine's own page first says that it is loaded."""
        await self._rig.wait(lambda: self._port() > 0, "the engine is started", START_SECONDS)
        return await wait_healthy(self._port())

    def _port(self) -> int:
        member = self._rig.board.members.get(A)
        return member.port if member and member.attempt == self._attempt else 0

    async def _stop(self) -> None:
        self._rig.board.wish(self._assignment().changed(goal=MemberGoal.STOP))
        await self._wait(MemberPhase.STOPPED)
        self._rig.board.wish()
        await self._rig.wait(lambda: not self._rig.board.members, "it is forgotten")

    async def _wait(self, phase: MemberPhase) -> None:
        def is_so() -> bool:
            member = self._rig.board.members.get(A)
            return member is not None and member.phase is phase and member.attempt == self._attempt

        await self._rig.wait(is_so, f"{self._subject.engine} is {phase}", START_SECONDS)

    def _read_launch(self) -> tuple[list[str], dict[str, str], str]:
        launch = json.loads((self._rig.members / A / "launch.json").read_text())
        return launch["argv"], launch["environment"], (self._rig.members / A / "engine.key").read_text()

    async def _start_bare(self, command: list[str], environment: dict[str, str], key: str) -> Bare:
        """The same command on another port, with a copy of its key."""
        key_file, port = self._rig.folder / "bare.key", choose_port()
        key_file.write_text(key)
        key_flag = command.index("--api-key-file" if "--api-key-file" in command else "--key-file")
        command = [*command[: key_flag + 1], str(key_file), *command[key_flag + 2 :]]
        command[command.index("--port") + 1] = str(port)
        with (self._rig.folder / "bare.log").open("wb") as log:
            began = time.monotonic()
            process = await asyncio.to_thread(
                subprocess.Popen, command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        try:
            healthy = await wait_healthy(port)
            assert not await self._adapter.explain_unready(self._instance, port, key.strip())
            ended = time.monotonic()
            return Bare(ended - healthy, ended - began)
        finally:
            process.terminate()
            await asyncio.to_thread(process.wait, 20)

    async def _measure_rest(self) -> None:
        await asyncio.sleep(SETTLE_SECONDS)
        assert self._rig.agent is not None
        keeper = json.loads((self._rig.members / A / "keeper.json").read_text())["pid"]
        processes = {"agent": psutil.Process(self._rig.agent.pid), "keeper": psutil.Process(keeper)}
        before = {name: cpu_seconds(process) for name, process in processes.items()}
        await asyncio.sleep(REST_SECONDS)
        for name, process in processes.items():
            used = (cpu_seconds(process) - before[name]) / REST_SECONDS
            say(self._subject.engine, f"{name} CPU", 100 * used, "% of a core", seconds=REST_SECONDS)
            say(self._subject.engine, f"{name} memory", observe_pss_bytes(process.pid) / 1e6, "MB of PSS")


async def wait_healthy(port: int) -> float:
    deadline = time.monotonic() + START_SECONDS
    async with httpx.AsyncClient(trust_env=False, limits=ANEW, timeout=START_SECONDS) as client:
        while time.monotonic() < deadline:
            try:
                if (await client.get(f"http://127.0.0.1:{port}/health")).status_code == 200:
                    return time.monotonic()
            except httpx.TransportError:
                pass
            await asyncio.sleep(LOOK_SECONDS)
    raise AssertionError(f"the engine must be loaded within {START_SECONDS:.0f} s")


def spawned_at(pid: int) -> float:
    """Seconds since the boot: no clock that somebody sets."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[19]) / os.sysconf("SC_CLK_TCK")


def cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


async def run(engine: EngineName) -> None:
    subject = await prepare(engine)
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="cv") as folder:  # short: Unix sockets live below it
        weights = Path(subject.artifact.source.removeprefix("file://"))
        async with running_with(Path(folder), subject.spec, weights, shared_cache()) as rig:
            rig.start()
            await rig.wait(lambda: bool(rig.board.reports), "the agent reports")
            await Bench(rig, subject).measure()


def run_each(bench: str, measure: Callable[[EngineName], Coroutine[object, object, None]]) -> None:
    """With the engines that the command line names, or all; one that this machine lacks is said."""
    for engine in [EngineName(each) for each in sys.argv[1:]] or ENGINES:
        try:
            asyncio.run(measure(engine))
        except pytest.skip.Exception as error:
            print(json.dumps({"bench": bench, "engine": engine, "skipped": str(error)}), flush=True)


if __name__ == "__main__":
    run_each("engines", run)
