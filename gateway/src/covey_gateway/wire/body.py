"""A request's body as far as every format reads it alike: valid JSON text, one object, its values still bytes.

The top level alone is decoded. What is below stays as it came, so what a strict engine would choke on is looked for in
the bytes: text that isn't UTF-8, and escapes of lone surrogates (no text, so no engine can take them). Decoding all of
a body instead was rejected: 64 MiB of JSON are a GiB of objects.
"""

import codecs
import difflib
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeGuard, cast

import msgspec
from covey_api.reasons import ErrorCode

from covey_gateway.wire.errors import ApiError, invalid_request
from covey_gateway.wire.nothing import asks_nothing

Fields = dict[str, msgspec.Raw]

# Above this a body is first read against the known names alone, which stops at the first unknown one: a dict of the
# millions of keys that fit into the longest body takes seconds and a GiB. An unknown one may be the model's to pass:
# it is read again with that, for as many names as this, and until so many bytes were read.
_LARGE_BODY_BYTES = 256 * 1024
_MOST_UNKNOWN = 16
_MOST_READ_BYTES = 256 * 1024 * 1024
_LONGEST_NAME = 256
# Text is checked in pieces of this size: a whole one as `str` takes four times its bytes.
_PIECE_BYTES = 1024 * 1024

_TOP_LEVEL = msgspec.json.Decoder(Fields)
_ANY = msgspec.json.Decoder()
_LOW = rb"\\u[dD][c-fC-F]"
# A run of backslashes is read from its start, so that an escaped one begins no escape.
_LONE_SURROGATE = re.compile(
    rb"(?<!\\)(?:\\\\)*(?:\\u[dD][89abAB]..(?!" + _LOW + rb")|(?<!\\u[dD][89abAB]..)" + _LOW + rb")", re.DOTALL
)

KINDS: Mapping[str, tuple[str, bytes]] = {
    "string": ("a string", b'"'),
    "number": ("a number", b"-0123456789"),
    "boolean": ("true or false", b"tf"),
    "array": ("an array", b"["),
    "object": ("an object", b"{"),
    "strings": ("a string or an array of strings", b'"['),
}
"""What a value's first byte tells."""


def decode_object(body: bytes, known: frozenset[str]) -> Fields | ApiError:
    """The top level of a JSON object. Of a large body with too many names that aren't `known`, the first is all of it.

    `known` has the names that are refused, too: they may ask for nothing, however large the body is.
    """
    if (error := check_text(body)) is not None:
        return error
    try:
        if len(body) > _LARGE_BODY_BYTES and (name := _find_crowd(body, known)) is not None:
            return {name: msgspec.Raw(b"null")}
        return _TOP_LEVEL.decode(body)
    except msgspec.ValidationError:
        return invalid_request("the body must be a JSON object")
    except msgspec.DecodeError as error:
        return invalid_request(f"the body must be JSON: {error}")
    except RecursionError:
        return invalid_request("the body must be JSON that isn't nested this deeply")


def _find_crowd(body: bytes, known: frozenset[str]) -> str | None:
    """The first name that isn't known, where more aren't than are read."""
    decoder, unknown = _decoder_of(known), list[str]()
    for _ in range(1 + min(_MOST_UNKNOWN, _MOST_READ_BYTES // len(body))):
        name = _find_unknown(body, decoder)
        if name is None:
            return None
        unknown.append(name)
        if len(name) > _LONGEST_NAME or not name.isprintable() or {"\\", '"'} & set(name):
            break
        decoder = _build_decoder((*known, *unknown))
    return unknown[0]


def _find_unknown(body: bytes, decoder: msgspec.json.Decoder[Any]) -> str | None:
    try:
        decoder.decode(body)
    except msgspec.ValidationError as error:
        if "unknown field" not in str(error):
            raise
        return str(error).partition("`")[2].rpartition("`")[0]
    return None


@lru_cache(maxsize=16)  # one a format and call
def _decoder_of(known: frozenset[str]) -> msgspec.json.Decoder[Any]:
    return _build_decoder(known)


def _build_decoder(names: Collection[str]) -> msgspec.json.Decoder[Any]:
    renamed = {f"field_{number}": name for number, name in enumerate(names)}
    fields = [(name, msgspec.Raw, msgspec.Raw(b"")) for name in renamed]
    struct = msgspec.defstruct("KnownFields", fields, forbid_unknown_fields=True, rename=renamed)
    return msgspec.json.Decoder(struct)


def check_text(body: bytes) -> ApiError | None:
    """What is wrong with the text that JSON is written in."""
    if not body.isascii() and not _is_utf8(body):
        return invalid_request("the body must be text in UTF-8; it has bytes that are none")
    if b"\\u" in body and (b"\\ud" in body or b"\\uD" in body) and _LONE_SURROGATE.search(body) is not None:
        return invalid_request("the body must have no lone surrogates: `\\ud800` to `\\udfff` come in pairs")
    return None


def _is_utf8(body: bytes) -> bool:
    decoder = codecs.getincrementaldecoder("utf-8")()
    view = memoryview(body)
    try:
        for start in range(0, len(body), _PIECE_BYTES):
            decoder.decode(view[start : start + _PIECE_BYTES])
        decoder.decode(b"", True)
    except UnicodeDecodeError:
        return False
    return True


def refuse_field(name: str, refused: Mapping[str, str], known: Iterable[str], call: str) -> ApiError:
    """Why a field isn't taken, or which one was meant."""
    shown = name[:64]
    if name in refused:
        words = f"`{shown}` is not taken: {refused[name]}"
    else:
        close = difflib.get_close_matches(shown, sorted(known), n=1)
        words = f"`{shown}` is no field that {call} take here; " + (
            f"did you mean `{close[0]}`?" if close else "remove it"
        )
    return ApiError(400, ErrorCode.UNSUPPORTED_FIELD, words, shown)


@dataclass(frozen=True, slots=True)
class Unknown:
    """What of a request nobody here knows, and why it is refused unless the model passes that."""

    fields: Fields
    error: ApiError | None


def take_unknown(fields: Fields, known: Collection[str], refused: Mapping[str, str], call: str) -> Unknown | ApiError:
    """The fields that aren't known, out of `fields`. ApiError: the request is refused whatever the model says.

    What is refused may be there and ask for nothing (`nothing`).

    The fields of a large body with too many unknown names are one such alone, so it is refused at once.
    """
    drop_nothing(fields, refused)
    for name in fields:
        if name in refused or (name not in known and "model" not in fields):
            return refuse_field(name, refused, known, call)
    names = [name for name in fields if name not in known]
    error = refuse_field(names[0], refused, known, call) if names else None
    return Unknown({name: fields.pop(name) for name in names}, error)


def drop_nothing(fields: Fields, refused: Collection[str]) -> None:
    for name in [name for name in fields if name in refused and asks_nothing(name, fields[name])]:
        del fields[name]


def check_fields(fields: Fields, known: Collection[str], refused: Mapping[str, str], call: str) -> ApiError | None:
    """The same where no model passes what isn't known."""
    unknown = take_unknown(fields, known, refused, call)
    return unknown if isinstance(unknown, ApiError) else unknown.error


def check_kinds(fields: Fields, kinds: Mapping[str, str]) -> ApiError | None:
    """The first value whose first byte isn't of its kind. Null is dropped: it says what absence says."""
    for name in [name for name in fields if name in kinds]:
        first = first_byte(fields[name])
        if first == b"n":
            del fields[name]
            continue
        words, starts = KINDS[kinds[name]]
        if first not in starts:
            return invalid_request(f"`{name}` must be {words}", name)
        if name in MOST and (error := _check_most(name, fields[name])) is not None:
            return error
    return None


# An engine goes through these for each token, on the one loop that decodes for all clients; each of `n` is an answer.
MOST: Mapping[str, int] = {
    "dry_sequence_breakers": 32,
    "logit_bias": 1024,
    "logprobs": 20,
    "n": 128,
    "samplers": 32,
    "stop": 64,
    "stop_sequences": 64,
    "stop_token_ids": 1024,
    "top_logprobs": 20,
}


# Of all of one: what is longer isn't made into objects to be counted.
_MOST_BYTES = 1024 * 1024


def _check_most(name: str, raw: msgspec.Raw) -> ApiError | None:
    if memoryview(raw).nbytes > _MOST_BYTES:
        return invalid_request(f"`{name}` must have at most {_MOST_BYTES} bytes", name)
    try:
        value: Any = msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        return None  # told by whoever reads it
    most = MOST[name]
    if isinstance(value, list | dict) and len(cast("list[Any]", value)) > most:
        return invalid_request(f"`{name}` must have at most {most} entries", name)
    if isinstance(value, int | float) and value > most:
        return invalid_request(f"`{name}` must be at most {most}", name)
    return None


# Of more the engine says what is wrong: numbers of two bytes are objects of thirty-two.
_MOST_TEXTS_BYTES = 8 * 1024 * 1024
_INPUTS = msgspec.json.Decoder(str | list[str | int | list[int]])


def check_texts(fields: Fields, name: str) -> ApiError | None:
    """A text or several, or such of tokens, and not nothing."""
    raw = fields.get(name)
    if raw is None or first_byte(raw) not in (b'"', b"[") or is_empty(raw):
        words = f"`{name}` must be a string, or an array of strings or of tokens, and not empty"
        return invalid_request(words, name)
    if memoryview(raw).nbytes > _MOST_TEXTS_BYTES:
        return None
    found = read_struct(raw, name, _INPUTS)
    return found if isinstance(found, ApiError) else None


def first_byte(raw: msgspec.Raw) -> bytes:
    return bytes(memoryview(raw)[:1])


def is_object(value: Any) -> TypeGuard[dict[str, Any]]:
    return isinstance(value, dict)


def is_array(value: Any) -> TypeGuard[list[Any]]:
    return isinstance(value, list)


def is_empty(raw: msgspec.Raw) -> bool:
    """Whether it is `""` or `[]`."""
    start = bytes(memoryview(raw)[:64])
    return start == b'""' or (start[:1] == b"[" and start[1:].lstrip()[:1] == b"]")


def read_value(fields: Fields, name: str) -> Any:
    """The whole value; None when absent. ApiError when it can't be decoded."""
    raw = fields.get(name)
    if raw is None:
        return None
    try:
        return _ANY.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        return invalid_request(f"`{name}` must be JSON that isn't nested this deeply", name)


def read_struct(raw: msgspec.Raw, name: str, decoder: msgspec.json.Decoder[Any]) -> Any:
    """What a typed decoder makes of it; ApiError names where it is wrong."""
    try:
        return decoder.decode(raw)
    except msgspec.ValidationError as error:
        words, _, place = str(error).rpartition(" - at `$")
        where = f"{name}{place.removesuffix('`')}" if words else name
        return invalid_request(f"`{where}`: {(words or str(error)).lower()}", name)
    except (msgspec.DecodeError, RecursionError):
        return invalid_request(f"`{name}` must be JSON that isn't nested this deeply", name)


def read_model(fields: Fields) -> str | ApiError:
    value = read_value(fields, "model") if "model" in fields else None
    if not isinstance(value, str) or not value:
        return invalid_request("`model` must be a non-empty string; GET /v1/models lists what there is", "model")
    return value


def read_flag(fields: Fields, name: str, default: bool = False) -> bool | ApiError:
    value = read_value(fields, name)
    if value is None:
        return default
    return value if isinstance(value, bool) else invalid_request(f"`{name}` must be true or false", name)


# Engines keep token counts in 32 bits.
_MOST_TOKENS = 2**31 - 1


def read_count(fields: Fields, name: str, least: int = 1) -> int | ApiError | None:
    """A number of tokens, or of answers; None when absent or null."""
    value = read_value(fields, name)
    if value is None or isinstance(value, ApiError):
        return value
    if not isinstance(value, int) or isinstance(value, bool):
        return invalid_request(f"`{name}` must be a whole number", name)
    if not least <= value <= _MOST_TOKENS:
        return invalid_request(f"`{name}` must be between {least} and {_MOST_TOKENS}; got {value}", name)
    return value
