"""The real llama-server with a draft model and with a projector, as the adapter renders them."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from covey_api.companion import CompanionRole
from covey_api.engines import KvCacheType
from covey_api.instance import EngineOptions
from covey_planner.fit.options import stamp_options
from kit.gguf_projectors import build_projector
from kit.loading import KEY, Loadable, measure, picture_request, read_geometry, running
from kit.measured import MIB
from kit.real import provide_real_parts

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]


def ask(port: int, body: dict[str, Any]) -> dict[str, Any]:
    url, heads = f"http://127.0.0.1:{port}/v1/chat/completions", {"authorization": f"Bearer {KEY}"}
    with httpx.Client(trust_env=False, timeout=300) as client:
        answer = client.post(url, json=body, headers=heads)
    assert answer.status_code == 200, answer.text
    return answer.json()


def stamped(*, slots: int, has_projector: bool = False) -> EngineOptions:
    return stamp_options(
        read_geometry(provide_real_parts().model),
        cpu_cores=2,
        context_tokens=2048,
        slots=slots,
        kv_cache_type=KvCacheType.F16,
        has_projector=has_projector,
    )


def test_a_draft_model_is_used_and_changes_no_token(tmp_path: Path) -> None:
    parts, options = provide_real_parts(), stamped(slots=1)
    question = {"messages": [{"role": "user", "content": "Write a short story about a boat."}]}
    asked = question | {"max_tokens": 64, "temperature": 0}
    answers: list[dict[str, Any]] = []
    for companions in ((), ((CompanionRole.DRAFT, parts.model),)):
        folder = tmp_path / str(len(companions))
        folder.mkdir()
        model = Loadable("smollm2", parts.model, companions=companions)
        with running(parts.program, model, options, folder) as (_, port):
            answers.append(ask(port, asked))
    alone, drafted = answers
    assert drafted["choices"][0]["message"]["content"] == alone["choices"][0]["message"]["content"]
    assert "draft_n" not in alone["timings"]
    assert drafted["timings"]["draft_n"] > 0
    assert drafted["timings"]["draft_n_accepted"] > 0


def test_a_projector_makes_tokens_of_a_picture_and_takes_what_is_estimated(tmp_path: Path) -> None:
    parts, options = provide_real_parts(), stamped(slots=1, has_projector=True)
    eyes = build_projector(layers=4, embedding=256, feed_forward=1024, heads=4, side=224).write(tmp_path / "eyes.gguf")
    model = Loadable("smollm2", parts.model, companions=((CompanionRole.PROJECTOR, eyes),))
    with running(parts.program, model, options, tmp_path) as (_, port):
        seen = ask(port, json.loads(picture_request(640, 480)))
        read = ask(port, {"messages": [{"role": "user", "content": "What is it?"}], "max_tokens": 1})
    assert seen["usage"]["prompt_tokens"] >= read["usage"]["prompt_tokens"] + 16, "4 x 4 tokens of one picture"
    load = measure(parts.program, model, options)
    assert load.peak_bytes <= load.estimate().total_bytes <= 1.15 * load.peak_bytes + 64 * MIB
