"""From a YAML file to a streamed token: `covey up` on the smallest example, seen as a user sees it.

One fleet serves all tests of this module that only look; those that change it start from a copy of their own.
"""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import openai
import pytest
from kit.fleet import EXAMPLE, RunningFleet, running_fleet, wait_until
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


SIMULATE_GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "simulate.md"
MESSAGES: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Say hello."}]


def test_printed_curl_line_works_as_printed(fleet: RunningFleet) -> None:
    line = next(line for line in fleet.output_path.read_text().splitlines() if line.startswith("curl "))
    events: list[str] = []
    for _ in range(5):  # it samples: a small model may end its answer before its first word
        result = subprocess.run(shlex.split(line), capture_output=True, text=True, timeout=600, check=True)
        events = [line for line in result.stdout.splitlines() if line.startswith("data: ")]
        assert events[-1] == "data: [DONE]"
        if len(events) > 3:
            break
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


def test_running_fleet_is_simulated_as_the_guide_says(fleet: RunningFleet, tmp_path: Path) -> None:
    blocks = re.findall(r"^```sh running\n(.*?)^```$", SIMULATE_GUIDE.read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 1
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"COVEY_STATE": str(fleet.state), "PATH": path}
    command = ("bash", "-euo", "pipefail", "-c", blocks[0])
    answer = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert answer.returncode == 0, answer.stderr + answer.stdout
    assert "the engine of instance 'smollm2-0' on node" in answer.stdout
    assert "placement/smollm2: 1 of 1 replicas serve" in answer.stdout


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


def test_what_an_engine_prints_is_shown_by_instance_and_by_placement(fleet: RunningFleet) -> None:
    shown = fleet.covey("logs", "smollm2-0").stdout.splitlines()
    assert any("listening" in line for line in shown)
    assert fleet.covey("logs", "instance/smollm2-0", "--tail", "2").stdout.splitlines()[-1:] == shown[-1:]
    prefixed = fleet.covey("logs", "placement/smollm2").stdout.splitlines()
    assert [line.removeprefix("[smollm2-0] ") for line in prefixed] == shown
    assert all(line.startswith("[smollm2-0] ") for line in prefixed)
    became = fleet.covey("logs", "--transitions", "smollm2-0").stdout
    assert became.index("Starting, goal Serve") < became.index("Ready, goal Serve")
    assert "listening" not in became
    assert fleet.covey("logs", "--transitions", "--tail", "1", "smollm2-0").stdout == became.splitlines()[-1] + "\n"
    assert fleet.covey("logs", "--transitions", "-f", "smollm2-0", check=False).returncode == 1
    missing = fleet.covey("logs", "smollm2-7", check=False)
    assert missing.returncode == 3
    assert "smollm2-7" in missing.stderr
    refused = fleet.covey("logs", "model/smollm2", check=False)
    assert refused.returncode == 1
    assert "only an Instance or a Placement has engines" in refused.stderr


def test_followed_log_shows_what_comes_and_nothing_twice(fleet: RunningFleet) -> None:
    command = [
        sys.executable,
        "-u",
        "-m",
        "covey",
        "logs",
        "--state",
        str(fleet.state),
        "-f",
        "--tail",
        "0",
        "smollm2-0",
    ]
    following = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert following.stdout is not None
    seen: list[str] = []
    reading = threading.Thread(target=seen.extend, args=(iter(following.stdout.readline, ""),))
    reading.start()
    try:

        def is_followed() -> bool:
            httpx.post(f"{fleet.url}/v1/chat/completions", json=fleet.chat(), timeout=600).raise_for_status()
            return len(seen) >= 3

        wait_until(is_followed, "what the engine says of requests is followed", 120)
    finally:
        following.send_signal(signal.SIGINT)
        following.wait(60)
        reading.join(60)
        following.stdout.close()
    whole = fleet.covey("logs", "smollm2-0").stdout
    assert "".join(seen) in whole


def test_capture_has_transitions_processes_metrics_and_output_and_no_key(fleet: RunningFleet) -> None:
    target = fleet.state.parent / "capture.txt"
    fleet.covey("capture", "placement/smollm2", "-o", str(target))
    text = target.read_text()
    transitions = text.partition("# transitions")[2].partition("# processes")[0]
    phases = re.findall(r"attempt 1: (\w+), goal Serve", transitions)
    assert phases[0] in ("Pending", "Fetching")
    assert phases[-1] == "Ready"
    processes = text.partition("# processes")[2].partition("# metrics")[0]
    assert "llama-server" in processes
    assert "keeper.py" in processes
    assert "thread" in processes or not sys.platform.startswith("linux")
    assert "llamacpp:" in text.partition("# metrics")[2].partition("# output")[0]
    assert "listening" in text.partition("# output")[2]
    assignments = json.loads((fleet.state / "agent" / "assignments.json").read_text())
    assert all(member["assignment"]["key"] not in text for member in assignments["members"])


def test_engine_refuses_a_caller_without_its_key(fleet: RunningFleet) -> None:
    endpoint = fleet.instances()["smollm2-0"]["status"]["endpoint"]
    assert httpx.post(f"{endpoint}/v1/chat/completions", json=fleet.chat(), timeout=30).status_code == 401


def test_second_up_on_the_same_state_says_it_runs_already(fleet: RunningFleet) -> None:
    again = fleet.covey("up", str(fleet.folder))
    assert "already running" in again.stdout
    port = fleet.url.rpartition(":")[2]
    assert "already running" in fleet.covey("up", str(fleet.folder), "--port", port).stdout
    elsewhere = fleet.covey("up", str(fleet.folder), "--port", "1", check=False)
    assert (elsewhere.returncode, elsewhere.stdout) == (1, "")
    assert "`--port 1` changes nothing. Stop it first" in elsewhere.stderr
    other = fleet.covey("up", str(fleet.state.parent), check=False)
    assert other.returncode == 1
    assert "belongs to a running" in other.stderr


def test_interrupt_lets_an_answer_end_leaves_nothing_running_and_says_so() -> None:
    with running_fleet(EXAMPLE, "--drain-seconds", "20") as fleet:
        assert fleet.processes_of("llama-server")
        body = fleet.chat(stream=True, max_tokens=96, ignore_eos=True)
        with httpx.stream("POST", f"{fleet.url}/v1/chat/completions", json=body, timeout=120) as answer:
            lines = answer.iter_lines()
            next(line for line in lines if '"content":"' in line)
            stopping = ThreadPoolExecutor(1).submit(fleet.stop, signal.SIGINT)
            rest = "\n".join(lines)
        assert stopping.result() < 40
        assert rest.rstrip().endswith("data: [DONE]"), rest[-500:]
        assert '"error"' not in rest
        assert not fleet.processes()
        assert "nothing that Covey started is left running" in fleet.error_path.read_text()
        fleet.start()
        fleet.wait_started()
        assert fleet.ask().status_code == 200
        fleet.stop()
        fleet.folder = other_source(fleet)
        fleet.start()
        fleet.wait_started()
        assert len(fleet.processes_of("llama-server")) == 1, "what the last source ran isn't begun again"
        assert list(fleet.instances()) == ["other-0"]
        assert "WARNING" not in fleet.error_path.read_text()


def other_source(fleet: RunningFleet) -> Path:
    """A folder that asks for the same file by other names."""
    folder = fleet.state.parent / "other"
    folder.mkdir()
    for path in fleet.folder.glob("*.yaml"):
        (folder / path.name).write_text(path.read_text().replace("name: smollm2}", "name: other}"))
    return folder
