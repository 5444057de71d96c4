"""Images of a request whose model takes them: each is in the request itself, or somewhere whence the gateway has it.

An engine never gets a URL that it would fetch: it can reach what the client can't. So whatever is an image for an
engine is looked at here, in the messages as the engine gets them, and they are joined again: no part of them is left
that two readers could read differently.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import SplitResult, urlsplit

import msgspec

from covey_gateway.wire.body import is_array, is_object
from covey_gateway.wire.errors import ApiError, invalid_request
from covey_gateway.wire.request import Request

# As many as providers take of URLs in a request; each is a connection to somebody else's machine.
MAX_FETCHED = 8
# What browsers and proxies take.
MAX_URL = 2048

_FIELD = "messages"
_TYPES = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"BM", "image/bmp"),
)


@dataclass(frozen=True, slots=True)
class Pictured:
    """A request with images, some of which may have to be fetched."""

    request: Request
    urls: tuple[str, ...]
    _messages: list[Any]

    def fill(self, found: Mapping[str, str]) -> Request:
        """The request with what was found in the place of each URL, as a data URL."""
        for image in _images(self._messages):
            image["url"] = found.get(image["url"], image["url"])
        return replace(self.request, fields={**self.request.fields, _FIELD: self._messages})


def place_image(messages: list[dict[str, Any]], told: str) -> str:
    """Where the first image of a rendered chat is, as an adapter told it; else in the chat itself.

    An image that an adapter forgot to tell of would be looked at by nobody, and its URL be fetched by the engine.
    """
    return told or (_FIELD if next(_images(messages), None) is not None else "")


def find_images(request: Request) -> Pictured | ApiError:
    """1. Every image has a URL. 2. It is an image's data URL, or one to fetch. 3. Not too many of these."""
    messages = request.fields[_FIELD]
    if isinstance(messages, msgspec.Raw):
        try:
            messages = msgspec.json.decode(messages)
        except (msgspec.DecodeError, RecursionError):
            return invalid_request(f"`{_FIELD}` must be JSON that isn't nested this deeply", _FIELD)
    urls: dict[str, None] = {}
    for image in _images(messages):
        url = image.get("url")
        if not isinstance(url, str):
            return invalid_request(f"`{request.media}` must have the URL of an image, as text", _FIELD)
        if url[:5].lower() == "data:":
            if url[:11].lower() != "data:image/" or ";base64," not in url[:128]:
                words = f"the data URL of an image must begin as 'data:image/png;base64,'; got '{url[:40]}'"
                return invalid_request(words, _FIELD)
        elif parse_url(url) is None:
            words = f"an image's URL must be a data URL, or one of http or https with a host; got '{url[:100]}'"
            return invalid_request(words, _FIELD)
        else:
            urls[url] = None
            if len(urls) > MAX_FETCHED:
                words = f"a request must have at most {MAX_FETCHED} images to fetch; got more. Send them as data URLs"
                return invalid_request(words, _FIELD)
    return Pictured(request, tuple(urls), messages)


def parse_url(text: str) -> SplitResult | None:
    """None where it isn't a plain URL of the web: other schemes, a user, no host, control characters."""
    if len(text) > MAX_URL or not text.isascii() or not text.isprintable() or " " in text or "\\" in text:
        return None
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        return None
    is_plain = parts.scheme in ("http", "https") and parts.hostname and "@" not in parts.netloc and port != 0
    return parts if is_plain else None


def recognize_image(content: bytes) -> str | None:
    """The media type by an image's first bytes, whatever a server calls it; None: it is none that engines read."""
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        return "image/webp"
    return next((kind for start, kind in _TYPES if content.startswith(start)), None)


def _images(messages: Any) -> Iterator[dict[str, Any]]:
    """Each image as an object with `url`."""
    for message in messages if is_array(messages) else ():
        content = message.get("content") if is_object(message) else None
        for part in content if is_array(content) else ():
            if not is_object(part) or part.get("type") != "image_url":
                continue
            if not is_object(part.get("image_url")):
                part["image_url"] = {"url": part.get("image_url")}
            yield part["image_url"]
