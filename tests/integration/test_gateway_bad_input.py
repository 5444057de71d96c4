"""What no format can take, sent to every format: the right status, in the envelope of that format."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from covey_api.messages import ModelState, ServedModel
from covey_gateway.limits import BODY_SILENCE_SECONDS, HEAD_SECONDS, MAX_BODIES_BYTES
from integration.gateway_rig import Answer, Call, Gateway, ScriptedEngine, connected, eventually, running_gateway

pytestmark = [pytest.mark.anyio, pytest.mark.integration]

ALL = ServedModel(namespace="default", name="m", tasks=("Chat", "Embedding", "Rerank"), state=ModelState.READY)


@dataclass(frozen=True)
class Spoken:
    """One call of one format, and its smallest body."""

    path: str
    body: dict[str, Any]
    read: Callable[[Any], str]
    """The words of an error in this format; KeyError when it isn't in its envelope."""


def read_openai(content: Any) -> str:
    error = content["error"]
    assert error.keys() >= {"message", "type", "param", "code"}
    return error["message"]


def read_anthropic(content: Any) -> str:
    assert content["type"] == "error"
    assert content["error"]["type"].endswith(("_error", "too_large"))
    return content["error"]["message"]


def read_ollama(content: Any) -> str:
    assert isinstance(content["error"], str)
    return content["error"]


MESSAGES = [{"role": "user", "content": "Hi"}]
CALLS = {
    "chat": Spoken("/v1/chat/completions", {"messages": MESSAGES}, read_openai),
    "completions": Spoken("/v1/completions", {"prompt": "Hi"}, read_openai),
    "responses": Spoken("/v1/responses", {"input": "Hi"}, read_openai),
    "embeddings": Spoken("/v1/embeddings", {"input": "Hi"}, read_openai),
    "rerank": Spoken("/v1/rerank", {"query": "Hi", "documents": ["a"]}, read_openai),
    "score": Spoken("/v1/score", {"text_1": "Hi", "text_2": ["a"]}, read_openai),
    "messages": Spoken("/v1/messages", {"messages": MESSAGES, "max_tokens": 1}, read_anthropic),
    "count_tokens": Spoken("/v1/messages/count_tokens", {"messages": MESSAGES}, read_anthropic),
    "ollama chat": Spoken("/api/chat", {"messages": MESSAGES}, read_ollama),
    "ollama generate": Spoken("/ollama/api/generate", {"prompt": "Hi"}, read_ollama),
    "ollama embed": Spoken("/api/embed", {"input": "Hi"}, read_ollama),
    "ollama show": Spoken("/api/show", {}, read_ollama),
    "ollama pull": Spoken("/api/pull", {}, read_ollama),
}

DEEP = b"[" * 10_000 + b"]" * 10_000


def with_text(spoken: Spoken, text: bytes) -> bytes:
    """A body that is right but for one piece of text in it."""
    body = json.dumps({"model": "m-TEXT"} | spoken.body).encode()
    return body.replace(b"m-TEXT", text)


BODIES: dict[str, Callable[[Spoken], bytes]] = {
    "empty": lambda spoken: b"",
    "no JSON": lambda spoken: b'{"model":',
    "rest behind it": lambda spoken: json.dumps({"model": "m"} | spoken.body).encode() + b"x",
    "an array": lambda spoken: b"[]",
    "a string": lambda spoken: b'"m"',
    "NaN": lambda spoken: b'{"model":NaN}',
    "deep": lambda spoken: b'{"model":' + DEEP + b"}",
    "no UTF-8": lambda spoken: with_text(spoken, b"\xff\xfe"),
    "overlong UTF-8": lambda spoken: with_text(spoken, b"\xc0\xaf"),
    "surrogate in UTF-8": lambda spoken: with_text(spoken, b"\xed\xa0\x80"),
    "lone surrogate": lambda spoken: with_text(spoken, b"\\ud800"),
    "lone low surrogate": lambda spoken: with_text(spoken, b"\\udc00"),
    "surrogates in the wrong order": lambda spoken: with_text(spoken, b"\\udc00\\ud800"),
    "no model": lambda spoken: json.dumps(spoken.body).encode(),
    "a number for a model": lambda spoken: json.dumps({"model": 1} | spoken.body).encode(),
    "an unknown field": lambda spoken: json.dumps({"model": "m", "nonsense": 1} | spoken.body).encode(),
    "a field that chooses a slot": lambda spoken: json.dumps({"model": "m", "id_slot": 1} | spoken.body).encode(),
    "another type": lambda spoken: json.dumps({"model": "m"} | dict.fromkeys(spoken.body or ["model"], 5)).encode(),
}


async def post(gateway: Gateway, path: str, body: bytes, method: str = "POST") -> Answer:
    async with connected(gateway) as client:
        await client.send(
            f"{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body
        )
        return await client.read_answer()


@pytest.mark.parametrize("call", CALLS)
async def test_bad_input_is_400_in_the_formats_own_envelope(call: str) -> None:
    spoken = CALLS[call]
    async with ScriptedEngine() as engine, running_gateway() as gateway:
        gateway.route(engine.target(), models=(ALL,))
        for name, render in BODIES.items():
            answer = await post(gateway, spoken.path, render(spoken))
            assert answer.status == 400, (name, answer)
            assert spoken.read(answer.content), name
            assert answer.headers["x-request-id"], name
        assert engine.calls == []


@pytest.mark.parametrize("call", CALLS)
async def test_every_refusal_has_its_status_in_the_formats_own_envelope(call: str) -> None:
    spoken = CALLS[call]
    good = json.dumps({"model": "m"} | spoken.body).encode()
    unknown = json.dumps({"model": "other"} | spoken.body).encode()
    async with running_gateway() as gateway:
        gateway.route(models=(ALL,))
        found = {
            "unknown model": await post(gateway, spoken.path, unknown),
            "wrong method": await post(gateway, spoken.path, b"", "PUT"),
            "below it": await post(gateway, spoken.path + "/nothing/here", good),
        }
        too_large = f"POST {spoken.path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 104857600\r\n\r\n".encode()
        async with connected(gateway) as client:
            await client.send(too_large)
            found["too large"] = await client.read_answer()
        if call not in ("ollama show", "ollama pull"):
            gateway.route(models=(ALL.model_copy(update={"state": ModelState.LOADING}),))
            found["loading"] = await post(gateway, spoken.path, good)
            assert int(found["loading"].headers["retry-after"]) >= 1
    expected = {"unknown model": 404, "wrong method": 405, "below it": 404, "too large": 413, "loading": 503}
    assert {name: answer.status for name, answer in found.items()} == {name: expected[name] for name in found}
    for name, answer in found.items():
        assert spoken.read(answer.content), name


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "U"}}]}]},
        ),
        ("/v1/responses", {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "U"}]}]}),
        (
            "/v1/messages",
            {
                "max_tokens": 1,
                "messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "U"}}]}],
            },
        ),
    ],
)
@pytest.mark.parametrize(
    "url",
    ["data:image/png;base64,AAAA", "http://127.0.0.1:9/secret.png", "https://example.com/x", "file:///etc/passwd"],
)
async def test_an_image_for_a_model_of_text_is_refused_and_no_url_is_fetched(
    path: str, body: dict[str, Any], url: str
) -> None:
    async with ScriptedEngine() as engine, running_gateway(engine.target()) as gateway:
        content = json.dumps({"model": "m"} | body).replace('"U"', json.dumps(url)).encode()
        answer = await post(gateway, path, content)
        assert (answer.status, engine.calls) == (400, [])
        assert "takes text only" in answer.content["error"]["message"]


async def test_an_image_reaches_a_model_that_takes_images() -> None:
    seeing = ALL.model_copy(update={"tasks": ("Chat", "Vision")})
    async with ScriptedEngine() as engine, running_gateway() as gateway:
        gateway.route(engine.target(), models=(seeing,))
        source = {"type": "base64", "media_type": "image/png", "data": "AAAA"}
        turn = [{"type": "image", "source": source}, {"type": "text", "text": "What is it?"}]
        body = {"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": turn}]}
        assert (await post(gateway, "/v1/messages", json.dumps(body).encode())).status == 200
        image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
        assert engine.calls[0].content["messages"][0]["content"][0] == image
        turns = [{"role": "user", "content": "What?", "images": ["AAAA"]}]
        asked = json.dumps({"model": "m", "messages": turns}).encode()
        assert (await post(gateway, "/api/chat", asked)).status == 200
        assert engine.calls[1].content["messages"][0]["content"][1] == image


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/v1/audio/speech", 501),
        ("/v1/audio/transcriptions", 501),
        ("/v1/images/generations", 501),
        ("/api/create", 501),
        ("/ollama/api/delete", 501),
        ("/v1/nothing", 404),
        ("/api/nothing", 404),
        ("/v1/messages/batches", 404),
    ],
)
async def test_what_is_not_served_says_so(path: str, status: int) -> None:
    async with running_gateway() as gateway:
        answer = await post(gateway, path, b"{}")
        assert answer.status == status
        assert path in json.dumps(answer.content)


async def test_an_engine_that_counts_no_tokens_is_told_as_that() -> None:
    async def refuse(call: Call) -> None:
        assert b"POST /v1/chat/completions/input_tokens " in call.head
        await call.refuse(404, b'{"detail":"Not Found"}')

    async with ScriptedEngine(refuse) as engine, running_gateway(engine.target()) as gateway:
        spoken = CALLS["count_tokens"]
        answer = await post(gateway, spoken.path, json.dumps({"model": "m"} | spoken.body).encode())
        assert answer.status == 501
        assert "doesn't count tokens" in spoken.read(answer.content)


PASSING = ALL.model_copy(update={"passes_unknown_fields": True})
THAT_PASS = ["chat", "completions", "responses", "messages"]


@pytest.mark.parametrize("call", THAT_PASS)
async def test_a_field_in_no_list_reaches_the_engine_only_of_a_model_that_passes_it(call: str) -> None:
    spoken = CALLS[call]
    body = json.dumps({"model": "m", "nonsense": {"a": 1}} | spoken.body).encode()
    async with ScriptedEngine() as engine, running_gateway() as gateway:
        gateway.route(engine.target(), models=(ALL,))
        refused = await post(gateway, spoken.path, body)
        assert (refused.status, engine.calls) == (400, [])
        assert "`nonsense` is no field" in spoken.read(refused.content)
        gateway.route(engine.target(), models=(PASSING,))
        await post(gateway, spoken.path, body)
        assert engine.calls[0].content["nonsense"] == {"a": 1}


@pytest.mark.parametrize("call", THAT_PASS)
@pytest.mark.parametrize(
    "fields",
    [
        {"id_slot": 0},
        {"nonsense": 1, "cache_prompt": False},
        {"grammar": "root ::= x"},
        {"slot_id": 1},
        {"min_p": "high"},
        {"json_schema": {"type": "string", "pattern": "a?" * 40}},
        {"reasoning_format": "unheard-of"},
    ],
)
async def test_what_could_hurt_others_is_refused_also_of_a_model_that_passes_unknown_fields(
    call: str, fields: dict[str, Any]
) -> None:
    async with ScriptedEngine() as engine, running_gateway() as gateway:
        gateway.route(engine.target(), models=(PASSING,))
        answer = await post(gateway, CALLS[call].path, json.dumps({"model": "m"} | fields | CALLS[call].body).encode())
        assert (answer.status, engine.calls) == (400, [])
        assert list(fields)[-1] in CALLS[call].read(answer.content)


async def test_what_a_format_says_itself_wins_over_a_passed_field() -> None:
    async with ScriptedEngine() as engine, running_gateway() as gateway:
        gateway.route(engine.target(), models=(PASSING,))
        extra = {"stream_options": {"include_usage": False}, "return_progress": False, "min_p": 0.5, "n": 2}
        refused = await post(
            gateway, "/v1/messages", json.dumps({"model": "m"} | extra | CALLS["messages"].body).encode()
        )
        assert "`n` is not taken" in read_anthropic(refused.content)
        del extra["n"]
        await post(gateway, "/v1/messages", json.dumps({"model": "m"} | extra | CALLS["messages"].body).encode())
        sent = engine.calls[0].content
        assert (sent["stream_options"], sent["min_p"], sent["max_tokens"]) == ({"include_usage": True}, 0.5, 1)


HEADS = {
    "both lengths": (400, b"content-length: 3\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n"),
    "two lengths": (400, b"content-length: 3\r\ncontent-length: 4\r\n\r\nabcd"),
    "a folded line": (400, b"x: a\r\n folded\r\ncontent-length: 2\r\n\r\n{}"),
    "an unknown coding": (400, b"transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n"),
    "no size of a chunk": (400, b"transfer-encoding: chunked\r\n\r\nzz\r\n"),
    "a chunk that is longer than it says": (400, b"transfer-encoding: chunked\r\n\r\n3\r\nabcdef\r\n0\r\n\r\n"),
    "a trailer that would be a header": (400, b"transfer-encoding: chunked\r\n\r\n1\r\nx\r\n0\r\nhost: a\r\n\r\n"),
    "a hundred and one headers": (431, b"x: y\r\n" * 101 + b"content-length: 2\r\n\r\n{}"),
    "a long header": (431, b"x: " + b"y" * 100_000 + b"\r\ncontent-length: 2\r\n\r\n{}"),
}


@pytest.mark.parametrize("call", ["chat", "responses", "messages", "ollama chat", "ollama generate"])
async def test_a_request_that_smuggles_is_refused_in_the_envelope_of_its_path(call: str) -> None:
    spoken = CALLS[call]
    async with ScriptedEngine() as engine, running_gateway() as gateway:
        gateway.route(engine.target(), models=(ALL,))
        for name, (status, rest) in HEADS.items():
            async with connected(gateway) as client:
                await client.send(f"POST {spoken.path} HTTP/1.1\r\nhost: localhost\r\n".encode() + rest)
                answer = await client.read_answer()
                assert (answer.status, name) == (status, name)
                assert spoken.read(answer.content), name
                assert await client.is_closed() or name.startswith("a trailer"), name
        assert engine.calls == []


@pytest.mark.parametrize("call", ["chat", "messages", "ollama chat"])
async def test_a_slow_sender_is_told_in_the_envelope_of_its_path(call: str) -> None:
    spoken = CALLS[call]
    start = f"POST {spoken.path} HTTP/1.1\r\nhost: localhost\r\n".encode()
    async with running_gateway() as gateway:
        for part, seconds in ((start, HEAD_SECONDS), (start + b"content-length: 9\r\n\r\n{", BODY_SILENCE_SECONDS)):
            async with connected(gateway) as client:
                await client.send(part)
                await asyncio.sleep(0.1)
                gateway.pass_time(seconds + 1)
                answer = await client.read_answer()
                assert answer.status == 408
                assert spoken.read(answer.content)


@pytest.mark.parametrize("call", ["chat", "messages", "ollama chat"])
async def test_a_body_of_100_mb_in_chunks_is_refused_when_it_is_too_long_and_costs_no_more(call: str) -> None:
    spoken = CALLS[call]
    head = f"POST {spoken.path} HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n"
    async with running_gateway() as gateway, connected(gateway) as client:
        reading = asyncio.ensure_future(client.read_answer())
        client.writer.write(head.encode())
        piece = b"%x\r\n%b\r\n" % (1_000_000, b" " * 1_000_000)
        sent = 0
        while not reading.done() and sent < 100_000_000:
            client.writer.write(piece)
            sent += 1_000_000
            try:
                await client.writer.drain()
            except ConnectionError:
                break
        answer = await reading
        assert answer.status == 413
        assert spoken.read(answer.content)
        assert gateway.traffic.reserve_body(MAX_BODIES_BYTES)  # nothing of it is held


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_closes_its_half_is_gone(stream: bool) -> None:
    async def hang(call: Call) -> None:
        await call.wait_gone()

    async with (
        ScriptedEngine(hang) as engine,
        running_gateway(engine.target()) as gateway,
        connected(gateway) as client,
    ):
        await client.ask(stream=stream)
        await eventually(lambda: len(engine.calls) == 1)
        client.writer.write_eof()
        await eventually(lambda: engine.open_connections == 0)
        assert gateway.in_flight == 0
