"""Whole exchanges held against the published documents and the SDKs' own types, event by event.

The SDKs build their objects without looking; here their types look, strictly. Ollama has no document that clients are
made from: its SDK's types are all there is.
"""

import base64
import struct
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import cache
from typing import Annotated, Any, get_args, get_origin

import anthropic.types
import ollama
import openai.types
import openai.types.chat
import openai.types.responses
import pydantic
from covey_gateway.wire.body import is_object
from kit.published import published
from kit.wiretap import Exchange, Wiretap, read_events, tapped

ANSWERS: dict[str, Any] = {
    "/v1/chat/completions": openai.types.chat.ChatCompletion,
    "/v1/completions": openai.types.Completion,
    "/v1/responses": openai.types.responses.Response,
    "/v1/embeddings": openai.types.CreateEmbeddingResponse,
    "/v1/messages": anthropic.types.Message,
    "/v1/messages/count_tokens": anthropic.types.MessageTokensCount,
    "/api/chat": ollama.ChatResponse,
    "/api/generate": ollama.GenerateResponse,
    "/api/embed": ollama.EmbedResponse,
    "/api/embeddings": ollama.EmbeddingsResponse,
    "/api/show": ollama.ShowResponse,
    "/api/tags": ollama.ListResponse,
    "/api/ps": ollama.ProcessResponse,
    "/api/pull": ollama.ProgressResponse,
}
EVENTS: dict[str, Any] = {
    "/v1/chat/completions": openai.types.chat.ChatCompletionChunk,
    "/v1/completions": openai.types.Completion,
    "/v1/responses": openai.types.responses.ResponseStreamEvent,
    "/v1/messages": anthropic.types.RawMessageStreamEvent,
}
ENDS = {"message_stop", "error"}
LAST = {"response.completed", "response.incomplete", "response.failed"}


@cache
def adapter(kind: Any) -> pydantic.TypeAdapter[Any]:
    return pydantic.TypeAdapter(kind)


@asynccontextmanager
async def conforming(port: int) -> AsyncGenerator[Wiretap]:
    """Another port of the gateway; AssertionError at the end for what went over it and isn't as published."""
    async with tapped(port) as tap:
        yield tap
    exchanges = tap.read()
    assert exchanges, "nothing was asked"
    found = [f"{each.method} {each.path} {each.status}: {words}" for each in exchanges for words in explain(each)]
    assert found == [], "\n".join(dict.fromkeys(found))


def explain(one: Exchange) -> list[str]:
    """What is wrong with an answer; nothing, in a good one."""
    path = one.path.removeprefix("/ollama")
    if path.startswith("/v1/cancel"):
        return []
    if path.startswith("/api"):
        return explain_lines(path, one)
    protocol = "anthropic" if "anthropic-version" in one.request_headers else "openai"
    if one.status != 200:
        return published(protocol).check("ErrorResponse", read_json(one.body))
    if one.kind == "text/event-stream":
        return explain_stream(path, protocol, read_events(one.body))
    content = read_json(one.body)
    return explain_answer(path, protocol, one.method, content)


def explain_answer(path: str, protocol: str, method: str, content: Any) -> list[str]:
    if path == "/v1/embeddings":
        unpack(content)
    models = {"openai": openai.types.Model, "anthropic": anthropic.types.ModelInfo}
    name = path if protocol == "anthropic" else path.removeprefix("/v1")
    if path.startswith("/v1/models/"):
        name = f"{name.rpartition('/')[0]}/{ {'openai': '{model}', 'anthropic': '{model_id}'}[protocol] }"
    schema = published(protocol).choose_answer(method, name, "application/json")
    words = published(protocol).check(schema, content)
    if path == "/v1/models":
        return words + [each for one in content["data"] for each in look(models[protocol], one)]
    return words + look(models[protocol] if path.startswith("/v1/models/") else ANSWERS[path], content)


def unpack(content: Any) -> None:
    """`encoding_format: base64`, which the SDKs ask for unasked; the document has numbers alone."""
    for each in content["data"]:
        if isinstance(each["embedding"], str):
            raw = base64.b64decode(each["embedding"], validate=True)
            each["embedding"] = list(struct.unpack(f"<{len(raw) // 4}f", raw))


def explain_stream(path: str, protocol: str, events: list[Any]) -> list[str]:
    found = [each for event in events if event != "[DONE]" for each in explain_event(path, protocol, event)]
    kinds: list[str] = [event.get("type", "") if is_object(event) else event for event in events]
    has_error = is_object(events[-1]) and "error" in events[-1]
    match path:
        case "/v1/responses":
            is_whole = kinds[0] == "response.created" and kinds[-1] in LAST and not LAST & set(kinds[:-1])
            is_whole = is_whole and [event["sequence_number"] for event in events] == list(range(len(events)))
        case "/v1/messages":
            is_whole = kinds[0] == "message_start" and kinds[-1] in ENDS and not ENDS & set(kinds[:-1])
        case _:
            is_whole = (kinds[-1] == "[DONE]") is not has_error and "[DONE]" not in kinds[:-1]
    return found if is_whole else [*found, f"the stream's order is wrong: {kinds}"]


def explain_event(path: str, protocol: str, event: Any) -> list[str]:
    document = published(protocol)
    if path == "/v1/messages" and event["type"] == "ping":
        return [] if event == {"type": "ping"} else ["a ping with more in it"]
    if path == "/v1/messages" and event["type"] == "error":
        return document.check("ErrorResponse", event)
    if path in ("/v1/chat/completions", "/v1/completions") and "error" in event:
        return document.check("ErrorResponse", event)
    unions = {"/v1/responses": "ResponseStreamEvent", "/v1/messages": "MessageStreamEvent"}
    if path in unions:
        schema = document.choose_event(unions[path], event)
    elif path == "/v1/completions":
        schema = "CreateCompletionResponse"
        for choice in event[
            "choices"
        ]:  # the document has one shape for whole answers and pieces; no piece has an end yet
            choice["finish_reason"] = choice["finish_reason"] or "stop"
    else:
        schema = document.choose_answer("post", "/chat/completions", "text/event-stream")
    return document.check(schema, event) + look(choose_type(EVENTS[path], event), event)


def choose_type(kind: Any, event: Any) -> Any:
    """The one of a union that has this `type`: its errors say more than the union's."""
    members = get_args(get_args(kind)[0]) if get_origin(kind) is Annotated else ()
    for member in members:
        if event["type"] in get_args(member.model_fields["type"].annotation):
            return member
    assert not members, f"the SDK has no event '{event['type']}'"
    return kind


def explain_lines(path: str, one: Exchange) -> list[str]:
    lines = [read_json(line) for line in one.body.split(b"\n") if line]
    found: list[str] = []
    for line in lines:
        if "error" in line:
            # And Covey's own code and the field at fault.
            is_error = isinstance(line["error"], str) and set(line) <= {"error", "code", "param", "loading"}
            found += [] if is_error else [f"no error of Ollama: {line}"]
        elif path in ANSWERS:
            found += look(ANSWERS[path], line)
    return found


def look(kind: Any, content: Any) -> list[str]:
    try:
        adapter(kind).validate_json(pydantic.TypeAdapter(Any).dump_json(content), strict=True)
    except pydantic.ValidationError as error:
        return [f"{getattr(kind, '__name__', 'event')} {each['loc']}: {each['msg']}" for each in error.errors()]
    return []


def read_json(body: bytes) -> Any:
    return pydantic.TypeAdapter(Any).validate_json(body)
