"""Which web pages may read what the gateway answers."""

import hashlib
from dataclasses import replace

import pytest
from covey_api.messages import ClientKey
from covey_gateway.main import parse_options
from covey_gateway.routing.access import AccessPolicy
from covey_gateway.routing.cors import parse_origins
from integration.gateway_rig import LOOPBACK, Answer, Gateway, ScriptedEngine, asked, connected, running_gateway

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]

PAGE, OTHER = "https://app.example", "https://evil.example"
ALLOWED = replace(LOOPBACK, cors_origins=parse_origins([PAGE]))
SECRET = "sk-covey-page"
KEY = ClientKey(namespace="default", name="k", hash="sha256:" + hashlib.sha256(SECRET.encode()).hexdigest())


async def sent(gateway: Gateway, method: str, path: str, *headers: str) -> Answer:
    async with connected(gateway) as client:
        await client.send("\r\n".join((f"{method} {path} HTTP/1.1", "host: localhost", *headers, "", "")).encode())
        return await client.read_answer()


def preflight(origin: str) -> tuple[str, ...]:
    return f"origin: {origin}", "access-control-request-method: POST", "access-control-request-headers: authorization"


def cors_of(answer: Answer) -> dict[str, str]:
    return {name: value for name, value in answer.headers.items() if name.startswith("access-control-")}


async def test_without_a_list_no_page_reads_anything() -> None:
    async with ScriptedEngine() as engine, running_gateway(engine.target()) as gateway:
        for origin, status in (("http://localhost:3000", 200), (PAGE, 403)):
            for is_stream in (True, False):
                answer = await asked(gateway, f"origin: {origin}", stream=is_stream)
                assert (answer.status, cors_of(answer)) == (status, {})
        answer = await sent(gateway, "OPTIONS", "/v1/chat/completions", *preflight(PAGE))
        assert (answer.status, cors_of(answer)) == (403, {})
        answer = await sent(gateway, "OPTIONS", "/v1/chat/completions", *preflight("http://localhost:3000"))
        assert (answer.status, cors_of(answer)) == (405, {})


async def test_a_page_on_the_list_reads_answers_refusals_and_streams_and_no_other_does() -> None:
    async with ScriptedEngine() as engine, running_gateway(engine.target(), policy=ALLOWED) as gateway:
        answers = [
            await asked(gateway, f"origin: {PAGE}"),
            await asked(gateway, f"origin: {PAGE}", stream=True),
            await asked(gateway, f"origin: {PAGE}", model="nobody"),
            await sent(gateway, "GET", "/v1/models", f"origin: {PAGE}"),
            await sent(gateway, "GET", "/v1/nothing", f"origin: {PAGE}"),
        ]
        assert [answer.status for answer in answers] == [200, 200, 404, 200, 404]
        for answer in answers:
            assert answer.headers["access-control-allow-origin"] == PAGE
            assert answer.headers["vary"] == "origin"
            assert "x-request-id" in answer.headers["access-control-expose-headers"]
        for answer in (
            await asked(gateway, f"origin: {OTHER}"),
            await sent(gateway, "GET", "/v1/models", "origin: null"),
        ):
            assert (answer.status, cors_of(answer)) == (403, {})
        plain = await asked(gateway)
        assert (plain.status, cors_of(plain), plain.headers["vary"]) == (200, {}, "origin")
        # Rebound to loopback by its DNS: the list is of origins, not of hosts.
        async with connected(gateway) as client:
            await client.send(f"GET /v1/models HTTP/1.1\r\nhost: app.example\r\norigin: {PAGE}\r\n\r\n".encode())
            assert (await client.read_answer()).status == 403


async def test_browsers_ask_beforehand_without_a_key_and_in_their_turn() -> None:
    policy = AccessPolicy(needs_local_origin=False, needs_key=True, cors_origins=parse_origins([PAGE]))
    async with ScriptedEngine() as engine, running_gateway(policy=policy) as gateway:
        gateway.route(engine.target(), keys=(KEY,))
        for path in ("/v1/chat/completions", "/v1/models", "/v1/nothing"):
            answer = await sent(
                gateway, "OPTIONS", path, *preflight(PAGE), "access-control-request-private-network: true"
            )
            assert (answer.status, answer.body) == (204, b"")
            assert answer.headers["access-control-allow-origin"] == PAGE
            assert answer.headers["access-control-allow-headers"] == "authorization"
            assert "POST" in answer.headers["access-control-allow-methods"]
            assert answer.headers["access-control-allow-private-network"] == "true"
            assert "access-control-allow-credentials" not in answer.headers
        for target in ("*", "http://[::1/v1"):
            assert (await sent(gateway, "OPTIONS", target, *preflight(PAGE))).status == 400
        # It opens nothing by itself, for nobody else, and not without being one.
        assert (await asked(gateway, f"origin: {PAGE}")).status == 401
        assert (await asked(gateway, f"origin: {PAGE}", f"authorization: Bearer {SECRET}")).status == 200
        assert (await sent(gateway, "OPTIONS", "/v1/models", *preflight(OTHER))).status == 401
        assert (await sent(gateway, "OPTIONS", "/v1/models", f"origin: {PAGE}")).status == 401
        async with connected(gateway) as client:
            await client.ask(f"authorization: Bearer {SECRET}")
            head = ("OPTIONS /v1/models HTTP/1.1", "host: localhost", *preflight(PAGE), "", "")
            await client.send("\r\n".join(head).encode())
            await client.ask(f"authorization: Bearer {SECRET}")
            assert [(await client.read_answer()).status for _ in range(3)] == [200, 204, 200]


def test_what_is_no_origin_is_refused_at_the_start(capsys: pytest.CaptureFixture[str]) -> None:
    for text in ("app.example", "https://app.example/", "https://a b", "null", "ftp://x"):
        with pytest.raises(SystemExit):
            parse_options(["--table", "t", "--cors-origin", text])
        assert "an origin must be like" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        parse_options(["--table", "t", "--cors-origin", "*"])
    assert "only where a key is needed" in capsys.readouterr().err
    assert parse_options(["--table", "t", "--listen", "0.0.0.0:1", "--cors-origin", "*"]).cors_origins == {b"*"}
    found = parse_options(["--table", "t", "--cors-origin", "HTTPS://App.example:8443", "--cors-origin", PAGE])
    assert found.cors_origins == {b"https://app.example:8443", PAGE.encode()}
