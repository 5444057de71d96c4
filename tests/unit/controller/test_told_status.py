"""What a Placement's columns say of the wish while something else serves: numbers of the wish, and of what serves."""

from itertools import pairwise
from typing import Any

import pytest
from covey_api.instance import Instance, InstanceGoal, MemberPhase, MemberStatus
from covey_api.messages import Progress
from covey_api.placement import ContextWish, Placement, PlacementStatus
from covey_controller.reconcile.progress import render_progress
from covey_controller.reconcile.why import explain
from kit import builders
from kit.worlds import FakeAgent, FakeGateway, Worldlet


def serving_fleet(*, replicas: int, tokens: int) -> Worldlet:
    story = Worldlet()
    story.put(builders.model(), builders.placement(replicas=replicas, context=ContextWish(tokens=tokens)))
    story.add_agents("a", "b")
    story.gateways["g"] = FakeGateway()
    story.run(15)
    return story


def status_of(story: Worldlet) -> PlacementStatus:
    return next(o for o in story.objects.values() if isinstance(o, Placement)).status


def windows_of_serving(story: Worldlet) -> list[int]:
    return [
        instance.spec.options.context_tokens
        for instance in story.instances()
        if instance.spec.goal is InstanceGoal.RUN
        and all(member.phase is MemberPhase.READY for member in instance.status.members)
    ]


def test_roll_tells_how_many_serve_the_new_wish_and_the_window_of_what_serves() -> None:
    story = serving_fleet(replicas=2, tokens=4096)
    assert (status_of(story).ready, status_of(story).context_tokens) == ("2/2", 4096)
    story.put(builders.placement(replicas=2, context=ContextWish(tokens=1024)))
    told: list[str] = []
    for _ in range(60):
        story.step()
        status, windows = status_of(story), windows_of_serving(story)
        if told[-1:] != [status.ready]:
            told.append(status.ready)
        if windows and len(windows) == status.ready_replicas:
            assert status.context_tokens == min(windows)
    assert told == ["0/2", "1/2", "2/2"]
    assert (status_of(story).ready_replicas, status_of(story).context_tokens) == (2, 1024)


def test_what_serves_meanwhile_is_not_ready_of_a_wish_whose_model_is_missing() -> None:
    story = serving_fleet(replicas=2, tokens=4096)
    story.put(builders.placement(replicas=2, model="smolm2", context=ContextWish(tokens=4096)))
    story.run(30)
    status = status_of(story)
    assert (status.ready, status.ready_replicas, status.context_tokens) == ("0/2", 2, 4096)
    told = {each.type: each.status for each in status.conditions}
    assert (told["Planned"], told["EngineReady"], told["Serving"]) == ("False", "False", "True")


def test_each_step_of_a_start_is_a_condition_of_its_own() -> None:
    story = Worldlet()
    story.put(builders.model(), builders.placement())
    story.add_agents("a")
    steps = ("Planned", "ArtifactsReady", "EngineReady", "Serving")
    told: list[tuple[str, ...]] = []
    seen: dict[tuple[str, ...], set[MemberPhase]] = {}
    for _ in range(40):
        story.step()
        by_type = {each.type: each for each in status_of(story).conditions}
        true = tuple(step for step in steps if step in by_type and by_type[step].status == "True")
        for step in steps:
            if step in by_type:
                assert by_type[step].reason == (step if step in true else f"Not{step}")
        if told[-1:] != [true]:
            told.append(true)
        phases = {member.phase for instance in story.instances() for member in instance.status.members}
        seen.setdefault(true, set()).update(phases)
    assert told == [(), ("Planned",), ("Planned", "ArtifactsReady"), steps]
    # Artifacts are there once nothing is fetched any more, and not before.
    assert seen[("Planned",)] <= {MemberPhase.PENDING, MemberPhase.FETCHING}
    assert seen[("Planned", "ArtifactsReady")] == {MemberPhase.STARTING}


def test_what_comes_is_told_in_bytes_with_its_rate_and_how_long_it_takes() -> None:
    story = Worldlet()
    story.put(builders.model(), builders.placement())
    story.agents["a"] = FakeAgent("a", progress=Progress(step="model", done_bytes=2**30, total_bytes=2**32))
    story.run(15)
    (key,) = (key for key, item in story.objects.items() if isinstance(item, Instance))

    def why(progress: Progress) -> tuple[str, dict[str, Any]]:
        story.agents["a"].progress = progress
        story.run(5)
        text, data = explain(story.observe(), story.now, key)
        return text, data["progress"]

    moving = Progress(step="model", done_bytes=2**30, total_bytes=2**32, bytes_per_second=100 * 2**20)
    text, data = why(moving)
    assert "gets its model: 1.0 GiB of 4.0 GiB, 100.0 MiB/s, 31 s left" in text
    assert [each["secondsLeft"] for each in data.values()] == [31]
    text, data = why(moving.model_copy(update={"bytes_per_second": 0}))
    assert "gets its model: 1.0 GiB of 4.0 GiB, 0 B/s" in text
    assert ["secondsLeft" in each for each in data.values()] == [False]


def test_a_placement_of_which_nothing_runs_names_no_window() -> None:
    story = Worldlet()
    story.put(builders.placement())
    story.add_agents("a")
    story.run(15)
    assert status_of(story).ready == "0/1"
    assert "contextTokens" not in status_of(story).to_wire()


LARGEST = 2**53 - 1


@pytest.mark.parametrize(
    ("done_bytes", "total_bytes"),
    [(LARGEST, 1), (-LARGEST, 1), (LARGEST, -LARGEST), (-LARGEST, -LARGEST), (-1, LARGEST), (LARGEST, LARGEST)],
)
def test_progress_that_makes_no_sense_still_fits_its_field(done_bytes: int, total_bytes: int) -> None:
    """What a schema refuses would be read from the store never again."""
    progress = Progress(step="s" * 64, done_bytes=done_bytes, total_bytes=total_bytes)
    told = render_progress(progress)
    assert MemberStatus(name="0", node="a", progress=told).progress == told
    assert told in ("", f"{'s' * 64} 100 %")


def test_every_status_fits_its_schema_whatever_a_node_reports() -> None:
    """As many, as long and as large as a report lets through."""
    story = Worldlet()
    story.put(builders.model(), builders.placement())
    story.add_agents("a")
    agent = story.agents["a"]
    agent.lanes = tuple(builders.lane() for _ in range(70))
    agent.version, agent.address, agent.front_port = "v" * 500, "h" * 253, 65_535
    agent.progress = Progress(step="s" * 64, done_bytes=LARGEST, total_bytes=1)
    for _ in range(15):
        story.step()
        for item in story.objects.values():
            assert type(item).model_validate_json(item.to_json()) == item
    (instance,) = story.instances()
    assert instance.status.members[0].phase is MemberPhase.READY


@pytest.mark.parametrize(
    ("done_bytes", "total_bytes", "told"),
    [(0, 100, ""), (24, 100, ""), (25, 100, "load 25 %"), (74, 100, "load 50 %"), (100, 100, "load 100 %"), (5, 0, "")],
)
def test_progress_of_which_no_rate_is_known_is_told_in_quarters(done_bytes: int, total_bytes: int, told: str) -> None:
    progress = Progress(step="load", done_bytes=done_bytes, total_bytes=total_bytes)
    assert render_progress(progress) == told


def tell(seconds: int, rates: tuple[int, ...] = (1000,), step: str = "model") -> list[str]:
    """What is written while so much comes as takes so many seconds at the first rate, at these rates by turns."""
    total_bytes, done_bytes, told = seconds * rates[0], 0, [""]
    for number in range(10 * seconds):
        rate = rates[number % len(rates)]
        progress = Progress(step=step, done_bytes=done_bytes, total_bytes=total_bytes, bytes_per_second=rate)
        if (words := render_progress(progress, told[-1])) != told[-1]:
            told.append(words)
        if done_bytes == total_bytes:
            break
        done_bytes = min(total_bytes, done_bytes + rate)
    return told[1:]


def test_what_takes_longer_is_told_in_finer_steps_with_the_time_that_is_left() -> None:
    assert tell(40) == ["model 25 %", "model 50 %", "model 75 %", "model 100 %"]
    assert tell(400)[:2] == ["model 10 %, 6 min left", "model 20 %, 6 min left"]
    hour = tell(3600)
    assert (len(hour), hour[0], hour[6], hour[-1]) == (
        *(20, "model 5 %, 57 min left", "model 35 %, 39 min left", "model 100 %"),
    )
    assert len(tell(36_000)) == 100


@pytest.mark.parametrize("rates", [(1000, 1), (1000, 100_000), (1000, 0, 999, 3000)])
def test_a_rate_that_jumps_costs_no_more_writes_and_never_goes_back(rates: tuple[int, ...]) -> None:
    """Each is a write of the status: of an hour's download two dozen, whatever a node says of its rate."""
    percents = [int(words.split()[1]) for words in tell(3600, rates)]
    assert percents == sorted(set(percents))
    assert percents[-1] == 100
    assert all(more - less >= 5 for less, more in pairwise(percents)) or 0 in rates or 1 in rates


def test_what_starts_over_or_is_another_step_is_told_anew() -> None:
    slow = Progress(step="model", done_bytes=10, total_bytes=100)
    assert render_progress(slow, "model 35 %, 12 min left") == ""
    assert render_progress(slow.model_copy(update={"done_bytes": 36}), "model 35 %, 12 min left") == (
        "model 35 %, 12 min left"
    )
    assert render_progress(slow.model_copy(update={"done_bytes": 60}), "engine 75 %") == "model 50 %"
    assert render_progress(
        slow.model_copy(update={"step": "s" * 64, "done_bytes": 99, "bytes_per_second": 0}), "x"
    ) == (f"{'s' * 64} 75 %")
