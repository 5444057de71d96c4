"""The real llama-server with its generating thread frozen: its HTTP lives, and it is found dead; before, it is not."""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from covey_agent.engines.adapter import Adapter
from covey_agent.engines.llama_server import LLAMA_SERVER
from covey_agent.examining import CPU_PROBE_SECONDS, WATCH_SECONDS, examine
from covey_agent.facts.machine import MachineFacts
from covey_agent.ports import EngineProcess, Launch
from covey_agent.supervisor.events import Finding
from covey_api.instance import EngineOptions
from covey_api.messages import MemberAssignment, MemberGoal
from kit import builders
from kit.freezing import freeze_thread
from kit.ports import free_port
from kit.real import provide_real_parts

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(600),
    pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets one thread be frozen"),
]
KEY = "engine-key-of-this-test"
START_SECONDS = 120.0
INSTANCE = builders.instance(options=EngineOptions(context_tokens=4096, slots=2, threads=1))
ASSIGNMENT = MemberAssignment(instance=INSTANCE, member="0", goal=MemberGoal.SERVE, key=KEY)


def start(launch: Launch, output: Path) -> "subprocess.Popen[bytes]":
    with output.open("wb") as log:
        return subprocess.Popen(launch.argv, env=os.environ | launch.environment, stdout=log, stderr=log)


@asynccontextmanager
async def running_engine(folder: Path) -> AsyncGenerator[tuple[Adapter, EngineProcess, httpx.AsyncClient]]:
    """As its adapter renders it, ready."""
    parts, port = await asyncio.to_thread(provide_real_parts), free_port()
    async with httpx.AsyncClient(trust_env=False, timeout=START_SECONDS) as http:
        adapter = Adapter(LLAMA_SERVER, http)
        launch = adapter.render(parts.program, INSTANCE, parts.model, folder, port, KEY)
        for name, content in launch.files:
            (folder / name).write_text(content)
        process = start(launch, folder / "log")
        try:
            deadline = time.monotonic() + START_SECONDS
            while await adapter.explain_unready(INSTANCE, port, KEY):
                assert process.poll() is None, (folder / "log").read_text()[-2000:]
                assert time.monotonic() < deadline, (folder / "log").read_text()[-2000:]
                await asyncio.sleep(0.2)
            yield adapter, EngineProcess(1, port, process.pid, "of this test"), http
        finally:
            process.kill()
            process.wait()


async def ask(http: httpx.AsyncClient, port: int, words: int, tokens: int) -> httpx.Response:
    body = {"messages": [{"role": "user", "content": "word " * words}], "max_tokens": tokens, "ignore_eos": True}
    url, headers = f"http://127.0.0.1:{port}/v1/chat/completions", {"authorization": f"Bearer {KEY}"}
    return await http.post(url, json=body, headers=headers)


def test_engine_is_told_at_work_idle_and_dead_apart(tmp_path: Path) -> None:
    facts = MachineFacts(tmp_path, lambda: ())

    async def story() -> None:
        async with running_engine(tmp_path) as (adapter, process, http):
            asking = asyncio.create_task(ask(http, process.port, 3000, 3000))
            await asyncio.sleep(1)
            assert (await examine(adapter, facts, ASSIGNMENT, process))[0] is Finding.COMPUTES
            asking.cancel()
            await asyncio.sleep(2)  # it ends what nobody waits for
            await ask(http, process.port, 300, 1)
            before = await adapter.observe_progress(process.port, KEY)
            found = Finding.COMPUTES
            while found is Finding.COMPUTES:
                found, _ = await examine(adapter, facts, ASSIGNMENT, process)
            assert found is Finding.GENERATES
            after = await adapter.observe_progress(process.port, KEY)
            assert after == before, "the look must not take the place of what is kept of a conversation"
            again = (await ask(http, process.port, 300, 1)).json()
            assert again["usage"]["prompt_tokens_details"]["cached_tokens"] > 300

            freeze_thread(process.pid)
            waiting = [asyncio.create_task(ask(http, process.port, 300, 4)) for _ in range(6)]
            health = await http.get(f"http://127.0.0.1:{process.port}/health")
            assert health.status_code == 200
            began = time.monotonic()
            finding, words = await examine(adapter, facts, ASSIGNMENT, process)
            assert finding is Finding.DEAD, words
            assert time.monotonic() - began < WATCH_SECONDS + CPU_PROBE_SECONDS + 5
            for task in waiting:
                task.cancel()

    asyncio.run(story())
