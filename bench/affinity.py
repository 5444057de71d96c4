"""What it brings to send a conversation to where its prefix is cached. One JSON line a figure.

Real llama-servers (two slots each, no cache in main memory), conversations of several turns that begin at random, with
a long prefix each. In turns: the gateway, and round robin without a gateway, which so has nothing added. Each
round has new conversations, so that nothing is cached of the round before.

`COVEY_BENCH_WORDS`: words of a prefix (1500); `COVEY_BENCH_GAP`: mean seconds between beginnings (3);
`COVEY_BENCH_ROUNDS`: rounds of each way (1).
"""

import asyncio
import itertools
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvloop
from measures.load import Address, find_free_ports, started

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from integration.engine_rig import wait_ready
from kit.real import provide_real_parts

ENGINES, SLOTS = 4, 2
CONVERSATIONS, TURNS, ANSWER_TOKENS = 16, 6, 16
ROUNDS = int(os.environ.get("COVEY_BENCH_ROUNDS", "1"))
THINK_SECONDS = 1.0
PREFIX_WORDS = int(os.environ.get("COVEY_BENCH_WORDS", "1500"))
GAP_SECONDS = float(os.environ.get("COVEY_BENCH_GAP", "3"))
WORDS = ("river", "stone", "cloud", "green", "seven", "walks", "under", "light", "paper", "night", "small", "table")


@dataclass
class Round:
    ttft: list[float] = field(default_factory=list[float])
    later_ttft: list[float] = field(default_factory=list[float])
    """Of all turns but the first."""
    prompt: int = 0
    prefilled: int = 0


async def ask(address: Address, messages: list[dict[str, str]]) -> tuple[float, str, dict[str, Any]]:
    """Seconds to the first token, the answer, its usage."""
    body = {
        "model": "m",
        "messages": messages,
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": ANSWER_TOKENS,
        "temperature": 0,
    }
    content = json.dumps(body).encode()
    reader, writer = await asyncio.open_connection(*address)
    began, first, text, usage = time.perf_counter(), 0.0, "", dict[str, Any]()
    head = "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\n"
    writer.write(f"{head}content-type: application/json\r\ncontent-length: {len(content)}\r\n\r\n".encode() + content)
    async with asyncio.timeout(300):
        assert b" 200 " in await reader.readline()
        while not (line := await reader.readline()).startswith(b"data: [DONE]"):
            assert line, "the answer broke off"
            if not line.startswith(b"data: "):
                continue
            event = json.loads(line[6:])
            usage = event.get("usage") or usage
            for choice in event["choices"]:
                if piece := choice["delta"].get("content"):
                    first = first or time.perf_counter() - began
                    text += piece
    writer.transport.abort()
    return first, text, usage


async def converse(number: int, at: float, choose: Callable[[], Address], found: Round) -> None:
    chance = random.Random(number)
    await asyncio.sleep(at)
    prefix = " ".join(chance.choice(WORDS) for _ in range(PREFIX_WORDS))
    messages = [{"role": "system", "content": prefix}, {"role": "user", "content": "What is this about?"}]
    for turn in range(TURNS):
        first, text, usage = await ask(choose(), messages)
        found.ttft.append(first)
        if turn:
            found.later_ttft.append(first)
        found.prompt += usage["prompt_tokens"]
        found.prefilled += usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"]
        messages += [{"role": "assistant", "content": text}, {"role": "user", "content": f"And what is word {turn}?"}]
        await asyncio.sleep(chance.expovariate(1 / THINK_SECONDS))


async def run_round(seed: int, choose: Callable[[], Address]) -> Round:
    chance, at, found = random.Random(seed), 0.0, Round()
    async with asyncio.TaskGroup() as tasks:
        for number in range(CONVERSATIONS):
            tasks.create_task(converse(seed * 1000 + number, at, choose, found))
            at += chance.expovariate(1 / GAP_SECONDS)
    return found


class Counting:
    """A door before an engine that counts requests and passes bytes on."""

    def __init__(self, engine: Address) -> None:
        self.engine = engine
        self.asked = 0

    async def serve(self) -> Address:
        self._server = await asyncio.start_server(self._pass_on, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()[:2]
        return host, port

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        to_reader, to_writer = await asyncio.open_connection(*self.engine)
        await asyncio.gather(self._copy(reader, to_writer, counts=True), self._copy(to_reader, writer, counts=False))

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, counts: bool) -> None:
        try:
            while piece := await reader.read(65536):
                self.asked += counts and piece.startswith(b"POST /v1/chat")
                writer.write(piece)
        except ConnectionError:
            pass
        finally:
            writer.close()


@contextmanager
def gateway(doors: list[Address]) -> Generator[Address]:
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder) / "table.json"
        endpoints = [{"url": f"http://{host}:{port}", "slots": SLOTS} for host, port in doors]
        table.write_text(json.dumps({"models": [{"name": "m", "endpoints": endpoints}]}))
        with started("-m", "covey_gateway", "--table", str(table), "--listen", "127.0.0.1:0") as (_, address):
            yield address


@contextmanager
def engine(folder: Path, window: int) -> Generator[Address]:
    parts = provide_real_parts()
    (port,) = find_free_ports(1)
    argv = [str(parts.program.path), "-m", str(parts.model), "--alias", "m", "--host", "127.0.0.1"]
    argv += ["--port", str(port), "-np", str(SLOTS), "-ngl", "0", "-t", "1", "--cache-ram", "0", "--no-webui"]
    argv += ["-c", str(window), "--no-context-shift"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(argv, env=os.environ | parts.program.environment, stdout=log, stderr=log)
    try:
        wait_ready(f"http://127.0.0.1:{port}", process, folder / "log")
        yield "127.0.0.1", port
    finally:
        process.kill()
        process.wait(10)


def emit(figure: str, value: float, **conditions: object) -> None:
    print(json.dumps({"bench": "affinity", "figure": figure, "value": round(value, 3)} | conditions), flush=True)


async def measure(engines: list[Address]) -> None:
    doors = [Counting(engine) for engine in engines]
    addresses = [await door.serve() for door in doors]
    means: dict[str, list[float]] = {"gateway": [], "round_robin": []}
    with gateway(addresses) as through:
        for number in range(ROUNDS):
            turns = itertools.cycle(addresses)
            for way, choose in (("round_robin", lambda turns=turns: next(turns)), ("gateway", lambda: through)):
                for door in doors:
                    door.asked = 0
                found = await run_round(number * 2 + (way == "gateway"), choose)
                conditions = {"way": way, "round": number, "prefix_words": PREFIX_WORDS}
                means[way].append(statistics.mean(found.ttft))
                emit("ttft_mean_s", statistics.mean(found.ttft), **conditions)
                emit("ttft_p90_s", statistics.quantiles(found.ttft, n=10)[8], **conditions)
                emit("ttft_mean_of_later_turns_s", statistics.mean(found.later_ttft), **conditions)
                emit("prompt_tokens", found.prompt, **conditions)
                emit("prompt_tokens_prefilled", found.prefilled, **conditions)
                asked = [door.asked for door in doors]
                emit("load_max_over_mean", max(asked) / statistics.mean(asked), **conditions, requests=asked)
    ratio = statistics.mean(means["round_robin"]) / statistics.mean(means["gateway"])
    emit("ttft_round_robin_over_gateway", ratio, prefix_words=PREFIX_WORDS, gap_seconds=GAP_SECONDS)


def main() -> None:
    with ExitStack() as stack:
        engines: list[Address] = []
        window = SLOTS * (PREFIX_WORDS + 600)
        for _ in range(ENGINES):
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            engines.append(stack.enter_context(engine(folder, window)))
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(measure(engines))


if __name__ == "__main__":
    main()
