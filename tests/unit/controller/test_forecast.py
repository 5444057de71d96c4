"""`covey plan`: what documents would come to, from the same `plan` that would act."""

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

from covey_api.engines import Compute
from covey_api.instance import Instance, InstanceGoal, MemberRole
from covey_api.kinds import Kind
from covey_api.placement import ContextWish, Scaling, ShapeType, ShapeWish
from covey_controller.board import FleetBoard
from covey_controller.explain import MAX_FORECASTS, HistoryExplainer
from covey_controller.history import History
from covey_controller.reconcile.forecast import Forecast, forecast
from covey_controller.reconcile.forecast_text import render_forecast
from covey_controller.reconcile.why import explain
from hypothesis import given, settings
from hypothesis import strategies as st
from kit import builders
from kit.worlds import FakeGateway, Worldlet

AUTO = ShapeWish(type=ShapeType.AUTO)


def serving(*placements: Kind, nodes: tuple[str, ...] = ("a", "b"), total_bytes: int = 8 * builders.GIB) -> Worldlet:
    """A fleet that has come to rest."""
    story = Worldlet()
    story.put(builders.model(), *placements)
    story.add_agents(*nodes, total_bytes=total_bytes)
    story.gateways["g"] = FakeGateway()
    story.run(25)
    return story


def foresee(story: Worldlet, *documents: Kind) -> tuple[Forecast, str, dict[str, Any]]:
    world = story.observe()
    made = forecast(world, story.now, documents)
    return made, *render_forecast(made, world.objects, documents)


def names(entries: list[dict[str, Any]]) -> list[str]:
    return [entry["name"] for entry in entries]


def test_forecast_of_a_fleet_at_rest_says_that_nothing_comes_or_goes() -> None:
    made, text, found = foresee(serving(builders.placement()))
    assert made.is_settled
    assert text == "no instance comes or goes\n"
    assert (found["comes"], found["goes"], found["waits"]) == ([], [], [])


def test_forecast_names_node_lane_window_and_bytes_of_what_comes_and_the_other_nodes_answer() -> None:
    story = serving()
    _, text, found = foresee(story, builders.placement())
    come = found["comes"][0]
    assert (come["name"], come["members"][0]["node"], come["contextTokens"]) == ("smollm2-0", "a", 8192)
    assert come["members"][0]["pools"][0]["bytes"] > 98_362_432
    assert "'b' could take it too" in come["why"]
    assert "placement/smollm2 would be created" in text
    assert "lane LlamaServer/Cpu, window 8192 tokens x 4 slots" in text


def test_what_other_nodes_said_of_a_replica_counts_those_decided_on_before_it() -> None:
    story = serving(total_bytes=3 * builders.GIB)
    asked = builders.placement(concurrency=4, replicas=2, context=ContextWish(tokens=8192))
    _, _, found = foresee(story, asked)
    first, second = found["comes"]
    assert "could take it too" in first["why"]
    assert "short)" in second["why"], "the node of the first replica has no room for this one"
    assert "could take it too" not in second["why"]


def test_of_a_large_fleet_eight_nodes_answers_are_shown_and_the_rest_counted() -> None:
    story = serving(nodes=tuple(f"n{index:02}" for index in range(12)))
    _, _, found = foresee(story, builders.placement())
    assert found["comes"][0]["why"].count("could take it too") == 8
    assert found["comes"][0]["why"].endswith("'n08' could take it too, window 8192 and 3 more")


class WatchedDocuments(tuple[Kind, ...]):
    """Documents that know which threads looked at them."""

    threads: frozenset[int] = frozenset()

    def __iter__(self) -> Iterator[Kind]:
        self.threads |= {threading.get_ident()}
        return super().__iter__()


def test_neither_plan_nor_its_words_are_made_on_the_loop_that_hears_reports() -> None:
    story, history = serving(), History()
    world = story.observe()
    history.observe({item.key: item for item in world.objects}, world, story.now)
    documents = WatchedDocuments([builders.placement()])
    text, _ = asyncio.run(HistoryExplainer(history, FleetBoard(lambda: story.now)).forecast(documents))
    assert "placement/smollm2 would be created" in text
    assert documents.threads
    assert threading.get_ident() not in documents.threads


def test_no_more_forecasts_wait_than_are_worth_waiting_for() -> None:
    story, history = serving(), History()
    world = story.observe()
    history.observe({item.key: item for item in world.objects}, world, story.now)
    explainer = HistoryExplainer(history, FleetBoard(lambda: story.now))

    async def ask_all() -> list[bool]:
        asked = [asyncio.create_task(explainer.forecast(())) for _ in range(MAX_FORECASTS)]
        seen = [explainer.is_busy]
        await asyncio.sleep(0)
        seen.append(explainer.is_busy)
        await asyncio.gather(*asked)
        return [*seen, explainer.is_busy]

    assert asyncio.run(ask_all()) == [False, True, False]


def test_forecast_changes_nothing_in_the_world_that_it_was_asked_about() -> None:
    story = serving(builders.placement())
    before = story.observe()
    forecast(before, story.now, [builders.placement(replicas=2)])
    assert story.observe().objects == before.objects


def test_forecast_says_what_each_node_holds_before_and_after_and_what_it_fetches() -> None:
    story = serving(builders.placement())
    _, text, found = foresee(story, builders.placement(replicas=2))
    (held,) = [each.spec.members[0].bytes_in("Host") for each in story.instances()]
    pools = {each["name"]: each["pools"][0] for each in found["nodes"]}
    assert (pools["a"]["reservedBeforeBytes"], pools["a"]["reservedBytes"]) == (held, held)
    assert (pools["b"]["reservedBeforeBytes"], pools["b"]["reservedBytes"]) == (0, held)
    assert found["downloads"] == [
        {"node": "b", "what": "'SmolLM2-135M-Instruct.Q4_1.gguf' of model 'smollm2'", "bytes": 90_000_000}
    ]
    assert "fetches: node 'b': 'SmolLM2-135M-Instruct.Q4_1.gguf' of model 'smollm2', 85.8 MiB (90000000 bytes)" in text
    assert "node/b pool 'Host': 8.0 GiB in total, 1.0 GiB kept back, 0 B taken, then " in text
    assert "node/a pool" not in text, "what stays as it is needs no line"


def test_what_is_fetched_is_the_container_the_file_or_of_a_local_file_nothing() -> None:
    assert builders.artifact().fetched_bytes == 90_000_000
    bare = builders.artifact(archive=None, sha256="b" * 64)
    assert bare.fetched_bytes == 98_362_432
    assert builders.artifact(archive=None, sha256="b" * 64, source="file:///m.gguf").fetched_bytes == 0


def test_forecast_fetches_nothing_that_is_there() -> None:
    story = serving(builders.placement())
    agent = story.agents["b"]
    agent.blobs = (builders.artifact().digest,)
    _, _, found = foresee(story, builders.placement(replicas=2))
    assert found["downloads"] == []


def test_forecast_of_a_smaller_wish_names_who_goes_and_why() -> None:
    story = serving(builders.placement(replicas=2))
    _, text, found = foresee(story, builders.placement(replicas=1))
    assert names(found["goes"]) == ["smollm2-1"]
    assert found["comes"] == []
    assert "goes:   instance/smollm2-1" in text


def test_forecast_rolls_every_replica_of_a_changed_placement() -> None:
    story = serving(builders.placement(replicas=2))
    _, text, found = foresee(story, builders.placement(replicas=2, concurrency=2))
    assert sorted(found["rolls"][0]["from"]) == ["smollm2-0", "smollm2-1"]
    assert len(found["rolls"][0]["to"]) == 2
    assert "rolls:  placement/smollm2" in text


def test_forecast_says_by_how_many_bytes_a_wish_does_not_fit() -> None:
    story = serving(total_bytes=3 * builders.GIB)
    _, text, found = foresee(story, builders.placement(concurrency=64, context=ContextWish(tokens=8192)))
    assert found["stalls"][0]["shortBytes"] > 0
    assert f"{found['stalls'][0]['shortBytes']} bytes short" in text


def test_forecast_and_why_name_the_nodes_that_could_hold_together_what_none_can_alone() -> None:
    story = serving(total_bytes=3 * builders.GIB)
    asked = builders.placement(concurrency=16, context=ContextWish(tokens=8192))
    story.agents["a"].address, story.agents["b"].address = "100.64.0.8", "100.64.0.9"
    _, text, found = foresee(story, asked)
    (stalled,) = found["stalls"]
    assert [each["node"] for each in stalled["shape"]["members"]] == ["a", "b"]
    assert (stalled["shape"]["kind"], stalled["shape"]["link"], stalled["shape"]["canRun"]) == ("Rpc", "a VPN", False)
    assert "together 'a', 'b' could hold it: LlamaServer as Rpc" in text
    assert "It is not started: so far `LlamaServer` as `Rpc` and `Mlx` are, where all their agents know how." in text
    story.put(asked)
    story.run(20)
    assert story.instances() == [], "it is shown, and not begun"
    told, data = explain(story.observe(), story.now, asked.key)
    assert "together 'a', 'b' could hold it" in told
    assert data["shape"]["members"][0]["role"] == "Driver"


def test_of_nodes_that_could_hold_it_together_those_are_named_that_would_run_it() -> None:
    """Two Macs: their accelerators, which no group has, come first by themselves."""
    story = serving(total_bytes=3 * builders.GIB)
    roles = (MemberRole.DRIVER.value, MemberRole.DONOR.value)
    computes = (Compute.METAL, Compute.CPU)
    for agent in story.agents.values():
        agent.lanes = tuple(builders.lane(compute=compute, roles=roles) for compute in computes)
    asked = builders.placement(concurrency=16, context=ContextWish(tokens=8192))
    _, text, found = foresee(story, asked)
    shape = found["stalls"][0]["shape"]
    assert (shape["canRun"], {each["compute"] for each in shape["members"]}) == (True, {"Cpu"})
    assert "It runs like this where its Placement says `shape: {type: Auto}`." in text
    _, text, found = foresee(story, asked.model_copy(update={"spec": asked.spec.model_copy(update={"shape": AUTO})}))
    (come,) = found["comes"]
    assert [(each["role"], each["name"], each["node"]) for each in come["members"]] == [
        ("Driver", "0", "a"),
        ("Donor", "1", "b"),
    ]
    assert "driver '0' on node 'a', " in text
    assert "donor '1' on node 'b', " in text


def test_forecast_of_a_model_whose_header_nobody_has_read_waits_for_it() -> None:
    story = serving()
    _, _, found = foresee(story, builders.model("new", known=False), builders.placement("new"))
    assert [(each["name"], each["reason"]) for each in found["waits"]] == [("new", "GeometryPending")]


def test_forecast_tells_an_unchanged_document_from_a_changed_one() -> None:
    story = serving(builders.placement())
    _, text, _ = foresee(story, builders.placement(), builders.model(aliases=("small",)))
    assert "placement/smollm2 would be unchanged" in text
    assert "model/smollm2 would be configured" in text


def test_forecast_does_not_give_up_a_silent_node() -> None:
    story = serving(builders.placement(), nodes=("a",))
    story.agents["a"].paused = True
    story.run(20)
    _, _, found = foresee(story)
    assert [each["reason"] for each in found["waits"]] == ["NodeUnknown"]
    assert found["goes"] == []


@settings(max_examples=20)  # each simulates two minutes of a fleet
@given(replicas=st.integers(0, 4), wished=st.integers(0, 4), slots=st.sampled_from((2, 4)))
def test_forecast_comes_to_as_many_instances_as_the_fleet_does(replicas: int, wished: int, slots: int) -> None:
    story = serving(builders.placement(replicas=replicas))
    document = builders.placement(replicas=wished, concurrency=slots)
    made, _, _ = foresee(story, document)
    story.put(document.model_copy(update={"metadata": document.metadata.model_copy(update={"generation": 2})}))
    story.run(120)
    foreseen = [item for item in made.end.objects if isinstance(item, Instance)]
    assert all(each.spec.goal is InstanceGoal.RUN for each in foreseen)
    assert windows(foreseen) == windows(story.instances())


def windows(instances: list[Instance]) -> list[tuple[int, int]]:
    """Which node takes which one may differ: the real fleet starts its engines in another order."""
    return sorted((each.spec.options.slots, each.spec.options.context_tokens) for each in instances)


def asleep(name: str = "smollm2", **changes: Any) -> Kind:
    return builders.placement(name, model="smollm2", scaling=Scaling(min=0, max=1), **changes)


def test_a_placement_that_sleeps_says_where_its_first_replica_would_go_and_what_it_would_fetch() -> None:
    _, text, found = foresee(serving(), asleep())
    (each,) = found["sleeps"]
    assert (each["fits"], each["node"], each["contextTokens"]) == (True, "a", 8192)
    assert each["pools"] == [{"name": "Host", "bytes": each["pools"][0]["bytes"]}]
    assert each["fetchBytes"] == 90_000_000, "the wheel"
    assert "sleeps: placement/smollm2: no replica until it is asked for; the first would fit on node 'a', " in text
    assert "it would fetch 85.8 MiB first" in text
    assert found["comes"] == []


def test_a_placement_that_sleeps_says_by_how_much_its_first_replica_would_not_fit() -> None:
    _, text, found = foresee(serving(total_bytes=builders.GIB + 2**28), asleep(context=ContextWish(tokens=8192)))
    (each,) = found["sleeps"]
    assert each["fits"] is False
    assert each["shortBytes"] > 0
    assert "and then none would fit: node 'a' is closest" in text


def test_a_placement_that_sleeps_counts_on_what_yields_to_it() -> None:
    story = serving(builders.placement(scaling=Scaling(min=0, max=1)), nodes=("a",), total_bytes=2 * builders.GIB)
    story.gateways["g"].held = {"smollm2": 1.0}
    story.run(10)
    story.gateways["g"].held = {}
    assert [each.metadata.name for each in story.instances()] == ["smollm2-0"]
    _, text, found = foresee(story, asleep("other"))
    (each,) = found["sleeps"]
    assert (each["name"], each["fits"]) == ("other", True)
    assert "once of 'smollm2-0' those without requests have made room" in text


def test_what_is_suspended_or_has_a_least_number_does_not_sleep() -> None:
    for placement in (asleep(suspend=True), builders.placement(scaling=Scaling(min=1, max=1)), builders.placement()):
        assert foresee(serving(), placement)[2]["sleeps"] == []
