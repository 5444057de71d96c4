"""The small listener that a forge calls when somebody has pushed: it makes the source look now, and nothing else.

It exists only when asked for (`--webhook-listen`), because it is the controller's one door without a certificate. So it
takes no orders: what a delivery says is never read, a genuine one is a reason to look, and looking too often is what
the source prevents. Genuine means that it proves the shared secret, compared in constant time:

- GitHub, Gitea, Forgejo: HMAC-SHA256 of the body, `X-Hub-Signature-256: sha256=HEX` or `X-Gitea-Signature: HEX`;
- GitLab: the secret itself, `X-Gitlab-Token`.

Rejected: reading branch and commit out of the body. Three formats, and a forged or lost one would decide what runs.
"""

import asyncio
import hashlib
import hmac
import socket
from collections.abc import Callable
from pathlib import Path

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from covey_controller.serving.answers import BODY_SECONDS, ApiError, ApiReason, error_renderers
from covey_controller.serving.listener import BACKLOG, ListenFailed, serve

# What GitHub sends at most. It is hashed as it comes, and never kept.
MAX_DELIVERY_BYTES = 25 << 20
# A secret that can be guessed is none: 16 characters of hex are 64 bits.
MIN_SECRET_BYTES = 16
MAX_SECRET_BYTES = 1024
PATH = "/webhook"


def read_webhook_secret(path: Path) -> bytes:
    """The first line of a file that only its owner can read. ValueError or OSError says what must hold."""
    if path.stat().st_mode & 0o077:
        raise ValueError(f"the webhook's secret file must be readable by its owner only: chmod 600 '{path}'")
    with path.open("rb") as file:
        secret = file.read(MAX_SECRET_BYTES + 1).split(b"\n", 1)[0].strip()
    if not MIN_SECRET_BYTES <= len(secret) <= MAX_SECRET_BYTES:
        bounds = f"{MIN_SECRET_BYTES} to {MAX_SECRET_BYTES}"
        raise ValueError(f"the webhook's secret must have {bounds} bytes; '{path}' has {len(secret)}")
    return secret


async def serve_webhook(
    host: str, port: int, secret: bytes, refresh: Callable[[], None], on_listening: Callable[[str], None]
) -> None:
    """Until cancelled. ListenFailed says why it can't listen."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host or None, port)
        family, _, _, _, address = found[0]
        bound = socket.create_server(address[:2], family=family, backlog=BACKLOG)
    except OSError as error:
        raise ListenFailed(
            f"the webhook can't listen on '{host}:{port}': {error.strerror or error}. "
            "Choose another address or a free port with `--webhook-listen HOST:PORT`."
        ) from None
    with bound:
        where = "{}:{}".format(*bound.getsockname()[:2])
        app = build_webhook_app(secret, refresh)
        await serve(app, bound, closing=asyncio.Event(), on_listening=lambda: on_listening(where))


def build_webhook_app(secret: bytes, refresh: Callable[[], None]) -> Starlette:
    async def deliver(request: Request) -> Response:
        if not await _is_genuine(request, secret):
            raise ApiError(
                401,
                ApiReason.FORBIDDEN,
                "the delivery must carry the shared secret: 'X-Hub-Signature-256', 'X-Gitea-Signature' or "
                "'X-Gitlab-Token', made with the secret that the controller was given",
                headers={"connection": "close"},
            )
        refresh()
        return JSONResponse({}, 202)

    return Starlette(routes=[Route(PATH, deliver, methods=["POST"])], exception_handlers=error_renderers())


async def _is_genuine(request: Request, secret: bytes) -> bool:
    if token := request.headers.get("x-gitlab-token"):
        return hmac.compare_digest(token.encode(), secret)
    signature = request.headers.get("x-hub-signature-256") or request.headers.get("x-gitea-signature")
    if not signature:
        return False
    digest = await _hash_body(request, secret)
    return hmac.compare_digest(signature.removeprefix("sha256=").encode(), digest.encode())


async def _hash_body(request: Request, secret: bytes) -> str:
    """ApiError for a body that is too long, too slow or cut off."""
    digest = hmac.new(secret, digestmod=hashlib.sha256)
    length = 0
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for chunk in request.stream():
                length += len(chunk)
                if length > MAX_DELIVERY_BYTES:
                    message = f"the body must be at most {MAX_DELIVERY_BYTES} bytes long"
                    raise ApiError(413, ApiReason.BODY_TOO_LARGE, message, headers={"connection": "close"})
                digest.update(chunk)
    except TimeoutError:
        message = f"the body must arrive within {BODY_SECONDS:.0f} s"
        raise ApiError(408, ApiReason.BODY_TOO_SLOW, message, headers={"connection": "close"}) from None
    except ClientDisconnect:
        raise ApiError(400, ApiReason.BAD_REQUEST, "the connection ended within the body") from None
    return digest.hexdigest()
