"""Calls of the API server, and the vault in a Secret, on a real one."""

import asyncio
import re
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from covey_controller.ports import Conflict
from covey_controller.stores.kube.client import KubeClient
from covey_controller.stores.kube.credentials import InClusterLogin, InvalidLogin, KubeconfigLogin, Login
from covey_controller.stores.kube.errors import KubeAway, KubeError
from covey_controller.stores.kube.vault import KubeVault
from testbed.kube.controlplane import ControlPlane

pytestmark = pytest.mark.integration


@asynccontextmanager
async def open_vault(plane: ControlPlane) -> AsyncGenerator[tuple[KubeVault, KubeClient]]:
    plane.clear("default")
    async with KubeClient(KubeconfigLogin(plane.kubeconfig)) as client:
        yield KubeVault(client, "default"), client


def test_vault_keeps_documents_and_refuses_one_that_changed_meanwhile(control_plane: ControlPlane) -> None:
    async def scenario() -> None:
        async with open_vault(control_plane) as (vault, _):
            assert await vault.read("tokens.json") is None
            await vault.replace("tokens.json", b"one", seen=None)
            await vault.replace("fleet.secret", b"\x00\xff", seen=None)
            assert await vault.read("tokens.json") == b"one"
            assert await vault.read("fleet.secret") == b"\x00\xff"
            await vault.replace("tokens.json", b"two", seen=b"one")
            with pytest.raises(Conflict, match=r"'tokens.json' in Secret 'default/covey-controller' isn't what was"):
                await vault.replace("tokens.json", b"three", seen=b"one")
            with pytest.raises(Conflict):
                await vault.replace("tokens.json", b"three", seen=None)
            assert await vault.read("tokens.json") == b"two"

    asyncio.run(scenario())


def test_vault_writes_of_many_at_once_all_land_in_different_documents(control_plane: ControlPlane) -> None:
    async def scenario() -> None:
        async with open_vault(control_plane) as (vault, _):
            names = ("a", "b", "c", "d")
            async with asyncio.TaskGroup() as group:
                for name in names:
                    group.create_task(vault.replace(name, name.encode(), seen=None))
            assert [await vault.read(name) for name in names] == [b"a", b"b", b"c", b"d"]

    asyncio.run(scenario())


def test_vault_lets_one_of_two_writers_of_a_document_win(control_plane: ControlPlane) -> None:
    async def scenario() -> None:
        async with open_vault(control_plane) as (vault, _):
            writes = [vault.replace("tokens.json", content, seen=None) for content in (b"one", b"two")]
            ends = await asyncio.gather(*writes, return_exceptions=True)
            assert [type(end) for end in ends if end is not None] == [Conflict]
            assert await vault.read("tokens.json") in (b"one", b"two")

    asyncio.run(scenario())


def test_refusals_carry_the_api_servers_status_and_reason(control_plane: ControlPlane) -> None:
    async def scenario() -> None:
        async with open_vault(control_plane) as (_, client):
            with pytest.raises(KubeError, match="404 NotFound") as missing:
                await client.request("GET", "/api/v1/namespaces/default/secrets/none")
            assert missing.value.is_missing
            body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "taken"}}
            await client.request("POST", "/api/v1/namespaces/default/configmaps", body=body)
            with pytest.raises(KubeError, match="AlreadyExists") as taken:
                await client.request("POST", "/api/v1/namespaces/default/configmaps", body=body)
            assert taken.value.is_conflict
            await client.request("DELETE", "/api/v1/namespaces/default/configmaps/taken")

    asyncio.run(scenario())


def test_expired_token_is_read_again_from_its_file(control_plane: ControlPlane, tmp_path: Path) -> None:
    """The kubelet replaces the file; the API server refuses the old token."""
    (tmp_path / "ca.crt").write_text(control_plane.authority.read_text())
    (tmp_path / "namespace").write_text("default")
    (tmp_path / "token").write_text("expired")
    environment = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(control_plane.port)}

    async def scenario() -> None:
        async with KubeClient(InClusterLogin(tmp_path, environment)) as client:
            with pytest.raises(KubeError, match="401 Unauthorized"):
                await client.request("GET", "/api/v1/namespaces")
            (tmp_path / "token").write_text(control_plane.token + "\n")
            assert (await client.request("GET", "/api/v1/namespaces"))["items"]
            (tmp_path / "token").unlink()
            assert (await client.request("GET", "/api/v1/namespaces"))["items"], "what was read before still holds"

    asyncio.run(scenario())


def test_reading_from_an_api_server_that_is_away_is_tried_again_and_ends(tmp_path: Path) -> None:
    config = tmp_path / "kubeconfig"
    config.write_text(
        "current-context: a\n"
        "clusters: [{name: a, cluster: {server: 'https://127.0.0.1:9'}}]\n"
        "contexts: [{name: a, context: {cluster: a, user: a}}]\n"
        "users: [{name: a, user: {token: none}}]\n"
    )

    async def scenario() -> None:
        async with KubeClient(KubeconfigLogin(config)) as client:
            began = time.monotonic()
            with pytest.raises(KubeAway, match=r"'https://127.0.0.1:9' can't be reached"):
                await client.request("GET", "/version")
            assert time.monotonic() - began > 0.5, "four tries with pauses between"

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("login", "message"),
    [
        (InClusterLogin(Path("/nowhere"), {}), "`KUBERNETES_SERVICE_HOST` and"),
        (
            InClusterLogin(Path("/nowhere"), {"KUBERNETES_SERVICE_HOST": "::1", "KUBERNETES_SERVICE_PORT": "1"}),
            "'/nowhere/namespace' must be readable",
        ),
        (KubeconfigLogin(Path("/nowhere/config")), "'/nowhere/config' must be readable"),
    ],
)
def test_login_without_its_files_says_what_is_needed(login: Login, message: str) -> None:
    async def scenario() -> None:
        async with KubeClient(login) as client:
            with pytest.raises(InvalidLogin, match=message):
                await client.request("GET", "/version")

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("cluster", "user", "message"),
    [
        ("server: 'https://a'", "exec: {command: aws}", "`exec` isn't for a controller"),
        ("server: 'https://a'", "auth-provider: {name: gcp}", "`auth-provider` isn't for a controller"),
        ("server: 'https://a', insecure-skip-tls-verify: true", "token: a", "`insecure-skip-tls-verify` must be false"),
        ("server: 'https://a', certificate-authority-data: '?'", "token: a", "must be base64 of PEM"),
        ("server: 'https://a', certificate-authority-data: 'YQ=='", "token: a", "must be PEM"),
        ("{", "token: a", "can't be read"),
        ("other: 1", "token: a", "can't be read"),
    ],
)
def test_kubeconfig_that_a_controller_cannot_use_is_refused_by_name(
    tmp_path: Path, cluster: str, user: str, message: str
) -> None:
    config = tmp_path / "kubeconfig"
    config.write_text(
        f"current-context: a\nclusters: [{{name: a, cluster: {{{cluster}}}}}]\n"
        f"contexts: [{{name: a, context: {{cluster: a, user: a}}}}]\nusers: [{{name: a, user: {{{user}}}}}]\n"
    )

    async def scenario() -> None:
        async with KubeClient(KubeconfigLogin(config)) as client:
            with pytest.raises(InvalidLogin, match=message):
                await client.request("GET", "/version")

    asyncio.run(scenario())


@asynccontextmanager
async def answering(
    status: str, content: str, folder: Path, *, asked: list[bytes] | None = None
) -> AsyncGenerator[Path]:
    """A kubeconfig of something that is no API server and answers every call so; `asked` gets the calls' heads."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        call = await reader.readuntil(b"\r\n\r\n")
        if asked is not None:
            asked.append(call)
        head = f"HTTP/1.1 {status}\r\nContent-Length: {len(content)}\r\nConnection: close\r\n\r\n"
        writer.write((head + content).encode())
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        config = folder / "kubeconfig"
        port = server.sockets[0].getsockname()[1]
        config.write_text(
            "current-context: a\n"
            f"clusters: [{{name: a, cluster: {{server: 'http://127.0.0.1:{port}'}}}}]\n"
            "contexts: [{name: a, context: {cluster: a, user: a}}]\n"
            "users: [{name: a, user: {token: none}}]\n"
        )
        yield config


@pytest.mark.parametrize(
    ("status", "content", "words"),
    [
        ("200 OK", "<html>", "must be an API server's JSON; it begins with b'<html>'"),
        ("200 OK", "[]", "must be an API server's JSON"),
        ("520 Strange", "<html>", "520 Unknown: <html>"),
    ],
)
def test_what_no_api_server_answers_counts_as_away(status: str, content: str, words: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with answering(status, content, tmp_path) as config, KubeClient(KubeconfigLogin(config)) as client:
            with pytest.raises(KubeAway, match=words):
                await client.request("GET", "/api")

    asyncio.run(scenario())


def test_certificate_that_is_half_replaced_leaves_the_login_before_in_force(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with (
            answering("401 Unauthorized", "", tmp_path) as config,
            KubeClient(KubeconfigLogin(config)) as client,
        ):
            await client.read_credentials()
            config.write_text(config.read_text().replace("token: none", "client-certificate-data: Zm9v"))
            with pytest.raises(KubeError, match="401 Unauthorized"):
                await client.request("GET", "/api")

    asyncio.run(scenario())


@pytest.mark.parametrize("status", ["302 Found", "307 Temporary Redirect", "308 Permanent Redirect"])
def test_nothing_is_sent_to_where_a_redirect_points(tmp_path: Path, status: str) -> None:
    elsewhere: list[bytes] = []

    async def scenario() -> None:
        other = tmp_path / "other"
        other.mkdir()
        async with answering("200 OK", "{}", other, asked=elsewhere) as target:
            port = re.search(r"http://127.0.0.1:(\d+)", target.read_text())
            assert port is not None
            answer = f"{status}\r\nLocation: http://localhost:{port[1]}/"
            async with answering(answer, "", tmp_path) as config, KubeClient(KubeconfigLogin(config)) as client:
                for method in ("GET", "POST", "PATCH"):
                    with pytest.raises(KubeAway, match="the answer must be an API server's; it is a redirect"):
                        await client.request(method, "/version", body={"data": "c2VjcmV0"})

    asyncio.run(scenario())
    assert elsewhere == []
