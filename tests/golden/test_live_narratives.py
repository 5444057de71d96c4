"""What `covey plan` tells of a fleet that serves, and `covey why` of one that leaves for another: whole texts."""

from conftest import Golden
from covey_api.engines import Compute
from covey_api.kinds import Kind, ObjectKey
from covey_api.meta import RESTART_ANNOTATION
from covey_api.placement import ContextWish, Placement, Preemption
from covey_controller.reconcile.fleet import routed_ids
from covey_controller.reconcile.forecast import forecast
from covey_controller.reconcile.forecast_text import render_forecast
from covey_controller.reconcile.why import explain
from kit import builders
from kit.worlds import FakeGateway, Worldlet

# Beside the node's reserve of a GiB there is room for one replica of 4 slots of 8192 tokens.
ONE_BYTES = 2_500_000_000


def wish(name: str, priority: int = 0, **spec: object) -> Placement:
    fields: dict[str, object] = {"context": ContextWish(tokens=8192), "priority": priority}
    return builders.placement(name, model="smollm2", **(fields | spec))


def serving(*placements: Placement, nodes: tuple[str, ...] = ("a", "b"), total_bytes: int = ONE_BYTES) -> Worldlet:
    story = Worldlet()
    story.put(builders.model(), *placements)
    story.add_agents(*nodes, total_bytes=total_bytes)
    story.gateways["g"] = FakeGateway()
    story.run(25)
    return story


def foresee(story: Worldlet, *documents: Kind) -> str:
    world = story.observe()
    return render_forecast(forecast(world, story.now, documents), world.objects, documents)[0]


def test_plan_of_a_changed_wish_tells_the_whole_rollout(golden: Golden) -> None:
    story = serving(wish("chat", replicas=2), nodes=("a", "b", "c"))
    golden("plan/live-rolls.txt", foresee(story, wish("chat", replicas=2, concurrency=2)))


def test_plan_of_a_smaller_wish_tells_who_drains(golden: Golden) -> None:
    golden("plan/live-drains.txt", foresee(serving(wish("chat", replicas=2)), wish("chat", replicas=1)))


def test_plan_of_a_more_important_wish_tells_who_leaves_for_it(golden: Golden) -> None:
    more = wish("more", 10, preemption=Preemption.LOWER_PRIORITY)
    golden("plan/live-preempts.txt", foresee(serving(wish("chat"), nodes=("a",)), more))


def test_a_better_place_is_told_and_a_restart_takes_it(golden: Golden) -> None:
    """A card is added to a fleet that serves on a processor."""
    story = serving(wish("chat"), nodes=("a",))
    story.add_agents("b", total_bytes=ONE_BYTES)
    card = builders.lane(compute=Compute.CUDA, pool="CUDA0")
    story.agents["b"].lanes, story.agents["b"].cards = (card, builders.lane()), {"CUDA0": 24 * builders.GIB}
    story.run(25)
    assert [each.spec.compute for each in story.instances()] == [Compute.CPU], "nothing is moved by itself"
    told = _tell(story, "a card has come", "chat") + "\n== covey plan\n" + foresee(story)
    again = wish("chat")
    restarted = again.metadata.model_copy(update={"annotations": {RESTART_ANNOTATION: "2026-12-01"}})
    again = again.model_copy(update={"metadata": restarted})
    told += "\n== covey plan of a restart\n" + foresee(story, again)
    story.put(again)
    served = 1
    for _ in range(40):
        story.run(1)
        served = min(served, len(routed_ids(story.published.endpoints)))
    assert [each.spec.compute for each in story.instances()] == [Compute.CUDA]
    assert served == 1, "the old one serves until the new one does"
    golden("why/better-place.txt", told + "\n" + _tell(story, "it was rolled", "chat"))


def test_preemption_is_told_from_both_sides(golden: Golden) -> None:
    story = serving(wish("less"), nodes=("a",))
    told = [_tell(story, "one serves", "less")]
    story.put(wish("more", 10, preemption=Preemption.LOWER_PRIORITY))
    story.gateways["g"].in_flight = {story.instances()[0].spec.instance_id: 1}
    story.run(10)
    told.append(_tell(story, "a more important one has come, and the first has a request", "less", "more"))
    story.gateways["g"].in_flight = {}
    story.run(25)
    told.append(_tell(story, "the request has ended", "less", "more"))
    notes = "".join(f"{note.key}: {note.reason}: {note.message}\n" for note in story.notes)
    golden("why/preempted.txt", "\n".join((*told, f"== noted\n{notes}")))


def _tell(story: Worldlet, moment: str, *names: str) -> str:
    texts = (explain(story.observe(), story.now, ObjectKey("Placement", "default", name))[0] for name in names)
    return f"== {moment}\n" + "\n".join(texts)
