"""Streams that go wrong, or are slow, in every format: the client always learns what happened, in its own words."""

import json
from typing import Any

import pytest
from integration.gateway_rig import (
    DONE,
    LAST_CHUNK,
    STREAM_HEAD,
    Answer,
    Call,
    RawClient,
    ScriptedEngine,
    chunk,
    connected,
    eventually,
    running_gateway,
    token,
)

pytestmark = [pytest.mark.anyio, pytest.mark.integration]

MESSAGES = [{"role": "user", "content": "Hi"}]
STREAMS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", {"messages": MESSAGES, "stream": True}),
    "completions": ("/v1/completions", {"prompt": "Hi", "stream": True}),
    "responses": ("/v1/responses", {"input": "Hi", "stream": True}),
    "messages": ("/v1/messages", {"messages": MESSAGES, "max_tokens": 9, "stream": True}),
    "ollama chat": ("/api/chat", {"messages": MESSAGES}),
    "ollama generate": ("/ollama/api/generate", {"prompt": "Hi"}),
}
WHOLE = {
    name: (path, {key: value for key, value in body.items() if key != "stream"} | more)
    for name, (path, body) in STREAMS.items()
    for more in [{"stream": False} if name.startswith("ollama") else {}]
}


async def ask(client: RawClient, path: str, body: dict[str, Any]) -> None:
    content = json.dumps({"model": "m"} | body).encode()
    await client.send(
        f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(content)}\r\n\r\n".encode() + content
    )


def text_token(text: str, path: bytes) -> bytes:
    """A piece of an answer, as the call that was asked has it."""
    if b"/v1/completions" not in path:
        return token(text)
    choices = [{"index": 0, "text": text, "logprobs": None, "finish_reason": None}]
    return b"data: " + json.dumps({"id": "c1", "created": 1, "choices": choices}).encode() + b"\n\n"


def read_error(name: str, answer: Answer) -> str:
    """The words of the error at the end of a stream; AssertionError when it isn't what the format has there."""
    lines = answer.body.strip().split(b"\n")
    if name.startswith("ollama"):
        return json.loads(lines[-1])["error"]
    last = json.loads(lines[-1].removeprefix(b"data: "))
    if name == "messages":
        assert lines[-2] == b"event: error"
        assert last["type"] == "error"
        return last["error"]["message"]
    if name == "responses":
        assert last["type"] == "response.failed"
        assert last["response"]["status"] == "failed"
        events = [json.loads(line.removeprefix(b"data: ")) for line in lines if line.startswith(b"data: ")]
        assert events[0]["type"] == "response.created"
        assert events[-2]["type"] == "error"
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        return last["response"]["error"]["message"]
    assert DONE not in answer.body
    return last["error"]["message"]


async def end_early(call: Call) -> None:
    await call.write(STREAM_HEAD, chunk(text_token("Hel", call.head)), LAST_CHUNK)


async def break_off(call: Call) -> None:
    await call.write(STREAM_HEAD, chunk(text_token("Hel", call.head)))
    call.reset()


async def tell_error(call: Call) -> None:
    error = b'data: {"error":{"code":500,"message":"Context size has been exceeded.","type":"server_error"}}\n\n'
    await call.write(STREAM_HEAD, chunk(text_token("Hel", call.head)), chunk(error), LAST_CHUNK)


@pytest.mark.parametrize("name", STREAMS)
async def test_a_stream_that_breaks_ends_with_an_error_in_its_own_format(name: str) -> None:
    path, body = STREAMS[name]
    for script, words in ((end_early, "no end mark"), (break_off, "ended the answer early"), (tell_error, "exceeded")):
        async with ScriptedEngine(script) as engine, running_gateway(engine.target()) as gateway:
            async with connected(gateway) as client:
                await ask(client, path, body)
                answer = await client.read_answer()
                assert answer.status == 200
                assert b"Hel" in answer.body
                assert words in read_error(name, answer)
            assert gateway.in_flight == 0


@pytest.mark.parametrize("name", WHOLE)
async def test_an_answer_that_breaks_is_a_502_for_a_client_without_a_stream(name: str) -> None:
    path, body = WHOLE[name]
    for script in (end_early, break_off, tell_error):
        async with ScriptedEngine(script) as engine, running_gateway(engine.target()) as gateway:
            async with connected(gateway) as client:
                await ask(client, path, body)
                answer = await client.read_answer()
                assert answer.status == 502
                assert engine.calls[0].content["stream"] is True
            assert gateway.in_flight == 0


@pytest.mark.parametrize("name", [name for name in STREAMS if not name.startswith("ollama")])
async def test_a_stream_that_waits_for_its_first_token_is_kept_alive(name: str) -> None:
    path, body = STREAMS[name]
    beat = b'event: ping\ndata: {"type":"ping"}\n\n' if name == "messages" else b": keep-alive\n\n"

    async def wait(call: Call) -> None:
        await eventually(lambda: may_go_on)
        await call.write(STREAM_HEAD, chunk(text_token("Hi", call.head)), chunk(DONE), LAST_CHUNK)

    may_go_on = False
    async with (
        ScriptedEngine(wait) as engine,
        running_gateway(engine.target()) as gateway,
        connected(gateway) as client,
    ):
        await ask(client, path, body)
        await eventually(lambda: len(engine.calls) == 1)
        gateway.pass_time(5)
        gateway.pass_time(11)
        assert (await client.read_head())[0] == 200
        assert await client.read_chunk() == beat
        may_go_on = True
        rest = b""
        while piece := await client.read_chunk():
            rest += piece
        assert b"Hi" in rest
        assert beat not in rest


@pytest.mark.parametrize("name", [name for name in STREAMS if not name.startswith("ollama")])
async def test_an_engine_that_refuses_after_the_head_was_sent_is_told_in_the_stream(name: str) -> None:
    async def refuse_late(call: Call) -> None:
        await eventually(lambda: may_go_on)
        await call.refuse(503, b'{"error":{"message":"no room"}}')

    may_go_on = False
    async with (
        ScriptedEngine(refuse_late) as engine,
        running_gateway(engine.target()) as gateway,
        connected(gateway) as client,
    ):
        await ask(client, *STREAMS[name])
        await eventually(lambda: len(engine.calls) == 1)
        gateway.pass_time(11)
        may_go_on = True
        answer = await client.read_answer()
        assert answer.status == 200
        assert "no room" in read_error(name, answer)


@pytest.mark.parametrize("name", [*STREAMS])
@pytest.mark.parametrize("is_stream", [True, False])
async def test_a_client_that_leaves_closes_the_engines_connection_within_a_second(name: str, is_stream: bool) -> None:
    async def decode(call: Call) -> None:
        await call.write(STREAM_HEAD, chunk(text_token("Hel", call.head)))
        gone.append(await call.wait_gone())

    gone: list[float] = []
    path, body = STREAMS[name] if is_stream else WHOLE[name]
    async with (
        ScriptedEngine(decode) as engine,
        running_gateway(engine.target()) as gateway,
        connected(gateway) as client,
    ):
        await ask(client, path, body)
        await eventually(lambda: len(engine.calls) == 1)
        client.leave()
        await eventually(lambda: bool(gone))
        assert gateway.in_flight == 0


# Tool calls as engines number them


def calls_chunk(*calls: dict[str, Any], finish: str | None = None) -> bytes:
    one = {"index": 0, "delta": {"tool_calls": list(calls)} if calls else {}, "finish_reason": finish}
    return b"data: " + json.dumps({"id": "c1", "created": 1, "choices": [one]}).encode() + b"\n\n"


def function(name: str | None = None, arguments: str = "") -> dict[str, Any]:
    return {"arguments": arguments} | ({"name": name} if name else {})


# Each is how an engine has been seen to write the same two calls.
NUMBERINGS: dict[str, list[bytes]] = {
    # llama-server at 7e4c0a9, captured: index always, id on the first delta only.
    "llama-server": [
        calls_chunk({"index": 0, "id": "a", "type": "function", "function": function("f")}),
        calls_chunk({"index": 0, "function": function(None, '{"x":')}),
        calls_chunk({"index": 0, "function": function(None, "1}")}),
        calls_chunk({"index": 1, "id": "b", "type": "function", "function": function("g", "{}")}),
    ],
    # ollama/ollama#7881: no index at all.
    "without an index": [
        calls_chunk({"id": "a", "type": "function", "function": function("f", '{"x":1}')}),
        calls_chunk({"id": "b", "type": "function", "function": function("g", "{}")}),
    ],
    # BerriAI/litellm#33678: every call has the index 0.
    "all at zero": [
        calls_chunk({"index": 0, "id": "a", "type": "function", "function": function("f", '{"x":1}')}),
        calls_chunk({"index": 0, "id": "b", "type": "function", "function": function("g", "{}")}),
    ],
    # openai/codex#7517 is about the id being on the first delta only: here it is on each.
    "an id on each delta": [
        calls_chunk({"index": 0, "id": "a", "type": "function", "function": function("f", '{"x":')}),
        calls_chunk({"index": 0, "id": "a", "type": "function", "function": function(None, "1}")}),
        calls_chunk({"index": 1, "id": "b", "type": "function", "function": function("g", "{}")}),
    ],
}
EXPECTED: list[tuple[str, dict[str, Any]]] = [("f", {"x": 1}), ("g", {})]


@pytest.mark.parametrize("numbering", NUMBERINGS)
async def test_parallel_calls_are_two_in_every_format_however_an_engine_numbers_them(numbering: str) -> None:
    async def call_both(call: Call) -> None:
        pieces = [chunk(one) for one in (*NUMBERINGS[numbering], calls_chunk(finish="tool_calls"), DONE)]
        await call.write(STREAM_HEAD, *pieces, LAST_CHUNK)

    async with ScriptedEngine(call_both) as engine, running_gateway(engine.target()) as gateway:

        async def asked(path: str, body: dict[str, Any]) -> Answer:
            async with connected(gateway) as client:
                await ask(client, path, body)
                return await client.read_answer()

        chat = await asked(*STREAMS["chat"])
        deltas = [one for event in chat.events[:-1] for one in event["choices"][0]["delta"].get("tool_calls", [])]
        for index, (name, arguments) in enumerate(EXPECTED):
            own = [one for one in deltas if one["index"] == index]
            assert [one.get("id") for one in own] == [["a", "b"][index], *[None] * (len(own) - 1)]
            assert own[0]["function"]["name"] == name
            assert json.loads("".join(one["function"]["arguments"] for one in own)) == arguments
        whole = (await asked(*WHOLE["chat"])).content["choices"][0]["message"]["tool_calls"]
        assert [(one["id"], one["function"]["name"]) for one in whole] == [("a", "f"), ("b", "g")]
        message = (await asked(*WHOLE["messages"])).content
        assert [(one["name"], one["input"]) for one in message["content"]] == EXPECTED
        assert message["stop_reason"] == "tool_use"
        items = (await asked(*WHOLE["responses"])).content["output"]
        assert [(one["name"], json.loads(one["arguments"])) for one in items] == EXPECTED
        lines = (await asked(*STREAMS["ollama chat"])).body.strip().split(b"\n")
        told = [one["function"] for line in lines for one in json.loads(line)["message"].get("tool_calls", [])]
        assert [(one["name"], one["arguments"]) for one in told] == EXPECTED


async def test_thinking_is_kept_apart_in_every_format() -> None:
    """The chunks are llama-server's own for a model that thinks: reasoning first, in `reasoning_content`."""

    async def think(call: Call) -> None:
        thought = token("", delta={"reasoning_content": "Hm."})
        await call.write(STREAM_HEAD, chunk(thought), chunk(token("Yes.")), chunk(DONE), LAST_CHUNK)

    async with ScriptedEngine(think) as engine, running_gateway(engine.target()) as gateway:

        async def asked(path: str, body: dict[str, Any]) -> Any:
            async with connected(gateway) as client:
                await ask(client, path, body)
                return (await client.read_answer()).content

        message = (await asked(*WHOLE["chat"]))["choices"][0]["message"]
        assert (message["reasoning_content"], message["content"]) == ("Hm.", "Yes.")
        thinking, text = (await asked(*WHOLE["messages"]))["content"]
        assert (thinking["type"], thinking["thinking"], text["text"]) == ("thinking", "Hm.", "Yes.")
        reasoning, answer = (await asked(*WHOLE["responses"]))["output"]
        assert (reasoning["type"], reasoning["content"][0]["text"]) == ("reasoning", "Hm.")
        assert answer["content"][0]["text"] == "Yes."
        told = (await asked(*WHOLE["ollama chat"]))["message"]
        assert (told["thinking"], told["content"]) == ("Hm.", "Yes.")
