"""`covey diff` against what runs, on a fleet whose controller decides for real."""

import importlib
import json
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
from click.testing import CliRunner, Result
from covey.connect import Where
from covey.documents import Documents
from covey.errors import CommandError, ExitCode
from covey.ports import JsonObject
from covey_api.instance import Instance, InstanceGoal, InstancePhase
from covey_api.kinds import Kind
from covey_api.model import ModelMemory
from covey_api.reasons import FailureCause
from kit import builders
from kit.worlds import FakeGateway, Worldlet

plan_module = importlib.import_module("covey.commands.plan")


@dataclass(frozen=True)
class Shelf:
    """The objects of a story, and the documents that are asked about."""

    story: Worldlet
    wished: tuple[Kind, ...]
    namespace: str = "default"

    @property
    def objects(self) -> "Shelf":
        return self

    def check_documents(self, documents: Documents, namespace: str) -> list[JsonObject]:
        return [written(each) for each in self.wished]

    def get_object(self, plural: str, namespace: str, name: str) -> JsonObject:
        for item in self.list_objects(plural, namespace):
            if item["metadata"]["name"] == name:
                return item
        raise CommandError("not there", ExitCode.NOTHING_MATCHED)

    def list_objects(self, plural: str, namespace: str | None = None) -> list[JsonObject]:
        return [written(each) for each in self.story.objects.values() if plural == type(each).PLURAL]


def written(item: Kind) -> JsonObject:
    return json.loads(item.model_dump_json(by_alias=True))


def diff(monkeypatch: pytest.MonkeyPatch, story: Worldlet, *wished: Kind) -> Result:
    @contextmanager
    def opened(where: Where) -> Generator[Shelf]:
        yield Shelf(story, wished)

    monkeypatch.setattr(plan_module, "open_fleet", opened)
    return CliRunner().invoke(plan_module.diff, ["-f", "-"], input="{}")


def serving() -> Worldlet:
    story = Worldlet()
    story.put(builders.model(), builders.placement())
    story.add_agents("a", "b")
    story.gateways["g"] = FakeGateway()
    story.run(25)
    return story


def running(story: Worldlet, phase: InstancePhase) -> Instance:
    (found,) = [each for each in story.instances() if each.spec.goal is InstanceGoal.RUN and each.status.phase is phase]
    return found


def test_what_runs_as_it_is_written_differs_in_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    result = diff(monkeypatch, serving(), builders.model(), builders.placement())
    assert (result.exit_code, result.output) == (0, "")


def test_revision_that_was_applied_and_failed_differs_from_the_one_that_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    story = serving()
    for agent in story.agents.values():
        agent.fail = lambda instance: FailureCause.EXITED if instance.spec.options.slots == 2 else None
    story.put(builders.placement(concurrency=2))
    story.run(60)
    old = running(story, InstancePhase.READY)
    result = diff(monkeypatch, story, builders.placement(concurrency=2))
    head, *lines = result.output.splitlines()
    assert head == "placement/smollm2 runs another revision:"
    (line,) = [each for each in lines if f"instance/{old.metadata.name} " in each]
    assert line.startswith(f"~ instance/{old.metadata.name} (Ready): {old.spec.revision} -> r1-")
    assert result.exit_code == 1
    back = diff(monkeypatch, story, builders.placement())
    assert "~ spec.concurrency: 2 -> 4" in back.output or "- spec.concurrency: 2" in back.output
    assert old.metadata.name not in back.output, "what serves is of these documents already"


def test_model_that_changes_names_what_runs_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    story = serving()
    changed = builders.model(memory=ModelMemory(workspace="1Gi"))
    result = diff(monkeypatch, story, changed)
    assert "model/smollm2 would change:" in result.output
    assert "placement/smollm2 runs another revision:" in result.output
    assert "instance/smollm2-0 (Ready)" in result.output
    other = diff(monkeypatch, story, builders.model("other"))
    assert "runs another revision" not in other.output


def test_what_drains_is_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    story = serving()
    story.put(builders.placement(suspend=True))
    story.gateways["g"].in_flight = {story.instances()[0].spec.instance_id: 1}
    story.run(3)
    assert story.instances()[0].spec.goal is InstanceGoal.DRAIN
    result = diff(monkeypatch, story, builders.placement(suspend=True, concurrency=2))
    assert "runs another revision" not in result.output
