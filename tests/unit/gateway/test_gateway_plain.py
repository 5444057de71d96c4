"""What is read by the short way means what the general parsers make of it, or isn't read by it."""

import json
from typing import Any

import httptools
import pytest
from covey_gateway.wire.chunks import read_plain
from covey_gateway.wire.errors import ApiError
from covey_gateway.wire.frames import END, STREAM_HEAD, is_stream_head, split_frames
from covey_gateway.wire.openai.answer import ChatAnswer
from covey_gateway.wire.openai.chat import parse_chat
from covey_gateway.wire.openai.plain import parse_plain, render_plain, withholds_usage
from covey_gateway.wire.request import counts_asked, render_request
from hypothesis import example, given, settings
from hypothesis import strategies as st

MESSAGE = {"role": "user", "content": "Say hello, \u4e2d."}
_STRANGE: list[Any] = ["1", True, [], {}]
NUMBERS: st.SearchStrategy[Any] = st.one_of(
    st.none(), st.integers(-3, 5000), st.floats(-2, 2), st.sampled_from(_STRANGE)
)
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "stream": st.sampled_from([True, False, None, 1, "true"]),
    "stream_options": st.sampled_from(
        [None, {}, {"include_usage": True}, {"include_usage": False}, {"include_usage": 1}, {"other": True}, []]
    ),
    "max_tokens": NUMBERS,
    "max_completion_tokens": NUMBERS,
    "temperature": NUMBERS,
    "top_k": NUMBERS,
    "seed": NUMBERS,
    "stop": st.sampled_from([None, "x", ["x", "y"], [], 1, [1]]),
    "user": st.sampled_from([None, "u", 1]),
    "n": st.sampled_from([1, 2, None]),
    "tools": st.sampled_from([None, [], [{"type": "function", "function": {"name": "f"}}]]),
    "unheard_of": st.sampled_from([1, None]),
    "grammar": st.sampled_from(["x", None]),
}
MESSAGES = st.sampled_from(
    [
        [MESSAGE],
        [{"role": "system", "content": [{"type": "text", "text": "x"}]}, MESSAGE],
        [MESSAGE, {"role": "assistant", "content": None, "tool_calls": [{"id": "x"}]}],
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,"}}]}],
        [{"role": "nobody", "content": "x"}],
        [],
        None,
        "x",
    ]
)


@settings(max_examples=500, deadline=None)
@given(
    messages=MESSAGES,
    more=st.lists(st.sampled_from(sorted(FIELDS)).flatmap(lambda name: st.tuples(st.just(name), FIELDS[name]))),
    engine=st.sampled_from(["", "LlamaServer"]),
)
def test_a_plain_chat_means_to_an_engine_what_the_general_parser_makes_of_it(
    messages: Any, more: list[tuple[str, Any]], engine: str
) -> None:
    body = json.dumps({"model": "m", "messages": messages} | dict(more)).encode()
    chat, request = parse_plain(body), parse_chat(body)
    if chat is None:
        return
    assert not isinstance(request, ApiError)
    assert (chat.model, bool(chat.stream), chat.most_tokens) == (
        request.model,
        request.wants_stream,
        request.max_tokens,
    )
    assert (request.media, request.unknown, request.n, request.is_single) == ("", None, 1, True)
    assert withholds_usage(chat) == request.withholds_usage
    counts = not chat.stream or (withholds_usage(chat) and counts_asked(engine))
    rendered: dict[str, Any] = json.loads(render_plain(chat, "name", counts=counts))
    general: dict[str, Any] = json.loads(render_request(request, "name", engine))
    for side in (rendered, general):  # what says nothing, in either's way
        told: dict[str, Any] = side.get("stream_options") or {}
        options = {name: value for name, value in told.items() if value is not None}
        side["stream_options"] = options
    assert rendered == general


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b'{"model":"m"}',
        b'{"model":"","messages":[{"role":"user","content":"x"}]}',
        b'{"model":"m","messages":[{"role":"user","content":"\\ud800"}]}',
        b'{"model":"m","messages":[{"role":"user","content":"\xff"}]}',
        b'{"model":"m","messages":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"model":"m","messages":[{"role":"user","content":"x"}],"temperature":1e999}',
    ],
)
def test_what_is_wrong_is_not_plain(body: bytes) -> None:
    assert parse_plain(body) is None


class Parsed:
    """What the parser says of an engine's bytes."""

    def __init__(self, content: bytes) -> None:
        self.body = b""
        self.is_whole = False
        self.is_broken = self.is_kept = False
        self.parser = httptools.HttpResponseParser(self)
        try:
            self.parser.feed_data(content)
        except httptools.HttpParserError:
            self.is_broken = True

    def on_headers_complete(self) -> None:
        self.is_kept = self.parser.should_keep_alive()

    def on_body(self, piece: bytes) -> None:
        self.body += piece

    def on_message_complete(self) -> None:
        self.is_whole = True


FRAMES = st.one_of(
    st.binary(max_size=40).map(lambda content: b"%x\r\n%b\r\n" % (len(content), content)),
    st.binary(min_size=1, max_size=40).map(lambda content: b"%X\r\n%b\r\n" % (len(content), content)),
    st.sampled_from(
        [END, b"0", b"00\r\n\r\n", b"+1\r\nx\r\n", b"1_0\r\n", b"0x1\r\nx\r\n", b"1;a=b\r\nx\r\n", b"1\nx\n"]
    ),
    st.binary(max_size=6),
)


@settings(max_examples=500, deadline=None)
@given(frames=st.lists(FRAMES, max_size=4), cut=st.integers(0, 200))
@example(frames=[b"1\r\nx\r\n", b"0\r\n\r\n", b"x"], cut=200)
def test_chunks_are_read_as_the_parser_reads_them_or_not_at_all(frames: list[bytes], cut: int) -> None:
    data = b"".join(frames)[:cut]
    found = split_frames(data)
    if found is None:
        return
    payload, taken, is_end = found
    whole = Parsed(STREAM_HEAD + data[:taken] + (END if is_end else b""))
    assert not whole.is_broken
    assert (whole.body, whole.is_whole) == (payload, is_end)
    assert not Parsed(STREAM_HEAD + data).is_broken


LINES = st.sampled_from(
    [
        b"content-type: text/event-stream",
        b"Content-Type: text/event-stream; charset=utf-8",
        b"transfer-encoding: chunked",
        b"Transfer-Encoding: Chunked",
        b"transfer-encoding: gzip, chunked",
        b"content-length: 3",
        b"connection: close",
        b"Connection: keep-alive",
        b"upgrade: h2c",
        b"x: transfer-encoding: chunked",
        b" folded",
        b"server: x\nhidden: y",
        b"date: now",
    ]
)


@settings(max_examples=500, deadline=None)
@given(
    first=st.sampled_from(
        [b"HTTP/1.1 200 OK", b"HTTP/1.1 200", b"HTTP/1.0 200 OK", b"HTTP/1.1 206 P", b"http/1.1 200 OK"]
    ),
    lines=st.lists(LINES, max_size=5),
)
def test_a_head_is_taken_for_a_streams_only_where_the_parser_reads_it_so(first: bytes, lines: list[bytes]) -> None:
    head = b"\r\n".join([first, *lines, b"", b""])
    if not is_stream_head(head):
        return
    chunked = Parsed(head + b"1\r\nx\r\n" + END)
    assert not chunked.is_broken
    assert (chunked.parser.get_status_code(), chunked.body, chunked.is_whole) == (200, b"x", True)
    assert chunked.is_kept


def test_heads_of_engines_are_taken() -> None:
    assert is_stream_head(STREAM_HEAD)
    assert is_stream_head(
        b"HTTP/1.1 200 OK\r\nServer: llama.cpp\r\nAccess-Control-Allow-Origin: *\r\nContent-Type: text/event-stream\r\n"
        b"Keep-Alive: timeout=5, max=100\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    assert is_stream_head(
        b"HTTP/1.1 200 OK\r\ndate: Mon, 30 Nov 2026 20:00:00 GMT\r\nserver: uvicorn\r\n"
        b"content-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
    )


def test_events_are_read_at_once_as_one_by_one() -> None:
    events = b"".join(
        b"data: " + json.dumps({"id": "c", "choices": [{"index": 0, "delta": {"content": text}}]}).encode() + b"\n\n"
        for text in ("a", "\n\ndata: b", "\u4e2d")
    )
    events += b"data: [DONE]\n\n"
    assert read_plain(events) is not None
    at_once, one_by_one = ChatAnswer("m"), ChatAnswer("m")
    assert (at_once.take_plain(events), one_by_one.take(events)) == (b"", b"")
    assert at_once.end() == one_by_one.end()
    for strange in (events[6:], events[:-15], events.replace(b"\n\n", b"\r\n\r\n"), b": hi\n\n" + events):
        assert read_plain(strange) is None
    assert read_plain(b'data: {"error":{"message":"no"}}\n\n' + events) is None
