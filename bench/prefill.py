"""How long a prompt goes on being read after its client has left, and its slot is busy. One JSON line a figure.

An engine on one slot, as Covey starts it, asked straight, as the gateway asks it. A long prompt is read to its end
first; then the same again, made otherwise at its beginning so that no cache has it, by a client that leaves in the
midst: a short request that comes at once has its first token when the slot is free. What that takes by itself is
measured too, and taken away. Figures are ratios of the same machine in the same minutes: seconds say little.

Usage: `prefill.py [ENGINE …]`.
"""

import asyncio
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx
from covey_api.engines import EngineName, KvCacheType
from covey_api.instance import Costs, Member, MemberPhase
from covey_planner.fit.options import stamp_options
from engines import ANEW, START_SECONDS, A, AgentRig, Subject, prepare, run_each, running_with, shared_cache

TOKENS = 4000
WINDOW = 6144
LEAVES_AFTER_SECONDS = 1.0
READ_SECONDS = 600.0
REPEATS = 1


def say(engine: EngineName, figure: str, value: float, unit: str, **more: object) -> None:
    figures = {"value": round(value, 2), "unit": unit, "load_1m": round(os.getloadavg()[0], 1)}
    print(json.dumps({"bench": "prefill", "engine": engine, "figure": figure, **figures, **more}), flush=True)


def words(mark: str, count: int) -> str:
    """Each is a token of SmolLM2."""
    return mark + " the" * count


async def read_first_token(client: httpx.AsyncClient, text: str) -> float:
    began = time.monotonic()
    body = {"messages": [{"role": "user", "content": text}], "max_tokens": 1, "stream": True}
    async with client.stream("POST", "/v1/chat/completions", json=body) as answer:
        assert answer.status_code == 200, await answer.aread()
        async for line in answer.aiter_lines():
            if line.startswith("data: {") and is_token(json.loads(line[6:])):
                return time.monotonic() - began
    raise AssertionError("the engine must answer with a token")


def is_token(event: dict[str, Any]) -> bool:
    """Or the end; engines tell the role, or how far they are, before they have read the prompt."""
    return any(choice["delta"].get("content") or choice["finish_reason"] for choice in event["choices"])


async def leave(client: httpx.AsyncClient, text: str) -> None:
    asked = asyncio.create_task(read_first_token(client, text))
    await asyncio.sleep(LEAVES_AFTER_SECONDS)
    assert not asked.done(), "the prompt must be read for longer than the client waits"
    asked.cancel()
    await asyncio.gather(asked, return_exceptions=True)


async def measure(engine: EngineName, port: int, key: str) -> None:
    base, headers = f"http://127.0.0.1:{port}", {"authorization": f"Bearer {key}"}
    async with httpx.AsyncClient(
        base_url=base, headers=headers, trust_env=False, timeout=READ_SECONDS, limits=ANEW
    ) as client:
        whole: list[float] = []
        busy: list[float] = []
        for number in range(REPEATS):
            whole.append(await read_first_token(client, words(f"{number} read", TOKENS)))
            short = await read_first_token(client, f"{number} Hi")
            await leave(client, words(f"{number} left", TOKENS))
            busy.append(max(0.0, await read_first_token(client, f"{number} Hello") - short))
    for figure, values in (("prompt read to its end", whole), ("slot busy after its client left", busy)):
        each = [round(value, 2) for value in values]
        say(engine, figure, sorted(values)[len(values) // 2], "s", tokens=TOKENS, each=each)


async def run(engine: EngineName) -> None:
    subject = await prepare(engine)
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="cv") as folder:  # short: Unix sockets live below it
        weights = Path(subject.artifact.source.removeprefix("file://"))
        async with running_with(Path(folder), subject.spec, weights, shared_cache()) as rig:
            rig.start()
            await rig.wait(lambda: bool(rig.board.reports), "the agent reports")
            await start(rig, subject)
            key = (rig.members / A / "engine.key").read_text().strip()
            await measure(engine, rig.board.members[A].port, key)


async def start(rig: AgentRig, subject: Subject) -> None:
    options = stamp_options(
        subject.geometry, cpu_cores=1, context_tokens=WINDOW, slots=1, kv_cache_type=KvCacheType.F16
    )
    costs = (Costs(weights_bytes=subject.artifact.size_bytes, kv_cache_bytes=600 * 2**20),)
    rig.board.wish(
        rig.assign(
            A,
            engine=subject.engine,
            artifact=subject.artifact,
            options=options,
            members=(Member(node="a", costs=costs),),
        )
    )

    def is_ready() -> bool:
        return A in rig.board.members and rig.board.members[A].phase is MemberPhase.READY

    await rig.wait(is_ready, f"{subject.engine} is ready", START_SECONDS)


if __name__ == "__main__":
    run_each("prefill", run)
