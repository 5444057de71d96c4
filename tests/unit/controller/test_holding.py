"""What Instances hold, of pools that their node no longer has: memory that is taken is counted somewhere."""

from covey_api.engines import Compute
from covey_api.instance import Instance
from covey_api.kinds import ObjectKey
from covey_api.placement import ContextWish
from covey_controller.reconcile.fleet import observe_node, view_node
from covey_controller.reconcile.sights import AgentView
from covey_planner.fit.limits import on_device_bytes
from kit import builders
from kit.worlds import FakeGateway, Worldlet

OWN = builders.lane(compute=Compute.ROCM, pool="ROCm0")
SHARED = builders.lane(compute=Compute.ROCM)
CPU = builders.lane()


def fleet() -> Worldlet:
    """One replica on a device that its node reports as a pool of its own, although it fills the machine's memory."""
    story = Worldlet()
    story.put(builders.model(), builders.placement("first", model="smollm2", context=ContextWish(tokens=8192)))
    story.add_agents("a", total_bytes=3 * builders.GIB)
    story.agents["a"].lanes, story.agents["a"].cards = (OWN, CPU), {"ROCm0": 3 * builders.GIB}
    story.gateways["g"] = FakeGateway()
    story.run(30)
    assert [each.spec.compute for each in story.instances()] == [Compute.ROCM]
    return story


def stamped(instance: Instance) -> int:
    return sum(costs.total_bytes for costs in instance.spec.members[0].costs)


def host_reserved(story: Worldlet) -> int:
    agent = story.agents["a"]
    sight = observe_node("a", None, AgentView("a", 0.0, agent.report()), 0.0, 0.0, 0.0)
    (host,) = (pool for pool in view_node(sight, story.instances()).pools if pool.name == "Host")
    return host.reserved_bytes


def test_old_stamp_counts_in_the_hosts_pool_once_its_device_is_a_lane_of_that() -> None:
    story = fleet()
    before = host_reserved(story)
    story.agents["a"].lanes, story.agents["a"].cards = (SHARED, CPU), {}
    (held,) = (stamped(each) for each in story.instances())
    assert before < held == host_reserved(story)
    story.put(builders.placement("second", model="smollm2", context=ContextWish(tokens=8192)))
    story.run(60)
    assert [each.spec.placement for each in story.instances()] == ["first"], "no byte is promised twice"
    story.remove(story.objects[ObjectKey("Placement", "default", "first")])
    story.run(200)
    assert [each.spec.placement for each in story.instances()] == ["second"], "what it held is given back whole"


def test_all_that_runs_on_a_device_counts_against_what_it_can_fill_of_the_host() -> None:
    """Half of the machine, as AMD's driver has it; the processor has the rest."""
    story = Worldlet()
    one = on_device_bytes(fleet().instances()[0].spec.members[0].costs[0])
    wide = ContextWish(tokens=8192)
    story.put(builders.model(), *(builders.placement(name, model="smollm2", context=wide) for name in "abc"))
    story.add_agents("a", total_bytes=16 * builders.GIB)
    story.agents["a"].lanes = (SHARED.changed(limit_bytes=5 * one // 2), CPU)
    story.gateways["g"] = FakeGateway()
    story.run(30)
    on = {each.spec.placement: each.spec.compute for each in story.instances()}
    assert on == {"a": Compute.ROCM, "b": Compute.ROCM, "c": Compute.CPU}
    assert all(costs.pool == "Host" for each in story.instances() for costs in each.spec.members[0].costs)
    story.remove(story.objects[ObjectKey("Placement", "default", "a")])
    story.run(200)
    story.put(builders.placement("d", model="smollm2", context=wide))
    story.run(30)
    on = {each.spec.placement: each.spec.compute for each in story.instances()}
    assert on == {"b": Compute.ROCM, "c": Compute.CPU, "d": Compute.ROCM}


def test_what_was_stamped_on_a_card_that_is_gone_is_not_the_hosts() -> None:
    story = fleet()
    before = host_reserved(story)
    story.agents["a"].lanes, story.agents["a"].cards = (CPU,), {}
    assert host_reserved(story) == before


def test_a_window_leaves_a_device_its_reserve_and_what_runs_keeps_what_it_has() -> None:
    """Seen of a card of 24560 MiB, of which a desktop had taken 580: its whole memory was stamped, and refused."""
    story = Worldlet()
    story.put(builders.model(), builders.placement("first", model="smollm2"))
    story.add_agents("a", total_bytes=3 * builders.GIB)
    total = 1792 * 1024**2
    story.agents["a"].lanes, story.agents["a"].cards = (OWN, CPU), {"ROCm0": total}
    story.gateways["g"] = FakeGateway()
    story.run(30)
    (instance,) = story.instances()
    held = instance.spec.members[0].bytes_in("ROCm0")
    assert total * 2 // 3 < held <= total - 512 * 1024**2
    story.agents["a"].cards = {"ROCm0": held}
    story.run(120)
    assert [each.spec for each in story.instances()] == [instance.spec]
