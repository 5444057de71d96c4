"""Images by URL: fetched by the gateway where the list allows it and the address is anybody's, and by nobody else."""

import asyncio
import base64
import ipaddress
import json
import socket
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from covey_api.messages import ModelState, ServedModel
from covey_gateway import images
from covey_gateway.images import Address, Images, is_public
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from integration.gateway_rig import Answer, Gateway, ScriptedEngine, connected, eventually, raw_request, running_gateway
from integration.test_gateway_bad_input import post
from kit.servers import stop_accepting

pytestmark = [pytest.mark.anyio, pytest.mark.integration]

SEEING = ServedModel(namespace="default", name="m", tasks=("Chat", "Vision"), state=ModelState.READY)
PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256))
DATA_URL = f"data:image/png;base64,{base64.b64encode(PNG).decode()}"
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def anywhere(_: Address) -> bool:
    return True


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"use_uvloop": True}


class Site:
    """A server of images, and what it was asked for."""

    def __init__(self, answer: bytes = b"", rest: Serve | None = None, tls: ssl.SSLContext | None = None) -> None:
        self._tls = tls
        self.answer = answer or with_length(PNG)
        self.heads: list[bytes] = []
        self.port = 0
        self.open = 0
        self._rest = rest

    async def __aenter__(self) -> "Site":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._tls)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        await stop_accepting(self._server)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        try:
            self.heads.append(await reader.readuntil(b"\r\n\r\n"))
            writer.write(self.answer)
            if self._rest is not None:
                await self._rest(reader, writer)
        except ConnectionError:
            pass
        finally:
            self.open -= 1
            writer.close()


def with_length(body: bytes, status: str = "200 OK", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"content-length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


async def hang(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
    await reader.read()


async def flood(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while not writer.is_closing():
        writer.write(bytes(1024 * 1024))
        await writer.drain()


@asynccontextmanager
async def seeing_gateway(
    engine: ScriptedEngine, *hosts: str, guard: Callable[[Address], bool] = anywhere
) -> AsyncGenerator[Gateway]:
    make = partial(Images, hosts=hosts, guard=guard)
    async with running_gateway(make_images=make) as gateway:
        gateway.route(engine.target(), models=(SEEING,))
        yield gateway


@asynccontextmanager
async def seen_site(answer: bytes, rest: Serve | None) -> AsyncGenerator[tuple[Site, ScriptedEngine, Gateway]]:
    """A site whose images are fetched."""
    async with (
        Site(answer, rest) as site,
        ScriptedEngine() as engine,
        seeing_gateway(engine, f"127.0.0.1:{site.port}") as gateway,
    ):
        yield site, engine, gateway


def body_of(*urls: str) -> bytes:
    parts = [{"type": "image_url", "image_url": {"url": url, "detail": "low"}} for url in urls]
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": parts}]}).encode()


async def look(gateway: Gateway, *urls: str) -> Answer:
    return await post(gateway, "/v1/chat/completions", body_of(*urls))


FORMATS = {
    "chat": (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "U"}]}]},
    ),
    "responses": (
        "/v1/responses",
        {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "U"}]}]},
    ),
    "a call's output in responses": (
        "/v1/responses",
        {
            "input": [
                {
                    "type": "function_call_output",
                    "call_id": "c",
                    "output": [{"type": "input_image", "image_url": "U"}],
                }
            ]
        },
    ),
    "messages": (
        "/v1/messages",
        {
            "max_tokens": 9,
            "messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "U"}}]}],
        },
    ),
}


@pytest.mark.parametrize("name", FORMATS)
async def test_an_image_is_fetched_and_the_engine_gets_its_bytes(name: str) -> None:
    path, fields = FORMATS[name]
    async with Site() as site, ScriptedEngine() as engine, seeing_gateway(engine, f"127.0.0.1:{site.port}") as gateway:
        url = f"http://127.0.0.1:{site.port}/cat?size=2"
        answer = await post(gateway, path, json.dumps({"model": "m"} | fields).replace('"U"', json.dumps(url)).encode())
        assert answer.status == 200, answer
        (part,) = engine.calls[0].content["messages"][-1]["content"]
        assert part["image_url"]["url"] == DATA_URL
        assert url.encode() not in engine.calls[0].body
        assert site.heads[0].startswith(b"GET /cat?size=2 HTTP/1.1\r\n")


async def test_many_images_keep_their_places_and_each_url_is_fetched_once() -> None:
    async with Site() as site, ScriptedEngine() as engine, seeing_gateway(engine, f"127.0.0.1:{site.port}") as gateway:
        url = f"http://127.0.0.1:{site.port}/"
        given = "data:image/gif;base64,AAAA"
        assert (await look(gateway, url, given, url, url + "b")).status == 200
        parts = engine.calls[0].content["messages"][0]["content"]
        assert [part["image_url"]["url"] for part in parts] == [DATA_URL, given, DATA_URL, DATA_URL]
        assert {part["image_url"]["detail"] for part in parts} == {"low"}
        assert len(site.heads) == 2


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:{port}/",
        "http://localhost:{port}/",
        "http://2130706433:{port}/",
        "http://0x7f.1:{port}/",
        "http://[::1]:{port}/",
        "http://[::ffff:127.0.0.1]:{port}/",
        "http://0.0.0.0:{port}/",
    ],
)
async def test_an_address_that_is_not_public_is_never_connected_to(url: str) -> None:
    """Also where the list has the name: it may mean another address than whoever wrote the list thought."""
    async with Site() as site, ScriptedEngine() as engine:
        url = url.replace("{port}", str(site.port))
        host = url.removeprefix("http://").rstrip("/").replace("[", "").replace("]", "")
        async with seeing_gateway(engine, host, "*", guard=is_public) as gateway:
            answer = await look(gateway, url)
        assert (answer.status, site.heads, engine.calls) == (400, [], [])
        assert "public addresses" in answer.error["message"] or "isn't known" in answer.error["message"]


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("93.184.216.34", True),
        ("2606:2800:220:1:248:1893:25c8:1946", True),
        *((address, False) for address in ("10.0.0.1", "172.16.0.1", "192.168.1.1", "127.8.8.8", "169.254.169.254")),
        *((address, False) for address in ("100.64.0.1", "0.1.2.3", "224.0.0.1", "255.255.255.255", "::", "::1")),
        *((address, False) for address in ("fe80::1", "fd00::1", "ff02::1", "::ffff:10.0.0.1", "2002:7f00:1::")),
        *((address, False) for address in ("64:ff9b::10.0.0.1", "64:ff9b::169.254.169.254", "64:ff9b:1::a00:1")),
        *((address, False) for address in ("::10.0.0.1", "::ffff:0:a00:1", "fec0::1", "2001:db8::5efe:a00:1")),
        ("2600::5efe:a00:1", False),
        ("2600::200:5efe:a00:1", False),
    ],
)
async def test_which_addresses_are_anybodys(address: str, expected: bool) -> None:
    assert is_public(ipaddress.ip_address(address)) is expected


async def test_a_name_is_looked_up_once_and_what_was_looked_at_is_connected_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rebinding: the second answer would be another address. One private address among public ones is enough, too."""
    looked: list[str] = []
    found = ["127.0.0.1"]

    async def look_up(host: str, port: int, **_: Any) -> list[Any]:
        looked.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in found]

    def pretended(address: Address) -> bool:
        return str(address) == "127.0.0.1"  # the one address of this test that plays a public one

    async with Site() as site, ScriptedEngine() as engine:
        hosts = f"cats.example:{site.port}"
        async with seeing_gateway(engine, hosts, guard=pretended) as gateway:
            monkeypatch.setattr(images, "look_up", look_up)
            url = f"http://cats.example:{site.port}/a"
            assert (await look(gateway, url)).status == 200
            assert looked == ["cats.example"]
            assert f"host: cats.example:{site.port}".encode() in site.heads[0]
            found.append("10.0.0.1")
            refused = await look(gateway, url)
            assert (refused.status, len(site.heads)) == (400, 1)
            assert "public addresses only" in refused.error["message"]


@pytest.mark.parametrize(
    "url",
    [
        "http://other.example/a.png",
        "http://127.0.0.1:{port}.example/",
        "https://127.0.0.1:1/",
        "http://127.0.0.1/",
    ],
)
async def test_what_is_not_on_the_list_is_not_fetched(url: str) -> None:
    async with Site() as site, ScriptedEngine() as engine, seeing_gateway(engine, f"127.0.0.1:{site.port}") as gateway:
        answer = await look(gateway, url.replace("{port}", str(site.port)))
        assert (answer.status, site.heads, engine.calls) == (400, [], [])


async def test_without_a_list_nothing_is_fetched() -> None:
    async with ScriptedEngine() as engine, seeing_gateway(engine) as gateway:
        answer = await look(gateway, "https://example.com/a.png")
        assert (answer.status, engine.calls) == (400, [])
        assert "--image-host" in answer.error["message"]
        assert answer.error["param"] == "messages"


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd",
        "ftp://127.0.0.1/a",
        "http://user:secret@127.0.0.1/",
        "http:///a",
        "http://127.0.0.1\\@example.com/",
        "http://127.0.0.1/a\r\nhost: b",
        "http://127.0.0.1:99999/",
        "//127.0.0.1/",
        "data:text/html;base64,AAAA",
        "data:image/png,AAAA",
        "",
        "cat.png",
    ],
)
async def test_what_is_no_url_of_the_web_nor_an_images_data_is_refused(url: str) -> None:
    async with ScriptedEngine() as engine, seeing_gateway(engine, "*", "127.0.0.1") as gateway:
        answer = await look(gateway, url)
        assert (answer.status, answer.error["code"], engine.calls) == (400, "invalid_request", [])


SVG = b"<svg xmlns='http://www.w3.org/2000/svg'/>"


@pytest.mark.parametrize(
    ("answer", "rest", "words"),
    [
        (with_length(b"", "302 Found", "location: http://127.0.0.1:9/"), None, "redirects are not followed"),
        (with_length(PNG, "404 Not Found"), None, "answered 404"),
        (with_length(b"<html>secret</html>", "200 OK", "content-type: image/png"), None, "PNG, JPEG"),
        (with_length(SVG), None, "PNG, JPEG"),
        (with_length(PNG, "200 OK", "content-encoding: gzip"), None, "compressed"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 999\r\n\r\n" + PNG, None, "ended before"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 99999999\r\n\r\n" + PNG, flood, "at most 20971520 bytes"),
        (b"HTTP/1.1 200 OK\r\n\r\n" + PNG, flood, "at most 20971520 bytes"),
        (b"HTTP/1.1 200 OK\r\nx: " + b"y" * 100_000, None, "head is too long"),
        (b"SSH-2.0-OpenSSH_9\r\n", None, "no HTTP"),
    ],
)
async def test_what_a_server_may_answer_instead_of_an_image(answer: bytes, rest: Serve | None, words: str) -> None:
    async with seen_site(answer, rest) as (site, engine, gateway):
        found = await look(gateway, f"http://127.0.0.1:{site.port}/")
        assert (found.status, engine.calls) == (400, [])
        assert words in found.error["message"]
        assert "secret" not in found.error["message"]
        await eventually(lambda: site.open == 0)
        assert gateway.in_flight == 0


async def test_a_server_that_never_ends_costs_the_deadline_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "FETCH_SECONDS", 0.3)
    async with seen_site(b"HTTP/1.1 200 OK\r\n", hang) as (site, engine, gateway):
        found = await look(gateway, f"http://127.0.0.1:{site.port}/")
        assert (found.status, engine.calls) == (400, [])
        assert "didn't come within" in found.error["message"]
        await eventually(lambda: site.open == 0)


async def test_a_client_that_leaves_ends_the_fetch() -> None:
    async with seen_site(b"HTTP/1.1 200 OK\r\n", hang) as (site, engine, gateway), connected(gateway) as client:
        await client.send(raw_request(body_of(f"http://127.0.0.1:{site.port}/")))
        await eventually(lambda: site.open == 1)
        client.leave()
        await eventually(lambda: site.open == 0)
        assert engine.calls == []


async def test_too_many_images_to_fetch_are_refused() -> None:
    async with ScriptedEngine() as engine, seeing_gateway(engine, "*") as gateway:
        answer = await look(gateway, *(f"https://example.com/{number}" for number in range(9)))
        assert (answer.status, engine.calls) == (400, [])
        assert "at most 8" in answer.error["message"]


async def test_a_certificate_counts_for_the_name_that_was_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate, key = sign_for("localhost", tmp_path)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, key)
    async with Site(tls=tls) as site, ScriptedEngine() as engine:
        hosts = (f"localhost:{site.port}", f"127.0.0.1:{site.port}")
        async with seeing_gateway(engine, *hosts) as gateway:
            untrusted = await look(gateway, f"https://localhost:{site.port}/")
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        async with seeing_gateway(engine, *hosts) as gateway:
            another = await look(gateway, f"https://127.0.0.1:{site.port}/")
            assert (await look(gateway, f"https://localhost:{site.port}/")).status == 200
        assert (untrusted.status, another.status, len(engine.calls)) == (400, 400, 1)


def sign_for(name: str, folder: Path) -> tuple[Path, Path]:
    """A certificate that is its own authority, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=1))
    builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    pem = builder.sign(key, SHA256()).public_bytes(Encoding.PEM)
    (folder / "certificate.pem").write_bytes(pem)
    (folder / "key.pem").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return folder / "certificate.pem", folder / "key.pem"
