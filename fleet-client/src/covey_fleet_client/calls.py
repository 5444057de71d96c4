"""One call to the controller: bounded answers, deadlines, and one translation of what can go wrong into FleetError.

It knows HTTP and TLS, nothing of tokens or identities. Proxies, certificates and timeouts named in the environment are
not honoured: the pinned authority alone says who the controller is.
"""

import asyncio
import ssl
from collections.abc import AsyncGenerator, Generator
from contextlib import contextmanager
from typing import TypeVar

import httpx
from covey_api.messages import FLEET_PREFIX, MAX_BODY_BYTES, STREAM_SILENCE_SECONDS
from covey_api.meta import Message
from pydantic import BaseModel, ValidationError

from covey_fleet_client.errors import FleetError, FleetErrorKind

# From dialling to the last byte of an answer; the controller answers from memory.
CALL_SECONDS = 10.0
CONNECT_SECONDS = 5.0
# Longest line of a stream: a snapshot of hundreds of Instances is under a tenth of it.
MAX_LINE_BYTES = 16 * 1024 * 1024
# One or two streams and a few calls at once; more would mean that answers are not awaited.
MAX_CONNECTIONS = 10
# Below the controller's own keep-alive time, so that a call never meets a connection that is just being closed.
_KEEPALIVE_SECONDS = 10.0
_ERROR_BYTES = 64 * 1024

Answer = TypeVar("Answer", bound=Message)


class _ErrorBody(BaseModel):
    reason: str = ""
    message: str = ""


class _ErrorAnswer(BaseModel):
    error: _ErrorBody = _ErrorBody()


def parse_controller_url(text: str) -> str:
    """`https://HOST[:PORT]` without a slash at the end. FleetError otherwise."""
    try:
        url = httpx.URL(text.rstrip("/"))
    except httpx.InvalidURL as error:
        raise FleetError(FleetErrorKind.INVALID, f"controller URL '{text}' can't be read: {error}") from None
    if url.scheme != "https" or not url.host or url.path not in ("", "/") or url.query or url.userinfo:
        raise FleetError(FleetErrorKind.INVALID, f"controller URL must be 'https://HOST:PORT'; got '{text}'")
    return str(url).rstrip("/")


def open_client(controller_url: str, context: ssl.SSLContext) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        base_url=f"{controller_url}{FLEET_PREFIX}/",
        verify=context,
        trust_env=False,
        timeout=httpx.Timeout(STREAM_SILENCE_SECONDS, connect=CONNECT_SECONDS, pool=CONNECT_SECONDS),
        limits=httpx.Limits(max_connections=MAX_CONNECTIONS, keepalive_expiry=_KEEPALIVE_SECONDS),
        headers={"accept-encoding": "identity"},
    )


async def call(
    client: httpx.AsyncClient, method: str, path: str, *, body: Message | None = None, bearer: str | None = None
) -> bytes:
    """The whole answer, at most MAX_BODY_BYTES."""
    headers = {} if bearer is None else {"authorization": f"Bearer {bearer}"}
    content = b""
    if body is not None:
        content = body.model_dump_json(by_alias=True, exclude_none=True).encode()
        headers["content-type"] = "application/json"
    with explain_failures(client.base_url):
        async with (
            asyncio.timeout(CALL_SECONDS),
            client.stream(method, path, content=content, headers=headers) as response,
        ):
            await check_status(response)
            return await _read_bounded(response, MAX_BODY_BYTES)


def parse_answer(content: bytes, answer: type[Answer], path: str) -> Answer:
    try:
        return answer.model_validate_json(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        field = ".".join(str(part) for part in first["loc"])
        raise FleetError(
            FleetErrorKind.INVALID,
            f"the controller's answer to '{path}' must be {answer.__name__}: `{field}` {first['msg']}",
        ) from None


async def read_lines(response: httpx.Response) -> AsyncGenerator[bytes]:
    """Lines of an endless answer, each whole within the silence deadline: a sender that dribbles counts as silent."""
    chunks = response.aiter_raw()
    pending = bytearray()
    searched = 0
    while True:
        async with asyncio.timeout(STREAM_SILENCE_SECONDS):
            while (end := pending.find(b"\n", searched)) < 0:
                searched = len(pending)
                if searched > MAX_LINE_BYTES:
                    raise FleetError(
                        FleetErrorKind.INVALID, f"a line of the stream must be at most {MAX_LINE_BYTES} bytes long"
                    )
                chunk = await anext(chunks, None)
                if chunk is None:
                    raise FleetError(FleetErrorKind.UNREACHABLE, "the controller ended the stream")
                pending += chunk
        line = bytes(pending[:end])
        del pending[: end + 1]
        searched = 0
        yield line


async def check_status(response: httpx.Response) -> None:
    """FleetError with the controller's own words unless the status is 2xx."""
    if response.is_success:
        return
    content = await _read_bounded(response, _ERROR_BYTES)
    try:
        words = _ErrorAnswer.model_validate_json(content).error.message
    except ValidationError:
        words = ""
    message = words or f"the controller answered '{response.status_code} {response.reason_phrase}'"
    match response.status_code:
        case 401 | 403:
            kind = FleetErrorKind.DENIED
        case 429:
            kind = FleetErrorKind.UNREACHABLE
        case status if status >= 500:
            kind = FleetErrorKind.UNREACHABLE
        case _:
            kind = FleetErrorKind.REFUSED
    raise FleetError(kind, message)


async def _read_bounded(response: httpx.Response, limit_bytes: int) -> bytes:
    content = bytearray()
    async for chunk in response.aiter_raw():
        content += chunk
        if len(content) > limit_bytes:
            raise FleetError(FleetErrorKind.INVALID, f"an answer must be at most {limit_bytes} bytes long")
    return bytes(content)


@contextmanager
def explain_failures(base_url: httpx.URL) -> Generator[None]:
    """Turn what httpx, TLS and deadlines raise into FleetError."""
    where = f"the controller at {base_url.scheme}://{base_url.netloc.decode()}"
    try:
        yield
    except (TimeoutError, httpx.TimeoutException):
        raise FleetError(
            FleetErrorKind.UNREACHABLE, f"{where} gave no sign of life in time. Check that it runs and is reachable."
        ) from None
    except httpx.HTTPError as error:
        raise _explain(error, where) from error


def _explain(error: httpx.HTTPError, where: str) -> FleetError:
    cause = _find_tls_error(error)
    if isinstance(cause, ssl.SSLCertVerificationError):
        return FleetError(
            FleetErrorKind.INVALID,
            f"{where} shows a certificate that the pinned authority doesn't vouch for ({cause.verify_message}). "
            "Another process may have its address; if the fleet was made anew, join again with a new token.",
        )
    if isinstance(error, httpx.ConnectError):
        return FleetError(
            FleetErrorKind.UNREACHABLE,
            f"{where} can't be reached ({cause or error}). Check that it runs and that the address is right.",
        )
    # A server that refuses a certificate in the handshake looks the same: its alert rarely arrives before the reset.
    return FleetError(
        FleetErrorKind.UNREACHABLE, f"{where} broke the connection off ({str(error) or type(error).__name__})"
    )


def _find_tls_error(error: BaseException) -> ssl.SSLError | None:
    """The TLS failure below an error of httpx, which wraps it several times."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, ssl.SSLError):
            return seen
        seen = seen.__cause__ or seen.__context__
    return None
