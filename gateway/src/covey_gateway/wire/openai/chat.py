"""A chat completions request: its top level is decoded, the values stay bytes, and it is joined again.

Joining again always, also when nothing was changed, costs a microsecond and closes a gap: two parsers that read a
repeated or escaped key differently. Of `messages` only roles and kinds of content are looked at; parts are read where
there are any. Whether the model takes images, and whether their URLs are fetched, is asked once it is known (`media`).
"""

from typing import Any

import msgspec
from covey_api.reasons import ErrorCode

from covey_gateway.limits import MAX_SCHEMA_BYTES
from covey_gateway.wire.body import (
    Fields,
    Unknown,
    check_kinds,
    decode_object,
    first_byte,
    is_object,
    read_count,
    read_flag,
    read_model,
    read_struct,
    read_value,
    take_unknown,
)
from covey_gateway.wire.errors import ApiError, invalid_request
from covey_gateway.wire.openai.answer import ChatAnswer
from covey_gateway.wire.openai.fields import CHAT_FIELDS, CHAT_KINDS, ENUMS, READ, REFUSED, SCHEMAS
from covey_gateway.wire.openai.passed import PassedChat, PassedChoices
from covey_gateway.wire.openai.patterns import find_wild_pattern
from covey_gateway.wire.openai.references import find_wild_reference
from covey_gateway.wire.openai.tools import choose_tools
from covey_gateway.wire.request import WITH_USAGE, Call, Request

PATH = "/v1/chat/completions"

STREAM_OPTIONS = frozenset(("include_usage", "include_obfuscation", "continuous_usage_stats"))
ROLES = frozenset(("system", "developer", "user", "assistant", "tool", "function"))
_DECODED = frozenset((*CHAT_FIELDS, *REFUSED))
_TEXT_PARTS = frozenset(("text", "refusal"))
_ANY = msgspec.json.Decoder()


class _Message(msgspec.Struct):
    role: str
    content: msgspec.Raw = msgspec.Raw(b"null")


class _ImageUrl(msgspec.Struct):
    url: str


class _Part(msgspec.Struct):
    type: str
    image_url: _ImageUrl | str | None = None


_MESSAGES = msgspec.json.Decoder(list[_Message])
_PARTS = msgspec.json.Decoder(list[_Part])


def parse_chat(body: bytes) -> Request | ApiError:
    """The request, or the first thing that is wrong with it.

    1. A JSON object; a refused key says why. Unknown ones are the model's to pass.
    2. `model` a string, every value of its kind.
    3. `messages` an array of messages that isn't empty; what they have beside text.
    4. `stream` a boolean; `stream_options` only with it, and only with what is known.
    5. `max_tokens`, `max_completion_tokens` and `n` whole numbers above zero; the smaller length counts.
    6. Tools that are chosen are there. No pattern in a JSON schema that would hang the engine.
    """
    fields = decode_object(body, _DECODED)
    if isinstance(fields, ApiError):
        return fields
    unknown = take_unknown(fields, CHAT_FIELDS, REFUSED, "chat completions")
    if isinstance(unknown, ApiError):
        return unknown
    model = read_model(fields)
    if isinstance(model, ApiError):
        return model
    return _parse_fields(fields, model, unknown)


def _parse_fields(fields: Fields, model: str, unknown: Unknown) -> Request | ApiError:
    if (error := check_kinds(fields, CHAT_KINDS) or _check_enums(fields)) is not None:
        return error
    media = check_messages(fields.get("messages"))
    if isinstance(media, ApiError):
        return media
    wants_stream = read_flag(fields, "stream")
    if isinstance(wants_stream, ApiError):
        return wants_stream
    options = read_stream_options(fields, wants_stream)
    if isinstance(options, ApiError):
        return options
    max_tokens = _read_max_tokens(fields)
    if isinstance(max_tokens, ApiError):
        return max_tokens
    n = read_count(fields, "n")
    if isinstance(n, ApiError):
        return n
    is_single = n is None or n == 1
    if (error := choose_tools(fields) or check_schemas(fields, SCHEMAS)) is not None:
        return error
    sent: dict[str, Any] = {"messages": fields["messages"]}
    sent.update((name, value) for name, value in fields.items() if name not in READ)
    if options is not None:
        sent["stream_options"] = options
    sent |= unknown.fields
    withholds_usage = wants_stream and not asks_usage(options)
    return Request(
        Call.CHAT,
        model,
        sent,
        (PassedChat if is_single else PassedChoices) if wants_stream else ChatAnswer,
        wants_stream,
        max_tokens,
        media,
        unknown=unknown.error,
        withholds_usage=withholds_usage,
        is_single=is_single,
        limit_field="max_tokens" if "max_tokens" in fields else "max_completion_tokens",
    )


def asks_usage(options: msgspec.Raw | None) -> bool:
    return options is not None and _ANY.decode(options).get("include_usage") is True


def check_passed(unknown: Unknown) -> Fields | ApiError:
    """What another format doesn't know and chat completions may: it is what it must be there."""
    fields = unknown.fields
    return check_kinds(fields, CHAT_KINDS) or _check_enums(fields) or check_schemas(fields, SCHEMAS) or fields


def _check_enums(fields: Fields) -> ApiError | None:
    for name, values in ENUMS.items():
        if name in fields and (value := read_value(fields, name)) not in values:
            listed = ", ".join(f"'{one}'" for one in values)
            return invalid_request(f"`{name}` must be one of {listed}; got '{str(value)[:64]}'", name)
    return None


def check_messages(raw: msgspec.Raw | None) -> str | ApiError:
    """Where the first image is, empty if there is none; or what is wrong."""
    if raw is None or first_byte(raw) != b"[":
        return invalid_request("`messages` must be an array with at least one message", "messages")
    messages = read_struct(raw, "messages", _MESSAGES)
    if isinstance(messages, ApiError):
        return messages
    if not messages:
        return invalid_request("`messages` must be an array with at least one message", "messages")
    media = ""
    for index, message in enumerate(messages):
        found = _check_message(message, index)
        if isinstance(found, ApiError):
            return found
        media = media or found
    return media


def _check_message(message: _Message, index: int) -> str | ApiError:
    if message.role not in ROLES:
        listed = ", ".join(f"'{role}'" for role in sorted(ROLES))
        words = f"`messages[{index}].role` must be one of {listed}; got '{message.role[:64]}'"
        return invalid_request(words, "messages")
    first = first_byte(message.content)
    if first in (b'"', b"n"):
        return ""
    if first != b"[":
        return invalid_request(f"`messages[{index}].content` must be a string or an array of parts", "messages")
    parts = read_struct(message.content, f"messages[{index}].content", _PARTS)
    if isinstance(parts, ApiError):
        return parts
    media = ""
    for number, part in enumerate(parts):
        if part.type in _TEXT_PARTS:
            continue
        place = f"messages[{index}].content[{number}]"
        if part.type != "image_url":
            words = f"`{place}.type` must be 'text' or 'image_url' here; got '{part.type[:64]}'"
            return ApiError(400, ErrorCode.UNSUPPORTED_FIELD, words, "messages")
        url = part.image_url.url if isinstance(part.image_url, _ImageUrl) else part.image_url
        if (error := check_image_url(url, place)) is not None:
            return error
        media = media or place
    return media


def check_image_url(url: str | None, place: str) -> ApiError | None:
    """That there is one. Which, is looked at in what an engine gets (`media`), if the model takes images."""
    return None if url else invalid_request(f"`{place}` must have an image's URL", "messages")


def read_stream_options(fields: Fields, wants_stream: bool) -> msgspec.Raw | ApiError | None:
    """What the engine is asked for. An answer that is put together here is always counted."""
    options = read_value(fields, "stream_options")
    if options is None:
        return None if wants_stream else WITH_USAGE
    if isinstance(options, ApiError):
        return options
    if not is_object(options):
        return invalid_request("`stream_options` must be an object", "stream_options")
    if not wants_stream:
        return invalid_request("`stream_options` is only taken when `stream` is true", "stream_options")
    for name, value in options.items():
        if name not in STREAM_OPTIONS:
            words = f"`stream_options.{name[:64]}` is not taken"
            return ApiError(400, ErrorCode.UNSUPPORTED_FIELD, words, "stream_options")
        if not isinstance(value, bool | None):
            return invalid_request(f"`stream_options.{name}` must be true or false", "stream_options")
    return fields["stream_options"]


def check_schemas(fields: Fields, names: tuple[str, ...]) -> ApiError | None:
    for name in names:
        raw = fields.get(name)
        if raw is not None and memoryview(raw).nbytes > MAX_SCHEMA_BYTES:
            return invalid_request(f"`{name}` must have at most {MAX_SCHEMA_BYTES} bytes", name)
        # The keys may be written with escapes; most schemas have none of them.
        text = b"" if raw is None else bytes(raw)
        if not any(each in text for each in (b"pattern", b"$ref", b"\\u")):
            continue
        value = read_value(fields, name)
        if isinstance(value, ApiError):
            return value
        if (words := find_wild_pattern(value) or find_wild_reference(value)) is not None:
            return invalid_request(f"`{name}`: {words}", name)
    return None


def _read_max_tokens(fields: Fields) -> int | ApiError | None:
    smallest: int | None = None
    for name in ("max_tokens", "max_completion_tokens"):
        found = read_count(fields, name)
        if isinstance(found, ApiError):
            return found
        if found is not None:
            smallest = found if smallest is None else min(smallest, found)
    return smallest
