"""Blocks of a message's content as parts of a chat: text, images, and what is text in other words.

A document of text and a result of a search become text under their titles; templates know no more of them. PDFs are
refused by name: no engine here reads them, and one left out would be an answer about nothing.
"""

from typing import Any

import msgspec
from covey_api.reasons import ErrorCode

from covey_gateway.wire.errors import ApiError, Refused, ensure, invalid_request
from covey_gateway.wire.openai.chat import check_image_url

Part = tuple[str, dict[str, Any]]
"""Where it is, and the chat's part."""


class Block(msgspec.Struct):
    """One block of content, whatever its type; fields of other types are None."""

    type: str
    text: str | None = None
    thinking: str | None = None
    source: dict[str, Any] | str | None = None
    title: str | None = None
    context: str | None = None
    id: str | None = None
    name: str | None = None
    input: Any = None
    tool_use_id: str | None = None
    content: "str | list[Block] | None" = None
    is_error: bool | None = None


Content = str | list[Block]


def read_text(block: Block, place: str) -> str:
    if block.type != "text" or block.text is None:
        raise Refused(unsupported(f"`{place}` must have blocks of type 'text'; got '{block.type[:64]}'", place))
    return block.text


def read_parts(block: Block, place: str) -> list[Part]:
    """What a user or a tool shows."""
    match block.type:
        case "image":
            return [(place, {"type": "image_url", "image_url": {"url": _read_image(block, place)}})]
        case "document":
            return _title([block.title, block.context], _read_document(block, place), place)
        case "search_result":
            source = block.source if isinstance(block.source, str) else None
            return _title([block.title, source], _read_content(block.content, f"{place}.content"), place)
        case _:
            return [_text(place, read_text(block, place))]


def _text(place: str, text: str) -> Part:
    return place, {"type": "text", "text": text}


def _title(lines: list[str | None], parts: list[Part], place: str) -> list[Part]:
    head = "\n".join(line for line in lines if line)
    return [_text(place, head), *parts] if head else parts


def _read_document(block: Block, place: str) -> list[Part]:
    source = block.source if isinstance(block.source, dict) else {}
    match source.get("type"):
        case "text" if isinstance(data := source.get("data"), str):
            return [_text(place, data)]
        case "content":
            try:
                content = msgspec.convert(source.get("content"), Content)
            except msgspec.ValidationError as error:
                raise Refused(invalid_request(f"`{place}.source.content`: {str(error).lower()}", "messages")) from None
            return _read_content(content, f"{place}.source.content")
        case "text":
            raise Refused(invalid_request(f"`{place}.source.data` must be a string", "messages"))
        case "file":
            found = "a file, and none are kept here"
        case _:
            kind = source.get("media_type") or "application/pdf"
            found = f"'{str(kind)[:64]}', which no engine here reads"
    words = f"`{place}` is a document of {found}; send its text in a `source` of type 'text'"
    raise Refused(unsupported(words, place))


def _read_content(content: Content | None, place: str) -> list[Part]:
    if not isinstance(content, list):
        return [_text(place, content or "")]
    parts: list[Part] = []
    for index, block in enumerate(content):
        at = f"{place}[{index}]"
        parts += read_parts(block, at) if block.type in ("text", "image") else [_text(at, read_text(block, at))]
    return parts


def _read_image(block: Block, place: str) -> str:
    source = block.source if isinstance(block.source, dict) else {}
    kind, data = source.get("media_type"), source.get("data")
    if source.get("type") == "base64":
        if not isinstance(kind, str) or not isinstance(data, str):
            raise Refused(invalid_request(f"`{place}.source` must have `media_type` and `data`", "messages"))
        return f"data:{kind};base64,{data}"
    url = source.get("url")
    ensure(check_image_url(url if isinstance(url, str) else None, f"{place}.source"))
    return str(url)


def unsupported(words: str, param: str) -> ApiError:
    return ApiError(400, ErrorCode.UNSUPPORTED_FIELD, words, param.partition("[")[0])
