"""A chat request that has nothing but what most have: read once into a struct, and written for an engine.

What isn't plain (tools, images, choices, fields that are rare, anything wrong) is `None` here, and `parse_chat` says
what it is: this module refuses nothing. What is plain means to an engine what `parse_chat` would have made of it.
"""

import re
from itertools import accumulate
from typing import Annotated

import msgspec

from covey_gateway.wire.body import MOST, check_text
from covey_gateway.wire.errors import ApiError
from covey_gateway.wire.openai.chat import check_messages

# Of longer ones reading and hashing cost more than the way does; they are looked at with more care for memory, too.
MAX_PLAIN_BYTES = 256 * 1024
# A request is perhaps read again by the general way, from more frames of Python's than here; where it counts these and
# nesting together (3.11), what is read here just so isn't read there. Nobody's chat is nested as deeply as this.
_MAX_DEPTH = 200
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_OPENS, _CLOSES = b"[{", b"]}"
_STEPS = bytes.maketrans(_OPENS + _CLOSES, b"\2\2\0\0")
_NO_STEPS = bytes(set(range(256)) - set(_OPENS + _CLOSES))
# Engines keep token counts in 32 bits.
_Tokens = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
_Number = int | float


class _Options(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None
    continuous_usage_stats: bool | None = None


_WITH_USAGE = _Options(include_usage=True)


class PlainChat(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    model: str
    messages: msgspec.Raw
    stream: bool | None = None
    stream_options: _Options | None = None
    max_tokens: _Tokens | None = None
    max_completion_tokens: _Tokens | None = None
    temperature: _Number | None = None
    top_p: _Number | None = None
    top_k: _Number | None = None
    min_p: _Number | None = None
    presence_penalty: _Number | None = None
    frequency_penalty: _Number | None = None
    repeat_penalty: _Number | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    user: str | None = None

    @property
    def most_tokens(self) -> int | None:
        most, same = self.max_tokens, self.max_completion_tokens
        return same if most is None else most if same is None else min(most, same)


_PLAIN = msgspec.json.Decoder(PlainChat)
_ENCODE = msgspec.json.Encoder().encode


def parse_plain(body: bytes) -> PlainChat | None:
    try:
        chat = _PLAIN.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return None
    if check_text(body) is not None or not chat.model or (chat.stream_options is not None and not chat.stream):
        return None
    if _is_deep(body):
        return None
    if isinstance(chat.stop, list) and len(chat.stop) > MOST["stop"]:
        return None
    media = check_messages(chat.messages)
    return None if media or isinstance(media, ApiError) else chat


def _is_deep(body: bytes) -> bool:
    """Whether this JSON is nested too deeply for a plain chat; most have fewer brackets than that would take."""
    if sum(body.count(each) for each in _OPENS) <= _MAX_DEPTH:
        return False
    steps = _STRING.sub(b"", body).translate(_STEPS, _NO_STEPS)
    return max(accumulate(steps, lambda depth, step: depth + step - 1, initial=0)) > _MAX_DEPTH


def withholds_usage(chat: PlainChat) -> bool:
    """Whether its client gets a stream, and didn't ask for the usage."""
    return bool(chat.stream) and (chat.stream_options is None or not chat.stream_options.include_usage)


def render_plain(chat: PlainChat, model: str, *, counts: bool) -> bytes:
    """The body for an engine; `chat` is used up. `counts`: the engine is asked for usage, whatever the client said."""
    chat.model = model
    chat.max_tokens, chat.max_completion_tokens = chat.most_tokens, None
    chat.stream = True
    if counts:
        chat.stream_options = _WITH_USAGE
    return _ENCODE(chat)
