"""The real llama-server, started as the adapter renders it for a task other than chat: ready is who made a vector."""

import asyncio
import os
import socket
import time
from pathlib import Path

import httpx
import pytest
from covey_agent.engines.adapter import Adapter
from covey_agent.engines.llama_server import LLAMA_SERVER
from covey_api.engines import Task
from covey_api.instance import EngineOptions
from kit import builders
from kit.real import provide_real_parts
from kit.real_models import provide_minilm

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

START_SECONDS = 120.0
KEY = "key-of-the-engine"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def closeness(one: list[float], other: list[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))


def test_an_encoder_is_ready_when_it_made_a_vector_and_refuses_chats(tmp_path: Path) -> None:
    port = free_port()
    options = EngineOptions(context_tokens=512, slots=1, batch_tokens=512, micro_batch_tokens=512)
    instance = builders.instance(task=Task.EMBEDDING, options=options)
    program = provide_real_parts().program

    async def until_ready(adapter: Adapter) -> bool:
        deadline = time.monotonic() + START_SECONDS
        while not await adapter.is_ready(instance, port, KEY):
            if time.monotonic() > deadline:
                return False
            await asyncio.sleep(0.2)
        return True

    async def whole() -> None:
        async with httpx.AsyncClient(trust_env=False) as http:
            adapter = Adapter(LLAMA_SERVER, http)
            launch = adapter.render(program, instance, provide_minilm(), tmp_path, port, KEY)
            for name, content in launch.files:
                (tmp_path / name).write_text(content)
            log = (tmp_path / "log").open("wb")
            environment = os.environ | launch.environment
            process = await asyncio.create_subprocess_exec(*launch.argv, env=environment, stdout=log, stderr=log)
            try:
                assert await until_ready(adapter), (tmp_path / "log").read_text()[-2000:]
                chat = builders.instance(task=Task.CHAT, options=options)
                assert not await adapter.is_ready(chat, port, KEY), "an encoder generates no token"
                answer = await http.post(
                    f"http://127.0.0.1:{port}/v1/embeddings",
                    json={"input": ["a cat", "a kitten", "the stock market"]},
                    headers={"authorization": f"Bearer {KEY}"},
                    timeout=60,
                )
                cat, kitten, market = (each["embedding"] for each in answer.json()["data"])
                assert len(cat) == 384
                assert closeness(cat, kitten) > closeness(cat, market)
            finally:
                process.terminate()
                await process.wait()
                log.close()

    asyncio.run(whole())
