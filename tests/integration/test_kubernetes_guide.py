"""The guide's commands, taken from its text and run as they stand, on an API server where nothing runs pods."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest
from kit.cache import shared_cache
from kit.cluster import Shell, fill_service
from kit.kube_fleet import bare_kube_fleet
from testbed.kube.controlplane import ControlPlane, local_address, running_control_plane
from testbed.kube.programs import NoPrograms, component_command, tool_command

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(900),
    pytest.mark.usefixtures("kube_tools"),
]

ROOT = Path(__file__).resolve().parents[2]
GUIDE = ROOT / "docs" / "guides" / "kubernetes.md"
COMMAND_SECONDS = 120.0
# In a fresh cache the engine and the model are fetched first.
READY_SECONDS = 600.0
# A kind goes within seconds; where the API server still sees objects of it, it looks for a minute, then begins again.
GONE_SECONDS = 240.0
_BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Reader:
    """Somebody at a shell, with helm and kubectl on PATH."""

    def __init__(self, plane: ControlPlane, folder: Path) -> None:
        self.plane = plane
        programs = {"kubectl": component_command("kubectl"), "helm": tool_command("helm")}
        for name, command in programs.items():
            (folder / name).write_text(f'#!/bin/sh\nexec {" ".join(command)} "$@"\n')
            (folder / name).chmod(0o700)
        self.environment = os.environ | {
            "PATH": os.pathsep.join((str(folder), str(Path(sys.executable).parent), os.environ["PATH"])),
            "KUBECONFIG": str(plane.kubeconfig),
            "HOME": str(folder),
        }

    def run(self, text: str, seconds: float = COMMAND_SECONDS) -> str:
        answer = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", text],
            cwd=ROOT,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
        assert answer.returncode == 0, f"{text}\n{answer.stdout}{answer.stderr}"
        return answer.stdout


def blocks(section: str) -> list[str]:
    """The commands of one section."""
    text = GUIDE.read_text(encoding="utf-8").split(f"\n## {section}\n")[1].split("\n## ")[0]
    return _BLOCK.findall(text)


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    """Before a cluster with nothing of Covey's."""
    folder = tmp_path / "reader"
    folder.mkdir()
    try:
        with running_control_plane(has_kinds=False) as plane:
            yield Reader(plane, folder)
    except NoPrograms as error:
        pytest.skip(str(error))


def names(reader: Reader, kinds: str) -> list[str]:
    return reader.run(f"kubectl get {kinds} --all-namespaces -o name --ignore-not-found").split()


def test_helm_by_the_guide_from_nothing_to_nothing(reader: Reader) -> None:
    install, _, label = blocks("Install")
    reader.run(install)
    reader.run('kubectl apply -f - <<< \'{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-1"}}\'')
    assert "labeled" in reader.run(label.replace("NODE", "node-1"))
    looking, rights = blocks("Verify")
    for line in looking.splitlines():
        if "rollout status" not in line and "wait" not in line:  # these need pods
            reader.run(line)
    reader.run(rights)
    upgrade, replacing = blocks("Upgrade")
    reader.run(upgrade.splitlines()[0])
    reader.run(replacing.replace("NODE", "node-1"))
    reader.run("kubectl -n covey-system create secret generic covey-controller --from-literal=fleet.secret=ab")
    (keep,) = blocks("Back up")
    assert "fleet.secret: YWI=" in reader.run(keep.replace("> covey-identity.yaml", ""))

    stop, end, rest = blocks("Uninstall")
    reader.run(stop)
    assert names(reader, "placements,models") == ["placement.covey.dev/smollm2", "model.covey.dev/smollm2"]
    assert names(reader, "deployments,daemonsets") == []
    reader.run(end)
    reader.run(rest, GONE_SECONDS)
    assert [each for each in names(reader, "crds,namespaces") if "covey" in each] == []


def test_kubectl_by_the_guide_and_what_holds_objects_without_a_controller(reader: Reader) -> None:
    _, install, _ = blocks("Install")
    reader.run(install)
    reader.run(blocks("Upgrade")[0].splitlines()[1])
    reader.run("kubectl apply -f examples/01-one-model")
    held = '{"metadata":{"finalizers":["covey.dev/drain"]}}'
    node = '{"apiVersion":"covey.dev/v1alpha1","kind":"Node","metadata":{"name":"a","finalizers":["covey.dev/drain"]}}'
    reader.run(f"kubectl patch placement smollm2 --type merge -p '{held}'")
    reader.run(f"kubectl create -f - <<< '{node}'")
    reader.run(
        "kubectl delete placements --all --all-namespaces --wait=false; kubectl delete cnodes --all --wait=false"
    )
    assert names(reader, "placements,cnodes") == ["placement.covey.dev/smollm2", "node.covey.dev/a"]

    (release,) = blocks("When the controller is gone")
    reader.run(release)
    assert names(reader, "placements,cnodes") == []
    assert names(reader, "models") == ["model.covey.dev/smollm2"]
    reader.run(blocks("Uninstall")[2], GONE_SECONDS)
    assert [each for each in names(reader, "crds,namespaces,clusterroles") if "covey" in each] == []


def test_from_nothing_to_a_token_by_the_guide(reader: Reader, tmp_path: Path) -> None:
    """Where a cluster would start pods, the parts are started as processes; every command is the guide's."""
    address = local_address()
    if address is None:
        pytest.skip("the API server's proxy takes no loopback address, and this machine has no other")
    _, install, label = blocks("Install")
    reader.run(install)
    reader.run('kubectl apply -f - <<< \'{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-1"}}\'')
    reader.run(label.replace("NODE", "node-1"))
    shell = Shell.of(reader.plane, tmp_path)
    with bare_kube_fleet(reader.plane, shared_cache()) as fleet:
        replica = fleet.start_controller("a", control_host=address)
        fill_service(shell, "covey-controller", "control", address, replica.control_port)
        fleet.start_agent("node-1")
        looking, _ = blocks("Verify")
        said = [reader.run(line, READY_SECONDS) for line in looking.splitlines() if "rollout status" not in line]
        assert re.search(r"smollm2\s+smollm2\s+1/1", said[-1])

        (making,) = re.findall(r"`(kubectl covey key create me)`", GUIDE.read_text(encoding="utf-8"))
        key = reader.run(making).strip()
        fleet.start_gateway("gateway-1", host=address)
        fill_service(shell, "covey-gateway", "http", address, int(fleet.gateway_url.rpartition(":")[2]))
        fleet.wait(lambda: is_served(fleet.gateway_url, key), "the gateway serves")

        using, joining = blocks("Use it")
        *rest, chat = using.strip().splitlines()
        for line in rest:
            reader.run(line)
        assert reader.run(chat).strip()
        assert reader.run(f'cd "$HOME"; {joining.splitlines()[0]}\ncat token').startswith("covey-")
        with openai.OpenAI(base_url=f"{fleet.gateway_url}/v1", api_key=key, max_retries=0) as client:
            stream = client.chat.completions.create(
                model="smollm2", messages=[{"role": "user", "content": "Say hello."}], max_tokens=8, stream=True
            )
            assert len([chunk for chunk in stream if chunk.choices and chunk.choices[0].delta.content]) > 1

        (leaving,) = blocks("Take a node out")
        *before, last = leaving.replace("NODE", "node-1").strip().splitlines()
        for line in before:
            reader.run(line)
        assert not fleet.engines("node-1")
        assert names(reader, "instances") == []
        fleet.agents["node-1"].end()  # as the DaemonSet ends its pod
        reader.run(last)
        time.sleep(5)
        assert names(reader, "cnodes") == [], "it doesn't come back"

        reader.run(blocks("Uninstall")[1])
        fleet.wait(lambda: not names(reader, "placements,instances"), "the controller let go")
        fleet.wait(lambda: not fleet.engines("node-1"), "no engine is left")


def is_served(url: str, key: str) -> bool:
    try:
        return httpx.get(f"{url}/v1/models", headers={"authorization": f"Bearer {key}"}, timeout=10).is_success
    except httpx.HTTPError:
        return False
