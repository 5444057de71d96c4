"""What clients and operators see when something breaks, or isn't there yet."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import httpx
import pytest
from covey.control import Control
from covey_agent.engines.architectures import find_code, is_lacking
from covey_api.engines import EngineName
from kit.fleet import EXAMPLE, RunningFleet, running_fleet, wait_until
from kit.parts import CONTROLLER, GATEWAY, kill_part, wait_part_again
from kit.parts import answers as is_answering
from kit.ports import free_port
from kit.real import provide_real_parts

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def fleet() -> Generator[RunningFleet]:
    with running_fleet() as running:
        yield running


def engine_pid(fleet: RunningFleet) -> int:
    return next(process.pid for process in fleet.processes_of("llama-server"))


def test_while_no_engine_serves_the_answer_says_so_and_when_to_retry(fleet: RunningFleet) -> None:
    wait_until(lambda: fleet.ask().status_code == 200, "the engine serves")
    os.kill(engine_pid(fleet), signal.SIGKILL)
    seen: set[int] = set()
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        answer = fleet.ask()
        seen.add(answer.status_code)
        if answer.status_code == 503:
            assert answer.json()["error"]["code"] in ("model_loading", "upstream_unavailable")
            assert int(answer.headers["retry-after"]) >= 1
        if answer.status_code == 200 and 503 in seen:
            break
    assert seen <= {200, 502, 503}


def test_a_key_works_until_it_is_deleted(fleet: RunningFleet) -> None:
    key = fleet.covey("key", "create", "laptop").stdout.strip()
    assert key.startswith("sk-covey-")
    assert key not in "".join(path.read_text() for path in fleet.folder.iterdir() if path.is_file())
    headers = {"Authorization": f"Bearer {key}"}
    url = f"{fleet.url}/v1/chat/completions"

    def status() -> int:
        return httpx.post(url, json=fleet.chat(max_tokens=1), headers=headers, timeout=60).status_code

    wait_until(lambda: status() == 200, "the key is accepted")
    other = {"x-api-key": key[:-1] + ("a" if key[-1] != "a" else "b")}
    refused = httpx.post(url, json=fleet.chat(max_tokens=1), headers=other, timeout=60)
    assert (refused.status_code, refused.json()["error"]["code"]) == (401, "invalid_api_key")
    fleet.covey("key", "delete", "laptop")
    wait_until(lambda: status() == 401, "the deleted key is refused")


def test_a_keys_limits_and_usage_outlive_every_part(fleet: RunningFleet) -> None:
    limits = ("--model", "smollm2", "--tokens-per-day", "1", "--requests-per-minute", "50", "--priority", "5")
    fleet.covey("key", "create", "first")  # while there is none, keys mean nothing on loopback
    key = fleet.covey("key", "create", "daily", *limits).stdout.strip()
    (made,) = (each for each in listed(fleet, "accesskeys") if each["metadata"]["name"] == "daily")
    assert made["spec"] | {"hash": ""} == {
        "hash": "",
        "models": ["smollm2"],
        "tokensPerDay": 1,
        "requestsPerMinute": 50,
        "priority": 5,
    }

    def ask() -> httpx.Response:
        headers = {"authorization": f"Bearer {key}"}
        url = f"{fleet.url}/v1/chat/completions"
        try:
            return httpx.post(url, json=fleet.chat(max_tokens=4), headers=headers, timeout=60)
        except httpx.TransportError:
            return httpx.Response(503)

    def usage() -> dict[str, Any]:
        (found,) = (each for each in listed(fleet, "accesskeys") if each["metadata"]["name"] == "daily")
        return found["status"]["usage"]["total"]

    answers: list[httpx.Response] = []
    wait_until(lambda: answers.append(ask()) or answers[-1].status_code == 200, "the key is accepted")
    counted = answers[-1].json()["usage"]
    refused = ask()
    assert (refused.status_code, refused.json()["error"]["param"]) == (429, "tokensPerDay")
    wait_until(lambda: usage().get("requests") == 1, "the controller has written what was used")
    told = usage()
    assert (told["promptTokens"], told["completionTokens"]) == (counted["prompt_tokens"], counted["completion_tokens"])
    assert json.loads(fleet.covey("key", "usage", "daily", "-o", "json").stdout)["items"][0]["total"] == told
    row = fleet.covey("key", "usage", "daily").stdout.splitlines()[1].split()
    assert row[:2] == ["daily", "1"]
    assert row[6:8] == [str(counted["total_tokens"]), "1"]
    for part in (CONTROLLER, GATEWAY):
        before = kill_part(fleet, part)
        wait_part_again(fleet, part, before)
        wait_until(lambda: is_answering(fleet), "the controller answers")
    # Until it hears from the controller, which was there first, a new gateway knows of no day; then it is as it was.
    wait_until(lambda: ask().status_code == 429, "the day's tokens are spent still")
    assert usage()["requests"] >= 1, "it counts on"
    fleet.covey("key", "delete", "daily")
    fleet.covey("key", "delete", "first")


def listed(fleet: RunningFleet, plural: str) -> list[dict[str, Any]]:
    with Control(fleet.state) as control:
        return control.list_objects(plural)


def test_a_page_of_another_site_is_refused(fleet: RunningFleet) -> None:
    for headers in ({"Origin": "https://evil.example"}, {"Host": "evil.example"}):
        answer = httpx.post(f"{fleet.url}/v1/chat/completions", json=fleet.chat(), headers=headers, timeout=30)
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "forbidden_origin")
        assert "access-control-allow-origin" not in answer.headers


def test_apply_and_delete_write_the_source(fleet: RunningFleet) -> None:
    text = (EXAMPLE / "model.yaml").read_text().replace("name: smollm2}", "name: another}")
    assert fleet.covey("apply", "-f", "-", text=text).stdout.strip() == "model/another created"
    assert fleet.covey("apply", "-f", "-", text=text).stdout.strip() == "model/another unchanged"
    assert fleet.covey("get", "model", "another").returncode == 0
    assert any("another" in path.read_text() for path in fleet.folder.iterdir())
    bad = fleet.covey("apply", "-f", "-", text=text.replace("Gguf", "Guff"), check=False)
    assert bad.returncode == 1
    assert "`spec.variants[1].format` must be one of 'Gguf', 'Safetensors', 'Mlx'; got 'Guff'" in bad.stderr
    assert fleet.covey("delete", "model/another").stdout.strip() == "model/another deleted"
    wait_until(lambda: fleet.covey("get", "model", "another", check=False).returncode == 3, "it is gone")


def test_a_model_that_the_engine_has_no_code_for_is_said_and_not_loaded(fleet: RunningFleet) -> None:
    """The same model under another name of its kind: all that its header says is sound."""
    code = find_code(EngineName.LLAMA_SERVER, provide_real_parts().program)
    assert code is not None
    assert [name for name in ("llama", "bert", "qwen2", "gemma", "t5", "mamba", "llamq") if is_lacking(code, name)] == [
        "llamq"
    ]
    strange = fleet.folder.parent / "strange.gguf"
    content = bytearray(provide_real_parts().model.read_bytes())
    content[: 64 * 1024] = content[: 64 * 1024].replace(b"llama", b"llamq")
    strange.write_bytes(content)
    model = f"""apiVersion: covey.dev/v1alpha1
kind: Model
metadata: {{name: strange}}
spec:
  tasks: [Chat]
  variants: [{{name: one, format: Gguf, source: "file://{strange}", engines: [LlamaServer]}}]
---
apiVersion: covey.dev/v1alpha1
kind: Placement
metadata: {{name: strange}}
spec: {{modelRef: {{name: strange}}}}
"""
    fleet.covey("apply", "-f", "-", text=model)
    words = "has no code for architecture 'llamq'; give it a newer build"
    wait_until(lambda: words in fleet.covey("why", "placement/strange").stdout, "the planner says so")
    (node,) = fleet.objects("cnodes")
    assert all(lane.get("lacks") == ["llamq"] for lane in node["status"]["lanes"] if lane["engine"] == "LlamaServer")
    assert (
        "has no code for models of architecture llamq" in fleet.covey("why", f"node/{node['metadata']['name']}").stdout
    )
    assert fleet.ask().status_code == 200, "the other model is served on"
    fleet.covey("delete", "placement/strange", "model/strange")


def test_interrupt_while_the_model_arrives_leaves_nothing() -> None:
    base = Path(tempfile.mkdtemp(prefix="cv"))
    fleet = RunningFleet(base / "fleet", base / "state", free_port())
    shutil.copytree(EXAMPLE, fleet.folder)
    try:
        fleet.start("--cache", str(base / "cache"))
        wait_until(lambda: fleet.processes_of("covey_agent"), "the agent runs")
        answer = None
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and answer is None:
            try:
                found = fleet.ask()
                answer = found if found.status_code == 503 else None
            except httpx.TransportError:
                time.sleep(0.05)
        assert answer is not None, "a model on its way is answered with 503"
        assert answer.json()["error"]["code"] == "model_loading"
        assert fleet.stop() < 40
        assert not fleet.processes()
    finally:
        for process in fleet.processes():
            process.kill()
        shutil.rmtree(base, ignore_errors=True)


def test_a_port_that_is_taken_is_said_in_words(fleet: RunningFleet) -> None:
    base = Path(tempfile.mkdtemp(prefix="cv"))
    try:
        port = fleet.url.rsplit(":", 1)[1]
        command = [sys.executable, "-m", "covey", "up", str(EXAMPLE), "--port", port, "--state", str(base / "state")]
        result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert result.returncode == 1
        assert port in result.stderr
        assert "is taken by another process" in result.stderr
        assert "--port" in result.stderr
    finally:
        shutil.rmtree(base, ignore_errors=True)
