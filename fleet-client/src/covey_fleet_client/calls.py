"""One call to the controller: bounded answers, deadlines, and one translation of what can go wrong into FleetError.

It knows HTTP and TLS, nothing of tokens or identities. Proxies, certificates and timeouts named in the environment are
not honoured: the pinned authority alone says who the controller is.
"""

import asyncio
import ssl
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import TypeVar
from urllib.parse import urlsplit

from covey_api.messages import FLEET_PREFIX, MAX_BODY_BYTES, STREAM_SILENCE_SECONDS
from covey_api.meta import Message
from pydantic import BaseModel, ValidationError

from covey_fleet_client.errors import FleetError, FleetErrorKind
from covey_fleet_client.http import Answer as HttpAnswer
from covey_fleet_client.http import Broken, DialFailed, HttpClient, Origin

# From dialling to the last byte of an answer; the controller answers from memory.
CALL_SECONDS = 10.0
# Longest line of a stream: a snapshot of hundreds of Instances is under a tenth of it.
MAX_LINE_BYTES = 16 * 1024 * 1024
_ERROR_BYTES = 64 * 1024
# OpenSSL's X509_V_ERR_CERT_NOT_YET_VALID and X509_V_ERR_CERT_HAS_EXPIRED, which Python gives no names.
_WRONG_TIME = (9, 10)

Answer = TypeVar("Answer", bound=Message)


class _ErrorBody(BaseModel):
    reason: str = ""
    message: str = ""


class _ErrorAnswer(BaseModel):
    error: _ErrorBody = _ErrorBody()


def parse_controller_url(text: str) -> str:
    """`https://HOST[:PORT]` without a slash at the end. FleetError otherwise."""
    return f"https://{_parse_origin(text).authority}"


def _parse_origin(text: str) -> Origin:
    try:
        url = urlsplit(text.rstrip("/"))
        host, port = url.hostname, url.port
    except ValueError as error:
        raise FleetError(FleetErrorKind.INVALID, f"controller URL '{text}' can't be read: {error}") from None
    is_plain = url.path in ("", "/") and not url.query and not url.fragment and "@" not in url.netloc
    if url.scheme != "https" or not host or not is_plain or not text.isprintable() or " " in text:
        raise FleetError(FleetErrorKind.INVALID, f"controller URL must be 'https://HOST:PORT'; got '{text}'")
    return Origin(host, 443 if port is None else port)


def open_client(controller_url: str, context: ssl.SSLContext) -> HttpClient:
    return HttpClient(_parse_origin(controller_url), context)


async def call(
    client: HttpClient,
    method: str,
    path: str,
    *,
    body: Message | None = None,
    bearer: str | None = None,
    on_head: Callable[[HttpAnswer], None] = lambda _: None,
) -> bytes:
    """The whole answer, at most MAX_BODY_BYTES. `on_head` gets its head once it is known to be no refusal."""
    headers: dict[str, str] = {}
    if bearer is not None:
        if not bearer.isascii() or not bearer.isprintable():
            raise FleetError(FleetErrorKind.DENIED, "the token must be one line of ASCII; its text is not shown")
        headers["authorization"] = f"Bearer {bearer}"
    content = b""
    if body is not None:
        content = body.model_dump_json(by_alias=True, exclude_none=True).encode()
        headers["content-type"] = "application/json"
    with explain_failures(client.origin):
        async with (
            asyncio.timeout(CALL_SECONDS),
            client.ask(method, f"{FLEET_PREFIX}/{path}", content=content, headers=headers) as answer,
        ):
            await check_status(answer)
            on_head(answer)
            return await _read_bounded(answer, MAX_BODY_BYTES)


@asynccontextmanager
async def open_stream(client: HttpClient, path: str) -> AsyncGenerator[HttpAnswer]:
    """An endless answer, once its head is here."""
    with explain_failures(client.origin):
        async with AsyncExitStack() as stack:
            async with asyncio.timeout(STREAM_SILENCE_SECONDS):
                answer = await stack.enter_async_context(client.ask("GET", f"{FLEET_PREFIX}/{path}"))
                await check_status(answer)
            yield answer


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


async def read_lines(answer: HttpAnswer) -> AsyncGenerator[bytes]:
    """Lines of an endless answer, each whole within the silence deadline: a sender that dribbles counts as silent."""
    chunks = answer.chunks()
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


async def check_status(answer: HttpAnswer) -> None:
    """FleetError with the controller's own words unless the status is 2xx."""
    if 200 <= answer.status < 300:
        return
    content = await _read_bounded(answer, _ERROR_BYTES)
    try:
        words = _ErrorAnswer.model_validate_json(content).error.message
    except ValidationError:
        words = ""
    message = words or f"the controller answered '{answer.status} {answer.reason}'"
    match answer.status:
        case 401 | 403:
            kind = FleetErrorKind.DENIED
        case 429:
            kind = FleetErrorKind.UNREACHABLE
        case status if status >= 500:
            kind = FleetErrorKind.UNREACHABLE
        case _:
            kind = FleetErrorKind.REFUSED
    raise FleetError(kind, message)


async def _read_bounded(answer: HttpAnswer, limit_bytes: int) -> bytes:
    content = bytearray()
    async for chunk in answer.chunks():
        content += chunk
        if len(content) > limit_bytes:
            raise FleetError(FleetErrorKind.INVALID, f"an answer must be at most {limit_bytes} bytes long")
    return bytes(content)


@contextmanager
def explain_failures(origin: Origin) -> Generator[None]:
    """Turn what connections, TLS and deadlines raise into FleetError."""
    where = f"the controller at https://{origin.authority}"
    try:
        yield
    except TimeoutError:
        raise FleetError(
            FleetErrorKind.UNREACHABLE, f"{where} gave no sign of life in time. Check that it runs and is reachable."
        ) from None
    except (DialFailed, Broken, OSError) as error:
        raise _explain(error, where) from error


def _explain(error: Exception, where: str) -> FleetError:
    cause = error.__cause__ if isinstance(error, DialFailed) else None
    if isinstance(cause, ssl.SSLCertVerificationError) and cause.verify_code in _WRONG_TIME:
        return FleetError(
            FleetErrorKind.INVALID,
            f"{where} shows a certificate that isn't valid at this machine's time ({cause.verify_message}). Most "
            "likely one of the two clocks is wrong: set both by a time server. `covey doctor` says how far it is off.",
        )
    if isinstance(cause, ssl.SSLCertVerificationError):
        return FleetError(
            FleetErrorKind.INVALID,
            f"{where} shows a certificate that the pinned authority doesn't vouch for ({cause.verify_message}). "
            "Another process may have its address; if the fleet was made anew, join again with a new token.",
        )
    if cause is not None:
        return FleetError(
            FleetErrorKind.UNREACHABLE,
            f"{where} can't be reached ({cause}). Check that it runs and that the address is right.",
        )
    # A server that refuses a certificate in the handshake looks the same: its alert rarely arrives before the reset.
    return FleetError(
        FleetErrorKind.UNREACHABLE, f"{where} broke the connection off ({str(error) or type(error).__name__})"
    )
