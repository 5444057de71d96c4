"""The chart: what each set of values changes, that the kustomize base is its rendering, and what wrong values hear."""

import difflib
import json
import runpy
from pathlib import Path
from typing import Any, cast

import pytest
import yaml
from conftest import Golden
from testbed.kube.programs import tool_command
from testbed.kube.tools import run_helm

pytestmark = pytest.mark.usefixtures("kube_tools")

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "manifests" / "chart"
RENDER = ROOT / "tools" / "render_base.py"

VALUES: dict[str, dict[str, Any]] = {
    "gpu-pools": {
        "priorityClassName": "system-node-critical",
        "agent": {
            "pools": [
                {"name": "default", "nodeSelector": {"nvidia.com/gpu.present": "false"}},
                {
                    "name": "nvidia-8",
                    "nodeSelector": {"nvidia.com/gpu.count": "8"},
                    "devices": {"nvidia.com/gpu": 8},
                    "runtimeClassName": "nvidia",
                },
                {"name": "amd-4", "devices": {"amd.com/gpu": 4}, "supplementalGroups": [44, 992]},
            ],
            "tolerations": [{"operator": "Exists"}],
        },
    },
    "exposed": {
        "image": {"repository": "registry.example/covey", "tag": "1.2.3", "pullSecrets": ["registry"]},
        "fleetService": {"enabled": True, "names": ["fleet.example"], "annotations": {"example/scheme": "internal"}},
        "gateway": {"service": {"type": "LoadBalancer"}},
        "ingress": {"enabled": True, "className": "nginx", "host": "covey.example", "tlsSecretName": "covey-tls"},
        "httpRoute": {"enabled": True, "parentRefs": [{"name": "public"}], "hostnames": ["covey.example"]},
    },
    "metrics": {
        "metrics": {"enabled": True, "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}}},
    },
    "https": {
        "gateway": {
            "tlsSecretName": "covey-front",
            "corsOrigins": ["https://app.example", "*"],
            "workers": 4,
            "drainSeconds": 100,
        },
    },
    "small": {
        "controller": {"replicas": 1, "resources": {}},
        "gateway": {"replicas": 1, "insecure": True},
        "agent": {"pools": []},
    },
}

# What is said of each: the value, and words of the refusal.
REFUSED = [
    ("controller.replicas=0", "at '/controller/replicas': minimum: got 0, want 1"),
    ("controller.replcas=2", "at '/controller': additional properties 'replcas' not allowed"),
    ("gateway.workers=0", "at '/gateway/workers': minimum: got 0, want 1"),
    ("gateway.drainSeconds=-1", "at '/gateway/drainSeconds': minimum: got -1, want 0"),
    ("gateway.insecure=maybe", "at '/gateway/insecure': got string, want boolean"),
    ("gateway.tlsSecretName=A_B", "at '/gateway/tlsSecretName': 'A_B' does not match pattern"),
    ("gateway.corsOrigins[0]=app.example", "at '/gateway/corsOrigins/0': 'app.example' does not match pattern"),
    ("gateway.corsOrigins[0]=https://*.app.example", "'https://*.app.example' does not match pattern"),
    ("gateway.insecure=true,gateway.corsOrigins[0]=*", "at '/gateway/corsOrigins/0': 'not' failed"),
    ("image.pullPolicy=Sometimes", "at '/image/pullPolicy': value must be one of 'Always', 'IfNotPresent', 'Never'"),
    ("image.repository=", "at '/image/repository': minLength: got 0, want 1"),
    ("agent.hostPath=data", "at '/agent/hostPath': 'data' does not match pattern"),
    ("agent.pools[0].name=A", "at '/agent/pools/0/name': 'A' does not match pattern"),
    ("agent.pools[0].devices.gpu=1", "at '/agent/pools/0/devices': additional properties 'gpu' not allowed"),
    ("ingress.enabled=true", "at '/ingress/host': '' does not match pattern"),
    ("httpRoute.enabled=true", "at '/httpRoute/parentRefs': minItems: got 0, want 1"),
    ("metrics.serviceMonitor.enabled=true", "at '/metrics/enabled': value must be true"),
    ("metrics.serviceMonitor.interval=often", "at '/metrics/serviceMonitor/interval': 'often' does not match pattern"),
    ("fleetService.enabled=true", "at '/fleetService/names': minItems: got 0, want 1"),
]


def render(tmp_path: Path, values: object) -> str:
    path = tmp_path / "values.yaml"
    path.write_text(json.dumps(values))
    return run_helm("template", "covey", str(CHART), "--values", str(path)).stdout


def test_kustomize_base_is_what_the_chart_renders() -> None:
    files: dict[Path, str] = runpy.run_path(str(RENDER))["render_base"](tool_command("helm"))
    kinds = ROOT / "manifests" / "base" / "crds.yaml"
    assert set((ROOT / "manifests" / "base").iterdir()) == set(files) | {kinds}
    shown = run_helm("template", "covey", str(CHART), "--show-only", "templates/crds.yaml").stdout
    charts, ours = (list(yaml.load_all(text, Loader=yaml.CSafeLoader)) for text in (shown, kinds.read_text()))
    assert sorted(charts, key=lambda crd: crd["metadata"]["name"]) == sorted(
        ours, key=lambda crd: crd["metadata"]["name"]
    )
    for path, text in files.items():
        assert path.read_text(encoding="utf-8") == text, f"{path.relative_to(ROOT)} is stale; run `make manifests`"


@pytest.mark.parametrize("name", VALUES)
def test_values_change_what_they_say_and_nothing_else(name: str, tmp_path: Path, golden: Golden) -> None:
    plain, changed = (render(tmp_path, values).splitlines() for values in ({}, VALUES[name]))
    diff = difflib.unified_diff(plain, changed, "default", name, lineterm="", n=2)
    # Without line numbers: what comes before is none of this file's business.
    golden(f"chart/{name}.diff", "".join(f"{'@@' if line.startswith('@@') else line}\n" for line in diff))


@pytest.mark.parametrize("name", ["default", *VALUES])
def test_lint_has_nothing_to_say(name: str, tmp_path: Path) -> None:
    path = tmp_path / "values.yaml"
    path.write_text(json.dumps(VALUES.get(name, {})))
    said = run_helm("lint", "--strict", "--values", str(path), str(CHART)).stdout
    assert "[WARNING]" not in said
    assert "[ERROR]" not in said


@pytest.mark.parametrize(("value", "words"), REFUSED, ids=[value for value, _ in REFUSED])
def test_wrong_values_are_refused_by_name(value: str, words: str) -> None:
    # A list that `--set` reaches into is begun anew, so the pool needs its name.
    named = ["--set", "agent.pools[0].name=a"] if "pools" in value else []
    answer = run_helm("template", "covey", str(CHART), *named, "--set", value, check=False)
    assert answer.returncode == 1
    assert words in answer.stderr


def test_every_default_value_is_described_by_the_schema() -> None:
    """An option that the schema forgets would be refused to whoever sets it; one that values forget is never found."""
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert set(schema["properties"]) - {"global"} == set(values)
    for name in values:
        part: object = values[name]
        if isinstance(part, dict):
            assert set(schema["properties"][name]["properties"]) == set(cast("dict[str, object]", part)), name
    (pool,) = values["agent"]["pools"]
    assert set(schema["properties"]["agent"]["properties"]["pools"]["items"]["properties"]) == set(pool)
