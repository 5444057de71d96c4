"""The fleet API and its client over real sockets and real TLS."""

import asyncio
import hashlib
import json
import random
import shutil
import socket
import ssl
import stat
import time
from collections.abc import AsyncGenerator, Awaitable
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from covey_api.messages import (
    MAX_BODY_BYTES,
    STREAM_SILENCE_SECONDS,
    AskAnswer,
    Assignments,
    CertificateRole,
    DemandAnswer,
    Endpoints,
    JoinAnswer,
    JoinRequest,
    ReportAnswer,
)
from covey_controller.serving import guests, listener, refusals
from covey_controller.serving.answers import BODY_SECONDS
from covey_controller.serving.lines import SEND_SECONDS
from covey_controller.serving.protocol import HEAD_SECONDS, MAX_HEAD_BYTES
from covey_fleet_client.client import FleetClient
from covey_fleet_client.errors import FleetError, FleetErrorKind
from covey_fleet_client.files import write_private
from covey_fleet_client.identity import Identity, load_identity
from covey_fleet_client.join import ensure_joined
from integration.fleet_rig import Rig, SteeredBoard, demand, eventually, report, running_fleet
from kit.servers import stop_accepting
from kit.vaults import authority_in

AGENT, GATEWAY = CertificateRole.AGENT, CertificateRole.GATEWAY
pytestmark = [pytest.mark.anyio, pytest.mark.integration]


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"use_uvloop": True}


async def refused(call: Awaitable[object], kind: FleetErrorKind) -> str:
    with pytest.raises(FleetError) as caught:
        await call
    assert caught.value.kind is kind, caught.value
    return caught.value.message


async def join_with(rig: Rig, token: str, role: CertificateRole = AGENT, name: str = "a") -> Identity:
    return await ensure_joined(load_identity(rig.folder / "joiner"), rig.url, role, name, token)


def raw_client(rig: Rig, identity: Identity | None = None) -> httpx.AsyncClient:
    """A client that sends what it is told, with or without a certificate."""
    context = ssl.create_default_context(cadata=rig.trust.current.bundle_pem)
    if identity is not None:
        context.load_cert_chain(identity.certificate_path, identity.key_path)
    return httpx.AsyncClient(base_url=f"{rig.url}/fleet/v1/", verify=context, trust_env=False, timeout=20)


async def _connect(rig: Rig, identity: Identity | None = None) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A TLS connection for bytes that no HTTP client would send."""
    context = ssl.create_default_context(cadata=rig.trust.current.bundle_pem)
    if identity is not None:
        context.load_cert_chain(identity.certificate_path, identity.key_path)
    port = int(rig.url.rsplit(":", 1)[1])
    return await asyncio.open_connection("127.0.0.1", port, ssl=context, limit=4096)


# Joining


async def test_join_with_a_good_token_gives_a_certificate_that_works_and_is_used_again(tmp_path: Path) -> None:
    async with running_fleet(tmp_path) as rig:
        identity = await join_with(rig, await rig.token(AGENT))
        assert (identity.role, identity.name) == (AGENT, "a")
        async with FleetClient(identity, rig.url) as client:
            answer = await client.post("nodes/a/report", report(), ReportAnswer)
        assert (answer.term, answer.serial) == (1, 1)
        assert [node for node, _ in rig.board.reports] == ["a"]
        again = await ensure_joined(load_identity(tmp_path / "joiner"), rig.url, AGENT, "a", None)
        assert again.certificate == identity.certificate


async def test_join_keeps_every_secret_file_private(tmp_path: Path) -> None:
    async with running_fleet(tmp_path) as rig:
        token = await rig.token(AGENT)
        identity = await join_with(rig, token)
        for path in [*identity.folder.iterdir(), *(tmp_path / "controller").iterdir()]:
            assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
            assert token.split(".")[1].encode() not in path.read_bytes(), path
        assert stat.S_IMODE(identity.folder.stat().st_mode) == 0o700
        assert {path.name for path in identity.folder.iterdir()} == {
            "name",
            "key.pem",
            "certificate.pem",
            "authorities.pem",
            "token-id",
            "controller",
        }


async def test_join_with_a_used_up_token_is_denied_and_says_so(tmp_path: Path) -> None:
    async with running_fleet(tmp_path) as rig:
        token = await rig.token(AGENT)
        await join_with(rig, token)
        second = ensure_joined(load_identity(tmp_path / "second"), rig.url, AGENT, "b", token)
        assert "used up" in await refused(second, FleetErrorKind.DENIED)


async def test_join_with_an_expired_token_is_denied_and_says_so(tmp_path: Path) -> None:
    async with running_fleet(tmp_path) as rig:
        token = await rig.tokens.mint(AGENT, 1, 60, time.time() - 61)
        assert "expired" in await refused(join_with(rig, token), FleetErrorKind.DENIED)


async def test_join_with_a_wrong_secret_is_denied_without_a_hint_which_part_was_wrong(tmp_path: Path) -> None:
    async with running_fleet(tmp_path) as rig:
        identifier, _, digest = (await rig.token(AGENT)).split(".")
        wrong_secret = await refused(join_with(rig, f"{identifier}.{'A' * 43}.{digest}"), FleetErrorKind.DENIED)
        wrong_id = await refused(join_with(rig, f"covey-{'0' * 12}.{'A' * 43}.{digest}"), FleetErrorKind.DENIED)
        assert wrong_secret == wrong_id


async def test_join_with_a_token_for_another_role_is_denied_and_the_token_keeps_its_use(tmp_path: Path) -> None:
    async with running_fleet(tmp_path) as rig:
        token = await rig.token(GATEWAY)
        assert "for role 'gateway'" in await refused(join_with(rig, token), FleetErrorKind.DENIED)
        assert (await join_with(rig, token, GATEWAY, "g")).role is GATEWAY


async def test_join_without_token_or_certificate_says_how_to_get_one(tmp_path: Path) -> None:
    async with running_fleet(tmp_path) as rig:
        join = ensure_joined(load_identity(tmp_path / "joiner"), rig.url, AGENT, "a", None)
        assert "covey token create --role agent" in await refused(join, FleetErrorKind.DENIED)


async def test_join_under_an_invalid_name_is_refused_before_a_use_is_taken(tmp_path: Path) -> None:
    async with running_fleet(tmp_path) as rig:
        token = await rig.token(AGENT)
        for name in ("A", "a/b", "a.b", "", "-a", "a" * 54, "ä", "a\n"):
            with pytest.raises((FleetError, ValueError)):
                await join_with(rig, token, name=name)
        assert (await join_with(rig, token)).name == "a"


async def test_join_with_a_request_that_cannot_be_signed_is_refused_before_a_use_is_taken(tmp_path: Path) -> None:
    async with running_fleet(tmp_path) as rig, raw_client(rig) as client:
        token = await rig.token(AGENT)
        body = JoinRequest(role=AGENT, name="a", signing_request="no request").to_wire()
        answer = await client.post("join", json=body, headers={"authorization": f"Bearer {token}"})
        assert (answer.status_code, answer.json()["error"]["reason"]) == (400, "InvalidSigningRequest")
        assert (await join_with(rig, token)).name == "a"


async def test_join_of_many_at_once_takes_exactly_the_uses_that_the_token_has(tmp_path: Path) -> None:
    async with running_fleet(tmp_path) as rig:
        token = await rig.token(AGENT, uses=3)

        async def is_joined(number: int) -> bool:
            identity = load_identity(tmp_path / f"joiner-{number}")
            try:
                await ensure_joined(identity, rig.url, AGENT, f"n{number}", token)
            except FleetError:
                return False
            return True

        assert sum(await asyncio.gather(*(is_joined(number) for number in range(8)))) == 3


async def test_join_answers_too_many_wrong_tokens_at_once_with_429(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refusals, "REFUSAL_SECONDS", 8.0)  # so that all are there at once
    async with running_fleet(tmp_path) as rig, raw_client(rig) as client:
        request = load_identity(tmp_path / "joiner").render_signing_request()
        body = JoinRequest(role=AGENT, name="a", signing_request=request).to_wire()
        answers = await asyncio.gather(*(client.post("join", json=body) for _ in range(12)))
        found = sorted(answer.status_code for answer in answers)
        assert found == [401] * 8 + [429] * 4


async def test_who_guesses_tokens_keeps_nobody_of_another_address_from_joining(tmp_path: Path) -> None:
    async with running_fleet(tmp_path) as rig, raw_client(rig) as guesser:
        request = load_identity(tmp_path / "joiner").render_signing_request()
        body = JoinRequest(role=AGENT, name="a", signing_request=request).to_wire()

        async def guess_for_ever() -> None:
            while True:
                guessed.append((await guesser.post("join", json=body)).status_code)

        guessed: list[int] = []
        guessing = [asyncio.ensure_future(guess_for_ever()) for _ in range(10)]
        await eventually(lambda: 429 in guessed)
        context = ssl.create_default_context(cadata=rig.trust.current.bundle_pem)
        # Every address of 127.0.0.0/8 is this machine's on Linux; elsewhere one has to be set up.
        try:
            with socket.socket() as probe:
                probe.bind(("127.0.0.2", 0))
        except OSError:
            pytest.skip("127.0.0.2 is no address of this machine")
        transport = httpx.AsyncHTTPTransport(verify=context, local_address="127.0.0.2")
        async with httpx.AsyncClient(base_url=f"{rig.url}/fleet/v1/", transport=transport, timeout=20) as joiner:
            for _ in range(5):
                token = await rig.token(AGENT)
                answer = await joiner.post("join", json=body, headers={"authorization": f"Bearer {token}"})
                assert answer.status_code == 200, answer.text
        for task in guessing:
            task.cancel()
        await asyncio.gather(*guessing, return_exceptions=True)


async def test_joined_to_a_fleet_made_anew_joins_again_with_the_new_token(tmp_path: Path) -> None:
    async with running_fleet(tmp_path / "old") as rig:
        old = await ensure_joined(load_identity(tmp_path / "joiner"), rig.url, AGENT, "a", await rig.token(AGENT))
    async with running_fleet(tmp_path / "new") as rig:
        new = await ensure_joined(load_identity(tmp_path / "joiner"), rig.url, AGENT, "a", await rig.token(AGENT))
        assert new.certificate != old.certificate
        async with FleetClient(new, rig.url) as client:
            await client.post("nodes/a/report", report(), ReportAnswer)


@asynccontextmanager
async def recording_server(folder: Path, answer: bytes, received: bytearray) -> AsyncGenerator[str]:
    """A TLS server of the authority in `folder` that sends one answer to everything and records what it is sent."""
    authority = authority_in(folder, time.time())
    pem = folder / "server.pem"
    write_private(pem, authority.issue_server(("127.0.0.1",), time.time()).encode())
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)

    async def reply(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while chunk := await reader.read(65536):
                received.extend(chunk)
                writer.write(answer)
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(reply, "127.0.0.1", 0, ssl=context)
    try:
        yield f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        await stop_accepting(server)


def _ok(body: str) -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body.encode())


async def test_join_never_sends_the_secret_to_a_controller_of_another_authority(tmp_path: Path) -> None:
    real = authority_in(tmp_path / "real", time.time())
    fake = authority_in(tmp_path / "fake", time.time())
    secret = "S" * 43
    token = f"covey-{'0' * 12}.{secret}.{real.digest}"
    # The first offers its own authority; the second the real one, which is public, but it can't prove that it has it.
    for offered, kind in ((fake, FleetErrorKind.DENIED), (real, FleetErrorKind.INVALID)):
        received = bytearray()
        async with recording_server(tmp_path / "fake", _ok(offered.bundle_pem), received) as url:
            join = ensure_joined(load_identity(tmp_path / "joiner"), url, AGENT, "a", token)
            await refused(join, kind)
        assert b"/fleet/v1/authority" in received
        assert secret.encode() not in received
        assert b"authorization" not in received.lower()


async def test_join_to_an_endless_authority_answer_is_refused_at_a_bound(tmp_path: Path) -> None:
    endless = _ok("x" * (MAX_BODY_BYTES + 1))
    async with recording_server(tmp_path / "fake", endless, bytearray()) as url:
        token = f"covey-{'0' * 12}.{'S' * 43}.{'0' * 64}"
        join = ensure_joined(load_identity(tmp_path / "joiner"), url, AGENT, "a", token)
        assert "at most" in await refused(join, FleetErrorKind.INVALID)


async def test_the_token_pins_the_digest_of_the_authority_certificate(tmp_path: Path) -> None:
    async with running_fleet(tmp_path) as rig, raw_client(rig) as client:
        offered = (await client.get("authority")).text
        der = ssl.PEM_cert_to_DER_cert(offered)
        assert (await rig.token(AGENT)).split(".")[2] == hashlib.sha256(der).hexdigest()


# Who may call what

CALLS = [
    ("GET", "nodes/a/assignments"),
    ("POST", "nodes/a/report"),
    ("PUT", "nodes/a/asks/1"),
    ("GET", "endpoints"),
    ("POST", "demand"),
    ("POST", "renew"),
]


@pytest.mark.parametrize(("method", "path"), CALLS)
async def test_a_call_without_a_certificate_is_answered_401(tmp_path: Path, method: str, path: str) -> None:
    async with running_fleet(tmp_path) as rig, raw_client(rig) as client:
        answer = await client.request(method, path)
        assert (answer.status_code, answer.json()["error"]["reason"]) == (401, "NoCertificate")


@pytest.mark.parametrize(("role", "name"), [(AGENT, "b"), (GATEWAY, "a")])
@pytest.mark.parametrize(("method", "path"), CALLS[:3])
async def test_a_nodes_calls_are_refused_to_everybody_but_its_agent(
    tmp_path: Path, method: str, path: str, role: CertificateRole, name: str
) -> None:
    async with running_fleet(tmp_path) as rig, raw_client(rig, await rig.join(role, name)) as client:
        answer = await client.request(method, path, json=report().to_wire())
        assert (answer.status_code, answer.json()["error"]["reason"]) == (403, "Forbidden")
        assert rig.board.reports == []
        assert rig.board.readers == []


@pytest.mark.parametrize(("method", "path"), CALLS[3:5])
async def test_a_gateways_calls_are_refused_to_agents(tmp_path: Path, method: str, path: str) -> None:
    async with running_fleet(tmp_path) as rig, raw_client(rig, await rig.join(AGENT, "a")) as client:
        answer = await client.request(method, path, json=demand("a").to_wire())
        assert (answer.status_code, answer.json()["error"]["reason"]) == (403, "Forbidden")


async def test_a_gateway_reports_demand_under_its_own_name_only(tmp_path: Path) -> None:
    async with running_fleet(tmp_path) as rig, rig.client(GATEWAY, "g") as client:
        assert (await client.post("demand", demand("g"), DemandAnswer)).serial == 1
        await refused(client.post("demand", demand("h"), DemandAnswer), FleetErrorKind.DENIED)
        assert [gateway for gateway, _ in rig.board.demands] == ["g"]


async def test_a_certificate_of_another_authority_fails_the_handshake(tmp_path: Path) -> None:
    async with running_fleet(tmp_path / "one") as one, running_fleet(tmp_path / "two") as two:
        stranger = await two.join(AGENT, "a")
        trusting = replace(stranger, authorities=one.trust.current.bundle)
        async with FleetClient(trusting, one.url) as client:
            call = client.post("nodes/a/report", report(), ReportAnswer)
            assert "broke the connection off" in await refused(call, FleetErrorKind.UNREACHABLE)
        assert one.board.reports == []


async def test_a_controller_of_another_authority_is_not_believed(tmp_path: Path) -> None:
    async with running_fleet(tmp_path / "one") as one, running_fleet(tmp_path / "two") as two:
        async with FleetClient(await one.join(AGENT, "a"), two.url) as client:
            call = client.post("nodes/a/report", report(), ReportAnswer)
            assert "doesn't vouch" in await refused(call, FleetErrorKind.INVALID)
        assert two.board.reports == []


async def test_the_server_certificate_is_no_client_certificate(tmp_path: Path) -> None:
    async with running_fleet(tmp_path) as rig:
        context = ssl.create_default_context(cadata=rig.trust.current.bundle_pem)
        context.load_cert_chain(tmp_path / "controller" / "server.pem")
        async with httpx.AsyncClient(verify=context, trust_env=False) as client:
            with pytest.raises(httpx.TransportError):
                await client.post(f"{rig.url}/fleet/v1/nodes/a/report", json=report().to_wire())


async def test_a_denied_certificate_is_refused_at_its_next_call_and_loses_its_stream_within_two_seconds(
    tmp_path: Path,
) -> None:
    async with running_fleet(tmp_path) as rig, rig.client(AGENT, "a") as client, rig.client(AGENT, "b") as other:
        async with (
            aclosing(client.stream("nodes/a/assignments")) as lines,
            aclosing(other.stream("nodes/b/assignments")) as kept,
        ):
            await anext(lines)
            await anext(kept)
            await rig.denials.deny(AGENT, "a", time.time())
            async with asyncio.timeout(20):
                await refused(anext(lines), FleetErrorKind.UNREACHABLE)
            rig.board.publish()
            assert json.loads(await anext(kept))["serial"] == 2
        call = client.post("nodes/a/report", report(), ReportAnswer)
        assert "removed from the fleet" in await refused(call, FleetErrorKind.DENIED)
        body = JoinRequest(role=AGENT, name="a", signing_request="")
        await refused(client.post("renew", body, JoinAnswer), FleetErrorKind.DENIED)
        shutil.rmtree(tmp_path / "agent-a")
        async with rig.client(AGENT, "a") as again:
            await again.post("nodes/a/report", report(), ReportAnswer)
        await refused(client.post("nodes/a/report", report(), ReportAnswer), FleetErrorKind.DENIED)


async def test_what_is_on_its_way_when_its_sender_is_removed_is_refused(tmp_path: Path) -> None:
    async with running_fleet(tmp_path) as rig:
        identity = await rig.join(AGENT, "a")
        body = json.dumps(report().to_wire()).encode()

        async def slow_body() -> AsyncGenerator[bytes]:
            yield body[:10]
            await asyncio.sleep(0.3)
            await rig.denials.deny(AGENT, "a", time.time())
            yield body[10:]

        async with raw_client(rig, identity) as client:
            answer = await client.post("nodes/a/report", content=slow_body())
        assert (answer.status_code, answer.json()["error"]["reason"]) == (403, "CertificateDenied")
        assert not rig.board.reports


# Streams


async def test_an_agent_reads_the_newest_assignments_and_the_board_knows_that_it_reads(tmp_path: Path) -> None:
    async with running_fleet(tmp_path) as rig, rig.client(AGENT, "a") as client:
        async with aclosing(client.stream("nodes/a/assignments")) as lines:
            first = Assignments.model_validate_json(await anext(lines))
            assert (first.node, first.serial) == ("a", 1)
            assert rig.board.readers == ["a"]
            rig.board.publish()
            assert Assignments.model_validate_json(await anext(lines)).serial == 2
        await eventually(lambda: not rig.board.readers)


async def test_a_gateway_reads_endpoints(tmp_path: Path) -> None:
    async with (
        running_fleet(tmp_path) as rig,
        rig.client(GATEWAY, "g") as client,
        aclosing(client.stream("endpoints")) as lines,
    ):
        assert Endpoints.model_validate_json(await anext(lines)).serial == 1


async def _reads_through_silence(client: FleetClient, board: SteeredBoard) -> None:
    """Keep-alives hold the stream open beyond the deadline, and aren't shown."""
    async with aclosing(client.stream("nodes/alive/assignments")) as lines:
        await anext(lines)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(STREAM_SILENCE_SECONDS + 2):
                await anext(lines)
        board.publish()


async def _gives_up_on_silence(url: str, identity: Identity) -> None:
    async with FleetClient(identity, url) as client, aclosing(client.stream("endpoints")) as lines:
        assert await anext(lines) == b'{"term":1}'
        begun = time.monotonic()
        assert "no sign of life" in await refused(anext(lines), FleetErrorKind.UNREACHABLE)
        assert time.monotonic() - begun >= STREAM_SILENCE_SECONDS - 1


async def _is_cut_off_when_it_stops_reading(rig: Rig, identity: Identity) -> None:
    reader, writer = await _connect(rig, identity)
    writer.write(b"GET /fleet/v1/nodes/stalled/assignments HTTP/1.1\r\nhost: x\r\n\r\n")
    await reader.readuntil(b"\r\n\r\n")
    assert "stalled" in rig.board.readers

    def is_cut_off() -> bool:
        rig.board.publish()
        return "stalled" not in rig.board.readers

    await eventually(is_cut_off, SEND_SECONDS + 10)
    writer.transport.abort()


async def _is_cut_off_when_its_head_dribbles(rig: Rig) -> None:
    reader, writer = await _connect(rig)
    writer.write(b"GET / HTTP/1.1\r\nx: ")
    begun = time.monotonic()
    while not await _is_ended(reader) and time.monotonic() - begun < HEAD_SECONDS + 20:
        writer.write(b"y")
    assert HEAD_SECONDS - 3 < time.monotonic() - begun < HEAD_SECONDS + 15
    writer.transport.abort()


async def _is_ended(reader: asyncio.StreamReader) -> bool:
    try:
        async with asyncio.timeout(0.2):
            return await reader.read(1) == b""
    except TimeoutError:
        return False
    except OSError:
        return True


async def _is_answered_408_when_its_body_dribbles(rig: Rig) -> None:
    reader, writer = await _connect(rig)
    writer.write(b"POST /fleet/v1/join HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{")
    async with asyncio.timeout(BODY_SECONDS + 20):
        head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 408")
    writer.transport.abort()


async def test_who_is_silent_or_slow_beyond_its_deadline_is_given_up_and_who_is_quiet_is_not(tmp_path: Path) -> None:
    """One test because each waits for the real deadline, ten or fifteen seconds."""
    silent = authority_in(tmp_path / "silent", time.time())
    body = b'HTTP/1.1 200 OK\r\n\r\n{"term":1}\n'
    async with (
        running_fleet(tmp_path / "quiet") as quiet,
        running_fleet(tmp_path / "large", SteeredBoard(padding_bytes=1_000_000)) as large,
        recording_server(tmp_path / "silent", body, bytearray()) as url,
        quiet.client(AGENT, "alive") as client,
        asyncio.TaskGroup() as group,
    ):
        stalled = await large.join(AGENT, "stalled")
        trusting = replace(stalled, authorities=silent.bundle)
        group.create_task(_reads_through_silence(client, quiet.board))
        group.create_task(_gives_up_on_silence(url, trusting))
        group.create_task(_is_cut_off_when_it_stops_reading(large, stalled))
        group.create_task(_is_cut_off_when_its_head_dribbles(quiet))
        group.create_task(_is_answered_408_when_its_body_dribbles(quiet))


async def test_the_server_ends_soon_though_streams_are_open(tmp_path: Path) -> None:
    async with running_fleet(tmp_path) as rig, rig.client(AGENT, "a") as client:
        async with aclosing(client.stream("nodes/a/assignments")) as lines:
            await anext(lines)
            begun = time.monotonic()
            rig.server.cancel()
            await refused(anext(lines), FleetErrorKind.UNREACHABLE)
            await asyncio.wait([rig.server])
            assert time.monotonic() - begun < 10
            assert rig.board.readers == []
        call = client.post("nodes/a/report", report(), ReportAnswer)
        assert "can't be reached" in await refused(call, FleetErrorKind.UNREACHABLE)


async def test_the_server_ends_soon_though_a_request_hangs(tmp_path: Path) -> None:
    async with running_fleet(tmp_path) as rig:
        _, writer = await _connect(rig)
        writer.write(b"POST /fleet/v1/join HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\nhalf")
        await writer.drain()
        await asyncio.sleep(0.1)
        begun = time.monotonic()
        rig.server.cancel()
        await asyncio.wait([rig.server])
        assert time.monotonic() - begun < 10
        writer.transport.abort()


# Bodies


async def test_an_answer_to_an_ask_arrives(tmp_path: Path) -> None:
    async with running_fleet(tmp_path) as rig, rig.client(AGENT, "a") as client:
        await client.put("nodes/a/asks/7", AskAnswer(id="7", text="line"))
        assert rig.board.answers == [("a", AskAnswer(id="7", text="line"))]
        await refused(client.put("nodes/a/asks/8", AskAnswer(id="7")), FleetErrorKind.REFUSED)


async def test_a_body_that_is_too_large_is_answered_413_announced_or_not(tmp_path: Path) -> None:
    async with running_fleet(tmp_path) as rig, raw_client(rig, await rig.join(AGENT, "a")) as client:
        answer = await client.post("nodes/a/report", content=b"x" * (MAX_BODY_BYTES + 1))
        assert (answer.status_code, answer.json()["error"]["reason"]) == (413, "BodyTooLarge")

        async def chunks() -> AsyncGenerator[bytes]:
            for _ in range(MAX_BODY_BYTES // 65536 + 2):
                yield b"x" * 65536

        answer = await client.post("nodes/a/report", content=chunks())
        assert answer.status_code == 413


async def test_malformed_bodies_are_answered_400_with_the_field(tmp_path: Path) -> None:
    async with running_fleet(tmp_path) as rig, raw_client(rig, await rig.join(AGENT, "a")) as client:
        for body, words in (
            (b"", "JSON"),
            (b"{", "JSON"),
            (b'{"bootId": 1}', "`bootId`"),
            (b"[" * 100_000, "JSON"),
            (b"\xff\xfe", "JSON"),
            (b'{"bootId": "b", "version": "1", "full": true, "sequence": "x"}', "`sequence`"),
        ):
            answer = await client.post("nodes/a/report", content=body)
            assert answer.status_code == 400, body[:40]
            assert words in answer.json()["error"]["message"]
        assert (await client.get("nowhere")).json()["error"]["reason"] == "NotFound"
        assert (await client.get("join")).json()["error"]["reason"] == "MethodNotAllowed"
        assert rig.board.reports == []


# Renewal


async def test_a_due_certificate_is_renewed_in_the_background_without_ending_the_stream(tmp_path: Path) -> None:
    async with running_fleet(tmp_path) as rig:
        joined = await rig.join(AGENT, "a")
        old = rig.trust.current.issue_client(joined.key.public_key(), AGENT, "a", time.time() - 40 * 24 * 3600)
        write_private(joined.certificate_path, old.encode())
        identity = load_identity(joined.folder)
        assert identity.renew_at < time.time() < identity.expires_at
        async with FleetClient(identity, rig.url) as client, asyncio.TaskGroup() as group:
            async with aclosing(client.stream("nodes/a/assignments")) as lines:
                await anext(lines)
                renewal = group.create_task(client.watch_certificate())
                await eventually(lambda: load_identity(joined.folder).renew_at > time.time())
                rig.board.publish()
                assert json.loads(await anext(lines))["serial"] == 2
            renewed = load_identity(joined.folder)
            assert renewed.is_valid(AGENT, "a", time.time())
            assert renewed.key.public_key() == joined.key.public_key()
            await client.post("nodes/a/report", report(), ReportAnswer)
            renewal.cancel()


async def test_a_renewal_for_another_name_or_role_is_refused(tmp_path: Path) -> None:
    async with running_fleet(tmp_path) as rig, rig.client(AGENT, "a") as client:
        request = load_identity(tmp_path / "agent-a").render_signing_request()
        for role, name in ((AGENT, "b"), (GATEWAY, "a")):
            body = JoinRequest(role=role, name=name, signing_request=request)
            await refused(client.post("renew", body, JoinAnswer), FleetErrorKind.DENIED)


async def test_an_expired_certificate_is_not_shown_and_would_not_be_taken(tmp_path: Path) -> None:
    async with running_fleet(tmp_path) as rig:
        joined = await rig.join(AGENT, "a")
        old = rig.trust.current.issue_client(joined.key.public_key(), AGENT, "a", time.time() - 91 * 24 * 3600)
        write_private(joined.certificate_path, old.encode())
        expired = load_identity(joined.folder)
        async with FleetClient(expired, rig.url) as client:
            call = client.post("nodes/a/report", report(), ReportAnswer)
            assert "has expired" in await refused(call, FleetErrorKind.DENIED)
        async with raw_client(rig, expired) as client:
            with pytest.raises(httpx.TransportError):
                await client.post("nodes/a/report", json=report().to_wire())
        assert rig.board.reports == []


# Anything at all

MALFORMED = [
    b"",
    b"\r\n\r\n",
    b"GET\r\n\r\n",
    b"GET /fleet/v1/authority HTTP/9.9\r\n\r\n",
    b"GET / HTTP/1.1\r\nhost x\r\n\r\n",
    b"POST /fleet/v1/join HTTP/1.1\r\ncontent-length: -1\r\n\r\n",
    b"POST /fleet/v1/join HTTP/1.1\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab",
    b"POST /fleet/v1/join HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
    b"POST /fleet/v1/join HTTP/1.1\r\ntransfer-encoding: chunked\r\ncontent-length: 3\r\n\r\n0\r\n\r\n",
    b"GET /fleet/v1/nodes/%2e%2e%2f/assignments HTTP/1.1\r\n\r\n",
    b"GET /fleet/v1/nodes/%ff%00/assignments HTTP/1.1\r\n\r\n",
    b"GET /\xff HTTP/1.1\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"GET /fleet/v1/endpoints HTTP/1.1\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n",
    b"GET / HTTP/1.1\r\nx: " + b"y" * 200_000,
    b"GET /" + b"y" * 200_000,
]


async def _exchange(rig: Rig, content: bytes) -> bytes:
    """What comes back within a moment; empty when the connection was ended without an answer."""
    reader, writer = await _connect(rig)
    try:
        writer.write(content)
        async with asyncio.timeout(0.3):
            return await reader.read(4096)
    except (TimeoutError, OSError):
        return b""
    finally:
        writer.transport.abort()


async def test_no_bytes_get_more_than_a_refusal_or_harm_the_next_call(tmp_path: Path) -> None:
    chance = random.Random(20)
    valid = b"POST /fleet/v1/join HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}"
    mutated: list[bytes] = []
    for _ in range(40):
        content = bytearray(valid)
        for _ in range(chance.randint(1, 8)):
            content[chance.randrange(len(content))] = chance.randrange(256)
        mutated.append(bytes(content))
    async with running_fleet(tmp_path) as rig, raw_client(rig) as client:
        for content in [*MALFORMED, *mutated]:
            answer = await _exchange(rig, content)
            assert not answer or answer.startswith(b"HTTP/1.1 4"), (content[:80], answer)
        assert (await client.get("authority")).status_code == 200
        assert rig.board.readers == []


async def test_a_head_that_never_ends_is_cut_off_at_its_bound(tmp_path: Path) -> None:
    async with running_fleet(tmp_path) as rig:
        _, writer = await _connect(rig)
        writer.write(b"GET / HTTP/1.1\r\n")
        sent = 0
        while not writer.is_closing() and sent < 100 * MAX_HEAD_BYTES:
            writer.write(b"x: " + b"y" * 8000 + b"\r\n")
            sent += 8005
            await asyncio.sleep(0.005)
        assert MAX_HEAD_BYTES <= sent < 20 * MAX_HEAD_BYTES
        writer.transport.abort()


async def test_no_more_connections_are_held_than_may_be_though_nobody_asks_for_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "MAX_CONNECTIONS", 5)
    async with running_fleet(tmp_path) as rig:
        held: list[asyncio.StreamWriter] = []
        with suppress(OSError):
            while len(held) < 10:
                held.append((await _connect(rig))[1])
        assert 3 <= len(held) <= 5
        for writer in held:
            assert not writer.is_closing()
            writer.transport.abort()


@pytest.mark.parametrize("has_tls", [False, True], ids=["before a handshake", "after one"])
async def test_peers_that_show_nothing_and_stay_keep_nobody_else_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_tls: bool
) -> None:
    monkeypatch.setattr(guests, "MAX_GUESTS_OF_ONE", 5)
    async with running_fleet(tmp_path) as rig:
        port = int(rig.url.rsplit(":", 1)[1])
        agent = await rig.join(AGENT, "a")
        async with FleetClient(agent, rig.url) as client, aclosing(client.stream("nodes/a/assignments")) as lines:
            await anext(lines)
            held: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
            for _ in range(12):
                held.append(await (_connect(rig) if has_tls else asyncio.open_connection("127.0.0.1", port)))
            # The eldest are gone, and the newest are there.
            for reader, _ in held[:5]:
                with suppress(OSError):
                    assert await asyncio.wait_for(reader.read(1), 20) == b""
            assert not held[-1][0].at_eof()
            # Who follows was not disturbed, who has a certificate gets in, and so does who joins.
            rig.board.publish()
            assert await asyncio.wait_for(anext(lines), 20)
            async with FleetClient(agent, rig.url) as second:
                await second.post("nodes/a/report", report(), ReportAnswer)
            await rig.join(AGENT, "b")
        for _, writer in held:
            writer.transport.abort()
