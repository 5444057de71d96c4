"""Five models and room for one: real engines, real requests, each model started because it is asked for."""

import threading
import time
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import httpx
import psutil
import pytest
from kit.fleet import EXAMPLE, RunningFleet, running_fleet, wait_until
from kit.parts import engine_commands

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

NAMES = ("left", "right")
FIVE = (*NAMES, "near", "far", "above")
DWELL_SECONDS = 2
REQUESTS = 8


def documents(name: str) -> str:
    """One model and its wish; each takes more than half of this machine's memory, says its `workspace`."""
    half = psutil.virtual_memory().total * 55 // 100 // 2**20
    model = (EXAMPLE / "model.yaml").read_text().replace("name: smollm2}", f"name: {name}}}")
    return f"""{model.split("  # A Mac", 1)[0]}  memory: {{workspace: {half}Mi}}
---
apiVersion: covey.dev/v1alpha1
kind: Placement
metadata: {{name: {name}}}
spec:
  modelRef: {{name: {name}}}
  context: {{tokens: 2048}}
  scaling: {{idleSeconds: 600, minDwellSeconds: {DWELL_SECONDS}}}
  timeouts: {{holdSeconds: 300}}
"""


@pytest.fixture(scope="module")
def fleet() -> Generator[RunningFleet]:
    with running_fleet() as running:
        (running.folder / "model.yaml").unlink()
        (running.folder / "placement.yaml").unlink()
        for name in FIVE:
            running.write(f"{name}.yaml", documents(name))
        wait_until(lambda: len(running.objects("placements")) == len(FIVE) and not running.objects("instances"), "zero")
        yield running


def ask(fleet: RunningFleet, name: str, *, stream: bool = False) -> httpx.Response:
    body = fleet.chat(name, stream=stream, max_tokens=4)
    return httpx.post(f"{fleet.url}/v1/chat/completions", json=body, timeout=400)


@dataclass
class Watched:
    """Engines while it was looked at."""

    engines: dict[int, list[str]] = field(default_factory=dict[int, list[str]])
    """All that there were, by process."""
    most_at_once: int = 0
    seconds: float = 0.0


@contextmanager
def watching(fleet: RunningFleet) -> Generator[Watched]:
    found, is_over = Watched(), threading.Event()

    def watch() -> None:
        while not is_over.wait(0.1):
            running = engine_commands(fleet.processes())
            found.engines.update(running)
            found.most_at_once = max(found.most_at_once, len(running))

    watcher = threading.Thread(target=watch)
    watcher.start()
    began = time.monotonic()
    try:
        yield found
    finally:
        found.seconds = time.monotonic() - began
        is_over.set()
        watcher.join()


def ask_at_once(fleet: RunningFleet, names: Sequence[str]) -> list[httpx.Response]:
    with ThreadPoolExecutor(len(names)) as clients:
        return list(clients.map(partial(ask, fleet), names))


def test_five_models_that_are_asked_by_turns_are_loaded_once_each(fleet: RunningFleet) -> None:
    """Whoever is there when its model is loaded is answered before the next one is: one load more than models, at
    most."""
    with watching(fleet) as watched:
        answers = ask_at_once(fleet, FIVE * 4)
    assert [each.status_code for each in answers] == [200] * 20, [each.text for each in answers]
    assert watched.most_at_once == 1
    assert len(FIVE) <= len(watched.engines) <= 6


def test_two_models_take_turns_on_a_machine_with_room_for_one(fleet: RunningFleet) -> None:
    with watching(fleet) as watched:
        answers: list[httpx.Response] = []
        for number in range(REQUESTS):  # one client that alternates
            answers.append(ask(fleet, NAMES[number % 2], stream=number % 4 == 3))

        def ask_on(name: str) -> None:
            answers.extend(ask(fleet, name) for _ in range(4))

        clients = [threading.Thread(target=ask_on, args=(name,)) for name in NAMES]
        for client in clients:  # and two that never pause
            client.start()
        for client in clients:
            client.join()
    assert [each.status_code for each in answers] == [200] * (REQUESTS + 8), [each.text for each in answers]
    assert watched.most_at_once == 1
    assert 2 <= len(watched.engines) <= min(REQUESTS + 8, watched.seconds / DWELL_SECONDS + 1)
    told = fleet.covey("why", f"placement/{NAMES[0]}").stdout
    assert "scales from 0 to 1 replicas, 4 requests each" in told
    log = (fleet.state / "log" / "controller.log").read_text()
    assert f"it makes room for {NAMES[0]}, which is asked for" in log
    assert f"it makes room for {NAMES[1]}, which is asked for" in log
