"""Parts are killed and paused while requests flow: what goes on, what comes back, and that nothing is doubled.

One fleet with two replicas serves the tests that leave `covey up` alone; each leaves it as wished. Those that end it
have their own.
"""

import math
import os
import signal
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import httpx
import pytest
from kit.fleet import EXAMPLE, RunningFleet, Traffic, running_fleet, wait_until
from kit.parts import (
    AGENT,
    CONTROLLER,
    GATEWAY,
    PARTS,
    Member,
    assert_nothing_doubled,
    events,
    has_condition,
    instances,
    is_alive,
    kill_part,
    members,
    part_pid,
    paused,
    read,
    wait_converged,
    wait_part_again,
)

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

PLACEMENT = (EXAMPLE / "placement.yaml").read_text()
TWO = f"{PLACEMENT}  replicas: 2\n"
# The bounds of a part whose pipe was closed, with room for a busy machine.
ORPHANS_END_SECONDS = 5.0
SLACK_SECONDS = 5.0


@pytest.fixture(scope="module")
def shared() -> Generator[RunningFleet]:
    with running_fleet() as running:
        yield running


@pytest.fixture
def fleet(shared: RunningFleet) -> RunningFleet:
    """The shared fleet with two replicas that serve."""
    for path in shared.folder.iterdir():
        if path.name not in ("model.yaml", "placement.yaml"):
            path.unlink()
    shared.write("placement.yaml", TWO)
    wait_converged(shared, 2)
    return shared


@contextmanager
def held_down(fleet: RunningFleet, name: str) -> Generator[None]:
    """The part is dead: killed, and what is started in its place is stopped before it does anything."""
    successor = wait_part_again(fleet, name, kill_part(fleet, name))
    with paused(successor):
        yield


def wait_answered(traffic: Traffic, more: int = 3) -> None:
    target = traffic.done + more
    wait_until(lambda: traffic.done >= target, f"{more} more requests are answered; {traffic.failures}", 60)


@dataclass(slots=True)
class Kill:
    """When it was: within these times (monotonic)."""

    began: float
    ended: float = math.inf


@contextmanager
def timed() -> Generator[Kill]:
    kill = Kill(time.monotonic())
    yield kill
    kill.ended = time.monotonic()


def assert_lost_only_in_flight(traffic: Traffic, kill: Kill) -> None:
    """Whatever failed was in flight at the kill."""
    strangers = [one for one in traffic.sent if one.failure and (one.began > kill.ended or one.ended < kill.began)]
    assert strangers == [], f"killed between {kill.began} and {kill.ended}"


def log_of(fleet: RunningFleet, part: str) -> str:
    return (fleet.state / "log" / f"{part}.log").read_text(errors="replace")


def name_of(fleet: RunningFleet, member: Member) -> str:
    return next(
        str(each["metadata"]["name"]) for each in instances(fleet) if each["spec"]["instanceId"] == member.instance_id
    )


def restarts(fleet: RunningFleet) -> dict[str, int]:
    return {item["spec"]["instanceId"]: item["status"]["members"][0]["restarts"] for item in instances(fleet)}


def least_restarted_first(fleet: RunningFleet) -> list[Member]:
    """An agent restarts a member three times a minute: a test takes the one that others left alone."""
    counted = restarts(fleet)
    return sorted(members(fleet), key=lambda member: counted[member.instance_id])


def test_killed_agent_is_back_and_adopts_engines_with_their_history(fleet: RunningFleet) -> None:
    victim = members(fleet)[0]
    os.kill(victim.engine_pid, signal.SIGKILL)
    wait_until(lambda: any(restarts(fleet).values()), "the restart is counted")
    wait_converged(fleet, 2)
    before, counted = members(fleet), restarts(fleet)
    assert counted[victim.instance_id] >= 1
    told = events(fleet, "instances")
    outputs = {path: path.stat().st_ino for path in (fleet.state / "agent" / "members").glob("*/output.log")}
    with Traffic(fleet).flowing() as traffic:
        with held_down(fleet, AGENT):
            # A dead agent is not a dead node: Unknown after this silence, and its engines stay routed.
            wait_until(
                lambda: not has_condition(read(fleet, lambda c: c.list_objects("cnodes"), [{}])[0], "Ready"),
                "the node is Unknown",
            )
            wait_answered(traffic)
            assert members(fleet) == before
            assert len(instances(fleet)) == 2
        wait_converged(fleet, 2)
        wait_answered(traffic)
    assert traffic.failures == []
    assert members(fleet) == before, "the engines go on, with their processes and ports"
    assert restarts(fleet) == counted
    now_told = events(fleet, "instances")
    assert all(set(told[name]) <= set(now_told[name]) for name in told), (told, now_told)
    assert any("Killed" in words for words in now_told[name_of(fleet, victim)])
    assert {path: path.stat().st_ino for path in outputs} == outputs
    assert "runs on as process" in log_of(fleet, AGENT)


@pytest.mark.parametrize("store", ["kept", "deleted"])
def test_killed_controller_costs_nothing_but_what_was_on_an_engine_that_died_meanwhile(
    fleet: RunningFleet, store: str
) -> None:
    before = members(fleet)
    least_restarted = least_restarted_first(fleet)
    identities = {item["metadata"]["name"]: item["spec"]["instanceId"] for item in instances(fleet)}
    with Traffic(fleet, workers=3).flowing() as traffic:
        successor = wait_part_again(fleet, CONTROLLER, kill_part(fleet, CONTROLLER))
        with paused(successor):
            if store == "deleted":
                for path in (fleet.state / "controller").glob("store-*.sqlite*"):
                    path.unlink()
            wait_answered(traffic)
            assert traffic.failures == []
            victim, survivor = least_restarted
            with timed() as kill:
                os.kill(victim.engine_pid, signal.SIGKILL)
            wait_until(lambda: len(members(fleet)) == 2, "the agent restarts the engine by itself")
            wait_answered(traffic)
        wait_converged(fleet, 2)
        wait_answered(traffic)
    assert_lost_only_in_flight(traffic, kill)
    assert survivor in members(fleet), "the engine that lived is still the same"
    assert {item["metadata"]["name"]: item["spec"]["instanceId"] for item in instances(fleet)} == identities
    assert [each.instance_id for each in members(fleet)] == [each.instance_id for each in before]
    assert_nothing_doubled(fleet)


def test_store_that_vanishes_under_a_living_controller_is_rebuilt(fleet: RunningFleet) -> None:
    before = members(fleet)
    with Traffic(fleet).flowing() as traffic:
        for path in (fleet.state / "controller").glob("store-*.sqlite*"):
            path.unlink()
        fleet.write("placement.yaml", f"{TWO}  # looked at again\n")
        wait_until(lambda: list((fleet.state / "controller").glob("store-*.sqlite")), "the store is made again")
        wait_converged(fleet, 2)
        wait_answered(traffic)
    assert traffic.failures == []
    assert members(fleet) == before


@pytest.mark.parametrize("controller", ["alive", "dead"])
def test_killed_gateway_is_back_with_its_last_table(fleet: RunningFleet, controller: str) -> None:
    before = members(fleet)
    with ExitStack() as stack:
        if controller == "dead":
            stack.enter_context(held_down(fleet, CONTROLLER))
        traffic = stack.enter_context(Traffic(fleet, waits_for_gateway=True).flowing())
        wait_answered(traffic)
        with timed() as kill:
            kill_part(fleet, GATEWAY)
        wait_answered(traffic)
    first = min(one.ended for one in traffic.sent if one.began > kill.ended and not one.failure)
    assert first - kill.ended < 5 + SLACK_SECONDS, "back with its last table"
    assert_lost_only_in_flight(traffic, kill)
    wait_converged(fleet, 2)
    assert members(fleet) == before


def test_paused_controller_that_wakes_undoes_nothing(fleet: RunningFleet) -> None:
    victim, survivor = least_restarted_first(fleet)
    with Traffic(fleet, workers=3).flowing() as traffic:
        with paused(part_pid(fleet, CONTROLLER)):
            with timed() as kill:
                os.kill(victim.engine_pid, signal.SIGKILL)
            time.sleep(15)
            meanwhile = members(fleet)
            assert survivor in meanwhile
            assert len(meanwhile) == 2
            wait_answered(traffic)
        wait_converged(fleet, 2)
        time.sleep(2)
        wait_answered(traffic)
    assert_lost_only_in_flight(traffic, kill)
    assert members(fleet) == meanwhile


def test_paused_parts_lose_nothing(fleet: RunningFleet) -> None:
    before = members(fleet)
    with Traffic(fleet).flowing() as traffic:
        for pid in (part_pid(fleet, AGENT), part_pid(fleet, GATEWAY), before[0].keeper_pid, before[1].engine_pid):
            with paused(pid):
                time.sleep(1.5)
            wait_answered(traffic)
    assert traffic.failures == []
    wait_converged(fleet, 2)
    assert members(fleet) == before


def change_window(fleet: RunningFleet) -> None:
    fleet.write("placement.yaml", f"{TWO}  context: {{tokens: 1024}}\n")


def scale_down(fleet: RunningFleet) -> None:
    fleet.write("placement.yaml", PLACEMENT)


def replace_placement(fleet: RunningFleet) -> None:
    """Another one takes over; then the first is deleted."""
    fleet.write("other.yaml", PLACEMENT.replace("name: smollm2}\nspec", "name: other}\nspec"))
    wait_converged(fleet, 3)
    (fleet.folder / "placement.yaml").unlink()


@pytest.mark.parametrize(
    ("change", "replicas"), [(change_window, 2), (scale_down, 1), (replace_placement, 1)], ids=lambda each: str(each)
)
def test_change_under_traffic_fails_no_request(
    fleet: RunningFleet, change: Callable[[RunningFleet], None], replicas: int
) -> None:
    before = {member.instance_id for member in members(fleet)}
    with Traffic(fleet, workers=4).flowing() as traffic:
        wait_answered(traffic)
        change(fleet)
        wait_until(lambda: not before <= {each.instance_id for each in members(fleet)}, "who has to leave leaves")
        wait_converged(fleet, replicas)
        wait_answered(traffic)
    assert traffic.failures == []
    assert_nothing_doubled(fleet)


def restarted(fleet: RunningFleet) -> None:
    fleet.start()
    fleet.wait_started()


def kill_up(fleet: RunningFleet) -> None:
    fleet.process.kill()
    fleet.process.wait(timeout=10)


def test_next_up_adopts_what_a_killed_one_left() -> None:
    with running_fleet() as fleet:
        before = members(fleet)
        parts = [part_pid(fleet, name) for name in PARTS]
        kill_up(fleet)
        began = time.monotonic()
        wait_until(lambda: not any(is_alive(pid) for pid in parts), "the parts end", 20)
        assert time.monotonic() - began < ORPHANS_END_SECONDS + SLACK_SECONDS
        assert members(fleet) == before, "keepers and engines stay"
        restarted(fleet)
        assert (members(fleet), fleet.ask().status_code) == (before, 200)
        # All but the keepers at once.
        for name in PARTS:
            kill_part(fleet, name)
        kill_up(fleet)
        restarted(fleet)
        assert (members(fleet), fleet.ask().status_code) == (before, 200)
        # At once, while a stream keeps the old gateway on its port: old parts hold locks and the control socket too.
        body = fleet.chat(stream=True, max_tokens=4000)
        with httpx.stream("POST", f"{fleet.url}/v1/chat/completions", json=body, timeout=60) as response:
            assert response.status_code == 200
            kill_up(fleet)
            restarted(fleet)
        assert (members(fleet), fleet.ask().status_code) == (before, 200)
        assert_nothing_doubled(fleet)


def test_no_engine_outlives_its_keepers_grace() -> None:
    with running_fleet(environment={"COVEY_ORPHAN_GRACE_SECONDS": "3"}) as fleet:
        before = members(fleet)
        for name in PARTS:
            kill_part(fleet, name)
        kill_up(fleet)
        assert members(fleet) == before
        wait_until(lambda: not fleet.processes(), "the keepers stop their engines and end", 3 + 5 + 20)
        restarted(fleet)
        assert fleet.ask().status_code == 200
        assert_nothing_doubled(fleet)
