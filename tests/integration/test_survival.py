"""Parts are killed and paused while requests flow: what goes on, what comes back, and that nothing is doubled.

One fleet with two replicas serves the tests that leave `covey up` alone; each leaves it as wished. Those that end it
have their own.
"""

import contextlib
import math
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from covey.up.parent import is_taken
from kit.chaos import TEARDOWN_SECONDS
from kit.fleet import EXAMPLE, JsonObject, RunningFleet, Traffic, running_fleet, wait_until
from kit.parts import (
    AGENT,
    CONTROLLER,
    GATEWAY,
    PARTS,
    Member,
    assert_nothing_doubled,
    has_condition,
    instances,
    is_alive,
    kill_part,
    kill_process,
    members,
    part_pid,
    paused,
    read,
    wait_converged,
    wait_part_again,
    write_wish,
)
from kit.ports import free_port

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
    write_wish(shared, TWO)
    for path in shared.folder.iterdir():
        if path.name not in ("model.yaml", "placement.yaml"):
            path.unlink()
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
    """Whatever failed was in flight at the kill, or was still taken by the socket of what died."""
    last = kill.ended + TEARDOWN_SECONDS
    strangers = [one for one in traffic.sent if one.failure and (one.began > last or one.ended < kill.began)]
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


def test_killed_controller_whose_store_is_lost_costs_nothing_but_what_was_on_an_engine_that_died_meanwhile(
    fleet: RunningFleet,
) -> None:
    before = members(fleet)
    least_restarted = least_restarted_first(fleet)
    identities = {item["metadata"]["name"]: item["spec"]["instanceId"] for item in instances(fleet)}
    with Traffic(fleet, workers=3).flowing() as traffic:
        successor = wait_part_again(fleet, CONTROLLER, kill_part(fleet, CONTROLLER))
        with paused(successor):
            for path in (fleet.state / "controller").glob("store-*.sqlite*"):
                path.unlink()
            wait_answered(traffic)
            assert traffic.failures == []
            victim, survivor = least_restarted
            with timed() as kill:
                kill_process(victim.engine_pid)
            wait_until(
                lambda: victim not in members(fleet) and len(members(fleet)) == 2, "the agent restarts it by itself"
            )
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


def test_lost_fleet_secret_is_told_and_engines_get_keys_that_gateways_have(fleet: RunningFleet) -> None:
    before = {each.engine_pid for each in members(fleet)}
    (fleet.state / "controller" / "fleet.secret").unlink()
    kill_part(fleet, CONTROLLER)

    def is_served_anew() -> bool:
        return not before & {each.engine_pid for each in members(fleet)} and fleet.ask(max_tokens=1).status_code == 200

    wait_until(is_served_anew, "new engines answer", 300)
    assert "'fleet.secret' of this fleet is gone and is made anew" in log_of(fleet, "controller")
    wait_converged(fleet, 2)


def test_parts_start_again_without_what_their_first_start_needed(fleet: RunningFleet) -> None:
    before = members(fleet)
    for name in ("controller/fleet.json", "agent/token", "gateway/token"):
        (fleet.state / name).unlink()
    for part in (AGENT, GATEWAY, CONTROLLER):
        wait_part_again(fleet, part, kill_part(fleet, part))
    with Traffic(fleet).flowing() as traffic:
        wait_answered(traffic)
    assert members(fleet) == before


def test_paused_controller_that_wakes_undoes_nothing(fleet: RunningFleet) -> None:
    victim, survivor = least_restarted_first(fleet)
    with Traffic(fleet, workers=3).flowing() as traffic:
        with paused(part_pid(fleet, CONTROLLER)):
            with timed() as kill:
                kill_process(victim.engine_pid)
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


def test_paused_agent_is_no_dead_node(fleet: RunningFleet) -> None:
    """Its node is Unknown after a while; its engines serve, nothing takes their place, and it comes back to them."""
    before = members(fleet)
    with Traffic(fleet).flowing() as traffic:
        with paused(part_pid(fleet, AGENT)):
            wait_until(lambda: not is_node_ready(fleet), "the node is Unknown", 60)
            wait_answered(traffic)
            assert [each["spec"]["goal"] for each in instances(fleet)] == ["Run", "Run"]
        wait_converged(fleet, 2)
        wait_answered(traffic)
    assert traffic.failures == []
    assert members(fleet) == before
    assert_nothing_doubled(fleet)


def is_node_ready(fleet: RunningFleet) -> bool:
    nodes: list[JsonObject] = read(fleet, lambda control: control.list_objects("cnodes"), [])
    return all(has_condition(each, "Ready") for each in nodes)


def test_drain_waits_for_a_paused_gateway(fleet: RunningFleet) -> None:
    """It may still send requests by the table that it has: what leaves that table runs on until it has said so."""
    before = members(fleet)
    with Traffic(fleet, workers=4).flowing() as traffic:
        wait_answered(traffic)
        with paused(part_pid(fleet, GATEWAY)):
            write_wish(fleet, PLACEMENT)
            wait_until(lambda: any(each["spec"]["goal"] == "Drain" for each in instances(fleet)), "one drains", 60)
            time.sleep(5)
            assert members(fleet) == before
        wait_converged(fleet, 1)
        wait_answered(traffic)
    assert traffic.failures == []


def test_keeper_that_is_paused_while_its_agent_dies_is_adopted_when_it_goes_on(fleet: RunningFleet) -> None:
    before = members(fleet)
    with Traffic(fleet).flowing() as traffic:
        with paused(before[0].keeper_pid):
            wait_part_again(fleet, AGENT, kill_part(fleet, AGENT))
            time.sleep(5)
            wait_answered(traffic)
        wait_converged(fleet, 2)
        wait_answered(traffic)
    assert traffic.failures == []
    assert members(fleet) == before
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


def fails_to_start(fleet: RunningFleet) -> str:
    """The words of a `covey up` that ends by itself."""
    fleet.start()
    assert fleet.process.wait(timeout=120) == 1
    return fleet.error_path.read_text()


def test_up_that_can_not_get_going_leaves_engines_to_the_next_and_says_so() -> None:
    with running_fleet() as fleet:
        before = members(fleet)
        kill_up(fleet)
        wait_until(lambda: not is_taken(fleet.port), "the gateway of the one that was killed ends", 20)
        with socket.create_server(("127.0.0.1", fleet.port)):
            words = fails_to_start(fleet)
        assert f"port {fleet.port} on 127.0.0.1 is taken by another process" in words
        assert "1 engine runs on under its keeper for 300 s" in words
        assert f"covey agent --stop-all --state '{fleet.state}'" in words
        assert members(fleet) == before
        restarted(fleet)
        assert (members(fleet), fleet.ask().status_code) == (before, 200)
        # The controller of one that was killed is paused: it holds its socket and hears nothing.
        with paused(part_pid(fleet, CONTROLLER)):
            kill_up(fleet)
            words = fails_to_start(fleet)
            assert "1 engine runs on under its keeper" in words
            assert f"a controller, which listens on '{fleet.state}/control.sock'" in words
            assert members(fleet) == before
        restarted(fleet)
        assert (members(fleet), fleet.ask().status_code) == (before, 200)
        # People's own word is what stops them, also when the parts are gone.
        for name in PARTS:
            kill_part(fleet, name)
        kill_up(fleet)
        fleet.covey("agent", "--stop-all", "--state", str(fleet.state))
        wait_until(lambda: not fleet.processes(), "what `--stop-all` asked for", 30)


@contextmanager
def small_disk(folder: Path) -> Generator[None]:
    """A disk of its own, so that it can be full."""
    folder.mkdir(mode=0o700)
    options = ["-o", "size=6m,mode=0700"]
    mounted = subprocess.run(["mount", "-t", "tmpfs", *options, "tmpfs", str(folder)], capture_output=True, check=False)
    if mounted.returncode != 0:
        pytest.skip(f"a disk can't be mounted here: {mounted.stderr.decode()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(disk: Path) -> None:
    """To the last page, or but one."""
    with (disk / "full").open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(4096)):
            pass
    assert shutil.disk_usage(disk).free <= 4096


@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="only root mounts a disk")
def test_up_on_a_full_disk_says_so_and_the_next_adopts() -> None:
    with tempfile.TemporaryDirectory(prefix="cv") as base, small_disk(Path(base) / "state"):
        fleet = RunningFleet(Path(base) / "fleet", Path(base) / "state", free_port())
        shutil.copytree(EXAMPLE, fleet.folder)
        restarted(fleet)
        try:
            before = members(fleet)
            for name in PARTS:
                kill_part(fleet, name)
            kill_up(fleet)
            for name in ("up.json", "agent/agent.lock"):
                (fleet.state / name).unlink()
            fill(fleet.state)
            words = fails_to_start(fleet)
            # A page that somebody else freed meanwhile may be enough for the smallest file.
            if not (fleet.state / "up.json").exists():
                assert f"'{fleet.state}/up.json' can't be written: no space left. Free some space on its disk" in words
            assert f"No space left on device: '{fleet.state}/controller/" in words
            assert "1 engine runs on under its keeper" in words
            assert "Traceback" not in words
            assert members(fleet) == before
            (fleet.state / "full").unlink()
            restarted(fleet)
            assert (members(fleet), fleet.ask().status_code) == (before, 200)
        finally:
            if fleet.process.poll() is None:
                fleet.stop()
            left = fleet.processes()
            for process in left:
                process.kill()
        assert left == []


def test_no_engine_outlives_its_keepers_grace() -> None:
    with running_fleet(environment={"COVEY_ORPHAN_GRACE_SECONDS": "15"}) as fleet:
        before = members(fleet)
        for name in PARTS:
            kill_part(fleet, name)
        kill_up(fleet)
        assert members(fleet) == before
        wait_until(lambda: not fleet.processes(), "the keepers stop their engines and end", 15 + 5 + 60)
        restarted(fleet)
        assert fleet.ask().status_code == 200
        assert_nothing_doubled(fleet)
