"""From a YAML file to a streamed token: `covey up` on the smallest example, seen as a user sees it.

One fleet serves all tests of this module that only look; those that change it start from a copy of their own.
"""

import json
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Generator

import httpx
import openai
import pytest
from kit.fleet import RunningFleet, running_fleet
from openai.types.chat import ChatCompletionMessageParam

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def fleet() -> Generator[RunningFleet]:
    with running_fleet() as running:
        yield running


@pytest.fixture
def client(fleet: RunningFleet) -> Generator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{fleet.url}/v1", api_key="unused", max_retries=0) as made:
        yield made


MESSAGES: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Say hello."}]


def test_printed_curl_line_works_as_printed(fleet: RunningFleet) -> None:
    line = next(line for line in fleet.output_path.read_text().splitlines() if line.startswith("curl "))
    result = subprocess.run(shlex.split(line), capture_output=True, text=True, timeout=600, check=True)
    events = [line for line in result.stdout.splitlines() if line.startswith("data: ")]
    assert events[-1] == "data: [DONE]"
    assert len(events) > 3


def test_printed_python_snippet_works_as_printed(fleet: RunningFleet) -> None:
    text = fleet.output_path.read_text()
    snippet = text[text.index("from openai import") : text.index("Ctrl-C stops")]
    said = ""
    for _ in range(5):  # the snippet samples: a small model may end its answer before its first word
        run = subprocess.run([sys.executable, "-c", snippet], capture_output=True, text=True, timeout=600, check=False)
        assert run.returncode == 0, run.stderr
        if said := run.stdout.strip():
            break
    assert said


def test_tokens_arrive_as_the_engine_makes_them(fleet: RunningFleet) -> None:
    arrivals: list[float] = []
    body = fleet.chat(stream=True, max_tokens=64, ignore_eos=True)  # however short its answer
    with httpx.stream("POST", f"{fleet.url}/v1/chat/completions", json=body, timeout=120) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        for line in response.iter_lines():
            if line.startswith("data: {"):
                arrivals.append(time.monotonic())
    assert len(arrivals) > 8
    assert arrivals[-1] - arrivals[0] > 0.01, "all tokens came in one piece"


def test_models_are_listed_with_whether_they_are_ready(fleet: RunningFleet, client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["smollm2"]
    listed = httpx.get(f"{fleet.url}/v1/models", timeout=30).json()
    assert listed["data"][0]["covey"]["state"] == "Ready"


def test_a_model_that_is_not_declared_is_a_404_that_says_what_there_is(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="qwen9", messages=MESSAGES)
    assert caught.value.code == "model_not_found"
    assert "smollm2" in caught.value.message


def test_a_prompt_too_long_is_refused_with_both_numbers(fleet: RunningFleet, client: openai.OpenAI) -> None:
    window = next(iter(fleet.instances().values()))["spec"]["options"]["contextTokens"]
    messages: list[ChatCompletionMessageParam] = [{"role": "user", "content": "word " * (window + 500)}]
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as caught:
            client.chat.completions.create(model="smollm2", messages=messages, stream=stream)
        assert caught.value.code == "context_length_exceeded"
        numbers = [int(number) for number in re.findall(r"\d+", caught.value.message)]
        assert window in numbers
        assert any(number > window for number in numbers)


def test_one_named_object_is_printed_itself_and_several_as_a_list(fleet: RunningFleet) -> None:
    one = json.loads(fleet.covey("get", "model", "smollm2", "-o", "json").stdout)
    assert (one["kind"], one["metadata"]["name"]) == ("Model", "smollm2")
    assert json.loads(fleet.covey("get", "models", "-o", "json").stdout)["kind"] == "List"


def test_no_secret_is_on_a_command_line_and_private_files_are_private(fleet: RunningFleet) -> None:
    keys = [path.read_text() for path in fleet.state.rglob("token")]
    assignments = json.loads((fleet.state / "agent" / "assignments.json").read_text())
    secrets = [*keys, *(member["assignment"]["key"] for member in assignments["members"])]
    assert len(secrets) >= 3
    lines = ["\0".join(process.cmdline()) for process in fleet.processes()]
    logs = [path.read_text(errors="replace") for path in (fleet.state / "log").iterdir()]
    for secret in secrets:
        assert not any(secret in text for text in (*lines, *logs))
    for name in ("controller/authority.key", "controller/fleet.secret", "agent/assignments.json", "gateway/table.json"):
        assert (fleet.state / name).stat().st_mode & 0o077 == 0, name


def test_engine_refuses_a_caller_without_its_key(fleet: RunningFleet) -> None:
    endpoint = fleet.instances()["smollm2-0"]["status"]["endpoint"]
    assert httpx.post(f"{endpoint}/v1/chat/completions", json=fleet.chat(), timeout=30).status_code == 401


def test_second_up_on_the_same_state_says_it_runs_already(fleet: RunningFleet) -> None:
    again = fleet.covey("up", str(fleet.folder))
    assert "already running" in again.stdout
    other = fleet.covey("up", str(fleet.state.parent), check=False)
    assert other.returncode == 1
    assert "belongs to a running" in other.stderr


def test_interrupt_leaves_nothing_running_and_says_so() -> None:
    with running_fleet() as fleet:
        assert fleet.processes_of("llama-server")
        assert fleet.stop(signal.SIGINT) < 15
        assert not fleet.processes()
        assert "nothing that Covey started is left running" in fleet.error_path.read_text()
        fleet.start()
        fleet.wait_started()
        assert fleet.ask().status_code == 200
