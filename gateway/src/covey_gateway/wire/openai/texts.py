"""The older completions: a prompt in, text out; also of several prompts and with several choices.

llama-server writes the usage of each choice with its last piece, numbers of one choice alone for all of them, `null`
for an empty event, and log probabilities in the chat's shape. Clients get OpenAI's: one sum, in a chunk without choices
where it was asked for, and the older shape of log probabilities.
"""

from typing import Any, cast

import msgspec

from covey_gateway.limits import MAX_ANSWER_BYTES
from covey_gateway.wire.body import (
    check_kinds,
    check_texts,
    decode_object,
    is_array,
    is_object,
    read_count,
    read_flag,
    read_model,
    take_unknown,
)
from covey_gateway.wire.chunks import count, count_within
from covey_gateway.wire.errors import ApiError, ensure, refusing
from covey_gateway.wire.openai.chat import asks_usage, check_passed, check_schemas, read_stream_options
from covey_gateway.wire.openai.errors import engine_failed, render_error_event, translate_event_error
from covey_gateway.wire.openai.fields import CHAT_KINDS, TEXT_FIELDS
from covey_gateway.wire.openai.fields import REFUSED as CHAT_REFUSED
from covey_gateway.wire.request import WITH_USAGE, Call, Request, Teller
from covey_gateway.wire.sse import DONE, split_data

PATH = "/v1/completions"

REFUSED = {name: words for name, words in CHAT_REFUSED.items() if name != "prompt"} | {
    "echo": "the prompt is the client's own; only what follows it is answered",
    "suffix": "no engine here fills in the middle by this call",
    "best_of": "use `n`, and choose",
    "messages": "use `prompt`, or /v1/chat/completions",
}
_READ = frozenset(("model", "stream", "stream_options", "max_tokens"))
_DECODED = frozenset((*TEXT_FIELDS, *REFUSED))
KINDS = CHAT_KINDS | {"logprobs": "number"}


@refusing
def parse_completion(body: bytes) -> Request | ApiError:
    fields = ensure(decode_object(body, _DECODED))
    unknown = ensure(take_unknown(fields, TEXT_FIELDS, REFUSED, "completions"))
    ensure(check_kinds(fields, KINDS))
    model, wants_stream = ensure(read_model(fields)), ensure(read_flag(fields, "stream"))
    max_tokens, n = ensure(read_count(fields, "max_tokens", 0)), ensure(read_count(fields, "n")) or 1
    ensure(check_texts(fields, "prompt") or check_schemas(fields, ("json_schema",)))
    options = ensure(read_stream_options(fields, wants_stream))
    with_usage = asks_usage(options)
    sent: dict[str, Any] = {name: value for name, value in fields.items() if name not in _READ}
    sent |= {"stream_options": WITH_USAGE, **ensure(check_passed(unknown))}

    def make_teller(name: str) -> Teller:
        return TextStream(name, n, with_usage) if wants_stream else TextAnswer(name, n)

    return Request(
        Call.COMPLETION,
        model,
        sent,
        make_teller,
        wants_stream,
        max_tokens,
        unknown=unknown.error,
        n=n,
        is_single=False,
        prompt_field="prompt",
    )


def read_texts(events: bytes, model: str) -> list[dict[str, Any]] | ApiError:
    """The chunks of whole events."""
    chunks: list[dict[str, Any]] = []
    for data in split_data(events):
        if data in (DONE, b"null"):
            continue
        try:
            chunk: Any = msgspec.json.decode(data)
        except (msgspec.DecodeError, RecursionError):
            return engine_failed(model, "it wrote no text chunk")
        if not is_object(chunk):
            return engine_failed(model, "it wrote no text chunk")
        if chunk.get("error") is not None:
            return translate_event_error(data, model) or engine_failed(model, "it wrote an error")
        chunks.append(chunk)
    return chunks


class _Sum:
    """The usage of all choices. Those of one prompt share it: it is counted once, however many (`n`) follow it.

    llama-server tells it of each choice by itself; vLLM of all together, with each prompt counted once already.
    """

    def __init__(self, n: int) -> None:
        self._n = n
        self._told = self._prompt = self._cached = self._completion = 0

    def add(self, usage: Any) -> None:
        if is_object(usage):
            self._told += 1
            self._prompt += count(usage, "prompt_tokens")
            self._cached += count_within(usage, "prompt_tokens_details", "cached_tokens")
            self._completion += count(usage, "completion_tokens")

    def render(self) -> dict[str, Any]:
        shares = self._n if self._told > 1 else 1
        prompt = self._prompt // shares
        return {
            "prompt_tokens": prompt,
            "completion_tokens": self._completion,
            "total_tokens": prompt + self._completion,
            "prompt_tokens_details": {"cached_tokens": min(self._cached // shares, prompt)},
        }


def _render_head(chunk: dict[str, Any], model: str) -> dict[str, Any]:
    head = {
        "id": "cmpl-" + str(chunk.get("id") or "0").removeprefix("chatcmpl-").removeprefix("cmpl-"),
        "object": "text_completion",
        "created": chunk.get("created") or 0,
        "model": model,
    }
    fingerprint = chunk.get("system_fingerprint")
    return head | ({"system_fingerprint": fingerprint} if fingerprint is not None else {})


_OLDER = ("tokens", "token_logprobs", "top_logprobs", "text_offset")


def _render_logprobs(found: Any, offset: int) -> dict[str, Any] | None:
    """The older shape, of the chat's; vLLM's has it already."""
    if not is_object(found):
        return None
    content = found.get("content")
    if not is_array(content):
        return found
    entries = cast("list[dict[str, Any]]", content)
    offsets: list[int] = []
    for entry in entries:
        offsets.append(offset)
        offset += len(entry["token"])
    return {
        "tokens": [entry["token"] for entry in entries],
        "token_logprobs": [entry["logprob"] for entry in entries],
        "top_logprobs": [{one["token"]: one["logprob"] for one in entry["top_logprobs"]} for entry in entries],
        "text_offset": offsets,
    }


class TextStream:
    def __init__(self, model: str, n: int, with_usage: bool) -> None:
        self._model = model
        self._with_usage = with_usage
        self._usage = _Sum(n)
        self._head: dict[str, Any] = {}
        self._offsets: dict[int, int] = {}

    def take(self, events: bytes) -> bytes | ApiError:
        chunks = read_texts(events, self._model)
        if isinstance(chunks, ApiError):
            return chunks
        pieces: list[bytes] = []
        for chunk in chunks:
            self._head = self._head or _render_head(chunk, self._model)
            self._usage.add(chunk.get("usage"))
            if chunk.get("choices"):
                pieces.append(self._event([self._render(choice) for choice in chunk["choices"]]))
        return b"".join(pieces)

    def end(self) -> bytes:
        usage = self._event([], usage=self._usage.render()) if self._with_usage else b""
        return usage + b"data: [DONE]\n\n"

    def fail(self, error: ApiError) -> bytes:
        return render_error_event(error)

    def _event(self, choices: list[Any], **more: Any) -> bytes:
        return b"data: %b\n\n" % msgspec.json.encode(self._head | {"choices": choices} | more)

    def _render(self, choice: dict[str, Any]) -> dict[str, Any]:
        index, text = choice.get("index", 0), choice.get("text") or ""
        offset = self._offsets.get(index, 0)
        self._offsets[index] = offset + len(text)
        return {
            "text": text,
            "index": index,
            "logprobs": _render_logprobs(choice.get("logprobs"), offset),
            "finish_reason": choice.get("finish_reason"),
        }


class TextAnswer:
    def __init__(self, model: str, n: int) -> None:
        self._model = model
        self._usage = _Sum(n)
        self._head: dict[str, Any] = {}
        self._texts: dict[int, list[str]] = {}
        self._logprobs: dict[int, dict[str, list[Any]]] = {}
        self._finish: dict[int, str] = {}
        self._total_bytes = 0

    def take(self, events: bytes) -> bytes | ApiError:
        self._total_bytes += len(events)
        if self._total_bytes > MAX_ANSWER_BYTES:
            return engine_failed(self._model, f"its answer is longer than {MAX_ANSWER_BYTES} bytes; ask for a stream")
        chunks = read_texts(events, self._model)
        if isinstance(chunks, ApiError):
            return chunks
        for chunk in chunks:
            self._head = self._head or _render_head(chunk, self._model)
            self._usage.add(chunk.get("usage"))
            for choice in chunk.get("choices") or ():
                self._add(choice)
        return b""

    def _add(self, choice: dict[str, Any]) -> None:
        index = choice.get("index", 0)
        self._texts.setdefault(index, []).append(choice.get("text") or "")
        if is_object(found := choice.get("logprobs")):
            kept = self._logprobs.setdefault(index, {})
            for name in ("content", *_OLDER):
                if is_array(entries := found.get(name)):
                    kept.setdefault(name, []).extend(entries)
        if choice.get("finish_reason"):
            self._finish[index] = choice["finish_reason"]

    def end(self) -> bytes:
        choices = [self._render(index) for index in sorted(self._texts)]
        return msgspec.json.encode(self._head | {"choices": choices, "usage": self._usage.render()})

    def _render(self, index: int) -> dict[str, Any]:
        found = self._logprobs.get(index)
        return {
            "text": "".join(self._texts[index]),
            "index": index,
            "logprobs": _render_logprobs(found, 0) if found else None,
            "finish_reason": self._finish.get(index, "stop"),
        }

    def fail(self, error: ApiError) -> bytes:
        return render_error_event(error)
