"""The webhook on a real socket: genuine deliveries of each forge make the source look, nothing else does."""

import asyncio
import contextlib
import hashlib
import hmac
from collections.abc import AsyncGenerator
from pathlib import Path

import httpx
import pytest
from covey_controller.control_api.webhook import MAX_DELIVERY_BYTES, read_webhook_secret, serve_webhook
from covey_controller.serving.listener import ListenFailed

pytestmark = [pytest.mark.integration, pytest.mark.anyio]

SECRET = b"0123456789abcdef-test"
BODY = b'{"ref": "refs/heads/main"}'


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def sign(body: bytes, secret: bytes = SECRET) -> str:
    return hmac.new(secret, body, hashlib.sha256).hexdigest()


@contextlib.asynccontextmanager
async def listening() -> AsyncGenerator[tuple[httpx.AsyncClient, list[str]]]:
    looks: list[str] = []
    address: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    async with asyncio.TaskGroup() as group:
        serving = group.create_task(
            serve_webhook("127.0.0.1", 0, SECRET, lambda: looks.append("look"), address.set_result)
        )
        async with httpx.AsyncClient(base_url=f"http://{await address}", timeout=20) as client:
            yield client, looks
        serving.cancel()


@pytest.mark.parametrize(
    "heads",
    [
        {"X-Hub-Signature-256": f"sha256={sign(BODY)}", "X-GitHub-Event": "push"},
        {"X-Gitea-Signature": sign(BODY)},
        {"X-Gitlab-Token": SECRET.decode()},
    ],
    ids=["github", "gitea", "gitlab"],
)
async def test_a_genuine_delivery_makes_the_source_look(heads: dict[str, str]) -> None:
    async with listening() as (client, looks):
        answer = await client.post("/webhook", content=BODY, headers=heads)
        assert answer.status_code == 202
        assert looks == ["look"]


@pytest.mark.parametrize(
    "heads",
    [
        {},
        {"X-Hub-Signature-256": f"sha256={sign(BODY, b'another secret of enough bytes')}"},
        {"X-Hub-Signature-256": f"sha256={sign(BODY + b' ')}"},
        {"X-Hub-Signature-256": "sha256="},
        {"X-Hub-Signature": "sha1=0000"},
        {"X-Gitlab-Token": "guess"},
        {"X-Gitlab-Token": "", "X-Gitea-Signature": "zz"},
    ],
)
async def test_any_other_is_refused(heads: dict[str, str]) -> None:
    async with listening() as (client, looks):
        answer = await client.post("/webhook", content=BODY, headers=heads)
        assert answer.status_code == 401
        assert answer.json()["error"]["reason"] == "Forbidden"
        assert SECRET.decode() not in answer.text
        assert (await client.get("/webhook")).status_code == 405
        assert (await client.get("/")).status_code == 404
        assert looks == []


async def test_a_signature_of_odd_bytes_is_refused() -> None:
    async with listening() as (client, looks):
        heads = httpx.Headers([(b"X-Gitea-Signature", b"\xe9\xff")])
        assert (await client.post("/webhook", content=BODY, headers=heads)).status_code == 401
        assert looks == []


async def test_a_body_is_hashed_and_never_kept_and_has_a_bound() -> None:
    large = b"x" * (4 << 20)
    async with listening() as (client, looks):
        heads = {"X-Hub-Signature-256": f"sha256={sign(large)}"}
        assert (await client.post("/webhook", content=large, headers=heads)).status_code == 202

        async def endless() -> AsyncGenerator[bytes]:
            for _ in range((MAX_DELIVERY_BYTES >> 20) + 2):
                yield b"x" * (1 << 20)

        with contextlib.suppress(httpx.WriteError, httpx.ReadError):
            assert (await client.post("/webhook", content=endless(), headers=heads)).status_code == 413
        assert looks == ["look"]


async def test_a_taken_address_is_told_in_words() -> None:
    async with listening() as (client, _):
        port = client.base_url.port
        assert port is not None
        with pytest.raises(ListenFailed, match="--webhook-listen HOST:PORT"):
            await serve_webhook("127.0.0.1", port, SECRET, lambda: None, lambda _: None)


def test_the_secret_is_read_from_a_private_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_bytes(SECRET + b"\n")
    path.chmod(0o640)
    with pytest.raises(ValueError, match="chmod 600"):
        read_webhook_secret(path)
    path.chmod(0o600)
    assert read_webhook_secret(path) == SECRET
    path.write_bytes(b"short\n")
    with pytest.raises(ValueError, match="16 to 1024 bytes"):
        read_webhook_secret(path)
