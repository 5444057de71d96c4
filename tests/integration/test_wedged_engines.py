"""Engines that take requests and generate nothing, and engines that only compute for long: real processes and waits."""

import asyncio
import json
import signal
import time
from collections.abc import Awaitable, Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from agent_rig import A, AgentRig, assert_gone, running_rig
from covey_agent.examining import CPU_PROBE_SECONDS, WATCH_SECONDS
from covey_agent.supervisor.judging import EXAMINE_AGAIN_SECONDS
from covey_api.instance import MemberPhase
from covey_api.messages import MemberReport
from covey_api.reasons import EventReason, FailureCause
from kit.apart import Apart, running_apart
from kit.fleet import wait_until
from kit.gguf import Shape, build_model
from kit.processes import assert_none_left, engine_double, is_running, processes_of

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

Story = Callable[[AgentRig], Awaitable[None]]
# From a doubt to its end, as the contract has it.
FOUND_SECONDS = 30.0


def run(folder: Path, story: Story, **knobs: str) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(200), running_rig(folder, **knobs) as rig:
            await story(rig)
            if rig.agent is not None:
                assert await asyncio.to_thread(rig.kill, signal.SIGINT) == 0, rig.log.read_text()

    asyncio.run(bounded())
    assert_none_left(folder / "state")


def url_of(member: MemberReport, path: str) -> str:
    return f"http://127.0.0.1:{member.port}{path}"


def test_engine_whose_http_lives_while_generation_is_dead_is_found_and_ended_with_its_whole_group(
    tmp_path: Path,
) -> None:
    async def story(rig: AgentRig) -> None:
        rig.board.wish(rig.assign())
        rig.start()
        member = await rig.wait_phase(MemberPhase.READY)
        group = {process.pid for process in rig.engines()}
        assert len(group) == 2, "the engine and its child"
        began = time.monotonic()
        rig.board.wish(rig.assign().changed(suspect_since="2026-01-01T00:00:00Z"))
        async with httpx.AsyncClient(timeout=30) as client:
            while time.monotonic() < began + WATCH_SECONDS + 5:
                assert (await client.get(url_of(member, "/health"))).status_code == 200
                await asyncio.sleep(0.2)
        await rig.wait(lambda: rig.board.members[A].phase is not MemberPhase.READY, "it is found", FOUND_SECONDS)
        assert time.monotonic() - began < FOUND_SECONDS
        failed = await rig.wait_phase(MemberPhase.FAILED)
        assert (failed.cause, failed.restarts, failed.port) == (FailureCause.WEDGED, 0, 0)
        assert "did not complete the smallest request within 15 s" in failed.message
        for pid in group:
            assert_gone(pid)
        record = json.loads((rig.members / A / "exit.json").read_text())
        assert (record["status"], record["endedBy"]) == (-signal.SIGKILL, "Stop")
        rig.board.wish(rig.assign(attempt=2))
        await rig.wait_phase(MemberPhase.READY, attempt=2)

    run(tmp_path, story, wedge_after="1", ignore_term="yes", fork="yes")


def test_engine_that_computes_for_long_is_never_stopped_however_long_it_is_doubted(tmp_path: Path) -> None:
    looks = 2

    async def story(rig: AgentRig) -> None:
        rig.board.wish(rig.assign())
        rig.start()
        member = await rig.wait_phase(MemberPhase.READY)
        key = rig.assign().key

        async def ask() -> str:
            async with httpx.AsyncClient(timeout=120) as client:
                answer = await client.post(
                    url_of(member, "/v1/chat/completions"),
                    json={"stream": True},
                    headers={"authorization": f"Bearer {key}"},
                )
                return answer.text

        async with asyncio.TaskGroup() as group:
            asked = group.create_task(ask())
            rig.board.wish(rig.assign().changed(suspect_since="2026-01-01T00:00:00Z"))
            text = await asked
        assert text.endswith("data: [DONE]\n\n")
        # Idle now, and it answers: that is no wedge either.
        await asyncio.sleep(WATCH_SECONDS + EXAMINE_AGAIN_SECONDS + 2)
        assert rig.board.members[A] == member.model_copy(update={"used_bytes": rig.board.members[A].used_bytes})
        assert is_running(member.pid)
        assert len(processes_of(rig.members)) == 2

    run(tmp_path, story, prefill=str(looks * (WATCH_SECONDS + EXAMINE_AGAIN_SECONDS)))
    assert looks * (WATCH_SECONDS + EXAMINE_AGAIN_SECONDS) > CPU_PROBE_SECONDS


@contextmanager
def two_nodes() -> Generator[Apart]:
    """A model on node 'a', whose engine generates for a probe and one request, and would fit on node 'b' as well."""
    with running_apart() as fleet:
        model = fleet.base / "model.gguf"
        build_model(Shape()).write(model)
        source = fleet.base / "fleet"
        for node, knobs in (("a", {"wedge_after": "2", "fork": "yes"}), ("b", {})):
            folder = fleet.base / f"engine-{node}"
            folder.mkdir()
            program = engine_double(folder, **knobs)
            engines = [{"engine": "LlamaServer", "path": str(program)}]
            write(source, "Node", node, {"engines": engines})
            fleet.start_agent(name=f"agent-{node}", node=node)
        fleet.start_gateway()
        wait_until(lambda: all(reports(fleet, node) for node in "ab"), "both nodes report")
        variant = {"name": "v", "format": "Gguf", "source": f"file://{model}", "engines": ["LlamaServer"]}
        write(source, "Model", "m", {"tasks": ["Chat"], "variants": [variant]})
        write(source, "Placement", "m", {"modelRef": {"name": "m"}})
        wait_until(lambda: place_of(fleet) == "a", f"it serves on 'a'\n{fleet.log('agent-a')}")
        yield fleet


def write(source: Path, kind: str, name: str, spec: object) -> None:
    document = {"apiVersion": "covey.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec}
    (source / f"{kind}-{name}.yaml".lower()).write_text(json.dumps(document))


def reports(fleet: Apart, node: str) -> bool:
    return fleet.condition("Ready", node).get("status") == "True"


def place_of(fleet: Apart) -> str:
    """The node of the Instance that is Ready; empty while none is."""
    ready = [each for each in fleet.objects("instances") if each.get("status", {}).get("phase") == "Ready"]
    return ready[0]["spec"]["members"][0]["node"] if ready else ""


def chat(fleet: Apart, seconds: float = 200) -> httpx.Response:
    body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "stream": True}
    return httpx.post(f"{fleet.gateway_url}/v1/chat/completions", json=body, timeout=seconds)


def test_wedged_engine_is_doubted_found_told_of_and_replaced_on_another_node() -> None:
    with two_nodes() as fleet, ThreadPoolExecutor(1) as pool:
        assert chat(fleet).text.endswith("data: [DONE]\n\n")
        wedged = processes_of(fleet.base / "agent-a" / "agent" / "members")
        assert len(wedged) == 3, "keeper, engine and its child"
        hanging = pool.submit(chat, fleet)
        wait_until(lambda: place_of(fleet) == "b", f"it serves on 'b'\n{fleet.log('controller')}")
        # The client hears of it in its stream, as of every engine that ends when no other one serves.
        assert "upstream_unavailable" in hanging.result(30).text
        assert chat(fleet).text.endswith("data: [DONE]\n\n")
        assert not [process for process in wedged if is_running(process.pid)]
        told = fleet.log("controller")
        assert f"instance/m-0: {EventReason.DOUBTED}: " in told
        words = f"attempt 1 on node 'a' failed: {FailureCause.WEDGED}: 'LlamaServer' lives"
        assert f"instance/m-0: {EventReason.FAILED}: {words}" in told
        assert told.index(EventReason.DOUBTED) < told.index(EventReason.FAILED)
        why = fleet.covey("why", "placement/m").stdout
        assert f"failed on node 'a' (LlamaServer): {FailureCause.WEDGED}: " in why
        assert "a  no: RecentFailure" in why
