"""Clients that speak TLS to the gateway's own process: certificates that come and go, handshakes that don't end."""

import asyncio
import datetime
import http.client
import socket
import ssl
import subprocess
import threading
from collections.abc import Generator
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from covey_gateway.limits import HANDSHAKE_SECONDS
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from integration.gateway_rig import Call, ScriptedEngine, eventually
from integration.test_gateway_process import refusal, start, write_table
from kit.fleet import running_fleet
from kit.ports import free_port

pytestmark = [pytest.mark.anyio, pytest.mark.integration, pytest.mark.timeout(120)]

BODY = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}


def write_pair(folder: Path, name: str, password: bytes = b"") -> tuple[Path, Path]:
    """A certificate for `localhost` that is its own authority, and its key, under these names."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.datetime.now(datetime.UTC)
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    builder = x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now - datetime.timedelta(days=1)).not_valid_after(now + datetime.timedelta(9))
    builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    certificate = builder.sign(key, hashes.SHA256())
    encryption = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
    paths = folder / f"{name}.crt", folder / f"{name}.key"
    paths[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    paths[1].write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption))
    return paths


@dataclass
class Served:
    process: subprocess.Popen[str]
    port: int
    lines: list[str] = field(default_factory=list[str])
    """Of its log, as they come."""

    @property
    def url(self) -> str:
        return f"https://localhost:{self.port}"

    def subject(self, trusted: Path) -> str:
        """Whose certificate a new connection is shown; SSLError if it is none of these."""
        context = ssl.create_default_context(cafile=str(trusted))
        plain = socket.create_connection(("localhost", self.port), 10)
        with context.wrap_socket(plain, server_hostname="localhost") as wrapped:
            shown: dict[str, Any] = wrapped.getpeercert() or {}
        return shown["subject"][0][0][1]


@contextmanager
def serving(folder: Path, certificate: Path, key: Path, port: int = 1, files: int | None = None) -> Generator[Served]:
    arguments = ["--table", str(write_table(folder, port=port)), "--listen", "127.0.0.1:0"]
    process = start(*arguments, "--tls-cert", str(certificate), "--tls-key", str(key), files=files)
    assert process.stderr is not None
    served = Served(process, 0)
    reader = threading.Thread(target=lambda: served.lines.extend(process.stderr or ()), daemon=True)
    try:
        for line in process.stderr:
            served.lines.append(line)
            if "listening on https://127.0.0.1:" in line:
                served.port = int(line.split(":")[-1])
                break
        else:
            raise AssertionError("".join(served.lines))
        reader.start()
        yield served
    finally:
        process.kill()
        process.wait(10)
        reader.join(10)
        process.stderr.close()


async def test_calls_hot_and_cold_are_answered_over_tls_and_a_client_that_leaves_is_noticed(tmp_path: Path) -> None:
    async with ScriptedEngine() as engine:
        certificate, key = write_pair(tmp_path, "one")
        with serving(tmp_path, certificate, key, engine.port) as served:
            for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
                context = ssl.create_default_context(cafile=str(certificate))
                context.minimum_version = context.maximum_version = version
                async with httpx.AsyncClient(base_url=served.url, verify=context, trust_env=False) as client:
                    shared: Any = client
                    sdk = openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="-", http_client=shared)
                    assert (await client.get("/v1/models")).json()["data"][0]["id"] == "m"
                    whole = await sdk.chat.completions.create(model="m", messages=[{"role": "user", "content": "Hi"}])
                    assert whole.choices[0].message.content == "Hello"
                    stream = await sdk.chat.completions.create(
                        model="m", messages=[{"role": "user", "content": "Hi"}], stream=True
                    )
                    assert [chunk.choices[0].delta.content async for chunk in stream] == ["Hel", "lo"]
                # Refused before its body is read: the answer arrives all the same.
                reader, writer = await asyncio.open_connection("localhost", served.port, ssl=context)
                writer.write(
                    b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 99999999\r\n\r\nx"
                )
                async with asyncio.timeout(10):
                    assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 413")
                writer.transport.abort()

            async def hold(call: Call) -> None:
                await call.wait_gone()

            engine.script = hold
            context = ssl.create_default_context(cafile=str(certificate))
            raw = http.client.HTTPSConnection("localhost", served.port, context=context, timeout=10)
            body = b'{"model":"m","messages":[{"role":"user","content":"Hi"}]}'
            asked = len(engine.calls)
            await asyncio.to_thread(raw.request, "POST", "/v1/chat/completions", body)
            await eventually(lambda: len(engine.calls) > asked)
            raw.close()
            await eventually(lambda: not engine.open_connections, 20)


def test_a_new_certificate_is_shown_without_a_restart_and_a_broken_one_never(tmp_path: Path) -> None:
    one, two, other = (write_pair(tmp_path, name) for name in ("one", "two", "other"))
    certificate, key = tmp_path / "served.crt", tmp_path / "served.key"

    def put(new: Path, path: Path) -> None:
        aside = path.with_suffix(".new")
        aside.write_bytes(new.read_bytes())
        aside.replace(path)

    put(one[0], certificate)
    put(one[1], key)
    trusted = tmp_path / "trusted.pem"
    trusted.write_bytes(b"".join(pair[0].read_bytes() for pair in (one, two, other)))
    with serving(tmp_path, certificate, key) as served:
        assert served.subject(trusted) == "one"
        context = ssl.create_default_context(cafile=str(trusted))
        kept = http.client.HTTPSConnection("localhost", served.port, context=context, timeout=10)
        kept.request("GET", "/healthz")
        assert kept.getresponse().read()
        put(two[0], certificate)  # its key is another one's yet
        assert [served.subject(trusted) for _ in range(3)] == ["one"] * 3
        put(two[1], key)
        assert served.subject(trusted) == "two"
        certificate.write_text("nonsense")
        assert served.subject(trusted) == "two"
        certificate.unlink()
        assert served.subject(trusted) == "two"
        put(other[0], certificate)
        put(other[1], key)
        assert served.subject(trusted) == "other"
        kept.request("GET", "/healthz")
        assert kept.getresponse().status == 200
        kept.close()
    told = [line for line in served.lines if "stays in force" in line]
    assert len(told) == 3, told  # once for each change
    assert "the key is not this certificate's" in told[0]
    assert f"'{certificate}' is none" in told[2]
    assert sum("clients get the certificate" in line for line in served.lines) == 2


def test_a_pair_that_cannot_be_used_ends_the_start_with_words(tmp_path: Path) -> None:
    one, two = write_pair(tmp_path, "one"), write_pair(tmp_path, "two")
    locked = write_pair(tmp_path, "locked", password=b"secret")
    table = str(write_table(tmp_path))
    cases = (
        (one[0], tmp_path / "gone.key", "`--tls-key` must be a readable file"),
        (one[0], two[1], "the key is not this certificate's"),
        (*locked, "without a password"),
        (one[1], one[1], "can't be used"),
    )
    for certificate, key, words in cases:
        code, found = refusal("--table", table, "--tls-cert", str(certificate), "--tls-key", str(key))
        assert (code, words in found) == (1, True), found
        assert "Traceback" not in found
    code, found = refusal("--table", table, "--tls-cert", str(one[0]))
    assert (code, "must be given together" in found) == (2, True), found


async def test_handshakes_that_do_not_end_take_no_more_than_their_share_and_end(tmp_path: Path) -> None:
    certificate, key = write_pair(tmp_path, "one")
    async with ScriptedEngine() as engine, AsyncExitStack() as stack:
        served = stack.enter_context(serving(tmp_path, certificate, key, engine.port, files=200))
        context = ssl.create_default_context(cafile=str(certificate))
        client = httpx.AsyncClient(base_url=served.url, verify=context, trust_env=False, timeout=30)
        await stack.enter_async_context(client)
        assert (await client.get("/v1/models")).status_code == 200  # its connection stays open
        loop, silent = asyncio.get_running_loop(), list[socket.socket]()
        for number in range(300):
            silent.append(stack.enter_context(socket.socket()))
            silent[-1].setblocking(False)
            await loop.sock_connect(silent[-1], ("127.0.0.1", served.port))
            if number % 3 == 0:
                with suppress(ConnectionError):
                    await loop.sock_sendall(silent[-1], b"GET / HTTP/1.1\r\n\r\n" if number % 2 else b"\x16\x03\x01")
        for _ in range(3):
            answer = await client.post("/v1/chat/completions", json=BODY)
            assert answer.status_code == 200, answer.text
        async with asyncio.timeout(HANDSHAKE_SECONDS + 30):
            for each in silent:
                with suppress(ConnectionError):
                    while await loop.sock_recv(each, 1024):
                        pass
        assert served.subject(certificate) == "one"
        assert not any("Traceback" in line or "could not be taken" in line for line in served.lines)


def test_covey_up_serves_https_to_pages_that_it_was_told_of(tmp_path: Path) -> None:
    """All parts run; nothing is asked for, so no engine does."""
    certificate, key = write_pair(tmp_path, "one")
    source, metrics = tmp_path / "nothing", free_port()
    source.mkdir()
    flags = ["--allow-empty", "--metrics-listen", f"127.0.0.1:{metrics}", "--cors-origin", "https://app.example"]
    with running_fleet(source, *flags, "--tls-cert", str(certificate), "--tls-key", str(key)) as fleet:
        url = f"https://localhost:{fleet.port}"
        assert f"https://127.0.0.1:{fleet.port}" in fleet.output_path.read_text()
        context = ssl.create_default_context(cafile=str(certificate))
        with httpx.Client(base_url=url, verify=context, timeout=20, trust_env=False) as client:
            answer = client.get("/v1/models", headers={"origin": "https://app.example"})
            assert (answer.status_code, answer.json()["data"]) == (200, [])
            assert answer.headers["access-control-allow-origin"] == "https://app.example"
            assert client.get("/v1/models", headers={"origin": "https://other.example"}).status_code == 403
        assert "covey_controller_leader 1.0" in httpx.get(f"http://127.0.0.1:{metrics}/metrics", timeout=20).text
