"""`LlamaCpp` and `Mlx` from a Model to tokens through the gateway: one fleet each, started as a user starts it."""

import asyncio
import concurrent.futures
import itertools
import json
import re
import socket
from collections.abc import Generator
from pathlib import Path
from typing import Any

import httpx
import pytest
from covey_agent.engines.adapter import Adapter
from covey_agent.engines.llama_cpp import LLAMA_CPP
from covey_agent.engines.recipes import llama_cpp_recipe, mlx_recipe
from covey_fleet_client.identity import render_name
from integration.captured import Capture, check_capture
from kit.builders import SOURCE
from kit.fleet import RunningFleet, running_fleet, wait_until
from kit.real_engines import given_llama_cpp, llama_cpp_packages, mlx_model, mlx_packages

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

NODE = """\
apiVersion: covey.dev/v1alpha1
kind: Node
metadata: {{name: {name}}}
spec:
  engines: [{{engine: {engine}{path}}}]
"""
MODEL = """\
apiVersion: covey.dev/v1alpha1
kind: Model
metadata: {{name: smollm2}}
spec:
  tasks: [Chat]
  variants:
  - {{name: v, format: {format}, source: '{source}', engines: [{engine}]}}
---
apiVersion: covey.dev/v1alpha1
kind: Placement
metadata: {{name: smollm2}}
spec:
  modelRef: {{name: smollm2}}
  context: {{tokens: 1024}}
  concurrency: 2
"""
WINDOW = 1024


def write_source(folder: Path, engine: str, kind: str, source: str, python: str) -> Path:
    folder.mkdir()
    path = f", path: '{python}'" if python else ""
    (folder / "node.yaml").write_text(NODE.format(name=node_name(), engine=engine, path=path))
    (folder / "model.yaml").write_text(MODEL.format(format=kind, source=source, engine=engine))
    return folder


def node_name() -> str:
    """The name under which `covey up` joins this machine."""
    return render_name(socket.gethostname())


@pytest.fixture(scope="module", params=["LlamaCpp", "Mlx"])
def fleet(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Generator[RunningFleet]:
    engine: str = request.param
    python = given_llama_cpp() if engine == "LlamaCpp" else ""
    if engine == "Mlx":
        mlx_packages()
        kind, source = "Mlx", f"file://{mlx_model()}"
    else:
        if not python:
            llama_cpp_packages()
        kind, source = "Gguf", SOURCE
    folder = write_source(tmp_path_factory.mktemp("source") / "f", engine, kind, source, python)
    with running_fleet(folder) as running:
        # The agent learns that the engine is wished after it has told what it has.
        wait_until(running.ready_instances, f"{engine} is ready\n{running.covey('why', 'placement/smollm2').stdout}")
        yield running


def engine_of(fleet: RunningFleet) -> str:
    return next(iter(fleet.instances().values()))["spec"]["engine"]


def direct(fleet: RunningFleet) -> httpx.Client:
    """The engine itself, with its key, as the gateway reaches it."""
    table = json.loads((fleet.state / "gateway" / "table.json").read_text())
    (endpoint,) = table["endpoints"]
    return httpx.Client(
        base_url=f"http://127.0.0.1:{endpoint['port']}",
        headers={"authorization": f"Bearer {endpoint['key']}"},
        timeout=120,
        trust_env=False,
    )


def test_tokens_stream_through_the_gateway_with_usage(fleet: RunningFleet) -> None:
    body = fleet.chat(stream=True, max_tokens=12, temperature=0, stream_options={"include_usage": True})
    with httpx.stream("POST", f"{fleet.url}/v1/chat/completions", json=body, timeout=120) as response:
        assert response.status_code == 200, response.read()
        events = [json.loads(line[6:]) for line in response.iter_lines() if line.startswith("data: {")]
    text = "".join(choice["delta"].get("content") or "" for event in events for choice in event["choices"])
    assert re.search(r"[A-Za-z]{2}", text), events
    assert {event["model"] for event in events} == {"smollm2"}
    usage = events[-1]["usage"]
    assert usage["completion_tokens"] == 12
    assert usage["prompt_tokens"] > 10


def test_its_stream_is_written_as_when_it_was_captured(fleet: RunningFleet, request: pytest.FixtureRequest) -> None:
    engine = engine_of(fleet)
    recipe = mlx_recipe() if engine == "Mlx" else llama_cpp_recipe()
    asked: dict[str, Any] = {"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 3, "temperature": 0}
    asked |= {"stream": True, "stream_options": {"include_usage": True}}
    with direct(fleet) as client:
        stream = client.post("/v1/chat/completions", json=asked).content
    origin = f"{engine} {recipe.version if recipe else ''} with SmolLM2-135M-Instruct, by test_engines_in_python.py"
    check_capture(f"{engine}-stream", Capture(origin, asked, stream), request.config)


def test_answers_without_a_stream_are_whole(fleet: RunningFleet) -> None:
    answer = fleet.ask(max_tokens=4, temperature=0)
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"][0]["message"]["content"]
    assert answer.json()["usage"]["completion_tokens"] == 4


def test_two_requests_at_a_time_are_both_answered(fleet: RunningFleet) -> None:
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        asked = [pool.submit(fleet.ask, max_tokens=count, temperature=0) for count in (4, 5)]
        answers = [each.result() for each in asked]
    assert [answer.status_code for answer in answers] == [200, 200]
    assert [answer.json()["usage"]["completion_tokens"] for answer in answers] == [4, 5]


def test_llama_cpp_says_itself_that_nothing_is_asked_of_it_so_a_look_costs_no_kept_prompt(fleet: RunningFleet) -> None:
    if engine_of(fleet) != "LlamaCpp":
        pytest.skip("mlx-lm keeps several prompts, and none as short as a look's")

    async def look(client: httpx.Client) -> tuple[bool, str | None]:
        key = client.headers["authorization"].removeprefix("Bearer ")
        async with httpx.AsyncClient(trust_env=False) as http:
            adapter = Adapter(LLAMA_CPP, http)
            port = client.base_url.port or 0
            return await adapter.is_at_rest(port, key), await adapter.observe_progress(port, key)

    # Long enough to be under way still when a crowded machine comes to look.
    asked = {"messages": [{"role": "user", "content": "Tell me a very long story."}], "max_tokens": 900, "stream": True}
    with direct(fleet) as client:
        with client.stream("POST", "/v1/chat/completions", json=asked) as response:
            lines = response.iter_lines()  # held: with its end the connection is closed
            next(lines)
            assert not asyncio.run(look(client))[0]
        wait_until(lambda: asyncio.run(look(client))[0], "the client left, and nothing is asked any more")
        before = asyncio.run(look(client))
        assert before == asyncio.run(look(client))
        assert before[0]
        assert before[1]


def test_mlx_generates_for_two_at_a_time(fleet: RunningFleet) -> None:
    """In one batch: each goes on while the other does."""
    if engine_of(fleet) != "Mlx":
        pytest.skip("llama-cpp-python has one sequence")
    order: list[str] = []

    def read(name: str) -> None:
        body = fleet.chat(stream=True, max_tokens=40, temperature=0)
        with httpx.stream("POST", f"{fleet.url}/v1/chat/completions", json=body, timeout=120) as response:
            order.extend(name for line in response.iter_lines() if '"content"' in line)

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        list(pool.map(read, "ab"))
    turns = sum(one != other for one, other in itertools.pairwise(order))
    assert turns >= 2, "".join(order)


def test_mlx_reads_a_long_prompt_once(fleet: RunningFleet) -> None:
    if engine_of(fleet) != "Mlx":
        pytest.skip("llama-cpp-python keeps the last prompt, and doesn't tell")
    messages = [{"role": "user", "content": "Count the words of this: " + "harbour window red " * 60}]
    found = [fleet.ask(messages=messages, max_tokens=2, temperature=0).json()["usage"] for _ in range(2)]
    cached = [usage["prompt_tokens_details"]["cached_tokens"] for usage in found]
    assert cached[1] > cached[0]
    assert cached[1] > 150


def test_a_prompt_too_long_is_refused_with_both_numbers(fleet: RunningFleet) -> None:
    answer = fleet.ask(messages=[{"role": "user", "content": "word " * (WINDOW + 500)}])
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["code"] == "context_length_exceeded"
    numbers = [int(number) for number in re.findall(r"\d+", error["message"])]
    assert WINDOW in numbers
    assert any(number > WINDOW for number in numbers)


def test_a_length_that_does_not_fit_beside_the_prompt_is_refused_with_counts(fleet: RunningFleet) -> None:
    messages = [{"role": "user", "content": "word " * 980}]
    prompt = fleet.ask(messages=messages, max_tokens=1, temperature=0).json()["usage"]["prompt_tokens"]
    left = WINDOW - prompt
    assert 2 <= left <= 60
    for most in (left - 1, left):
        assert fleet.ask(messages=messages, max_tokens=most, temperature=0).status_code == 200
    for is_stream in (True, False):
        answer = fleet.ask(messages=messages, max_tokens=left + 1, stream=is_stream)
        error = answer.json()["error"]
        assert (answer.status_code, error["code"], error["param"]) == (400, "context_length_exceeded", "max_tokens")
        assert f"{prompt} + {left + 1} > {WINDOW}" in error["message"]


def test_the_engine_counts_tokens_and_is_healthy(fleet: RunningFleet) -> None:
    with direct(fleet) as engine:
        assert engine.post("/tokenize", json={"content": "Hello world"}).json() == {"tokens": [19556, 905]}
        assert engine.get("/health").json() == {"status": "ok"}
        assert [model["id"] for model in engine.get("/v1/models").json()["data"]] == ["smollm2"]


def test_count_tokens_counts_as_the_answer_does(fleet: RunningFleet) -> None:
    messages = [{"role": "user", "content": "Say hello."}]
    counted = httpx.post(
        f"{fleet.url}/v1/messages/count_tokens",
        json={"model": "smollm2", "system": "Be brief.", "messages": messages},
        timeout=60,
    )
    assert counted.status_code == 200, counted.text
    asked = [{"role": "developer", "content": "Be brief."}, *messages]
    usage = fleet.ask(messages=asked, max_tokens=1).json()["usage"]
    assert counted.json() == {"input_tokens": usage["prompt_tokens"]}


def test_messages_tell_the_stop_sequence_that_ended_an_answer(fleet: RunningFleet) -> None:
    if engine_of(fleet) != "LlamaCpp":
        pytest.skip("mlx-lm doesn't say which")
    plain = {"messages": [{"role": "user", "content": "Count to five."}], "max_tokens": 24, "temperature": 0}
    text = fleet.ask(**plain).json()["choices"][0]["message"]["content"]
    stop = text.split()[2]
    body = {"model": "smollm2", "stop_sequences": ["\u0000never", stop], **plain}
    answer = httpx.post(f"{fleet.url}/v1/messages", json=body, timeout=120).json()
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("stop_sequence", stop)
    assert stop not in answer["content"][0]["text"]


def test_the_engine_counts_its_work_during_a_prompt(fleet: RunningFleet) -> None:
    """By it an engine that reads a long prompt is known from one that is dead."""
    body = fleet.chat(stream=True, max_tokens=1, messages=[{"role": "user", "content": "word " * 900}])
    seen: set[str] = set()
    with direct(fleet) as engine, concurrent.futures.ThreadPoolExecutor(1) as pool:
        asked = pool.submit(engine.post, "/v1/chat/completions", json=body)
        while not asked.done():
            seen.add(engine.get("/metrics").text)
        text = asked.result().text
        assert text.rstrip().endswith("data: [DONE]"), text[-300:]
    assert len(seen) > 1
    requests = r"covey_engine_requests \d+\n" if engine_of(fleet) == "LlamaCpp" else ""
    assert all(re.fullmatch(rf"covey_engine_work_total \d+\n{requests}", each) for each in seen)


@pytest.mark.parametrize(
    ("fields", "status", "words"),
    [
        ({"model": "mlx-community/other"}, 404, "serves 'smollm2' alone"),
        ({"adapters": "/tmp/adapter"}, 400, "`adapters` is refused"),
        ({"draft_model": "other"}, 400, "`draft_model` is refused"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, "must be text"),
        ({"max_tokens": 0}, 400, "`max_tokens` must be a positive integer"),
        ({"messages": []}, 400, "at least one message"),
    ],
)
def test_the_engine_refuses_what_would_load_or_fetch(
    fleet: RunningFleet, fields: dict[str, Any], status: int, words: str
) -> None:
    body = {"model": "smollm2", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1} | fields
    with direct(fleet) as engine:
        answer = engine.post("/v1/chat/completions", json=body)
        assert (answer.status_code, words in answer.json()["error"]["message"]) == (status, True), answer.text
        again = engine.post("/v1/chat/completions", json={**body, "max_tokens": 1, **_plain(fields)})
        assert again.status_code == 200, "what was loaded must be there still"


TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
]
MLX_ENDERS: list[tuple[dict[str, Any], int]] = [
    ({"top_k": 200_000}, 200),
    ({"xtc_probability": 0.5, "xtc_threshold": 0.9}, 200),
    ({"xtc_probability": 1, "xtc_threshold": 0.1}, 200),
    ({"logit_bias": {"99999999999999999999": 1}}, 400),
    ({"logit_bias": {"49152": 1}}, 400),
    ({"logit_bias": {"100": -100}}, 200),
    ({"seed": -1}, 200),
    ({"seed": 2**70}, 200),
    ({"stop": ["\ud800"]}, 400),
    ({"stop": [[]]}, 400),
    ({"temperature": 1e-300}, 200),
    ({"chat_template_kwargs": {"return_tensors": "np"}}, 400),
    ({"chat_template_kwargs": {"chat_template": "x"}}, 400),
    ({"chat_template_kwargs": {"padding": "max_length", "max_length": 2_000_000_000}}, 400),
    ({"chat_template_kwargs": {"tokenize": False}}, 400),
    ({"messages": [{"role": "user", "content": 5}]}, 400),
    ({"messages": [{"role": "\ud800", "content": "\ud800"}]}, 400),
    ({"n": None}, 200),
    ({"n": 2}, 400),
    ({"tools": TOOLS, "tool_choice": "required"}, 400),
    ({"tools": TOOLS, "tool_choice": "none"}, 200),
]


def test_no_request_ends_generation_for_everybody(fleet: RunningFleet) -> None:
    """Two at a time, so that each is sampled in a batch as well."""
    if engine_of(fleet) != "Mlx":
        pytest.skip("mlx-lm alone samples on the thread that generates for all")
    plain = {"model": "smollm2", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3}
    with direct(fleet) as engine, concurrent.futures.ThreadPoolExecutor(1) as pool:
        for fields, status in MLX_ENDERS:
            beside = pool.submit(engine.post, "/v1/chat/completions", json=plain | {"max_tokens": 12})
            answer = engine.post("/v1/chat/completions", content=json.dumps(plain | fields))
            assert answer.status_code == status, (fields, answer.text)
            assert beside.result().status_code == 200, fields


def _plain(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: None for name in fields} | {
        "model": "smollm2",
        "messages": [{"role": "user", "content": "Hi"}],
        "max_tokens": 1,
    }


def test_the_engine_refuses_a_caller_without_its_key(fleet: RunningFleet) -> None:
    with direct(fleet) as engine:
        for key in ("", "Bearer wrong"):
            answer = engine.post("/tokenize", json={"content": "x"}, headers={"authorization": key})
            assert answer.status_code == 401


def test_its_process_sees_its_own_packages_and_no_key(fleet: RunningFleet) -> None:
    (process,) = fleet.processes_of("serve.py")
    command = process.cmdline()
    assert command[1] == "-I"
    if "--packages" in command:
        assert command[2] == "-S"
        assert "envs" in command[command.index("--packages") + 1]
    table = json.loads((fleet.state / "gateway" / "table.json").read_text())
    key = table["endpoints"][0]["key"]
    assert key not in " ".join(command)
    assert key not in " ".join(process.environ().values())


def test_why_tells_lane_and_costs(fleet: RunningFleet) -> None:
    text = fleet.covey("why", "placement/smollm2").stdout
    assert f"lane {engine_of(fleet)}/Cpu" in text
    slots = 1 if engine_of(fleet) == "LlamaCpp" else 2
    assert f"window {WINDOW} tokens x {slots} slot" in text


def test_memory_stays_within_what_was_reserved(fleet: RunningFleet) -> None:
    """After the requests of the tests before: the peak of engine and keeper against the stamp."""
    (process,) = fleet.processes_of("serve.py")
    peak = next(
        int(line.split()[1]) * 1024
        for line in Path(f"/proc/{process.pid}/status").read_text().splitlines()
        if line.startswith("VmHWM")
    )
    (instance,) = fleet.instances().values()
    costs = instance["spec"]["members"][0]["costs"][0]
    reserved = sum(value for name, value in costs.items() if name.endswith("Bytes"))
    print(f"{engine_of(fleet)}: peak {peak / 2**20:.0f} MiB of {reserved / 2**20:.0f} MiB reserved")
    assert peak <= reserved
