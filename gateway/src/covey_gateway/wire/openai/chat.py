"""A chat completions request: its top level is decoded, the values stay bytes, and it is joined again.

Joining again always, also when nothing was changed, costs a microsecond and closes a gap: two parsers that read a
repeated or escaped key differently.
"""

import difflib
from dataclasses import dataclass
from typing import Any

import msgspec
from covey_api.reasons import ErrorCode

from covey_gateway.limits import MAX_SCHEMA_BYTES
from covey_gateway.wire.errors import ApiError, invalid_request
from covey_gateway.wire.openai.fields import PASSED, READ, REFUSED, SCHEMAS
from covey_gateway.wire.openai.patterns import find_wild_pattern

PATH = "/v1/chat/completions"

_KNOWN = READ | PASSED
# Above this a body is first read against the known names alone, which stops at the first unknown one: a dict of the
# millions of keys that fit into the longest body takes seconds and a GiB.
_LARGE_BODY_BYTES = 256 * 1024
# Engines keep token counts in 32 bits.
_MAX_TOKENS = 2**31 - 1
_STREAM_OPTIONS = frozenset(("include_usage", "include_obfuscation", "continuous_usage_stats"))

_TOP_LEVEL = msgspec.json.Decoder(dict[str, msgspec.Raw])
_KNOWN_FIELDS = msgspec.json.Decoder(
    msgspec.defstruct(
        "KnownFields", [(name, msgspec.Raw, msgspec.Raw(b"")) for name in sorted(_KNOWN)], forbid_unknown_fields=True
    )
)
_KINDS: dict[type[Any], tuple[str, msgspec.json.Decoder[Any]]] = {
    str: ("a string", msgspec.json.Decoder(str | None)),
    bool: ("true or false", msgspec.json.Decoder(bool | None)),
    int: ("a whole number", msgspec.json.Decoder(int | None)),
    dict: ("an object", msgspec.json.Decoder(dict[str, Any] | None)),
}
_ANY = msgspec.json.Decoder()
_ENCODE = msgspec.json.Encoder().encode
_TRUE = msgspec.Raw(b"true")
# An engine whose answer is put together here is asked to count tokens.
_WITH_USAGE = msgspec.Raw(b'{"include_usage":true}')


@dataclass(frozen=True, slots=True)
class ChatRequest:
    model: str
    """As the client named it."""
    wants_stream: bool
    fields: dict[str, msgspec.Raw]
    """All others, `messages` first."""
    stream_options: msgspec.Raw | None
    max_tokens: int | None


def parse_chat(body: bytes) -> ChatRequest | ApiError:
    """The request, or the first thing that is wrong with it.

    1. A JSON object whose keys are all known; a refused one says why.
    2. `model` a string, `messages` an array that isn't empty.
    3. `stream` a boolean; `stream_options` only with it, and only with what is known.
    4. `max_tokens` and `max_completion_tokens` whole numbers above zero; the smaller counts.
    5. No pattern in a JSON schema that would hang the engine.
    """
    fields = _decode(body)
    if isinstance(fields, ApiError):
        return fields
    for name in fields:
        if name not in _KNOWN:
            return _refuse_field(name)
    model = _read(fields, "model", str)
    if isinstance(model, ApiError) or not model:
        return invalid_request("`model` must be a non-empty string; GET /v1/models lists what there is", "model")
    if (error := _check_messages(fields.get("messages"))) is not None:
        return error
    wants_stream = _read(fields, "stream", bool)
    if isinstance(wants_stream, ApiError):
        return wants_stream
    if (error := _check_stream_options(fields, wants_stream is True)) is not None:
        return error
    max_tokens = _read_max_tokens(fields)
    if isinstance(max_tokens, ApiError):
        return max_tokens
    if (error := _check_schemas(fields)) is not None:
        return error
    rest = {"messages": fields["messages"]}
    rest.update((name, value) for name, value in fields.items() if name not in READ)
    return ChatRequest(model, wants_stream is True, rest, fields.get("stream_options"), max_tokens)


def render_chat(request: ChatRequest, model: str) -> bytes:
    """The body for an engine. It is always asked for a stream: closing one is the only way to stop its decoding."""
    fields: dict[str, Any] = {"model": model, **request.fields, "stream": _TRUE}
    options = request.stream_options if request.wants_stream else _WITH_USAGE
    if options is not None:
        fields["stream_options"] = options
    if request.max_tokens is not None:
        fields["max_tokens"] = request.max_tokens
    return _ENCODE(fields)


def _decode(body: bytes) -> dict[str, msgspec.Raw] | ApiError:
    try:
        if len(body) > _LARGE_BODY_BYTES:
            _KNOWN_FIELDS.decode(body)
        return _TOP_LEVEL.decode(body)
    except msgspec.ValidationError as error:
        if "unknown field" in str(error):
            return _refuse_field(str(error).partition("`")[2].rpartition("`")[0])
        return invalid_request("the body must be a JSON object")
    except msgspec.DecodeError as error:
        return invalid_request(f"the body must be JSON: {error}")
    except RecursionError:
        return invalid_request("the body must be JSON that isn't nested this deeply")


def _refuse_field(name: str) -> ApiError:
    shown = name[:64]
    if name in REFUSED:
        words = f"`{shown}` is not taken: {REFUSED[name]}"
    else:
        close = difflib.get_close_matches(shown, sorted(_KNOWN), n=1)
        words = f"`{shown}` is no field that chat completions take here; " + (
            f"did you mean `{close[0]}`?" if close else "remove it"
        )
    return ApiError(400, ErrorCode.UNSUPPORTED_FIELD, words, shown)


def _read(fields: dict[str, msgspec.Raw], name: str, kind: type[Any]) -> Any:
    """The value, None when absent or null; ApiError when it is of another type."""
    raw = fields.get(name)
    if raw is None:
        return None
    words, decoder = _KINDS[kind]
    try:
        return decoder.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        return invalid_request(f"`{name}` must be {words}", name)


def _check_messages(raw: msgspec.Raw | None) -> ApiError | None:
    start = b"" if raw is None else bytes(memoryview(raw)[:64])
    if not start.startswith(b"[") or start[1:].lstrip().startswith(b"]"):
        return invalid_request("`messages` must be an array with at least one message", "messages")
    return None


def _check_stream_options(fields: dict[str, msgspec.Raw], wants_stream: bool) -> ApiError | None:
    options = _read(fields, "stream_options", dict)
    if isinstance(options, ApiError):
        return options
    if options is None:
        fields.pop("stream_options", None)
        return None
    if not wants_stream:
        return invalid_request("`stream_options` is only taken when `stream` is true", "stream_options")
    for name, value in options.items():
        if name not in _STREAM_OPTIONS:
            return ApiError(
                400, ErrorCode.UNSUPPORTED_FIELD, f"`stream_options.{name[:64]}` is not taken", "stream_options"
            )
        if not isinstance(value, bool | None):
            return invalid_request(f"`stream_options.{name}` must be true or false", "stream_options")
    return None


def _check_schemas(fields: dict[str, msgspec.Raw]) -> ApiError | None:
    for name in SCHEMAS:
        raw = fields.get(name)
        if raw is not None and memoryview(raw).nbytes > MAX_SCHEMA_BYTES:
            return invalid_request(f"`{name}` must have at most {MAX_SCHEMA_BYTES} bytes", name)
        # The key may be written with escapes; most schemas have neither.
        if raw is None or not (b"pattern" in (text := bytes(raw)) or b"\\u" in text):
            continue
        try:
            words = find_wild_pattern(_ANY.decode(raw))
        except (msgspec.DecodeError, RecursionError):
            return invalid_request(f"`{name}` must be JSON that isn't nested this deeply", name)
        if words is not None:
            return invalid_request(f"`{name}`: {words}", name)
    return None


def _read_max_tokens(fields: dict[str, msgspec.Raw]) -> int | ApiError | None:
    smallest: int | None = None
    for name in ("max_tokens", "max_completion_tokens"):
        count = _read(fields, name, int)
        if isinstance(count, ApiError):
            return count
        if count is None:
            continue
        if not 1 <= count <= _MAX_TOKENS:
            return invalid_request(f"`{name}` must be between 1 and {_MAX_TOKENS}; got {count}", name)
        smallest = count if smallest is None else min(smallest, count)
    return smallest
