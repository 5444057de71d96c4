"""The gateway held against its own OpenAPI document by schemathesis: what is wrong is refused, nothing else happens.

Few examples of each call, always the same ones. What was found once is kept as a file in `tests/integration/corpus/`
and sent to every call.
"""

import asyncio
import json
import threading
from collections.abc import Generator
from importlib import import_module
from pathlib import Path
from typing import Any

import httpx
import jsonschema_rs
import msgspec
import pytest
from covey_api.messages import ModelState, ServedModel
from covey_gateway.app import build_app
from covey_gateway.openapi import render_document, render_page
from covey_gateway.routing.access import choose_policy
from covey_gateway.traffic import Traffic
from covey_gateway.wire.documented import CALLS
from covey_gateway.wire.formats import HOT_PATHS, choose_format
from hypothesis import HealthCheck, settings
from integration.gateway_rig import DONE, LAST_CHUNK, STREAM_HEAD, Call, ScriptedEngine, chunk, running_gateway, token
from starlette.routing import Route

pytest_plugins = ["schemathesis.pytest.plugin"]
pytestmark = pytest.mark.integration

DOCUMENT: dict[str, Any] = msgspec.json.decode(render_document())
MODEL = ServedModel(
    namespace="default",
    name="m",
    aliases=("0", "a"),
    tasks=("Chat", "Embedding", "Rerank", "Vision"),
    state=ModelState.READY,
)
EXAMPLES = 12
CORPUS = Path(__file__).parent / "corpus"
ENVELOPES = {name.removeprefix("Error-"): one for name, one in DOCUMENT["components"]["schemas"].items()}

# Its types are half known; here they aren't wanted.
schemathesis: Any = import_module("schemathesis")
checks: Any = import_module("schemathesis.specs.openapi.checks")

# Those that are left out are other names of the same.
schema: Any = schemathesis.openapi.from_dict(DOCUMENT).exclude(path_regex="^/(ollama|rerank|score|v2)")


async def answer_by_path(call: Call) -> None:
    """Any request of any call, as an engine that takes everything."""
    path = call.head.split(b" ", 2)[1]
    assert json.loads(call.body)["model"] == "m"
    if path == b"/v1/completions":
        piece = {"id": "c", "choices": [{"index": 0, "text": "Hi", "finish_reason": "stop"}]}
        await call.write(STREAM_HEAD, chunk(b"data: " + json.dumps(piece).encode() + b"\n\n" + DONE), LAST_CHUNK)
    elif path == b"/v1/chat/completions":
        end = token("", finish_reason="stop")
        await call.write(STREAM_HEAD, chunk(token("Hi") + end + DONE), LAST_CHUNK)
    else:
        answers: dict[bytes, Any] = {
            b"/v1/embeddings": {"data": [{"index": 0, "embedding": [0.5]}], "usage": {"prompt_tokens": 1}},
            b"/v1/rerank": {"results": [{"index": 0, "relevance_score": 0.5}], "usage": {"prompt_tokens": 1}},
            b"/v1/chat/completions/input_tokens": {"input_tokens": 1},
        }
        await call.refuse(200, json.dumps(answers[path]).encode())


@pytest.fixture(scope="module")
def url() -> Generator[str]:
    """A gateway on a thread: schemathesis calls and waits."""
    started, ended = threading.Event(), asyncio.Event()
    found: list[Any] = []

    async def serve() -> None:
        async with ScriptedEngine(answer_by_path) as engine, running_gateway() as gateway:
            gateway.route(engine.target(slots=64), models=(MODEL,))
            found.extend((asyncio.get_running_loop(), gateway.port))
            started.set()
            await ended.wait()

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    assert started.wait(20)
    yield f"http://127.0.0.1:{found[1]}"
    found[0].call_soon_threadsafe(ended.set)
    thread.join(20)
    assert not thread.is_alive()


parametrize: Any = schema.parametrize()


@parametrize
@settings(
    max_examples=EXAMPLES,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
def test_every_call_keeps_to_the_document(case: Any, url: str) -> None:
    # Rules across fields (`stream_options` only with `stream`) can't be said in a schema.
    case.call_and_validate(base_url=url, excluded_checks=[checks.positive_data_acceptance])


@pytest.mark.parametrize("path", sorted(path.decode() for path in HOT_PATHS if not path.startswith(b"/ollama")))
def test_what_was_found_once_is_answered_in_the_calls_own_words(path: str, url: str) -> None:
    """By every call, whichever it was found at: 400 in its envelope, or an answer; nothing that would be our fault."""
    with httpx.Client(base_url=url) as client:
        for body in sorted(CORPUS.iterdir()):
            answer = client.post(path, content=body.read_bytes(), timeout=20)
            assert answer.status_code in (200, 400, 404), (body.name, answer.text)
            if answer.status_code != 200:
                jsonschema_rs.validate(ENVELOPES[choose_format(path.encode()).name], answer.json())
                assert len(answer.content) < 2000, body.name


def test_the_document_has_every_route_and_no_other() -> None:
    app = build_app(Traffic(choose_policy("127.0.0.1", insecure=False), clock=lambda: 0.0))
    served = {path.decode() for path in HOT_PATHS}
    for route in app.routes:
        assert isinstance(route, Route)
        methods = (route.methods or set()) - {"HEAD"}
        if len(methods) == 1 and route.path not in ("/", "/ollama", "/docs"):  # pages for people
            served.add(route.path.replace(":path", ""))
    assert set(DOCUMENT["paths"]) == served
    assert {path.encode() for path in CALLS} == set(HOT_PATHS)


def test_the_page_names_every_call_and_field_and_needs_no_other_server() -> None:
    page = render_page().decode()
    for path, call in CALLS.items():
        assert path in page
        assert [name for name in call.properties if f"<code>{name}</code>" not in page] == []
    assert "<script" not in page
    assert "http" not in page


def test_the_checks_that_matter_are_on() -> None:
    names = {check.__name__ for check in schemathesis.checks.CHECKS.get_all()}
    assert names >= {"not_a_server_error", "status_code_conformance", "response_schema_conformance"}
    assert names >= {"negative_data_rejection", "unsupported_method", "content_type_conformance"}
