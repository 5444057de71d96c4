"""What a user sees of a ring of MLX: a controller, agents of several nodes with the real engine, a gateway."""

import concurrent.futures
import json
import re
import signal
from collections.abc import Generator
from typing import Any

import httpx
import psutil
import pytest
from kit.apart import Apart, running_apart
from kit.fleet import START_SECONDS, wait_until
from kit.real_engines import mlx_model, mlx_packages

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

ADDRESSES = {"a": "127.0.0.2", "b": "127.0.0.3", "c": "127.0.0.4"}
SECONDS = 180.0
MAX_TOKENS = 24
NODE = """apiVersion: covey.dev/v1alpha1
kind: Node
metadata: {{name: {name}}}
spec:
  engines: [{{engine: Mlx}}]
"""
MODEL = """apiVersion: covey.dev/v1alpha1
kind: Model
metadata: {{name: smollm2}}
spec:
  tasks: [Chat]
  variants: [{{name: v, format: Mlx, source: 'file://{folder}', engines: [Mlx]}}]
"""
PLACEMENT = """apiVersion: covey.dev/v1alpha1
kind: Placement
metadata: {name: smollm2}
spec:
  modelRef: {name: smollm2}
  context: {tokens: 512}
  concurrency: 2
"""
PIPELINE = "  shape: {type: Pipeline}\n  nodes: {include: [a, b]}\n"
# The model has nine heads, and three of keys and values.
TENSOR = "  shape: {type: Tensor, minNodes: 3}\n"
BODY: dict[str, Any] = {
    "model": "smollm2",
    "max_tokens": MAX_TOKENS,
    "temperature": 0,
    "messages": [{"role": "user", "content": "Tell me about the sea."}],
}


@pytest.fixture
def fleet() -> Generator[Apart]:
    mlx_packages()
    folder = mlx_model("ministral3")
    with running_apart() as made:
        source = made.base / "fleet"
        (source / "model.yaml").write_text(MODEL.format(folder=folder))
        (source / "placement.yaml").write_text(PLACEMENT)
        for node, address in ADDRESSES.items():
            (source / f"{node}.yaml").write_text(NODE.format(name=node))
            made.start_agent(address, name=node, node=node)
        made.start_gateway("--remote")
        wait_until(lambda: find_ready(made, 1), "an Instance is ready", START_SECONDS)
        yield made


def find_ready(fleet: Apart, members: int) -> dict[str, Any] | None:
    """The Instance of so many members that serves, if it is the only one there."""
    found = fleet.objects("instances")
    ready = [each for each in found if each.get("status", {}).get("phase") == "Ready"]
    return ready[0] if len(found) == len(ready) == 1 and len(ready[0]["spec"]["members"]) == members else None


def wait_ring(fleet: Apart, ranks: int, attempt: int = 1) -> dict[str, Any]:
    def is_so() -> bool:
        found = find_ready(fleet, ranks)
        return found is not None and found["spec"]["attempt"] >= attempt

    wait_until(is_so, f"a ring of {ranks} serves in attempt {attempt}", SECONDS)
    found = find_ready(fleet, ranks)
    assert found is not None
    return found


def ask(fleet: Apart, **changes: object) -> httpx.Response:
    return httpx.post(f"{fleet.gateway_url}/v1/chat/completions", json={**BODY, **changes}, timeout=120)


def answer(fleet: Apart) -> str:
    response = ask(fleet)
    assert response.status_code == 200, response.text
    content: str = response.json()["choices"][0]["message"]["content"]
    return content


def engine_on(fleet: Apart, instance: dict[str, Any], node: str) -> psutil.Process:
    folder = fleet.base / node / "agent" / "members" / instance["spec"]["instanceId"]
    return psutil.Process(json.loads((folder / "keeper.json").read_text())["enginePid"])


def leave(fleet: Apart) -> None:
    """In the middle of a long answer."""
    body = {**BODY, "stream": True, "max_tokens": 400}
    with httpx.stream("POST", f"{fleet.gateway_url}/v1/chat/completions", json=body, timeout=60) as response:
        lines = response.iter_lines()
        for _ in range(4):
            next(lines)


def stream_and_kill(fleet: Apart, engine: psutil.Process) -> str:
    """All that a client reads of a long answer in whose middle this engine is killed."""
    body = {**BODY, "stream": True, "max_tokens": 400}
    read: list[str] = []
    with httpx.stream("POST", f"{fleet.gateway_url}/v1/chat/completions", json=body, timeout=60) as response:
        for line in response.iter_lines():
            read.append(line)
            if len(read) == 8:
                engine.send_signal(signal.SIGKILL)
    return "\n".join(read)


def write_placement(fleet: Apart, shape: str) -> None:
    (fleet.base / "fleet" / "placement.yaml").write_text(PLACEMENT + shape)


def test_a_ring_is_planned_answers_as_one_node_ends_as_one_and_comes_back(fleet: Apart) -> None:
    expected = answer(fleet)
    assert len(expected) > 20

    # What would be: both ranks, their layers and bytes.
    wished = fleet.base / "wished.yaml"
    wished.write_text(PLACEMENT + PIPELINE)
    planned = fleet.covey("plan", "-f", str(wished))
    assert planned.returncode == 0, planned.stderr
    line = next(each for each in planned.stdout.splitlines() if each.startswith("comes:"))
    assert line.count(" for 15 layers") == 2, line
    assert "Mlx/Cpu" in line

    write_placement(fleet, PIPELINE)
    ring = wait_ring(fleet, 2)
    members = ring["spec"]["members"]
    assert [each["role"] for each in members] == ["Rank", "Rank"]
    assert answer(fleet) == expected
    wide = fleet.covey("get", "instances", "-o", "wide").stdout
    assert all(each["node"] in wide for each in members), wide
    assert "Ready,Ready" in wide.replace(" ", ""), wide
    told = fleet.covey("why", "placement/smollm2").stdout
    for index, each in enumerate(members):
        assert f"on node '{each['node']}' as rank '{index}', lane Mlx/Cpu" in told, told
    refused = ask(fleet, seed=7)
    assert (refused.status_code, "`seed` is not done" in refused.text) == (400, True), refused.text

    # Two at a time, and one whose client leaves: the ranks go on together.
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        asked = [pool.submit(ask, fleet, max_tokens=count) for count in (4, 6)]
        answers = [each.result().json() for each in asked]
    assert [each["usage"]["completion_tokens"] for each in answers] == [4, 6]
    leave(fleet)
    assert answer(fleet) == expected

    # A rank dies: the client hears of it in its stream, and all begin anew.
    rank = members[1]["node"]
    read = stream_and_kill(fleet, engine_on(fleet, ring, rank))
    assert "upstream_ended" in read, read
    assert "[DONE]" not in read
    words = re.compile(f"attempt 1 on node '{rank}' failed: .*ended by SIGKILL")
    wait_until(lambda: words.search(fleet.log("controller")), words.pattern, 60)
    again = wait_ring(fleet, 2, attempt=2)
    assert again["spec"]["instanceId"] == ring["spec"]["instanceId"]
    assert answer(fleet) == expected

    # The same model cut across its layers.
    write_placement(fleet, TENSOR)
    cut = wait_ring(fleet, 3)
    assert [each["costs"][0].get("layers", 0) for each in cut["spec"]["members"]] == [0, 0, 0]
    assert answer(fleet) == expected
