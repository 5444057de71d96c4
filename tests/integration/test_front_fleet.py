"""Processes as on several machines: a controller, an agent at an address of its own with the real engine, and a gateway
that takes nothing to be on its own machine.
"""

import json
import re
from collections.abc import Callable, Generator

import httpx
import psutil
import pytest
from covey.control import Control
from covey_agent.keeper.front import PORTS
from kit.apart import Apart, running_apart
from kit.fleet import EXAMPLE, START_SECONDS, wait_until
from kit.ports import own_address
from kit.processes import processes_of

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

ADDRESS, NOWHERE = own_address(), own_address(9)


@pytest.fixture  # not shared: the second test starts parts of its own, which must end with it
def fleet() -> Generator[Apart]:
    with running_apart(EXAMPLE) as made:
        made.start_agent(ADDRESS)
        made.start_gateway("--remote")
        wait_until(lambda: is_ready(made), f"an Instance is ready\n{made.log('agent')}", START_SECONDS)
        yield made


def is_ready(fleet: Apart) -> bool:
    return any(each.get("status", {}).get("phase") == "Ready" for each in fleet.objects("instances"))


def engine_of(fleet: Apart) -> psutil.Process:
    (found,) = (p for p in processes_of(fleet.base / "agent") if "llama-server" in p.name())
    return found


def chat(fleet: Apart, look: Callable[[], None] = lambda: None) -> list[str]:
    """The tokens of one streamed answer; `look` is called with the first."""
    body = {
        "model": "smollm2",
        "stream": True,
        "max_tokens": 64,
        "ignore_eos": True,
        "messages": [{"role": "user", "content": "Hello"}],
    }
    tokens: list[str] = []
    with httpx.stream("POST", f"{fleet.gateway_url}/v1/chat/completions", json=body, timeout=120) as answer:
        assert answer.status_code == 200, answer.read()
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                if not tokens:
                    look()
                delta = json.loads(line[6:])["choices"]
                tokens += [choice["delta"].get("content") or "" for choice in delta]
    return [token for token in tokens if token]


def test_a_stream_of_tokens_comes_by_the_front(fleet: Apart) -> None:
    gateway, remote = psutil.Process(fleet.parts["gateway"].pid), set[tuple[str, int]]()

    def look() -> None:
        remote.update((each.raddr.ip, each.raddr.port) for each in gateway.net_connections("tcp") if each.raddr)

    assert len(chat(fleet, look)) > 8
    (status,) = (each["status"] for each in fleet.objects("instances"))
    found = re.fullmatch(rf"tls://{ADDRESS}:(\d+)", status["front"])
    assert found is not None, status
    assert int(found[1]) in PORTS
    assert status["endpoint"].startswith("http://127.0.0.1:")
    # The engine's own port is never dialled by the gateway.
    assert (ADDRESS, int(found[1])) in remote
    assert ("127.0.0.1", int(status["endpoint"].rpartition(":")[2])) not in remote
    wait_until(lambda: fleet.condition("DataPathReachable").get("status") == "True", "the node's fronts are reached")


def test_a_closed_way_is_a_condition_of_the_node_and_is_taken_back_without_a_restart(fleet: Apart) -> None:
    wait_until(lambda: fleet.condition("DataPathReachable").get("status") == "True", "the node's fronts are reached")
    engine = engine_of(fleet)
    fleet.end("agent")
    fleet.start_agent(NOWHERE)  # nobody listens there, as behind a firewall
    wait_until(lambda: fleet.condition("DataPathReachable").get("status") == "False", "the gateway misses the way")
    found = fleet.condition("DataPathReachable")
    assert found["reason"] == "DataPathClosed"
    assert re.search(rf"gateway '\S+' can't reach 'smollm2-0' at address {NOWHERE}, port 52\d{{3}}", found["message"])
    assert "it took no connection: Connection refused" in found["message"]
    assert "open TCP ports 52500-52599 of node 'a'" in found["message"]
    fleet.end("agent")
    fleet.start_agent(ADDRESS)
    wait_until(lambda: fleet.condition("DataPathReachable").get("status") == "True", "the gateway has its way again")
    assert engine_of(fleet) == engine
    assert len(chat(fleet)) > 8
    with Control(fleet.state) as control:
        reasons = [each["reason"] for each in control.list_events("cnodes", "-", "a")]
    assert {"DataPathClosed", "DataPathOpened"} <= set(reasons)
