"""`covey simulate`: what happened when and why, of fleets that are described; the same to the byte in every run."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from conftest import Golden
from covey.commands.simulate import simulate
from covey.errors import CommandError, ExitCode
from covey_simulator.machine import Machine
from covey_simulator.scenario import EventName, Pacing, Scenario, SteadyRequests
from pydantic.alias_generators import to_camel

EXAMPLE = Path(__file__).parents[2] / "examples" / "what-if"
ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "guides" / "simulate.md"
SCENARIOS = Path(__file__).parent / "scenarios"


def run(scenario: Path, output: str = "text") -> tuple[int, str]:
    result = CliRunner().invoke(simulate, [str(scenario), "-o", output])
    if isinstance(result.exception, CommandError):
        raise result.exception
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
    return result.exit_code, result.output


def test_replica_of_a_node_that_dies_moves_and_comes_to_rest(golden: Golden) -> None:
    code, text = run(EXAMPLE / "node-dies.yaml")
    golden("simulate/node-dies.txt", text)
    assert code == 0
    code, answer = run(EXAMPLE / "node-dies.yaml", "json")
    found = json.loads(answer)
    assert (code, found["holds"], found["settled"], found["violations"]) == (0, True, True, [])
    (placement,) = found["placements"]
    assert (placement["wished"], placement["serving"], placement["nodes"]) == (2, 2, ["a", "mac"])
    (short,) = placement["short"]
    assert 60 <= short["fromSeconds"] < short["untilSeconds"] < 300
    (requests,) = found["requests"]
    assert requests["asked"] == requests["answered"] + sum(requests["lost"].values())
    dies = {"atSeconds": 60.0, "who": "scenario", "reason": "", "message": "node 'b' dies"}
    assert dies in found["timeline"]
    assert [each["reason"] for each in found["timeline"] if each["who"] == "instance/chat-2"][:1] == ["InstanceCreated"]


@pytest.mark.parametrize(
    ("name", "code"),
    [("no-room", 1), ("network", 0), ("engines", 0), ("control", 0), ("people", 0), ("disk", 0)],
)
def test_scenario_tells_the_same_story_as_ever(golden: Golden, name: str, code: int) -> None:
    found, text = run(SCENARIOS / f"{name}.yaml")
    golden(f"simulate/{name}.txt", text)
    assert found == code


def test_guide_shows_the_example_and_what_it_comes_to() -> None:
    """Its command, the scenario that it shows, and the end of the answer; `test_first_light` has the others."""
    blocks = dict(re.findall(r"^```(\w*)\n(.*?)^```$", GUIDE.read_text(), re.MULTILINE | re.DOTALL))
    assert blocks["sh"].strip() == "covey simulate examples/what-if/node-dies.yaml"
    written = (EXAMPLE / "node-dies.yaml").read_text()
    assert blocks["yaml"] == written.partition("\n")[2], "the first line says how to play it"
    answer = subprocess.run(
        (sys.executable, "-m", "covey", *blocks["sh"].split()[1:]),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert blocks[""] == answer.stdout[answer.stdout.index("At the end") :]


def test_guide_names_every_event_and_every_field() -> None:
    text = GUIDE.read_text()
    for words in (*EventName, *Scenario.model_fields, *SteadyRequests.model_fields, *Pacing.model_fields):
        assert f"`{to_camel(words)}" in text or f"`{words}`" in text, words


def test_story_is_the_same_whatever_the_hash_seed() -> None:
    """Nothing depends on the order of a set, on addresses in memory, or on the folder that it runs in."""
    told: set[bytes] = set()
    for hash_seed in ("1", "2"):
        command = (sys.executable, "-m", "covey", "simulate", str(SCENARIOS / "control.yaml"))
        environment = os.environ | {"PYTHONHASHSEED": hash_seed}
        told.add(subprocess.run(command, env=environment, capture_output=True, timeout=120, check=True).stdout)
    assert len(told) == 1


def test_another_seed_tells_another_story_of_the_same_end(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(f"seed: 2\nfiles: [{EXAMPLE}/fleet.yaml, {EXAMPLE}/chat.yaml]\n")
    (tmp_path / "t.yaml").write_text(f"seed: 3\nfiles: [{EXAMPLE}/fleet.yaml, {EXAMPLE}/chat.yaml]\n")
    one, other = run(tmp_path / "s.yaml", "json")[1], run(tmp_path / "t.yaml", "json")[1]
    assert one != other
    assert json.loads(one)["placements"] == json.loads(other)["placements"]


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("files: [fleet.yaml\n", 1, "file must be valid YAML"),
        ("- a\n", 1, "a scenario must be a mapping"),
        ("seed: 1\n", 1, "`files` or `objects` must say which nodes"),
        ("files: [nowhere.yaml]\n", 0, "cannot read"),
        ("files: [fleet.yaml]\nseed: x\n", 2, "`seed` must be an integer; got 'x'"),
        ("files: [fleet.yaml]\nevnts: []\n", 2, "no such field (did you mean 'events'?)"),
        (
            "files: [fleet.yaml]\nevents:\n- {atSeconds: 1, event: NodeDeis, node: b}\n",
            3,
            "got 'NodeDeis' (did you mean 'NodeDies'?)",
        ),
        ("files: [fleet.yaml]\nevents:\n- {event: NodeDies, node: b}\n", 3, "`events[0].atSeconds` must be given"),
        (
            "files: [fleet.yaml]\nevents:\n- {atSeconds: 1, event: NodeDies}\n",
            3,
            "`events[0].node` must be given for event 'NodeDies'",
        ),
        (
            "files: [fleet.yaml]\nevents:\n- {atSeconds: 1, event: NodeDies, node: b, replicas: 2}\n",
            3,
            "`events[0].replicas` must not be given: event 'NodeDies' takes 'forSeconds', 'node'",
        ),
        (
            "files: [fleet.yaml]\nevents:\n- {atSeconds: 1, event: NodeDies, node: bb}\n",
            3,
            "`events[0].node` must be one of 'a', 'b', 'mac'; got 'bb' (did you mean 'b'?)",
        ),
        (
            "files: [fleet.yaml, chat.yaml]\nevents:\n- {atSeconds: 1, event: Delete, placement: cht}\n",
            3,
            "`events[0].placement` must be one of 'chat'; got 'cht' (did you mean 'chat'?)",
        ),
        (
            "files: [fleet.yaml, chat.yaml]\nrequests: [{model: chatt}]\n",
            2,
            "`requests[0].model` must be one of 'chat'; got 'chatt' (did you mean 'chat'?)",
        ),
        (
            "files: [fleet.yaml]\nevents: [{atSeconds: 1, event: GatewayKilled, gateway: 2}]\n",
            2,
            "`events[0].gateway` must be at most `gateways` (1); got 2",
        ),
        (
            "files: [fleet.yaml]\ndurationSeconds: 60\n"
            "events: [{atSeconds: 50, event: NodeDies, node: b, forSeconds: 20}]\n",
            3,
            "`events[0].atSeconds` must end within `durationSeconds` (60 s); it ends at 70 s",
        ),
        (
            "files: [fleet.yaml, chat.yaml]\ndurationSeconds: 86400\nrequests: [{model: chat, perMinute: 6000}]\n",
            3,
            "`requests` must come to at most 50000 requests; got 8640000. Lower `perMinute`",
        ),
        ("files: [chat.yaml]\n", 1, "must describe at least one Node"),
        (
            "files: [fleet.yaml]\nevents:\n- {atSeconds: 1, event: Apply, files: [fleet.yaml]}\n",
            3,
            "`events[0]` must not apply Nodes",
        ),
        ("files: [fleet.yaml]\nevents:\n- {atSeconds: 1, event: Apply}\n", 3, "must have `files` or `objects`"),
        (
            "files: [fleet.yaml]\nobjects:\n- apiVersion: covey.dev/v1alpha1\n  kind: Placement\n"
            "  metadata: {name: p}\n  spec: {modelRef: {name: m}, replicas: many}\n",
            6,
            "`spec.replicas` must be an integer; got 'many'",
        ),
    ],
)
def test_scenario_that_can_not_be_played_is_refused_with_line_field_and_what_must_hold(
    tmp_path: Path, text: str, line: int, words: str
) -> None:
    for name in ("fleet.yaml", "chat.yaml"):
        (tmp_path / name).write_text((EXAMPLE / name).read_text())
    path = tmp_path / "scenario.yaml"
    path.write_text(text)
    with pytest.raises(CommandError) as refused:
        run(path)
    assert refused.value.code is ExitCode.WRONG_USE
    assert words in str(refused.value)
    if line:
        assert f"{path}:{line}: " in str(refused.value)


def test_all_that_is_wrong_with_a_scenario_is_told_at_once(tmp_path: Path) -> None:
    path = tmp_path / "scenario.yaml"
    path.write_text("files: [x.yaml]\nseed: -1\ngateways: 99\n")
    with pytest.raises(CommandError) as refused:
        run(path)
    assert [line.partition(": ")[0] for line in str(refused.value).splitlines()] == [f"{path}:2", f"{path}:3"]


def test_request_at_the_very_moment_that_a_gateway_starts_finds_none_yet(tmp_path: Path) -> None:
    files = f"files: [{EXAMPLE}/fleet.yaml, {EXAMPLE}/chat.yaml]\nrequests: [{{model: chat}}]\n"
    (tmp_path / "s.yaml").write_text(f"{files}events: [{{atSeconds: 5, event: GatewayKilled, forSeconds: 5}}]\n")
    code, answer = run(tmp_path / "s.yaml", "json")
    assert code == 0
    # At 5 s the gateway is still there and breaks off; at 10 s it is not there yet.
    (requests,) = json.loads(answer)["requests"]
    assert requests["lost"]["no gateway took it"] == 5


def test_machine_with_less_memory_than_is_kept_back_runs_nothing_and_breaks_no_rule(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(
        f"files: [{EXAMPLE}/chat.yaml]\nobjects:\n"
        "- {apiVersion: covey.dev/v1alpha1, kind: Node, metadata: {name: pi}, machine: {memory: 512Mi}}\n"
    )
    code, answer = run(tmp_path / "s.yaml", "json")
    found = json.loads(answer)
    assert (code, found["settled"], found["violations"], found["placements"][0]["reason"]) == (
        1,
        True,
        [],
        "NotPlaced",
    )


def test_broken_rule_of_safety_fails_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By rules that keep back all memory but a byte, whatever the controller places is too much."""

    def keep_back(machine: Machine, pool: str) -> int:
        return machine.pools[pool] - 1

    monkeypatch.setattr(Machine, "reserve_bytes", keep_back)
    code, text = run(EXAMPLE / "node-dies.yaml")
    assert code == 1
    assert "A rule of safety was broken: pool " in text
    assert "is over-committed: instances that are stored hold 2" in text


def test_scenarios_use_every_event() -> None:
    texts = [path.read_text() for path in (*SCENARIOS.glob("*.yaml"), *EXAMPLE.glob("*.yaml"))]
    documents = [each for text in texts for each in yaml.safe_load_all(text)]
    used = {event["event"] for each in documents for event in each.get("events", ())}
    assert used == {name.value for name in EventName}
