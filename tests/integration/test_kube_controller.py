"""Controllers in Kubernetes mode as processes, on a real API server, with the rights that they need and no others.

An agent and a gateway join as pods. Engines are doubles; everything else is real.
"""

from collections.abc import Generator
from contextlib import contextmanager
from threading import Event, Thread

import httpx
import pytest
from kit.kube_fleet import KubeFleet, Replica, running_kube_fleet, wait_seconds
from testbed.kube.controlplane import ControlPlane, running_control_plane
from testbed.kube.programs import NoPrograms

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600), pytest.mark.restarts_processes]

NODE = "gpu-1"


@pytest.fixture(scope="module")
def plane() -> Generator[ControlPlane]:
    """A control plane of its own: these tests stop it."""
    try:
        with running_control_plane() as running:
            yield running
    except NoPrograms as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def fleet(plane: ControlPlane) -> Generator[KubeFleet]:
    """Two controllers, one agent that runs one engine, one gateway: each test leaves it so."""
    with running_kube_fleet(plane) as running:
        running.start_controller("a")
        running.start_controller("b")
        running.wait_leader()
        running.start_agent(NODE)
        running.start_gateway("gateway-1")
        running.wish()
        running.wait_ready()
        running.wait(lambda: ask(running) == 200, "the gateway has a table")
        yield running


def ask(fleet: KubeFleet) -> int:
    """Status of one chat request through the gateway; 0 without an answer."""
    body = {"model": "smollm2", "messages": [{"role": "user", "content": "hi"}]}
    try:
        return httpx.post(f"{fleet.gateway_url}/v1/chat/completions", json=body, timeout=20).status_code
    except httpx.HTTPError:
        return 0


@contextmanager
def serving_throughout(fleet: KubeFleet) -> Generator[None]:
    """Requests flow during the block, each is answered, and no engine is another one after it."""
    before = fleet.engines(NODE)
    assert before
    answers: list[int] = []
    ending = Event()

    def flow() -> None:
        while not ending.wait(0.2):
            answers.append(ask(fleet))

    flowing = Thread(target=flow)
    flowing.start()
    try:
        yield
    finally:
        ending.set()
        flowing.join(timeout=60)
    assert len(answers) > 5
    assert set(answers) == {200}
    assert {key: pid for key, pid in fleet.engines(NODE).items() if key in before} == before


def prove_it_leads(fleet: KubeFleet) -> None:
    """What is wished now is done: a second replica is started, and stopped again."""
    fleet.wish(replicas=2)
    fleet.wait(lambda: len(fleet.ready_instances()) == 2, "the second replica is Ready")
    fleet.wish(replicas=1)
    fleet.wait(lambda: len(fleet.list_objects("instances")) == 1, "the second replica is gone")


def take_over(fleet: KubeFleet, before: Replica, term: int) -> Replica:
    after = fleet.wait_leader(before)
    assert fleet.term() > term
    fleet.wait(lambda: fleet.followed_term(NODE) == fleet.term(), "the agent follows the new term")
    return after


def test_fleet_in_kubernetes_serves_with_no_right_missing(fleet: KubeFleet) -> None:
    assert ask(fleet) == 200
    assert len(fleet.engines(NODE)) == 1
    assert fleet.has_condition("cnodes", NODE)
    for replica in fleet.replicas.values():
        assert replica.probe("/readyz") == replica.probe("/healthz") == 200, "a standby is ready too"
        assert "orbidden" not in replica.part.log.read_text()


def test_leader_is_killed_and_the_other_goes_on_with_the_same_engines(fleet: KubeFleet) -> None:
    before, term = fleet.wait_leader(), fleet.term()
    with serving_throughout(fleet):
        before.part.kill()
        take_over(fleet, before, term)
        prove_it_leads(fleet)
        before.part.start()
        fleet.wait(lambda: before.probe("/readyz") == 200, "the killed one could lead again")
    assert fleet.leader() is not before


def test_agent_that_is_away_while_the_leader_changes_loses_nothing(fleet: KubeFleet) -> None:
    before, term = fleet.wait_leader(), fleet.term()
    instances = {each["metadata"]["uid"] for each in fleet.list_objects("instances")}
    with serving_throughout(fleet):
        with fleet.agents[NODE].paused():
            before.part.kill()
            fleet.wait_leader(before)
            wait_seconds(5)
            assert {each["metadata"]["uid"] for each in fleet.list_objects("instances")} == instances
        take_over(fleet, before, term)
        before.part.start()
        fleet.wait(lambda: before.probe("/readyz") == 200, "the killed one could lead again")
    assert {each["metadata"]["uid"] for each in fleet.list_objects("instances")} == instances


def test_leader_that_is_paused_past_its_lease_wakes_and_follows(fleet: KubeFleet) -> None:
    before, term = fleet.wait_leader(), fleet.term()
    with serving_throughout(fleet):
        with before.part.paused():
            after = take_over(fleet, before, term)
            prove_it_leads(fleet)
        new_term = fleet.term()
        fleet.wait(lambda: "stopped leading" in before.part.log.read_text(), "the paused one knows that it lost")
        prove_it_leads(fleet)
        assert fleet.leader() is after
        assert fleet.term() == new_term
    fleet.service.backends = {before.part.name: before.fleet_port, after.part.name: after.fleet_port}
    assert fleet.followed_term(NODE) == new_term


def test_agent_reaches_its_leader_through_the_standby_alone(fleet: KubeFleet) -> None:
    """Over a leader change too: the standby becomes the leader, and the agent stays where it is."""
    leader, term = fleet.wait_leader(), fleet.term()
    standby = fleet.standby()
    everybody = dict(fleet.service.backends)
    fleet.service.backends = {standby.part.name: standby.fleet_port}
    fleet.service.cut()
    try:
        with serving_throughout(fleet):
            prove_it_leads(fleet)
            assert fleet.leader() is leader
            leader.part.kill()
            assert take_over(fleet, leader, term) is standby
            prove_it_leads(fleet)
    finally:
        fleet.service.backends = everybody
        leader.part.start()
    fleet.wait(lambda: leader.probe("/readyz") == 200, "the killed one could lead again")


def test_leader_that_starts_again_passes_nothing_on_to_itself(fleet: KubeFleet) -> None:
    """Until its old Lease is over, that names the address where the new process listens."""
    leader, standby = fleet.wait_leader(), fleet.standby()
    words = "waiting to lead: the Lease is held by"
    standby.part.kill()
    leader.part.kill()
    said = leader.part.log.read_text().count(words)
    leader.part.start()
    try:
        fleet.wait(lambda: leader.part.log.read_text().count(words) > said, "the new process has seen the old Lease")
        for port in (leader.fleet_port, leader.control_port):
            answer = httpx.get(f"https://127.0.0.1:{port}/", verify=False, timeout=10)  # noqa: S501 - the status is asked
            assert answer.status_code == 503
    finally:
        standby.part.start()
    fleet.wait_leader()
    prove_it_leads(fleet)


def test_api_server_goes_away_and_comes_back_while_requests_are_served(plane: ControlPlane, fleet: KubeFleet) -> None:
    with serving_throughout(fleet):
        with plane.without_api_server():
            wait_seconds(12)
            assert all(replica.probe("/healthz") == 200 for replica in fleet.replicas.values())
        fleet.wait_leader()
        prove_it_leads(fleet)
    assert all(replica.part.is_running for replica in fleet.replicas.values())


def test_controllers_go_on_when_their_tokens_are_replaced(plane: ControlPlane, fleet: KubeFleet) -> None:
    """The pods' tokens die with the Pod objects that they are bound to; the files get new ones, as by a kubelet."""
    old = [replica.token_file.read_text() for replica in fleet.replicas.values()]
    with serving_throughout(fleet):
        for name in fleet.replicas:
            fleet.expire_controller_token(name)
        for token in old:
            with plane.client(token) as client:
                fleet.wait(lambda client=client: client.get("/version").status_code == 401, "the old token is dead")
        for name in fleet.replicas:
            fleet.renew_controller_token(name)
        fleet.wait_leader()
        prove_it_leads(fleet)
    assert all(replica.part.is_running for replica in fleet.replicas.values())


def test_agent_of_a_leader_that_alone_is_cut_off_follows_the_next_one(plane: ControlPlane, fleet: KubeFleet) -> None:
    """Its token is dead: it can't renew its Lease, nor read who has it now."""
    leader, term = fleet.wait_leader(), fleet.term()
    name = next(name for name, replica in fleet.replicas.items() if replica is leader)
    everybody = dict(fleet.service.backends)
    fleet.service.backends = {leader.part.name: leader.fleet_port}
    fleet.service.cut()
    prove_it_leads(fleet)
    fleet.service.backends = everybody
    old = leader.token_file.read_text()
    with serving_throughout(fleet):
        fleet.expire_controller_token(name)
        with plane.client(old) as client:
            fleet.wait(lambda: client.get("/version").status_code == 401, "the old token is dead")
        take_over(fleet, leader, term)
        prove_it_leads(fleet)
        fleet.renew_controller_token(name)
        fleet.wait(lambda: leader.probe("/readyz") == 200, "the one that was cut off could lead again")


def test_published_authority_is_put_right_when_the_leader_changes(fleet: KubeFleet) -> None:
    right = fleet.authority()
    assert right == fleet.authority("covey-system")
    fleet.ensure("v1", "ConfigMap", "covey-authority", "covey-agents", data={"authorities.pem": "other"})
    leader = fleet.wait_leader()
    leader.part.end()
    fleet.wait_leader(leader)
    fleet.wait(lambda: fleet.authority() == right, "the ConfigMap holds the fleet's certificates again")
    leader.part.start()
    fleet.wait(lambda: leader.probe("/readyz") == 200, "the ended one could lead again")
