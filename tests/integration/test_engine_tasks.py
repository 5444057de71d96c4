"""The real llama-server, started as the adapter renders it for tasks and options beyond plain chats."""

import asyncio
import os
import re
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from covey_agent.engines.adapter import Adapter
from covey_agent.engines.llama_server import LLAMA_SERVER
from covey_agent.ports import EngineProgram
from covey_api.engines import KvLayout, Task
from covey_api.instance import EngineOptions, Instance
from covey_api.runtime import LlamaServerRuntime, Runtime, Speculation
from kit import builders
from kit.ports import free_port
from kit.real import provide_real_parts
from kit.real_models import provide_minilm

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

START_SECONDS = 120.0
KEY = "key-of-the-engine"


def closeness(one: list[float], other: list[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))


@asynccontextmanager
async def running_engine(
    folder: Path, program: EngineProgram, instance: Instance, weights: Path
) -> AsyncGenerator[tuple[Adapter, int]]:
    """The engine as the adapter renders it, ready; it ends with the block."""
    port = free_port()
    async with httpx.AsyncClient(trust_env=False) as http:
        adapter = Adapter(LLAMA_SERVER, http)
        launch = adapter.render(program, instance, weights, folder, port, KEY)
        for name, content in launch.files:
            (folder / name).write_text(content)
        with (folder / "log").open("wb") as log:
            environment = os.environ | launch.environment
            process = await asyncio.create_subprocess_exec(*launch.argv, env=environment, stdout=log, stderr=log)
        try:
            deadline = time.monotonic() + START_SECONDS
            while await adapter.explain_unready(instance, port, KEY):
                assert time.monotonic() < deadline, (folder / "log").read_text()[-2000:]
                await asyncio.sleep(0.2)
            yield adapter, port
        finally:
            process.terminate()
            await process.wait()


def ask(port: int, path: str, **body: Any) -> dict[str, Any]:
    headers = {"authorization": f"Bearer {KEY}"}
    with httpx.Client(trust_env=False, timeout=120, headers=headers) as client:
        answer = client.post(f"http://127.0.0.1:{port}{path}", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_an_encoder_is_ready_when_it_made_a_vector_and_generates_no_token(tmp_path: Path) -> None:
    options = EngineOptions(context_tokens=512, slots=1, batch_tokens=512, micro_batch_tokens=512)
    program, weights = provide_real_parts().program, provide_minilm()
    encoder = builders.instance(task=Task.EMBEDDING, options=options)

    async def whole() -> None:
        async with running_engine(tmp_path, program, encoder, weights) as (adapter, port):
            chat = builders.instance(task=Task.CHAT, options=options)
            assert await adapter.explain_unready(chat, port, KEY)
            texts = ["a cat", "a kitten", "the stock market"]
            answer = await asyncio.to_thread(ask, port, "/v1/embeddings", input=texts)
            cat, kitten, market = (each["embedding"] for each in answer["data"])
            assert len(cat) == 384
            assert closeness(cat, kitten) > closeness(cat, market)

    asyncio.run(whole())


def test_slots_of_one_window_share_it_and_one_alone_may_have_all_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--kv-unified`: no slot's window would hold such a prompt if the cells were divided among them."""
    monkeypatch.setenv("LLAMA_ARG_LOG_VERBOSITY", "4")
    instance = builders.instance(options=EngineOptions(context_tokens=1024, slots=2, kv_layout=KvLayout.UNIFIED))
    parts = provide_real_parts()

    async def whole() -> None:
        async with running_engine(tmp_path, parts.program, instance, parts.model) as (
            _,
            port,
        ):

            async def answer(words: int) -> int:
                asked = {"messages": [{"role": "user", "content": "word " * words}], "max_tokens": 4, "temperature": 0}
                said = await asyncio.to_thread(ask, port, "/v1/chat/completions", **asked)
                return int(said["usage"]["prompt_tokens"])

            assert await answer(800) > 1024 // 2
            counts = await asyncio.gather(answer(300), answer(310))
            assert all(count > 300 for count in counts)
        said = (tmp_path / "log").read_text()
        assert re.search(r"kv_unified += true", said)
        assert re.search(r"llama_kv_cache: size = .*\( +1024 cells", said), "one window, whatever the number of slots"

    asyncio.run(whole())


def test_speculation_guesses_where_text_repeats(tmp_path: Path) -> None:
    runtime = Runtime(llama_server=LlamaServerRuntime(speculation=Speculation.NGRAM_SIMPLE))
    instance = builders.instance(runtime=runtime, options=EngineOptions(context_tokens=1024, slots=1))
    parts = provide_real_parts()
    prompt = "Repeat this line for ever: one two three four five six seven eight nine ten.\n" * 6

    async def whole() -> None:
        async with running_engine(tmp_path, parts.program, instance, parts.model) as (_, port):
            asked = {"messages": [{"role": "user", "content": prompt}], "max_tokens": 64, "temperature": 0}
            answer = await asyncio.to_thread(ask, port, "/v1/chat/completions", **asked)
            assert answer["timings"]["draft_n"] > 0

    asyncio.run(whole())
