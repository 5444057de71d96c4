"""Which conversation a request continues, as a number: what stays the same in it from turn to turn.

A chat's messages only grow at their end, so what stands before the first answer of the assistant is the same in every
turn, and differs from other conversations by what was asked first. Its end is hashed, as it came, in one block: no
message is decoded. Rejected: the first bytes alone (all agents share a system prompt of 60 kB, and would be one
conversation), and a chain of blocks over everything (each turn would be looked for in a dozen places, to learn where
its first one was).

1. A session that the client names is the conversation, among those of its key.
2. Calls that leave nothing in an engine's cache are no part of any.
3. So is what is short: to read it again costs less than to wait for a certain endpoint.
4. A chat is known by what stands before the first answer that begins behind `SHORT_BYTES`: all that begin with "Hi"
   would be one otherwise. Its first turns are short.
5. A prompt of text has no turns: it is known by its first block.

What changes with each request without meaning anything is left out: Claude Code's billing line, marks for other
providers' caches.
"""

import re
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

import msgspec

from covey_gateway.wire.request import Call, Request

# Some 250 tokens: read in less time than a request of anybody else takes.
SHORT_BYTES = 1024
# As much of the end as has the first question in it.
BLOCK_BYTES = 4 * 1024
# How far the first answer is looked for; an image as base64 is not worth reading to its end.
SEARCH_BYTES = 1024 * 1024
# Room for noise at the block's beginning, so that its length doesn't shift what is hashed.
_NOISE_BYTES = 1024

# Within a JSON string the quotes would have backslashes before them.
_ANSWER = re.compile(rb'"role"[ \t\r\n]{0,9}:[ \t\r\n]{0,9}"assistant"')
_BETWEEN = b" \t\r\n,{[]"
_NOISE = re.compile(
    rb'x-anthropic-billing-header:[^"\\]*(?:\\n)*|,[ \t\r\n]*"cache_control"[ \t\r\n]*:[ \t\r\n]*\{[^{}]*\}'
)
_ENCODE = msgspec.json.Encoder().encode


def digest_conversation(request: Request, model: tuple[str, str], session: bytes, owner: str = "") -> int | None:
    """The conversation of a request to this model (namespace and name); None: it needs none.

    `owner`: whose it is (the key); the same words of two are two conversations.
    """
    if request.call not in (Call.CHAT, Call.COMPLETION):
        return None
    if session:
        return _digest((*model, owner), b"session", session)
    if request.call is Call.COMPLETION:
        prompt = _read_start(request.fields.get("prompt"), SHORT_BYTES)
        return None if len(prompt) < SHORT_BYTES else _digest((*model, owner), b"prompt", prompt)
    opening = find_opening(request.fields)
    return None if len(opening) < SHORT_BYTES else _digest((*model, owner), b"chat", strip_noise(opening))


def digest_messages(messages: msgspec.Raw, model: tuple[str, str], session: bytes, owner: str) -> int | None:
    """The same of a chat of which only the messages are at hand, as they came."""
    if session:
        return _digest((*model, owner), b"session", session)
    opening = _cut(_read_start(messages, SEARCH_BYTES))
    return None if len(opening) < SHORT_BYTES else _digest((*model, owner), b"chat", strip_noise(opening))


def find_opening(fields: Mapping[str, Any]) -> bytes:
    """What of a chat's messages stays as it is, as bytes; shorter than `SHORT_BYTES` when there is nothing to keep."""
    messages = fields.get("messages")
    if isinstance(messages, msgspec.Raw):
        return _cut(_read_start(messages, SEARCH_BYTES))
    opening = bytearray()
    for message in messages or ():
        if len(opening) > SEARCH_BYTES or (len(opening) >= SHORT_BYTES and message.get("role") == "assistant"):
            break
        opening += _ENCODE(message)
    return bytes(opening)


def strip_noise(opening: bytes) -> bytes:
    """The last block, without what changes with each request."""
    end = opening[-(BLOCK_BYTES + _NOISE_BYTES) :]
    if b"x-anthropic-billing-header:" in end or b'"cache_control"' in end:
        end = _NOISE.sub(b"", end)
    return end[-BLOCK_BYTES:]


def _cut(messages: bytes) -> bytes:
    """One search, whatever is in them: who sends a million bytes that look like answers keeps nobody waiting."""
    found = _ANSWER.search(messages, SHORT_BYTES)
    return (messages if found is None else messages[: found.start()]).rstrip(_BETWEEN)


def _read_start(value: Any, most_bytes: int) -> bytes:
    return bytes(memoryview(value)[:most_bytes]) if isinstance(value, msgspec.Raw) else b""


def _digest(whose: tuple[str, ...], kind: bytes, content: bytes) -> int:
    hashed = blake2b("\0".join(whose).encode(), digest_size=8, person=kind)
    hashed.update(content)
    return int.from_bytes(hashed.digest())
