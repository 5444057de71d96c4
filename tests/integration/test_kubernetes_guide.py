"""The guide's commands, taken from its text and run as they stand, on an API server where nothing runs pods."""

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from testbed.kube.controlplane import CRDS, ControlPlane, running_control_plane
from testbed.kube.programs import NoPrograms, component_command, tool_command

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("kube_tools")]

ROOT = Path(__file__).resolve().parents[2]
GUIDE = ROOT / "docs" / "guides" / "kubernetes.md"
COMMAND_SECONDS = 120.0
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
            "PATH": f"{folder}:{os.environ['PATH']}",
            "KUBECONFIG": str(plane.kubeconfig),
            "HOME": str(folder),
        }

    def run(self, text: str) -> str:
        answer = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", text],
            cwd=ROOT,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=COMMAND_SECONDS,
            check=False,
        )
        assert answer.returncode == 0, f"{text}\n{answer.stdout}{answer.stderr}"
        return answer.stdout


def blocks(section: str) -> list[str]:
    """The commands of one section."""
    text = GUIDE.read_text(encoding="utf-8").split(f"\n## {section}\n")[1].split("\n## ")[0]
    return _BLOCK.findall(text)


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    """Before a cluster with nothing of Covey's, as each test leaves it."""
    try:
        with running_control_plane() as plane:
            plane.kubectl("delete", "-f", str(CRDS))
            yield Reader(plane, tmp_path_factory.mktemp("reader"))
    except NoPrograms as error:
        pytest.skip(str(error))


def names(reader: Reader, kinds: str) -> list[str]:
    return reader.run(f"kubectl get {kinds} --all-namespaces -o name --ignore-not-found").split()


def test_helm_by_the_guide_from_nothing_to_nothing(reader: Reader) -> None:
    install, _, label = blocks("Install")
    reader.run(install)
    reader.run('kubectl create -f - <<< \'{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-1"}}\'')
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
    reader.run(rest)
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
    reader.run(blocks("Uninstall")[2])
    assert [each for each in names(reader, "crds,namespaces,clusterroles") if "covey" in each] == []
