"""Who gets in where Kubernetes says who somebody is: pods that join, people and commands at the control API."""

import asyncio
import json
import ssl
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from covey_api.messages import CertificateRole
from covey_api.pod_names import render_covey_name
from covey_controller.ports import Conflict, VaultUnavailable
from covey_controller.stores.kube.client import KubeClient
from covey_controller.stores.kube.credentials import KubeconfigLogin
from covey_controller.stores.kube.vault import KubeVault
from covey_controller.trust import RotationStep, open_trust
from covey_fleet_client.client import FleetClient
from covey_fleet_client.errors import FleetError, FleetErrorKind
from covey_fleet_client.identity import Identity, load_identity
from covey_fleet_client.join import Admission, ensure_admitted
from kit.kube_fleet import (
    AGENT,
    AGENTS,
    CLI,
    CONTROL_AUDIENCE,
    FLEET_AUDIENCE,
    GATEWAY,
    NAMESPACE,
    KubeFleet,
    running_kube_fleet,
)
from testbed.kube.controlplane import ControlPlane

pytestmark = [pytest.mark.integration, pytest.mark.anyio, pytest.mark.timeout(300)]

NODE = "gpu-1"
LONG_NODE = "ip-10-0-0-1.eu-central-1.compute.internal"


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def fleet(control_plane: ControlPlane) -> Generator[KubeFleet]:
    """One controller, and a standby that every call goes through."""
    with running_kube_fleet(control_plane) as running:
        running.start_controller("a")
        running.wait_leader()
        standby = running.start_controller("b")
        running.service.backends = {"b": standby.fleet_port}
        running.mount_authority()
        running.wait(lambda: standby.probe("/readyz") == 200, "the standby is ready")
        yield running


def audited(fleet: KubeFleet, act: str) -> list[dict[str, Any]]:
    """Lines of this act in the controllers' logs."""
    lines = [line for log in fleet.folder.glob("*.log") for line in log.read_text().splitlines()]
    found = [json.loads(line.partition(" audit ")[2]) for line in lines if " audit {" in line]
    return [each for each in found if each["act"] == act]


def admit(fleet: KubeFleet, folder: Path, account: str, namespace: str, **bound: str) -> Admission:
    """A mounted token of this account, and the mounted certificates."""
    folder.mkdir(exist_ok=True)
    token_file = folder / "token"
    fleet.write_token(token_file, account, namespace, bound.get("audience", FLEET_AUDIENCE), bound.get("pod", ""))
    return Admission(token_file, fleet.mount_authority())


async def join(fleet: KubeFleet, folder: Path, role: CertificateRole, name: str, admission: Admission) -> Identity:
    return await ensure_admitted(load_identity(folder), fleet.service.url, role, name, admission)


async def refusal(fleet: KubeFleet, folder: Path, role: CertificateRole, name: str, admission: Admission) -> FleetError:
    with pytest.raises(FleetError) as caught:
        await join(fleet, folder, role, name, admission)
    return caught.value


async def test_pod_joins_by_its_token_and_again_with_an_empty_folder(fleet: KubeFleet, tmp_path: Path) -> None:
    fleet.bind_pod("agent-x", AGENT, AGENTS, NODE)
    admission = admit(fleet, tmp_path / "one", AGENT, AGENTS, pod="agent-x")
    first = await join(fleet, tmp_path / "one", CertificateRole.AGENT, NODE, admission)
    assert (
        await join(fleet, tmp_path / "one", CertificateRole.AGENT, NODE, admission)
    ).certificate == first.certificate
    again = await join(fleet, tmp_path / "two", CertificateRole.AGENT, NODE, admission)
    assert again.certificate != first.certificate
    assert again.name == NODE
    refused = await ensure_admitted(
        load_identity(tmp_path / "one"), fleet.service.url, CertificateRole.AGENT, NODE, admission, is_refused=True
    )
    assert refused.certificate != first.certificate, "a pod whose certificate is refused joins anew"


async def test_renewal_needs_no_token(fleet: KubeFleet, tmp_path: Path) -> None:
    """The projected token was replaced, or is gone: the certificate is enough."""
    fleet.bind_pod("gateway-x", GATEWAY, NAMESPACE, NODE)
    admission = admit(fleet, tmp_path / "g", GATEWAY, NAMESPACE, pod="gateway-x")
    identity = await join(fleet, tmp_path / "g", CertificateRole.GATEWAY, "gateway-x", admission)
    assert admission.token_file is not None
    admission.token_file.unlink()
    fleet.delete_pod("gateway-x", NAMESPACE)
    assert (await join(fleet, tmp_path / "g", CertificateRole.GATEWAY, "gateway-x", admission)).name == "gateway-x"
    async with FleetClient(identity, fleet.service.url) as client:
        await client.renew()
    assert load_identity(tmp_path / "g").certificate != identity.certificate


@pytest.mark.restarts_processes
async def test_agent_of_a_node_with_dots_in_its_name_serves_under_a_name_of_covey(fleet: KubeFleet) -> None:
    await asyncio.to_thread(fleet.start_agent, LONG_NODE)
    name = render_covey_name(LONG_NODE)
    await asyncio.to_thread(fleet.wait, lambda: fleet.has_condition("cnodes", name), f"node '{name}' reports")


@pytest.mark.parametrize(
    ("account", "namespace", "pod", "role", "name", "words"),
    [
        (AGENT, AGENTS, "agent-x", "agent", "gpu-2", "the agent of node 'gpu-1' must be named 'gpu-1'; got 'gpu-2'"),
        (AGENT, AGENTS, "agent-x", "gateway", NODE, "may join as 'agent'; it asked for 'gateway'"),
        (AGENT, AGENTS, "", "agent", NODE, "the token must be bound to a node"),
        (CLI, NAMESPACE, "", "agent", NODE, f"the token is of 'system:serviceaccount:{NAMESPACE}:{CLI}'"),
        (AGENT, "default", "", "agent", NODE, "may join; the token is of 'system:serviceaccount:default:covey-agent'"),
    ],
    ids=["another node", "another role", "not bound", "another account", "another namespace"],
)
async def test_pod_that_may_not_join_hears_why(
    fleet: KubeFleet, tmp_path: Path, account: str, namespace: str, pod: str, role: str, name: str, words: str
) -> None:
    fleet.bind_pod("agent-x", AGENT, AGENTS, NODE)
    fleet.ensure("v1", "ServiceAccount", account, namespace)
    admission = admit(fleet, tmp_path / "a", account, namespace, pod=pod)
    begun = time.monotonic()
    error = await refusal(fleet, tmp_path / "a", CertificateRole(role), name, admission)
    assert time.monotonic() - begun > 0.4, "refusals are slow"
    assert error.kind is FleetErrorKind.DENIED
    assert words in error.message


async def test_token_for_another_audience_or_of_a_deleted_pod_is_not_known(fleet: KubeFleet, tmp_path: Path) -> None:
    fleet.bind_pod("agent-y", AGENT, AGENTS, NODE)
    other = admit(fleet, tmp_path / "a", AGENT, AGENTS, pod="agent-y", audience="other")
    error = await refusal(fleet, tmp_path / "a", CertificateRole.AGENT, NODE, other)
    assert "a ServiceAccount token for audience 'covey-fleet'" in error.message
    gone = admit(fleet, tmp_path / "b", AGENT, AGENTS, pod="agent-y")
    fleet.delete_pod("agent-y", AGENTS)
    error = await refusal(fleet, tmp_path / "b", CertificateRole.AGENT, NODE, gone)
    assert error.kind is FleetErrorKind.DENIED


async def test_pods_token_is_shown_to_nobody_without_the_fleets_certificates(fleet: KubeFleet, tmp_path: Path) -> None:
    admission = admit(fleet, tmp_path / "a", AGENT, AGENTS)
    nothing = Admission(admission.token_file)
    error = await refusal(fleet, tmp_path / "a", CertificateRole.AGENT, NODE, nothing)
    assert "`--authority-file FILE`" in error.message
    missing = Admission(admission.token_file, tmp_path / "missing.pem")
    error = await refusal(fleet, tmp_path / "a", CertificateRole.AGENT, NODE, missing)
    assert "ConfigMap 'covey-authority'" in error.message


# The control API.


@asynccontextmanager
async def control(
    fleet: KubeFleet, token: str = "", header: str = "X-Covey-Token"
) -> AsyncGenerator[httpx.AsyncClient]:
    """Through the standby, as the API server's proxy may come."""
    context = ssl.create_default_context(cadata=fleet.authority())
    headers = {header: f"Bearer {token}" if header == "Authorization" else token} if token else {}
    url = f"https://127.0.0.1:{fleet.replicas['b'].control_port}"
    async with httpx.AsyncClient(base_url=url, verify=context, headers=headers, timeout=20) as client:
        yield client


def error_of(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["reason"]


@pytest.fixture(scope="module")
def reader(fleet: KubeFleet) -> str:
    """A token of an account that may read placements everywhere, and make join tokens."""
    rules: list[dict[str, Any]] = [
        {"apiGroups": ["covey.dev"], "resources": ["placements"], "verbs": ["get"]},
        {"apiGroups": ["covey.dev"], "resources": ["jointokens"], "verbs": ["create"]},
    ]
    fleet.grant(CLI, rules, name="reader")
    return fleet.request_token(CLI, NAMESPACE, CONTROL_AUDIENCE)


@pytest.mark.parametrize("header", ["X-Covey-Token", "Authorization"])
async def test_who_may_read_placements_asks_why_and_which_gateways_there_are(
    fleet: KubeFleet, reader: str, header: str
) -> None:
    fleet.wish(name="wished")
    async with control(fleet, reader, header) as client:
        path = "/api/v1/why/placements/default/wished"
        answer = await client.get(path)
        for _ in range(600):
            if answer.status_code != 404:
                break
            await asyncio.sleep(0.1)
            answer = await client.get(path)
        assert "wished" in answer.json()["text"]
        assert (await client.get("/api/v1/progress/placements/default/wished")).status_code == 200
        assert (await client.get("/api/v1/gateways")).status_code == 200


async def test_join_token_made_at_the_control_api_lets_a_machine_outside_in(
    fleet: KubeFleet, reader: str, tmp_path: Path
) -> None:
    async with control(fleet, reader) as client:
        body = {"role": "agent", "uses": 1, "ttlSeconds": 60}
        token = (await client.post("/api/v1/tokens", json=body)).json()["token"]
    token_file = tmp_path / "token"
    token_file.write_text(token)
    assert audited(fleet, "CreateToken")[-1]["by"] == f"system:serviceaccount:{NAMESPACE}:{CLI}"
    identity = await join(fleet, tmp_path / "mac", CertificateRole.AGENT, "mac", Admission(token_file))
    joined = audited(fleet, "Join")[-1]
    assert (joined["what"], joined["by"], joined["outcome"]) == (["agent/mac"], "a join token", "Done")
    assert not any(token in log.read_text() for log in fleet.folder.glob("*.log"))
    assert identity.name == "mac"
    error = await refusal(fleet, tmp_path / "two", CertificateRole.AGENT, "mac-2", Admission(token_file))
    assert "is used up" in error.message


async def test_right_in_one_namespace_is_a_right_there_alone(fleet: KubeFleet) -> None:
    fleet.ensure("v1", "ServiceAccount", "narrow", NAMESPACE)
    rules = [{"apiGroups": ["covey.dev"], "resources": ["placements"], "verbs": ["get"]}]
    fleet.grant("narrow", rules, "default")
    async with control(fleet, fleet.request_token("narrow", NAMESPACE, CONTROL_AUDIENCE)) as client:
        assert (await client.get("/api/v1/why/placements/default/none")).status_code == 404
        for path in ("why/placements/covey-system/none", "gateways", "why/cnodes/-/none", "why/cnodes/default/none"):
            answer = await client.get(f"/api/v1/{path}")
            assert error_of(answer) == (403, "Forbidden"), path
            assert "must be allowed to 'get' 'placements.covey.dev'" in answer.json()["error"]["message"]
        answer = await client.post("/api/v1/tokens", json={"role": "agent"})
        assert error_of(answer) == (403, "Forbidden")
        refused = audited(fleet, "CreateToken")[-1]
        assert (refused["by"], refused["outcome"]) == (f"system:serviceaccount:{NAMESPACE}:narrow", "Forbidden")
        assert "'create' 'jointokens.covey.dev' in all namespaces" in answer.json()["error"]["message"]
        assert error_of(await client.post("/api/v1/authority/rotate")) == (403, "Forbidden")


async def test_right_to_change_the_fleet_is_none_to_replace_its_authority(fleet: KubeFleet) -> None:
    fleet.ensure("v1", "ServiceAccount", "settler", NAMESPACE)
    fleet.grant("settler", [{"apiGroups": ["covey.dev"], "resources": ["fleets"], "verbs": ["update"]}])
    async with control(fleet, fleet.request_token("settler", NAMESPACE, CONTROL_AUDIENCE)) as client:
        answer = await client.post("/api/v1/authority/rotate")
        assert error_of(answer) == (403, "Forbidden")
        assert "'update' 'authorities.covey.dev' in all namespaces" in answer.json()["error"]["message"]


async def test_right_that_is_taken_away_is_gone_within_seconds(fleet: KubeFleet) -> None:
    fleet.ensure("v1", "ServiceAccount", "leaver", NAMESPACE)
    rules = [{"apiGroups": ["covey.dev"], "resources": ["placements"], "verbs": ["get"]}]
    fleet.grant("leaver", rules)
    async with control(fleet, fleet.request_token("leaver", NAMESPACE, CONTROL_AUDIENCE)) as client:
        assert (await client.get("/api/v1/gateways")).status_code == 200
        fleet.grant("leaver", [])
        for _ in range(600):
            if (await client.get("/api/v1/gateways")).status_code == 403:
                return
            await asyncio.sleep(0.1)
    raise AssertionError("the right must be gone within 60 s")


async def test_call_without_a_token_for_the_controller_is_refused(fleet: KubeFleet) -> None:
    for token in ("", "nonsense", fleet.request_token(CLI, NAMESPACE)):
        async with control(fleet, token) as client:
            answer = await client.get("/api/v1/gateways")
            assert error_of(answer) == (401, "NoToken")
            assert "audience 'covey-control'" in answer.json()["error"]["message"]
            if token:
                assert token not in answer.text


async def test_objects_are_read_and_written_at_the_api_server(fleet: KubeFleet, reader: str) -> None:
    async with control(fleet, reader) as client:
        for method, path in (
            ("GET", "objects/placements"),
            ("GET", "objects/placements/default/wished"),
            ("GET", "watch"),
            ("POST", "apply"),
            ("POST", "delete"),
            ("GET", "source"),
            ("GET", "events/placements/default/wished"),
            ("POST", "keys"),
            ("DELETE", "keys/default/laptop"),
        ):
            assert error_of(await client.request(method, f"/api/v1/{path}")) == (409, "UseKubernetesApi"), path


async def test_probe_says_no_secret_and_nothing_else_answers_there(fleet: KubeFleet) -> None:
    url = f"http://127.0.0.1:{fleet.replicas['b'].probe_port}"
    async with httpx.AsyncClient(base_url=url, timeout=30) as client:
        assert [(await client.get(path)).text for path in ("/healthz", "/readyz")] == ["ok", "ok"]
        assert (await client.get("/api/v1/gateways")).status_code == 404


async def test_logs_hold_no_token(fleet: KubeFleet, reader: str) -> None:
    for replica in fleet.replicas.values():
        log = replica.part.log.read_text()
        assert reader not in log
        assert replica.token_file.read_text() not in log


# The vault, and the authority in it.


async def test_replicas_that_make_the_authority_at_once_agree_and_rotate_one_step_at_a_time(
    control_plane: ControlPlane,
) -> None:
    async with KubeClient(KubeconfigLogin(control_plane.kubeconfig)) as client:
        control_plane.create_namespace("vaults")
        vaults = [KubeVault(client, "vaults", name="raced") for _ in range(4)]
        trusts = await asyncio.gather(*(open_trust(vault, time.time()) for vault in vaults))
        assert len({trust.current.digest for trust in trusts}) == 1
        results = await asyncio.gather(*(trust.rotate(time.time()) for trust in trusts), return_exceptions=True)
        assert [one for one in results if one is RotationStep.ANNOUNCED] != []
        assert all(isinstance(one, (RotationStep, Conflict)) for one in results)
        for trust in trusts:
            await trust.reload()
        assert len({trust.current.bundle for trust in trusts}) == 1


async def test_vault_of_an_api_server_that_is_away_is_unavailable_in_words(tmp_path: Path) -> None:
    config = tmp_path / "kubeconfig"
    config.write_text(
        json.dumps(
            {
                "current-context": "c",
                "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}],
                "users": [{"name": "c", "user": {"token": "t"}}],
                "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}],
            }
        )
    )
    async with KubeClient(KubeconfigLogin(config)) as client:
        with pytest.raises(VaultUnavailable, match="can't be reached"):
            await KubeVault(client, "default").read("a")
