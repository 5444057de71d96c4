"""Heads: what a request's says, what an answer's may hold."""

import pytest
from covey_gateway.wire.errors import ApiError
from covey_gateway.wire.head import MAX_HEADERS, RequestHead, parse_head
from covey_gateway.wire.http import render_answer, render_engine_head, render_stream_head

Headers = list[tuple[bytes, bytes]]
HOST = (b"host", b"localhost")


def read(*headers: tuple[bytes, bytes], target: bytes = b"/x", version: str = "1.1") -> RequestHead:
    head = parse_head(b"POST", target, version, list(headers) or [HOST])
    assert isinstance(head, RequestHead), head
    return head


def refused(*headers: tuple[bytes, bytes], target: bytes = b"/x", version: str = "1.1") -> ApiError:
    error = parse_head(b"POST", target, version, list(headers))
    assert isinstance(error, ApiError), error
    return error


def test_path_comes_without_its_query() -> None:
    assert read(target=b"/v1/models?a=/b").path == b"/v1/models"


@pytest.mark.parametrize(
    ("headers", "credential"),
    [
        ([], None),
        ([(b"authorization", b"Bearer abc")], "abc"),
        ([(b"authorization", b"bearer  abc ")], "abc"),
        ([(b"authorization", b"Basic abc")], None),
        ([(b"authorization", b"Bearer ")], None),
        ([(b"x-api-key", b"abc")], "abc"),
        ([(b"authorization", b"Bearer abc"), (b"x-api-key", b"def")], "abc"),
    ],
)
def test_a_key_is_a_bearer_or_an_api_key(headers: Headers, credential: str | None) -> None:
    assert read(HOST, *headers).credential == credential


def test_a_request_id_is_passed_on_only_if_it_is_one() -> None:
    assert read(HOST, (b"x-request-id", b"abc-1.2:3_4")).request_id == "abc-1.2:3_4"
    for value in (b"", b"a b", b"x" * 129, b"\xff", b"a\tb"):
        assert read(HOST, (b"x-request-id", value)).request_id is None


def test_length_and_expectation_are_read() -> None:
    head = read(HOST, (b"content-length", b"12"), (b"expect", b"100-Continue"))
    assert (head.content_length, head.expects_continue) == (12, True)
    assert not read((b"expect", b"100-continue"), version="1.0").expects_continue


@pytest.mark.parametrize(
    "name", [b"host", b"origin", b"authorization", b"x-api-key", b"content-length", b"transfer-encoding", b"expect"]
)
def test_a_header_that_decides_something_is_taken_once(name: bytes) -> None:
    headers = [(name, b"chunked"), (name, b"chunked")]
    error = refused(*headers) if name == b"host" else refused(HOST, *headers)
    assert error.status == 400
    assert name.decode() in error.message


@pytest.mark.parametrize("target", [b"http://evil/x", b"x", b"*", b"", b"/\xc3\xa9"])
def test_a_target_must_be_a_path(target: bytes) -> None:
    assert refused(HOST, target=target).status == 400


def test_only_http_1_with_a_host_is_taken() -> None:
    assert refused(HOST, version="2.0").status == 400
    assert refused().status == 400
    assert parse_head(b"GET", b"/", "1.0", []) != refused()


@pytest.mark.parametrize("coding", [b"gzip, chunked", b"gzip", b"identity", b"chunked, chunked", b""])
def test_only_the_chunked_coding_is_taken(coding: bytes) -> None:
    assert refused(HOST, (b"transfer-encoding", coding)).status == 400
    assert read(HOST, (b"transfer-encoding", b" Chunked ")).content_length == 0


def test_chunked_is_not_taken_in_http_1_0() -> None:
    assert refused((b"transfer-encoding", b"chunked"), version="1.0").status == 400


def test_many_or_long_headers_are_refused() -> None:
    assert refused(*[HOST] + [(b"x-%d" % n, b"") for n in range(MAX_HEADERS)]).status == 431
    assert refused(HOST, (b"x", b"y" * 70_000)).status == 431


def test_an_answer_says_how_long_it_is_and_whether_it_closes() -> None:
    answer = render_answer(503, b"{}", request_id="r", date=b"D", keeps_alive=False, retry_after_seconds=7)
    assert answer == (
        b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\ndate: D\r\nx-request-id: r\r\n"
        b"request-id: r\r\nconnection: close\r\nretry-after: 7\r\ncontent-length: 2\r\n\r\n{}"
    )
    kept = render_answer(405, b"", request_id="r", date=b"D", keeps_alive=True, allow="POST")
    assert b"allow: POST\r\n" in kept
    assert b"connection" not in kept


def test_a_stream_that_is_not_chunked_ends_with_the_connection() -> None:
    plain = render_stream_head(
        request_id="r", date=b"D", keeps_alive=True, is_chunked=False, content_type=b"text/event-stream"
    )
    assert b"transfer-encoding" not in plain
    assert b"connection: close\r\n" in plain
    chunked = render_stream_head(
        request_id="r", date=b"D", keeps_alive=True, is_chunked=True, content_type=b"text/event-stream"
    )
    assert b"transfer-encoding: chunked\r\n" in chunked
    assert b"connection" not in chunked


def test_an_engines_head_has_its_key_only_if_there_is_one() -> None:
    assert b"authorization: Bearer k\r\n" in render_engine_head("h", 1, "/p", "k", "r", 3)
    assert b"authorization" not in render_engine_head("h", 1, "/p", "", "r", 3)
