"""What a user sees of one model over several nodes: a controller, three agents with the real engines, a gateway."""

import json
import re
import signal
from collections.abc import Generator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from engine_rig import KEY, started_engine
from kit.apart import Apart, running_apart
from kit.fleet import EXAMPLE, START_SECONDS, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

ADDRESSES = {"a": "127.0.0.2", "b": "127.0.0.3", "c": "127.0.0.4"}
SECONDS = 180.0
PLACEMENT = """apiVersion: covey.dev/v1alpha1
kind: Placement
metadata: {name: smollm2}
spec:
  modelRef: {name: smollm2}
  context: {tokens: 512}
  concurrency: 1
"""
BODY = {
    "max_tokens": 48,
    "temperature": 0,
    "messages": [{"role": "user", "content": "What is the capital of France?"}],
}
SHAPE = "  shape: {type: Rpc, minNodes: 3, maxNodes: 3}\n"


def write_placement(fleet: Apart, text: str) -> None:
    (path,) = [each for each in (fleet.base / "fleet").glob("*.yaml") if "kind: Placement" in each.read_text()]
    path.write_text(text)


@pytest.fixture
def fleet() -> Generator[Apart]:
    with running_apart(EXAMPLE) as made:
        write_placement(made, PLACEMENT)
        for node, address in ADDRESSES.items():
            made.start_agent(address, name=node, node=node)
        made.start_gateway("--remote")
        wait_until(lambda: find_ready(made, 1), "an Instance is ready", START_SECONDS)
        yield made


def find_ready(fleet: Apart, members: int) -> dict[str, Any] | None:
    """The Instance of so many members that serves, if it is the only one there."""
    found = fleet.objects("instances")
    ready = [each for each in found if each.get("status", {}).get("phase") == "Ready"]
    return ready[0] if len(found) == len(ready) == 1 and len(ready[0]["spec"]["members"]) == members else None


def wait_group(fleet: Apart, attempt: int = 1) -> dict[str, Any]:
    def is_so() -> bool:
        found = find_ready(fleet, 3)
        return found is not None and found["spec"]["attempt"] >= attempt

    wait_until(is_so, f"a group serves in attempt {attempt}", SECONDS)
    found = find_ready(fleet, 3)
    assert found is not None
    return found


def answer(fleet: Apart) -> str:
    body = {**BODY, "model": "smollm2"}
    response = httpx.post(f"{fleet.gateway_url}/v1/chat/completions", json=body, timeout=120)
    assert response.status_code == 200, response.text
    content: str = response.json()["choices"][0]["message"]["content"]
    return content


def engine_on(fleet: Apart, instance: dict[str, Any], node: str) -> psutil.Process:
    folder = fleet.base / node / "agent" / "members" / instance["spec"]["instanceId"]
    return psutil.Process(json.loads((folder / "keeper.json").read_text())["enginePid"])


def stream_and_kill(fleet: Apart, engine: psutil.Process) -> str:
    """All that a client reads of a long answer in whose middle this engine is killed."""
    body = {"model": "smollm2", "stream": True, "max_tokens": 400, "ignore_eos": True}
    read: list[str] = []
    with httpx.stream(
        "POST",
        f"{fleet.gateway_url}/v1/chat/completions",
        json={**body, "messages": [{"role": "user", "content": "Hello"}]},
        timeout=60,
    ) as response:
        for line in response.iter_lines():
            read.append(line)
            if len(read) == 8:
                engine.send_signal(signal.SIGKILL)
    return "\n".join(read)


def answer_of_one_node(folder: Path) -> str:
    """By the same kernels: donors' processors don't repack matrices."""
    flags = ("-c", "512", "--no-repack", "--flash-attn", "on", "--no-kv-unified", "--no-mmap")
    with started_engine(folder, *flags, slots=1) as single:
        body = {**BODY, "model": "m"}
        url = f"http://127.0.0.1:{single.port}/v1/chat/completions"
        response = httpx.post(url, json=body, headers={"authorization": f"Bearer {KEY}"}, timeout=120)
    content: str = response.json()["choices"][0]["message"]["content"]
    return content


def test_a_placement_over_several_nodes_is_planned_serves_and_comes_back(fleet: Apart, tmp_path: Path) -> None:
    expected = answer_of_one_node(tmp_path)

    # What would be: driver, donors, layers and bytes of each.
    wished = fleet.base / "wished.yaml"
    wished.write_text(PLACEMENT + SHAPE)
    planned = fleet.covey("plan", "-f", str(wished))
    assert planned.returncode == 0, planned.stderr
    line = next(each for each in planned.stdout.splitlines() if each.startswith("comes:"))
    assert line.count(" for 10 layers") == 3
    assert all(f"node '{node}'" in line for node in ADDRESSES)
    assert "LlamaServer/Cpu" in line

    write_placement(fleet, PLACEMENT + SHAPE)
    group = wait_group(fleet)
    assert answer(fleet) == expected
    roles = [(each["role"], each["costs"][0]["layers"]) for each in group["spec"]["members"]]
    assert roles == [("Driver", 10), ("Donor", 10), ("Donor", 10)]
    wide = fleet.covey("get", "instances", "-o", "wide").stdout
    assert all(node in wide for node in ADDRESSES), wide
    assert "Ready,Ready,Ready" in wide.replace(" ", ""), wide

    # A donor dies: the client hears of it in its stream, and all begin anew.
    donor = group["spec"]["members"][1]["node"]
    read = stream_and_kill(fleet, engine_on(fleet, group, donor))
    assert "upstream_ended" in read, read
    assert "[DONE]" not in read
    words = re.compile(f"attempt 1 on node '{donor}' failed: .*ended by SIGKILL")
    wait_until(lambda: words.search(fleet.log("controller")), words.pattern, 60)
    again = wait_group(fleet, attempt=2)
    assert again["spec"]["instanceId"] == group["spec"]["instanceId"]
    assert answer(fleet) == expected

    # A fleet of fewer nodes than are asked for says so.
    wished.write_text(PLACEMENT + "  shape: {type: Rpc, minNodes: 4}\n")
    planned = fleet.covey("plan", "-f", str(wished))
    assert "no 4 nodes hold model 'smollm2' together" in planned.stdout, planned.stdout
