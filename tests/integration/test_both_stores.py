"""One product, two stores: the same scenario on `covey up` with a folder and on a real Kubernetes API server.

One fleet of each store serves all tests; each begins with the example as it stands, served by one engine. What only one
of the stores has is told in `docs/reference/modes.md` and tested elsewhere.
"""

import json
import os
import re
import signal
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack
from pathlib import Path

import httpx
import openai
import pytest
from kit.both import (
    CONVERGE_SECONDS,
    MODEL,
    PLACEMENT,
    Fleet,
    assert_nothing_doubled,
    cluster_fleet,
    files_fleet,
    find_object,
    identities,
    is_converged,
    members,
    restarts,
    wait_answered,
    wait_converged,
    wished,
)
from kit.chaos import TEARDOWN_SECONDS
from kit.fleet import JsonObject, Traffic, wait_until
from kit.parts import AGENT, CONTROLLER, GATEWAY, has_condition, kill_process

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900), pytest.mark.restarts_processes]

# Longer than the rest of vanished objects (2 s) and a plan: after it, nothing more comes of what was done.
QUIET_SECONDS = 4.0
# On an idle machine a second; a busy one takes its time to start a process.
GATEWAY_RETURNS_SECONDS = 30.0


@pytest.fixture(scope="module", params=["files", "kube"])
def shared(request: pytest.FixtureRequest) -> Generator[Fleet]:
    if request.param == "files":
        with files_fleet() as fleet:
            yield fleet
    else:
        with cluster_fleet(request.getfixturevalue("control_plane")) as fleet:
            yield fleet


@pytest.fixture
def fleet(shared: Fleet) -> Fleet:
    """The shared fleet, put back to the example with one ready instance of it."""
    for plural, kind in (("placements", "placement"), ("models", "model")):
        names = [each["metadata"]["name"] for each in shared.objects(plural)]
        if others := [f"{kind}/{name}" for name in names if name != "smollm2"]:
            shared.delete(*others)
    shared.apply(f"{MODEL}---\n{PLACEMENT}")
    wait_converged(shared, 1)
    wait_until(lambda: shared.served.ask().status_code == 200, "the gateway serves")
    return shared


def state_of(fleet: Fleet) -> tuple[dict[str, str], set[int]]:
    return identities(fleet), set(fleet.engines())


def assert_nothing_changes(fleet: Fleet, before: tuple[dict[str, str], set[int]]) -> None:
    time.sleep(QUIET_SECONDS)
    assert state_of(fleet) == before
    assert fleet.served.ask().status_code == 200


# Looking.


def test_openai_client_gets_whole_answers_and_streams(fleet: Fleet) -> None:
    with openai.OpenAI(base_url=f"{fleet.served.url}/v1", api_key="unused", max_retries=0) as client:
        assert [model.id for model in client.models.list()] == ["smollm2"]
        whole = client.chat.completions.create(
            model="smollm2", messages=[{"role": "user", "content": "Say hello."}], max_tokens=8, temperature=0
        )
        stream = client.chat.completions.create(
            model="smollm2",
            messages=[{"role": "user", "content": "Say hello."}],
            max_tokens=8,
            temperature=0,
            stream=True,
        )
        pieces = [chunk.choices[0].delta.content or "" for chunk in stream]
    assert whole.model == "smollm2"
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 8
    assert whole.choices[0].message.content
    assert len([piece for piece in pieces if piece]) > 1
    assert "".join(pieces) == whole.choices[0].message.content


def test_get_lists_every_kind_in_one_call(fleet: Fleet) -> None:
    text = fleet.covey("get", "all").stdout
    assert "model/smollm2" in text
    assert re.search(r"placement/smollm2\s+smollm2\s+1/1", text)
    assert re.search(r"instance/smollm2-\d+\s+smollm2\s+Ready", text)
    assert re.search(r"cnode/\S+\s+True", text)


def test_apply_of_what_was_exported_changes_nothing(fleet: Fleet, tmp_path: Path) -> None:
    exported = fleet.covey("export").stdout
    assert "kind: Placement" in exported
    path = tmp_path / "everything.yaml"
    path.write_text(exported)
    before = fleet.covey("get", "models,placements,cnodes", "-o", "json").stdout
    assert fleet.covey("diff", "-f", str(path)).stdout == ""
    said = fleet.covey("apply", "-f", str(path)).stdout.splitlines()
    assert said
    assert all(line.endswith(" unchanged") for line in said), said
    assert specs_of(fleet.covey("get", "models,placements,cnodes", "-o", "json").stdout) == specs_of(before)
    assert fleet.covey("export").stdout == exported


def specs_of(text: str) -> list[object]:
    return [(each["kind"], each["metadata"]["name"], each["spec"]) for each in json.loads(text)["items"]]


def test_get_of_something_missing_ends_with_three(fleet: Fleet) -> None:
    result = fleet.covey("get", "model", "nothing", check=False)
    assert result.returncode == 3
    assert "'nothing'" in result.stderr


def test_why_says_node_lane_bytes_and_window(fleet: Fleet) -> None:
    text = fleet.covey("why", "placement/smollm2").stdout
    (instance,) = fleet.objects("instances")
    spec = instance["spec"]
    assert spec["members"][0]["node"] in text
    for word in ("LlamaServer/Cpu", "weights", "KV cache", "compute buffers"):
        assert word in text
    assert str(spec["options"]["contextTokens"]) in text.replace(",", "")
    assert json.loads(fleet.covey("why", "placement/smollm2", "-o", "json").stdout)


def test_describe_shows_conditions_and_events(fleet: Fleet) -> None:
    text = fleet.covey("describe", "placement/smollm2").stdout
    assert re.search(r"Ready\s+True\s+Serving", text)
    assert "Events:" in text
    assert "<none>" not in text.split("Events:")[1]


def test_chat_answers_on_the_command_line(fleet: Fleet) -> None:
    assert fleet.covey("chat", "smollm2", "Say hello.", "--max-tokens", "8").stdout.strip()


def test_wait_returns_when_the_condition_holds(fleet: Fleet) -> None:
    assert "condition met" in fleet.covey("wait", "placement/smollm2", "--for=condition=Ready").stdout
    missing = fleet.covey("wait", "placement/smollm2", "--for=delete", "--timeout", "1", check=False)
    assert missing.returncode == 4


def test_plan_says_what_an_apply_then_does(fleet: Fleet) -> None:
    before = state_of(fleet)
    said = json.loads(fleet.covey("plan", "-o", "json", "-f", "-", text=wished("again")).stdout)
    (comes,) = said["comes"]
    assert state_of(fleet) == before
    fleet.apply(wished("again"))
    wait_converged(fleet, 2)
    spec = find_object(fleet, "instances", "again-0")["spec"]
    assert comes["members"][0]["node"] == spec["members"][0]["node"]


# Wishes.


def test_second_replica_comes_gets_traffic_and_goes_without_a_failed_request(fleet: Fleet) -> None:
    before = set(fleet.engines())
    with Traffic(fleet.served, workers=4).flowing() as traffic:
        fleet.apply(wished(replicas=2))
        wait_converged(fleet, 2)
        assert before < set(fleet.engines()), "the first engine was restarted"
        counts = {pid: cpu_seconds(pid) for pid in fleet.engines()}
        wait_until(
            lambda: all(cpu_seconds(pid) > count for pid, count in counts.items()), "both engines compute answers"
        )
        fleet.apply(wished(replicas=1))
        wait_converged(fleet, 1)
        wait_answered(traffic)
    assert traffic.failures == []


def cpu_seconds(pid: int) -> float:
    """Time that a process has computed; the engine does so for answers alone."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) / os.sysconf("SC_CLK_TCK")


def replace_placement(fleet: Fleet) -> None:
    """Another one takes over; then the first is deleted."""
    fleet.apply(wished("other"))
    wait_converged(fleet, 3)
    fleet.delete("placement/smollm2")


def change_window(fleet: Fleet) -> None:
    fleet.apply(wished(replicas=2, context={"tokens": 1024}))


@pytest.mark.parametrize(
    ("change", "replicas"), [(change_window, 2), (replace_placement, 1)], ids=["change_window", "replace_placement"]
)
def test_engines_that_are_replaced_drain_without_a_failed_request(
    fleet: Fleet, change: Callable[[Fleet], None], replicas: int
) -> None:
    fleet.apply(wished(replicas=2))
    wait_converged(fleet, 2)
    before = set(identities(fleet).values())
    with Traffic(fleet.served, workers=4).flowing() as traffic:
        wait_answered(traffic)
        change(fleet)
        wait_until(lambda: before.isdisjoint(identities(fleet).values()), "who has to leave leaves", CONVERGE_SECONDS)
        wait_converged(fleet, replicas)
        wait_answered(traffic)
    assert traffic.failures == []
    if change is change_window:
        assert {each["spec"]["options"]["contextTokens"] for each in fleet.objects("instances")} == {1024}
    assert_nothing_doubled(fleet)


def test_several_documents_in_one_file_all_count(fleet: Fleet) -> None:
    fleet.apply(f"{PLACEMENT}---\n{wished('again')}")
    wait_converged(fleet, 2)
    assert {name.rpartition("-")[0] for name in identities(fleet)} == {"smollm2", "again"}


BROKEN = {
    "misspelt": (PLACEMENT.replace("modelRef", "modelRfe"), "spec.modelRfe"),
    "of another type": (wished(replicas="many"), "spec.replicas"),
    "out of bounds": (wished(replicas=-1), "spec.replicas"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_broken_document_is_refused_with_its_field_and_changes_nothing(fleet: Fleet, what: str) -> None:
    text, field = BROKEN[what]
    before, generation = state_of(fleet), find_object(fleet, "placements", "smollm2")["metadata"]["generation"]
    refused = fleet.apply(text, check=False)
    assert refused.returncode == 1
    assert field in refused.stderr
    told = fleet.covey("apply", "-f", "-", text=text, check=False)
    assert told.returncode == 1
    assert re.search(rf":\d+: .*`{field}`", told.stderr), told.stderr
    assert find_object(fleet, "placements", "smollm2")["metadata"]["generation"] == generation
    assert_nothing_changes(fleet, before)


def test_model_that_cannot_fit_is_explained_in_bytes_and_hurts_nothing(fleet: Fleet) -> None:
    before = state_of(fleet)
    huge = MODEL.replace("name: smollm2}", "name: huge}") + "  memory: {workspace: 900Gi}\n"
    fleet.apply(f"{huge}---\n{PLACEMENT.replace('smollm2', 'huge')}")

    def status() -> JsonObject:
        return find_object(fleet, "placements", "huge").get("status", {})

    wait_until(lambda: has_condition({"status": status()}, "Stalled"), "the placement is Stalled")
    (stalled,) = [each for each in status()["conditions"] if each["type"] == "Stalled"]
    assert stalled["reason"] == "NotPlaced", stalled
    assert "900.0 GiB" in stalled["message"], stalled
    assert "GiB" in status()["closestRefusal"]
    assert status()["refusals"][0]["reason"] == "InsufficientMemory"
    assert "900.0 GiB" in fleet.covey("why", "placement/huge").stdout
    assert "InsufficientMemory" in fleet.covey("describe", "placement/huge").stdout
    assert fleet.served.ask(model="huge").status_code == 503
    assert_nothing_changes(fleet, before)
    lines = fleet.log_of(CONTROLLER).splitlines()
    assert sum("huge" in line and "InsufficientMemory" in line for line in lines) <= 2, "a retry storm"


def test_corrupt_model_is_never_served_and_said_so(fleet: Fleet, tmp_path: Path) -> None:
    before = state_of(fleet)
    page = tmp_path / "page.gguf"
    page.write_text("<html>404 not found</html>")
    model = re.sub("source: .*", f"source: file://{page}", MODEL.replace("name: smollm2}", "name: page}"))
    fleet.apply(f"{model}---\n{PLACEMENT.replace('smollm2', 'page')}")
    wait_until(
        lambda: "GeometryUnavailable" in json.dumps(find_object(fleet, "placements", "page").get("status", {})),
        "the placement says that the header can't be read",
    )
    words = fleet.covey("describe", "placement/page").stdout + fleet.covey("describe", "model/page").stdout
    assert "page.gguf" in words
    assert fleet.served.ask(model="page").status_code == 503
    assert_nothing_changes(fleet, before)


def test_deletion_leaves_nothing(fleet: Fleet) -> None:
    fleet.apply(wished(replicas=2))
    wait_converged(fleet, 2)
    before = members(fleet)
    fleet.delete("placement/smollm2")
    wait_until(lambda: not fleet.objects("instances") and not fleet.objects("placements"), "the objects are gone")
    wait_until(lambda: not members(fleet) and not fleet.engines(), "the engines are gone")
    wait_until(lambda: not any(is_there(each.keeper_pid) for each in before), "their keepers are gone")
    assert fleet.served.ask().status_code == 503
    assert find_object(fleet, "models", "smollm2"), "the model is still declared"
    fleet.delete("model/smollm2")
    wait_until(lambda: not fleet.objects("models"), "the model is gone")
    wait_until(lambda: fleet.served.ask().status_code == 404, "the gateway knows no such model")


def is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


# Survival.


def test_killed_engine_is_unrouted_restarted_and_serves_again(fleet: Fleet) -> None:
    before, instances = members(fleet)[0], identities(fleet)
    lines: list[str] = []
    body = fleet.served.chat(stream=True, max_tokens=900, ignore_eos=True)
    url = f"{fleet.served.url}/v1/chat/completions"
    with httpx.stream("POST", url, json=body, timeout=60) as response:
        for line in response.iter_lines():
            if not lines:
                os.kill(before.engine_pid, signal.SIGKILL)
            if line:
                lines.append(line)
    last = json.loads(lines[-1].removeprefix("data: "))
    assert last["error"]["code"] == "upstream_ended", "a stream that was cut must say so"
    assert "data: [DONE]" not in lines
    wait_until(lambda: fleet.served.ask().status_code == 200, "the engine serves again")
    wait_converged(fleet, 1)
    assert members(fleet)[0].engine_pid != before.engine_pid
    assert identities(fleet) == instances, "the Instance stays the same"
    wait_until(lambda: restarts(fleet).get(before.instance_id, 0) >= 1, "the restart is counted")
    (name,) = instances
    wait_until(lambda: "Killed" in fleet.covey("describe", f"instance/{name}").stdout, "an event says why")


def test_killed_agent_adopts_engines_with_their_history(fleet: Fleet) -> None:
    (victim,) = members(fleet)
    count = restarts(fleet).get(victim.instance_id, 0)
    kill_process(victim.engine_pid)
    wait_until(lambda: restarts(fleet).get(victim.instance_id, 0) > count, "the restart is counted")
    wait_converged(fleet, 1)
    before, instances, counted = members(fleet), identities(fleet), restarts(fleet)
    outputs = {path: path.stat().st_ino for path in fleet.agent_folder.glob("members/*/output.log")}
    with Traffic(fleet.served).flowing() as traffic:
        with fleet.held_down(AGENT):
            # A dead agent is not a dead node: Unknown after this silence, and its engines stay routed.
            wait_until(lambda: not has_condition(fleet.objects("cnodes")[0], "Ready"), "the node is Unknown")
            wait_answered(traffic)
            assert (members(fleet), identities(fleet)) == (before, instances)
        wait_converged(fleet, 1)
        wait_answered(traffic)
    assert traffic.failures == []
    assert members(fleet) == before, "the engines go on, with their processes and ports"
    assert (identities(fleet), restarts(fleet)) == (instances, counted)
    (name,) = instances
    assert "Killed" in fleet.covey("describe", f"instance/{name}").stdout
    assert {path: path.stat().st_ino for path in outputs} == outputs
    assert "runs on as process" in fleet.log_of(AGENT)
    assert_nothing_doubled(fleet)


def test_killed_controller_costs_nothing_but_what_was_on_an_engine_that_died_meanwhile(fleet: Fleet) -> None:
    first = members(fleet)
    fleet.apply(wished(replicas=2))
    wait_converged(fleet, 2)
    instances = identities(fleet)
    (victim,) = [each for each in members(fleet) if each not in first]
    with Traffic(fleet.served, workers=3).flowing() as traffic:
        with fleet.held_down(CONTROLLER):
            wait_answered(traffic)
            assert traffic.failures == []
            began = time.monotonic()
            kill_process(victim.engine_pid)
            ended = time.monotonic() + TEARDOWN_SECONDS
            wait_until(
                lambda: victim not in members(fleet) and len(members(fleet)) == 2, "the agent restarts it by itself"
            )
            wait_answered(traffic)
        wait_converged(fleet, 2)
        wait_answered(traffic)
    assert [one for one in traffic.sent if one.failure and (one.began > ended or one.ended < began)] == []
    assert identities(fleet) == instances
    assert set(first) < set(members(fleet)), "the engine that lived is still the same"
    assert_nothing_doubled(fleet)


@pytest.mark.parametrize("controller", ["alive", "dead"])
def test_killed_gateway_is_back_with_its_last_table(fleet: Fleet, controller: str) -> None:
    before = members(fleet)
    with ExitStack() as stack:
        if controller == "dead":
            stack.enter_context(fleet.held_down(CONTROLLER))
        traffic = stack.enter_context(Traffic(fleet.served, waits_for_gateway=True).flowing())
        wait_answered(traffic)
        began = time.monotonic()
        fleet.kill_part(GATEWAY)
        ended = time.monotonic() + TEARDOWN_SECONDS
        wait_answered(traffic)
        returned = min(one.ended for one in traffic.sent if one.began > ended and not one.failure) - ended
        assert returned < GATEWAY_RETURNS_SECONDS, "back with its last table, whether the controller lives or not"
    strangers = [one for one in traffic.sent if one.failure and (one.began > ended or one.ended < began)]
    assert strangers == [], "only what was in flight is lost"
    wait_converged(fleet, 1)
    assert members(fleet) == before


def test_all_parts_killed_at_once_adopt_what_runs(fleet: Fleet) -> None:
    before, instances = members(fleet), identities(fleet)
    for name in (CONTROLLER, AGENT, GATEWAY):
        fleet.kill_part(name)
    wait_until(lambda: is_reached(fleet), "the gateway is back")
    wait_converged(fleet, 1)
    assert (members(fleet), identities(fleet)) == (before, instances)
    assert_nothing_doubled(fleet)


def is_reached(fleet: Fleet) -> bool:
    try:
        return fleet.served.ask().status_code == 200
    except httpx.TransportError:
        return False


def test_engine_that_dies_while_no_part_runs_is_started_again(fleet: Fleet) -> None:
    before, instances = members(fleet)[0], identities(fleet)
    with ExitStack() as stack:
        for name in (CONTROLLER, AGENT):
            stack.enter_context(fleet.held_down(name))
        kill_process(before.engine_pid)
    wait_until(lambda: is_converged(fleet, 1) and is_reached(fleet), "the engine serves again")
    assert identities(fleet) == instances, "the Instance stays the same"
    assert members(fleet)[0].engine_pid != before.engine_pid
    assert_nothing_doubled(fleet)
