"""The smallest request of a task, and what proves that it was done: a token, a finite vector, a score.

An engine's own health page proves nothing: it answers while weights load, and goes on answering when what generates is
dead.
"""

import asyncio
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import httpx
from covey_api.engines import Task
from covey_api.instance import Instance

# One try of a probe: a token of a large model on a slow CPU, after its first pass over the weights.
PROBE_SECONDS = 30.0
# How long one try asks an engine that loads, and how often: a request a twentieth of a second costs some 3 % of a core.
LOADING_SECONDS = 1.0
AGAIN_SECONDS = 0.05
# Of a vector with some thousand dimensions.
MAX_ANSWER_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Proof:
    """What is asked, and how the answer is judged."""

    path: str
    body: Mapping[str, Any]
    is_done: Callable[[Any], bool]


def _has_token(answer: Any) -> bool:
    return answer["usage"]["completion_tokens"] >= 1


def _has_vector(answer: Any) -> bool:
    vector = answer["data"][0]["embedding"]
    return len(vector) > 0 and all(math.isfinite(number) for number in vector)


def _has_score(answer: Any) -> bool:
    return math.isfinite(answer["results"][0]["relevance_score"])


_CHAT = Proof(
    "/v1/chat/completions",
    {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1, "cache_prompt": False},
    _has_token,
)
PROOFS: Mapping[Task, Proof] = {
    Task.CHAT: _CHAT,
    Task.EMBEDDING: Proof("/v1/embeddings", {"input": "Hi"}, _has_vector),
    Task.RERANK: Proof("/v1/rerank", {"query": "Hi", "documents": ["Hi"]}, _has_score),
}


async def explain_unproven(http: httpx.AsyncClient, instance: Instance, port: int, key: str) -> str:
    """What the request met instead, in words; empty: it was done. One bounded try; never raises.

    An engine that loads refuses in a millisecond: it is asked again and again for `LOADING_SECONDS`, so that it is
    ready when it can be, and not when it is asked the next time.
    """
    now = asyncio.get_running_loop().time
    deadline = now() + LOADING_SECONDS
    while True:
        met, is_loading = await _ask(http, instance, port, key)
        if not is_loading or now() >= deadline:
            return met
        await asyncio.sleep(AGAIN_SECONDS)


async def explain_unwell(http: httpx.AsyncClient, port: int) -> str:
    """Why an engine that answers no requests isn't ready; empty: its own page of health says that it is."""
    try:
        async with asyncio.timeout(LOADING_SECONDS):
            answer = await http.get(f"http://127.0.0.1:{port}/health", timeout=LOADING_SECONDS)
    except (httpx.HTTPError, TimeoutError):
        return "it has not loaded its part of the model, or has not met the other ranks"
    return "" if answer.status_code == 200 else f"its page of health has status {answer.status_code}"


async def _ask(http: httpx.AsyncClient, instance: Instance, port: int, key: str) -> tuple[str, bool]:
    """The words, and whether it was refused as by an engine that loads."""
    proof = PROOFS[instance.spec.task]
    try:
        async with asyncio.timeout(PROBE_SECONDS):
            request = http.build_request(
                "POST",
                f"http://127.0.0.1:{port}{proof.path}",
                json={"model": instance.spec.model, **proof.body},
                headers={"authorization": f"Bearer {key}"},
                timeout=PROBE_SECONDS,
            )
            status, content = await read_answer(http, request, MAX_ANSWER_BYTES)
    except httpx.ConnectError:
        return "nothing listens on its port", True
    except (httpx.TimeoutException, TimeoutError):
        return f"it took the smallest request, and gave no answer within {PROBE_SECONDS:.0f} s", False
    except httpx.HTTPError as error:
        return f"it broke off the smallest request ({type(error).__name__})", False
    try:
        if status == 200 and proof.is_done(json.loads(content)):
            return "", False
    except (ValueError, KeyError, TypeError, IndexError):
        pass  # what it answered is no such answer
    words = f"its answer to the smallest request has status {status} and isn't what was asked for"
    return words, status == 503


async def read_answer(http: httpx.AsyncClient, request: httpx.Request, most_bytes: int) -> tuple[int, bytes]:
    """Status and body, cut off there: an engine out of its mind doesn't fill the agent. Raises what httpx does."""
    answer = await http.send(request, stream=True)
    content = bytearray()
    try:
        async for piece in answer.aiter_bytes():
            content += piece[: most_bytes - len(content)]
            if len(content) >= most_bytes:
                break
    finally:
        await answer.aclose()
    return answer.status_code, bytes(content)
