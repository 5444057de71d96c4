"""Scaling and swap: who starts because it is asked for, who makes room, and that nobody is cut off."""

from covey_api.instance import InstanceGoal
from covey_api.meta import Condition
from covey_api.placement import ContextWish, Placement, Scaling
from covey_api.reasons import EventReason, FailureCause, ReadyReason
from covey_controller.reconcile.outcomes import Plan
from covey_controller.reconcile.plan import plan
from covey_controller.reconcile.scaling import scale
from covey_controller.reconcile.why import explain
from covey_controller.reconcile.world import Scaled
from hypothesis import given
from hypothesis import strategies as st
from kit import builders
from kit.clients import Clients, scaled

TWO_BYTES = 4_000_000_000
DWELL = 30


def ready(clients: Clients, name: str) -> Condition:
    placement = clients.story.objects[scaled(name).key]
    assert isinstance(placement, Placement)
    return next(each for each in placement.status.conditions if each.type == "Ready")


def drained(clients: Clients) -> list[str]:
    return [note.message for note in clients.story.notes if note.reason == EventReason.DRAIN_STARTED]


def drains_of(made: Plan) -> list[str]:
    return [note.key.name for note in made.notes if note.reason == EventReason.DRAIN_STARTED]


def test_it_is_at_zero_until_it_is_asked_for_and_again_when_it_was_not_for_long() -> None:
    clients = Clients(scaled("a", idle_seconds=60))
    assert clients.story.instances() == []
    assert ready(clients, "a").reason == ReadyReason.SCALED_TO_ZERO
    table = clients.story.published.endpoints
    assert table is not None
    (model,) = table.models
    assert (model.wakes, model.hold_seconds) == (True, 60)
    clients.ask("a")
    clients.run(10)
    assert clients.story.routed() == ["a-0"]
    clients.end("a")
    clients.run(50)
    assert clients.story.routed() == ["a-0"]
    clients.run(30)
    assert clients.story.instances() == []
    assert ready(clients, "a").reason == ReadyReason.SCALED_TO_ZERO


def test_a_load_that_takes_longer_than_its_idle_time_is_never_given_up_before_it_was_ready() -> None:
    """Elsewhere a model was scaled to zero before it was ready for the first time: it never was, however often asked.

    Its client was answered at once and comes again later than that.
    """
    clients = Clients(scaled("a", idle_seconds=20))
    clients.gateway.refused = {"a": 0.0}
    clients.run(3)
    (first,) = clients.story.instances()
    clients.gateway.refused = {}
    agent = clients.story.agents["a"]
    agent.deaf = True  # its engine loads
    clients.run(300)
    assert [each.spec.instance_id for each in clients.story.instances()] == [first.spec.instance_id]
    assert ready(clients, "a").reason == ReadyReason.ENGINE_STARTING
    agent.deaf = False
    clients.run(5)
    assert clients.story.routed() == ["a-0"]
    clients.run(30)
    assert clients.story.instances() == [], "it is idle now"


def test_a_load_that_its_node_took_along_is_given_up_when_nobody_asks_any_more() -> None:
    """The last that was heard of it is that it starts: that may stand for as long as the node is gone."""
    clients = Clients(scaled("a", idle_seconds=20))
    agent = clients.story.agents["a"]
    clients.gateway.refused = {"a": 0.0}
    clients.run(3)
    assert [each.spec.goal for each in clients.story.instances()] == [InstanceGoal.RUN]
    clients.gateway.refused = {}
    agent.deaf = agent.paused = True
    clients.run(600)
    assert [each for each in clients.story.instances() if each.spec.goal is InstanceGoal.RUN] == []
    assert ready(clients, "a").reason == ReadyReason.SCALED_TO_ZERO


def test_a_load_that_failed_is_given_up_when_nobody_asks_any_more() -> None:
    clients = Clients(scaled("a", idle_seconds=20))
    clients.story.agents["a"].fail = lambda _: FailureCause.EXITED
    clients.gateway.refused = {"a": 0.0}
    clients.run(5)
    clients.gateway.refused = {}
    clients.run(60)
    assert clients.story.instances() == []


def test_a_request_that_does_not_wait_starts_it_too() -> None:
    clients = Clients(scaled("a"))
    clients.gateway.refused = {"a": 1.0}
    clients.run(10)
    assert clients.story.routed() == ["a-0"]


def test_what_serves_short_requests_stays_though_none_is_ever_seen_in_flight() -> None:
    clients = Clients(scaled("a", idle_seconds=20))
    clients.ask("a")
    clients.run(10)
    clients.end("a")
    for _ in range(10):  # a byte every 12 s
        (instance,) = clients.story.instances()
        clients.gateway.heard = {instance.spec.instance_id: 0.0}
        clients.run(12)
        assert clients.story.routed() == ["a-0"]


def test_more_requests_than_the_target_start_another_replica() -> None:
    clients = Clients(scaled("a", max=3, target=2), total_bytes=3 * TWO_BYTES)
    clients.ask("a")
    clients.run(10)
    (first,) = clients.story.instances()
    clients.gateway.in_flight = {first.spec.instance_id: 5}
    clients.asking.clear()
    clients.run(10)
    assert clients.story.routed() == ["a-0", "a-1", "a-2"]


def test_a_new_leader_begins_with_what_runs() -> None:
    clients = Clients(scaled("a", idle_seconds=60))
    clients.ask("a")
    clients.run(10)
    clients.end("a")
    clients.story.restart_leader()
    clients.run(20)
    assert clients.story.routed() == ["a-0"]


def test_an_idle_model_makes_room_for_one_that_is_asked_for_and_comes_back_when_asked() -> None:
    clients = Clients(scaled("a"), scaled("b"))
    clients.ask("a")
    clients.run(10)
    clients.end("a")
    clients.ask("b")
    clients.run(5)
    assert clients.story.routed() == ["a-0"], "it has not served for long enough"
    assert ready(clients, "b").reason == ReadyReason.MAKING_ROOM
    assert ready(clients, "b").message.endswith("waits for its turn: 'a-0' may make room on node 'a'")
    clients.run(DWELL + 10)
    assert clients.story.routed() == ["b-0"]
    words = "it makes room for b, which is asked for; it is above its minimum and idle"
    assert drained(clients) == [words]
    assert ready(clients, "a").reason == ReadyReason.SCALED_TO_ZERO, "nobody asks for it any more"
    clients.end("b")
    clients.ask("a")
    clients.run(DWELL + 10)
    assert clients.story.routed() == ["a-0"]


def test_a_request_is_never_cut_however_long_it_takes() -> None:
    clients = Clients(scaled("a"), scaled("b"))
    clients.ask("a")
    clients.run(10)
    clients.ask("b")
    clients.run(600)
    (instance,) = clients.story.instances()
    assert (instance.metadata.name, instance.spec.goal) == ("a-0", InstanceGoal.RUN)
    assert clients.story.routed() == [], "its door is closed: others have waited for longer than it serves at least"
    assert "waits for the requests on 'a-0' to end" in ready(clients, "b").message
    clients.end("a")
    clients.run(10)
    assert clients.story.routed() == ["b-0"]


def test_what_a_gateway_may_serve_that_is_not_heard_is_not_taken_for_idle() -> None:
    """Cut off from the controller alone, it serves on by its table."""
    clients = Clients(scaled("a", idle_seconds=60))
    clients.ask("a")
    clients.run(10)
    clients.end("a")
    clients.gateway.dead = True
    clients.run(300)
    assert [each.spec.goal for each in clients.story.instances()] == [InstanceGoal.RUN]
    clients.gateway.dead = False
    clients.run(50)
    assert len(clients.story.instances()) == 1
    clients.run(40)
    assert clients.story.instances() == []


def test_a_leader_that_was_paused_takes_nothing_for_idle_that_it_could_not_see() -> None:
    clients = Clients(scaled("a", idle_seconds=60))
    clients.ask("a")
    clients.run(10)
    clients.end("a")
    clients.story.step(500)
    clients.run(50)
    assert [each.spec.goal for each in clients.story.instances()] == [InstanceGoal.RUN]


def test_a_closed_door_opens_where_the_store_fails() -> None:
    clients = Clients(scaled("a"), scaled("b"))
    clients.ask("a")
    clients.run(10)
    clients.ask("b")
    clients.run(DWELL + 10)
    assert clients.story.routed() == []
    clients.end("a")
    made = plan(clients.story.observe(), clients.story.now)
    assert made.actions, "it is quiet: it drains"
    assert made.endpoints_unacted is not None
    assert [each.instance for each in made.endpoints_unacted.endpoints] == ["default/a-0"]


def test_a_door_that_was_opened_is_closed_anew_before_anything_drains() -> None:
    """The store failed, so the table went out with it: gateways may have sent it requests that none has told of."""
    clients = Clients(scaled("a"), scaled("b"))
    clients.ask("a")
    clients.run(10)
    clients.ask("b")
    clients.run(DWELL + 10)
    assert clients.story.routed() == []
    clients.end("a")
    made = plan(clients.story.observe(), clients.story.now)
    assert made.endpoints_unacted is not None
    clients.story.publish_table(made.endpoints_unacted)
    assert drains_of(plan(clients.story.observe(), clients.story.now)) == []
    clients.run(10)
    assert clients.story.routed() == ["b-0"]


def test_the_door_opens_again_when_nobody_waits_any_more() -> None:
    clients = Clients(scaled("a"), scaled("b"))
    clients.ask("a")
    clients.run(10)
    clients.ask("b")
    clients.run(DWELL + 10)
    assert clients.story.routed() == []
    clients.asking.discard("b")
    clients.run(3)
    assert clients.story.routed() == ["a-0"]
    assert drained(clients) == []


def test_models_that_are_always_asked_for_are_served_in_turns() -> None:
    names = ("a", "b", "c")
    clients = Clients(*(scaled(name) for name in names))
    served: list[str] = []
    for _ in range(100):  # each request takes 3 s, and the next one follows at once
        clients.ask(*names)
        clients.run(3)
        served += clients.story.routed()
        clients.end(*clients.busy())
        clients.run(1)
    turns = [each for index, each in enumerate(served) if index == 0 or served[index - 1] != each]
    assert turns[:6] == ["a-0", "b-0", "c-0", "a-0", "b-0", "c-0"]
    assert len(clients.loads) <= 400 / DWELL + 1


def test_nobody_whose_turn_comes_is_told_that_there_is_no_room() -> None:
    """Also while the room is promised to another one that isn't there yet: a gateway would refuse its clients."""
    names = ("a", "b", "c", "d", "e")
    clients = Clients(*(scaled(name, min_dwell_seconds=2) for name in names))
    clients.ask(*names)
    served: set[str] = set()
    for _ in range(150):
        clients.run(1)
        for name in clients.asking:
            assert ready(clients, name).reason != ReadyReason.NOT_PLACED, ready(clients, name).message
        served |= {each.rsplit("-", 1)[0] for each in clients.story.routed()}
        clients.end(*(clients.busy() if clients.story.now % 3 == 0 else ()))
    assert served == set(names)
    assert len(clients.loads) == len(names)


def test_what_went_unused_longest_makes_room_first() -> None:
    clients = Clients(scaled("a"), scaled("b"), scaled("c"), total_bytes=TWO_BYTES)
    clients.ask("a", "b")
    clients.run(10)
    clients.end("b")
    clients.run(20)
    clients.end("a")
    clients.run(20)
    clients.ask("c")
    clients.run(20)
    assert clients.story.routed() == ["a-0", "c-0"]


def test_a_minimum_and_a_higher_priority_make_no_room() -> None:
    for other in (scaled("a", min=1), scaled("a", 5), builders.placement("a", context=ContextWish(tokens=8192))):
        clients = Clients(other, scaled("b"))
        clients.ask("a")
        clients.run(10)
        clients.end("a")
        clients.ask("b")
        clients.run(DWELL + 30)
        assert clients.story.routed() == ["a-0"]
        assert ready(clients, "b").reason == ReadyReason.NOT_PLACED
        table = clients.story.published.endpoints
        assert table is not None
        held = {each.name: each.hold_seconds for each in table.models}
        assert held["b"] == 0, "waiting doesn't help"


def test_a_placement_of_fixed_replicas_that_is_asked_for_takes_the_place_too() -> None:
    fixed = builders.placement("b", context=ContextWish(tokens=8192))
    clients = Clients(scaled("a", min=0))
    clients.ask("a")
    clients.run(DWELL + 10)
    clients.end("a")
    clients.story.put(fixed, builders.model("b"))
    clients.run(30)
    assert ready(clients, "b").reason == ReadyReason.NOT_PLACED, "nobody asks for it"
    clients.gateway.refused = {"b": 1.0}
    clients.run(10)
    assert clients.story.routed() == ["b-0"]


def test_who_made_room_does_not_take_the_place_back_before_the_other_had_it() -> None:
    clients = Clients(scaled("a"), scaled("b"))
    clients.gateway.refused = {"a": 1.0, "b": 1.0}  # both are asked for all the time, and nobody waits
    clients.run(3 * DWELL)
    assert clients.loads[:2] == ["a", "b"]


def test_why_says_who_is_asked_for_and_who_makes_room() -> None:
    clients = Clients(scaled("a"), scaled("b"))
    clients.ask("a")
    clients.run(10)
    clients.ask("b")
    clients.run(DWELL + 10)
    text, _ = explain(clients.story.observe(), clients.story.now, scaled("a").key)
    assert "scales from 0 to 1 replicas, 4 requests each; 1 wished now: 1 requests in flight, 0 held" in text
    assert "'a-0' takes no new request: it makes room for placement/b" in text
    text, _ = explain(clients.story.observe(), clients.story.now, scaled("b").key)
    assert "1 wished now: 0 requests in flight, 1 held" in text
    assert "waits for the requests on 'a-0' to end" in text


@given(st.integers(0, 3), st.integers(1, 4), st.integers(0, 9), st.integers(0, 40), st.floats(0, 100))
def test_scaling_stays_in_its_bounds_and_falls_only_after_its_idle_time(
    low: int, high: int, before: int, load: int, since: float
) -> None:
    scaling = Scaling(min=min(low, high), max=high, idle_seconds=50)
    now = 1000.0
    made = scale(scaling, Scaled(before, now - since), load, float("-inf"), now)
    assert scaling.min <= made.count <= scaling.max
    if made.count < min(max(before, scaling.min), scaling.max):
        assert since >= 50
        assert made.count * scaling.target >= load or made.count == scaling.max
