"""Dashboard and alert rules before a real Prometheus that scrapes a real gateway and a real controller."""

import asyncio
import hashlib
import json
import math
import re
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
import yaml
from integration.gateway_rig import DONE, LAST_CHUNK, STREAM_HEAD, Call, ScriptedEngine, chunk, token
from kit.ports import free_port
from testbed.prometheus import NoPrometheus, find_program

pytestmark = [pytest.mark.anyio, pytest.mark.integration, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
RULES = ROOT / "manifests" / "observability" / "rules.yaml"
DASHBOARD = ROOT / "manifests" / "observability" / "dashboard.json"
ALERTS_TEST = Path(__file__).parent / "prometheus_alerts.yaml"
SETTLE_SECONDS = 90
SECRET = "sk-covey-test"
# What ends an alert's expression; without it the expression says how things are.
_THRESHOLD = re.compile(r"\s(>|<|!=)\s[0-9.]+$")
_VARIABLES = {"$__rate_interval": "1m", "$model": ".*"}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def program(name: str) -> str:
    try:
        return find_program(name)
    except NoPrometheus as error:
        pytest.skip(str(error))


def alerts() -> dict[str, str]:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return {rule["alert"]: rule["expr"] for group in groups for rule in group["rules"]}


def panels() -> list[dict[str, Any]]:
    return json.loads(DASHBOARD.read_text())["panels"]


def queries() -> dict[str, str]:
    """Of the dashboard, as Grafana would ask them with all models chosen."""
    found = {
        f"{panel['title']} {each['refId']}": each["expr"] for panel in panels() for each in panel.get("targets", ())
    }
    for variable, value in _VARIABLES.items():
        found = {name: expression.replace(variable, value) for name, expression in found.items()}
    return found


def promtool(*arguments: str) -> None:
    answer = subprocess.run([program("promtool"), *arguments], capture_output=True, text=True, timeout=60, check=False)
    assert answer.returncode == 0, answer.stdout + answer.stderr


def test_rules_are_valid_with_the_templates_of_their_words() -> None:
    promtool("check", "rules", str(RULES))


def test_each_alert_fires_on_what_it_is_about_and_on_nothing_else(tmp_path: Path) -> None:
    rules = yaml.safe_load(RULES.read_text())
    for group in rules["groups"]:
        for rule in group["rules"]:
            del rule["annotations"]  # promtool would have each alert of the test repeat them
    (tmp_path / "rules.yaml").write_text(json.dumps(rules))
    (tmp_path / "test.yaml").write_text(ALERTS_TEST.read_text())
    promtool("test", "rules", str(tmp_path / "test.yaml"))
    tests = yaml.safe_load(ALERTS_TEST.read_text())["tests"]
    checked = {bool(each["exp_alerts"]): set[str]() for test in tests for each in test["alert_rule_test"]}
    for test in tests:
        for each in test["alert_rule_test"]:
            checked[bool(each["exp_alerts"])].add(each["alertname"])
    assert checked == {True: set(alerts()), False: set(alerts())}


def test_panels_have_each_a_place_a_source_and_a_number_of_their_own() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in panels():
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken, panel["title"]
        assert all(x < 24 for x, _ in cells)
        taken |= cells
        for target in panel.get("targets", ()):
            assert target["datasource"]["uid"] == "${datasource}"
    assert len({panel["id"] for panel in panels()}) == len(panels())


@asynccontextmanager
async def started(*command: str, log: Path) -> AsyncGenerator[None]:
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(*command, stdout=output, stderr=output)
    try:
        yield
    except Exception as error:
        error.add_note(await asyncio.to_thread(lambda: log.read_text()[-3000:]))
        raise
    finally:
        if process.returncode is None:
            process.terminate()
            try:
                await asyncio.wait_for(process.wait(), 15)
            except TimeoutError:
                process.kill()
                await process.wait()


async def answer_counted(call: Call) -> None:
    usage = {"prompt_tokens": 11, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}}
    told = b'data: {"id":"c1","choices":[],"usage":%b}\n\n' % json.dumps(usage).encode()
    await call.write(STREAM_HEAD, chunk(token("Hel")), chunk(token("lo")), chunk(told + DONE), LAST_CHUNK)


async def ask_on_and_on(url: str) -> None:
    """Answered requests, refused ones, ones that fail, ones over a limit."""
    body = {"messages": [{"role": "user", "content": "Hi"}]}
    async with httpx.AsyncClient(base_url=url, timeout=20) as client:
        while True:
            for model in ("m", "broken", "none"):
                await client.post("/v1/chat/completions", json=body | {"model": model})
            headers = {"authorization": f"Bearer {SECRET}"}
            await client.post("/v1/chat/completions", json=body | {"model": "m"}, headers=headers)
            await asyncio.sleep(0.3)


async def read(client: httpx.AsyncClient, expression: str) -> list[float]:
    answer = (await client.post("/api/v1/query", data={"query": expression})).json()
    assert answer["status"] == "success", f"{expression}: {answer}"
    assert not answer.get("warnings"), f"{expression}: {answer}"
    found = cast("list[dict[str, Any]]", answer["data"]["result"])
    return [value for each in found if not math.isnan(value := float(each["value"][1]))]


async def until_all_have_data(client: httpx.AsyncClient, expressions: dict[str, str]) -> None:
    left = expressions
    deadline = time.monotonic() + SETTLE_SECONDS
    while left := {name: each for name, each in left.items() if not await read(client, each)}:
        assert time.monotonic() < deadline, f"without data: {left}"
        await asyncio.sleep(1)


def write_table(folder: Path, engine_port: int) -> Path:
    refusing = {"url": f"http://127.0.0.1:{free_port()}"}
    digest = "sha256:" + hashlib.sha256(SECRET.encode()).hexdigest()
    table = {
        "models": [
            {"name": "m", "endpoints": [{"url": f"http://127.0.0.1:{engine_port}"}]},
            {"name": "broken", "endpoints": [refusing]},
        ],
        "keys": [{"name": "ann", "hash": digest, "requestsPerMinute": 2}],
    }
    path = folder / "table.json"
    path.write_text(json.dumps(table))
    return path


def write_configuration(folder: Path, ports: Sequence[int]) -> Path:
    configuration = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(RULES)],
        "scrape_configs": [
            {"job_name": "covey", "static_configs": [{"targets": [f"127.0.0.1:{port}" for port in ports]}]}
        ],
    }
    path = folder / "prometheus.yaml"
    path.write_text(json.dumps(configuration))
    return path


async def until_up(client: httpx.AsyncClient, count: int) -> None:
    async with asyncio.timeout(SETTLE_SECONDS):
        while True:
            try:
                if sum(await read(client, "up")) == count:
                    return
            except (httpx.TransportError, json.JSONDecodeError):
                pass  # not there yet, or not ready
            await asyncio.sleep(0.2)


async def test_every_query_and_every_rule_finds_its_figures(tmp_path: Path) -> None:
    prometheus = program("prometheus")
    ports = client_port, gateway_port, controller_port, port = free_port(), free_port(), free_port(), free_port()
    assert len(set(ports)) == 4
    gateway = ["-m", "covey_gateway", "--listen", f"127.0.0.1:{client_port}"]
    gateway += ["--metrics-listen", f"127.0.0.1:{gateway_port}"]
    controller = ["-m", "covey_controller", "--source", str(ROOT / "examples" / "01-one-model")]
    controller += ["--state", str(tmp_path / "state"), "--fleet-listen", "127.0.0.1:0"]
    controller += ["--metrics-listen", f"127.0.0.1:{controller_port}"]
    configuration = write_configuration(tmp_path, (gateway_port, controller_port))
    flags = [f"--config.file={configuration}", f"--storage.tsdb.path={tmp_path / 'data'}"]
    flags += [f"--web.listen-address=127.0.0.1:{port}"]
    async with (
        ScriptedEngine(answer_counted) as engine,
        started(sys.executable, *gateway, "--table", str(write_table(tmp_path, engine.port)), log=tmp_path / "g.log"),
        started(sys.executable, *controller, log=tmp_path / "c.log"),
        started(prometheus, *flags, log=tmp_path / "p.log"),
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=20) as client,
    ):
        await until_up(client, 2)
        asking = asyncio.create_task(ask_on_and_on(f"http://127.0.0.1:{client_port}"))
        try:
            await until_all_have_data(client, queries())
            states = {name: _THRESHOLD.sub("", expression) for name, expression in alerts().items()}
            assert all(
                states[name] != expression for name, expression in alerts().items() if "absent" not in expression
            )
            del states["CoveyGatewayMissing"]  # there is one
            # Counted only once it has happened; that it is told is the unit test's of the controller's figures.
            del states["CoveyTurnsFail"]
            await until_all_have_data(client, states)
            assert await read(client, alerts()["CoveyGatewayMissing"]) == []
            assert await read(client, alerts()["CoveyRequestsFail"]) != []
            assert await read(client, alerts()["CoveyPlacementsNotReady"]) == [1.0]
            rules = (await client.get("/api/v1/rules")).json()["data"]["groups"]
            health = {rule["name"]: rule["health"] for group in rules for rule in group["rules"]}
            assert health == dict.fromkeys(alerts(), "ok")
        finally:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
