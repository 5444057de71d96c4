"""Health at every stage: kstatus, Argo CD's Lua and Flux's CEL say the same of objects as the real API server has them.

The statuses are the planner's own, of small fleets in virtual time; the API server gives generations, defaults and the
marks of deletion; each judge is the real one.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from covey_api.access_key import AccessKey, AccessKeySpec
from covey_api.engines import Lane
from covey_api.fleet import Fleet
from covey_api.kinds import Kind
from covey_api.meta import ObjectMeta, Status
from covey_api.placement import ContextWish, Placement, Preemption
from covey_api.reasons import FailureCause
from covey_api.registry import KINDS
from kit import builders
from kit.worlds import FakeGateway, Worldlet
from testbed.kube.controlplane import ControlPlane
from testbed.kube.tools import judge_cel, judge_kstatus, judge_lua

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("kube_tools")]

GITOPS = Path(__file__).resolve().parents[2] / "manifests" / "gitops"
MIB = 2**20
# What kstatus, Argo CD and Flux say.
GOING = ("InProgress", "Progressing", "InProgress")
DONE = ("Current", "Healthy", "Current")
PARKED = ("Current", "Suspended", "Current")
STUCK = ("Failed", "Degraded", "Failed")
ENDING = ("Terminating", "Progressing", "InProgress")

# By kind and the reason of `Ready`; `+` and a word for what the reason doesn't say.
TABLE = {
    "Placement": {
        "": GOING,
        "GeometryPending": GOING,
        "ArtifactsPending": GOING,
        "EngineStarting": GOING,
        "Serving": DONE,
        "MakingRoom": GOING,
        "RollingOut": GOING,
        "NodeUnknown": GOING,
        "Draining": GOING,
        "ScaledToZero": DONE,
        "ScaledToZero+suspended": PARKED,
        "PartlyServing": STUCK,
        "NotPlaced": STUCK,
        "ModelNotFound": STUCK,
        "GeometryUnavailable": STUCK,
        "NoUsableEngine": STUCK,
        "EngineFailed": STUCK,
        "Serving+edited": GOING,
        "Serving+deleted": ENDING,
        "NotPlaced+deleted": ENDING,
    },
    "Model": {
        "": GOING,
        "GeometryPending": GOING,
        "Resolved": DONE,
        "GeometryUnavailable": STUCK,
        "NoUsableEngine": STUCK,
        "Resolved+edited": GOING,
    },
    "Node": {"": GOING, "Reporting": DONE, "NodeUnknown": GOING, "Reporting+deleted": ENDING},
    "Instance": {
        "": GOING,
        "ArtifactsPending": GOING,
        "EngineStarting": GOING,
        "Serving": DONE,
        "NodeUnknown": GOING,
        "Draining": GOING,
        "EngineFailed": STUCK,
        "Serving+deleted": ENDING,
    },
    "Fleet": {"": GOING, "Applied": DONE},
    "AccessKey": {"": GOING, "Accepted": DONE, "Accepted+edited": GOING},
}


def fleet_of(*, nodes: int = 1, known: bool = True, lanes: tuple[Lane, ...] | None = None) -> Worldlet:
    """A Model and a Placement with one replica, and what has no state of its own."""
    story = Worldlet()
    key = AccessKeySpec(hash=f"sha256:{'0' * 64}")
    story.put(builders.model(known=known), builders.placement())
    story.put(Fleet(metadata=ObjectMeta(name="default", uid="uid-fleet", generation=1)))
    story.put(AccessKey(metadata=ObjectMeta(name="me", namespace="default", uid="uid-key", generation=1), spec=key))
    for index in range(nodes):
        story.add_agents("abc"[index])
        if lanes is not None:
            story.agents["abc"[index]].lanes = lanes
    story.gateways["g"] = FakeGateway()
    return story


def stories() -> Iterator[Worldlet]:
    """Small fleets, each at a moment that `step` leads on from."""
    yield fleet_of(known=False)
    late = fleet_of()
    late.run(15)
    late.put(builders.model("late", known=False), builders.placement("late"))
    yield late
    rolled = fleet_of()
    rolled.run(15)
    rolled.put(builders.placement(context=ContextWish(tokens=1024)))
    yield rolled
    for wish in (builders.placement(replicas=0), builders.placement(suspend=True)):
        drained = fleet_of()
        drained.run(15)
        drained.gateways["g"].in_flight = {drained.instances()[0].spec.instance_id: 1}
        drained.put(wish)
        drained.run(3)
        yield drained
    silent = fleet_of()
    silent.run(15)
    silent.agents["a"].paused = True
    yield silent
    small = fleet_of()
    small.agents["a"].total_bytes = 64 * MIB
    yield small
    crowded = fleet_of()
    crowded.agents["a"].total_bytes = 2048 * MIB
    crowded.put(builders.placement(replicas=3))
    yield crowded
    urgent = fleet_of()
    urgent.agents["a"].total_bytes = 2048 * MIB
    urgent.run(15)
    urgent.gateways["g"].in_flight = {urgent.instances()[0].spec.instance_id: 1}
    urgent.put(builders.placement("urgent", model="smollm2", priority=10, preemption=Preemption.LOWER_PRIORITY))
    yield urgent
    lonely = fleet_of()
    lonely.put(builders.placement(model="other"))
    yield lonely
    unreadable = fleet_of(known=False)
    unreadable.agents["a"].unreadable = True
    yield unreadable
    yield fleet_of(known=False, lanes=())
    broken = fleet_of()
    broken.agents["a"].fail = lambda _: FailureCause.EXITED
    yield broken


def reason_of(item: Kind) -> str:
    """Of `Ready`; with what else tells stages apart. Empty for an object that nobody has looked at."""
    status: Status | None = getattr(item, "status", None)
    assert status is not None
    reason = next((condition.reason for condition in status.conditions if condition.type == "Ready"), "")
    is_parked = isinstance(item, Placement) and item.spec.suspend and reason == "ScaledToZero"
    return f"{reason}+suspended" if is_parked else reason


def observe_stages() -> dict[tuple[str, str], Kind]:
    """The first object of each kind at each stage that the planner tells."""
    found: dict[tuple[str, str], Kind] = {}
    for story in stories():
        for second in range(60):
            if second == 30:
                for gateway in story.gateways.values():
                    gateway.in_flight = {}
            for item in story.objects.values():
                found.setdefault((type(item).__name__, reason_of(item)), item)
            story.step()
    return found


class Server:
    """Puts objects on the API server as the planner has them, one name a stage."""

    def __init__(self, client: httpx.Client) -> None:
        self._client = client

    def put(self, item: Kind, name: str, change: str) -> dict[str, Any]:
        """The object with its status as stored, then edited or being deleted if that is asked."""
        name = item.ONLY_NAME or name
        body = item.to_wire() | {"metadata": {"name": name, "finalizers": ["covey.dev/drain"]}}
        status = body.pop("status")
        folder = self._folder(type(item))
        self._send("DELETE", f"{folder}/{name}", is_optional=True)
        self._patch(f"{folder}/{name}", {"metadata": {"finalizers": None}}, is_optional=True)
        made = self._send("POST", folder, body)
        if status["conditions"]:
            made = self._patch(f"{folder}/{name}/status", {"status": status | self._generations(made, status)})
        if change == "edited":
            made = self._patch(f"{folder}/{name}", {"spec": _edit(item)})
        if change == "deleted":
            self._send("DELETE", f"{folder}/{name}")
            made = self._send("GET", f"{folder}/{name}")
        return made

    def _generations(self, made: dict[str, Any], status: dict[str, Any]) -> dict[str, Any]:
        """The planner saw the object as it is: here it has another generation than in virtual time."""
        generation = made["metadata"]["generation"]
        conditions = [each | {"observedGeneration": generation} for each in status["conditions"]]
        return {"observedGeneration": generation, "conditions": conditions}

    def _folder(self, kind: type[Kind]) -> str:
        return f"/apis/covey.dev/v1alpha1/{'namespaces/default/' if kind.NAMESPACED else ''}{kind.PLURAL}"

    def _patch(self, path: str, body: object, *, is_optional: bool = False) -> dict[str, Any]:
        return self._send("PATCH", path, body, is_optional=is_optional)

    def _send(self, method: str, path: str, body: object = None, *, is_optional: bool = False) -> dict[str, Any]:
        types = {"content-type": "application/merge-patch+json" if method == "PATCH" else "application/json"}
        content = None if body is None else json.dumps(body)
        answer = self._client.request(method, path, content=content, headers=types)
        if not is_optional:
            assert answer.is_success, f"{method} {path}: {answer.text}"
        found: dict[str, Any] = answer.json()
        return found


def _edit(item: Kind) -> dict[str, Any]:
    """A change of the spec that the kind allows."""
    edits: dict[str, dict[str, Any]] = {
        "Placement": {"concurrency": 2},
        "Model": {"aliases": ["edited"]},
        "AccessKey": {"expiry": "2099-01-01T00:00:00Z"},
    }
    return edits[type(item).__name__]


@pytest.fixture(scope="module")
def stages(control_plane: ControlPlane) -> Iterator[dict[tuple[str, str], dict[str, Any]]]:
    """Every stage of the table, as the API server has it."""
    control_plane.clear()
    planned = observe_stages()
    with control_plane.client() as client:
        server, found = Server(client), dict[tuple[str, str], dict[str, Any]]()
        for index, (kind, stage) in enumerate((kind, stage) for kind, column in TABLE.items() for stage in column):
            plain, _, change = stage.partition("+")
            item = planned.get((kind, stage)) or planned.get((kind, plain)) or planned[(kind, "Serving")]
            if not stage:
                item = item.model_copy(update={"status": type(getattr(item, "status"))()})  # noqa: B009
            found[(kind, stage)] = server.put(item, f"stage-{index}", change)
    yield found
    control_plane.clear()


def health_scripts(plane: ControlPlane) -> dict[str, str]:
    """What Argo CD reads after the patch was merged into its settings, by the key of a kind."""
    plane.create_namespace("argocd")
    settings = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "argocd-cm"}, "data": {"url": "kept"}}
    plane.kubectl("apply", "-n", "argocd", "-f", "-", text=json.dumps(settings))
    patch = ("patch", "configmap", "argocd-cm", "--type", "merge", "--patch-file", str(GITOPS / "argocd-cm.yaml"))
    plane.kubectl("-n", "argocd", *patch)
    found: dict[str, str] = json.loads(plane.kubectl("get", "cm", "argocd-cm", "-n", "argocd", "-o", "json"))["data"]
    assert found.pop("url") == "kept"
    return found


def test_every_stage_that_the_planner_tells_is_in_the_table() -> None:
    told = {key for key in observe_stages() if key[1]}
    written = {(kind, stage) for kind, column in TABLE.items() for stage in column if stage}
    assert told <= written
    assert {key for key in written if key[1].partition("+")[2] in ("", "suspended")} <= told


def test_argo_cd_flux_and_kstatus_agree_at_every_stage(
    control_plane: ControlPlane, stages: dict[tuple[str, str], dict[str, Any]], tmp_path: Path
) -> None:
    scripts = health_scripts(control_plane)
    flux = yaml.safe_load((GITOPS / "flux-kustomization.yaml").read_text())["spec"]["healthCheckExprs"]
    expressions = {entry["kind"]: {key: entry[key] for key in ("current", "inProgress", "failed")} for entry in flux}
    assert set(expressions) == set(KINDS)
    assert set(scripts) == {f"resource.customizations.health.covey.dev_{kind}" for kind in KINDS}
    for kind in KINDS:
        script = tmp_path / f"{kind}.lua"
        script.write_text(scripts[f"resource.customizations.health.covey.dev_{kind}"])
        objects = [found for (owner, _), found in stages.items() if owner == kind]
        judged = (judge_kstatus(objects), judge_lua(script, objects), judge_cel(expressions[kind], objects))
        said = {
            stage: tuple(each.status for each in verdicts)
            for (stage, *verdicts) in zip(TABLE[kind], *judged, strict=True)
        }
        assert said == TABLE[kind], kind


def test_argo_cd_shows_the_planners_words(
    control_plane: ControlPlane, stages: dict[tuple[str, str], dict[str, Any]], tmp_path: Path
) -> None:
    script = tmp_path / "health.lua"
    script.write_text(health_scripts(control_plane)["resource.customizations.health.covey.dev_Placement"])
    stuck = stages[("Placement", "NotPlaced")]
    (verdict,) = judge_lua(script, [stuck])
    ready = next(each for each in stuck["status"]["conditions"] if each["type"] == "Ready")
    assert verdict.message == ready["message"]
    assert "InsufficientMemory" in verdict.message
