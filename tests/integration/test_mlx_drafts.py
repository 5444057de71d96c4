"""The real mlx-lm with a draft model, as the adapter renders it."""

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from covey_agent.engines.adapter import Adapter
from covey_agent.engines.mlx import MLX
from covey_agent.engines.servers.web import LOADED
from covey_api.companion import CompanionRole
from covey_api.engines import Compute, EngineName, KvCacheType, Lane, LaneState
from covey_planner.fit.companions import with_companions
from covey_planner.fit.estimate import cost_formulas
from covey_planner.fit.options import stamp_options
from kit.loading import KEY, peak_bytes
from kit.measured import MIB
from kit.python_loads import prepare, running
from kit.real_engines import mlx_packages

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]
WINDOW = 256


def ask(port: int, **body: Any) -> dict[str, Any]:
    url, heads = f"http://127.0.0.1:{port}/v1/chat/completions", {"authorization": f"Bearer {KEY}"}
    with httpx.Client(trust_env=False, timeout=300) as client:
        answer = client.post(url, json=body, headers=heads)
    assert answer.status_code == 200, answer.text
    return answer.json()


def said(answer: dict[str, Any]) -> str:
    return answer["choices"][0]["message"]["content"]


def count_passes(port: int) -> int:
    async def look() -> str | None:
        async with httpx.AsyncClient(trust_env=False) as http:
            return await Adapter(MLX, http).observe_progress(port, KEY)

    return int(asyncio.run(look()) or -1)


def test_a_draft_of_mlx_changes_no_token_and_takes_what_is_estimated(tmp_path: Path) -> None:
    mlx_packages()
    description, weights, geometry, program = asyncio.run(prepare(EngineName.MLX))
    options = stamp_options(
        geometry, cpu_cores=2, context_tokens=WINDOW, slots=1, kv_cache_type=KvCacheType.F16, has_projector=False
    )
    options = options.model_copy(update={"micro_batch_tokens": 32})
    asked = {"messages": [{"role": "user", "content": "Write about a boat."}], "max_tokens": 12, "temperature": 0}
    long = {"messages": [{"role": "user", "content": " hello" * (WINDOW - 96)}], "max_tokens": 2, "temperature": 0}
    texts: list[str] = []
    passes: list[int] = []
    for draft in (None, weights):
        folder = tmp_path / ("alone" if draft is None else "drafted")
        folder.mkdir()
        with running(description, program, weights, options, str(folder), draft=draft) as (process, port):
            texts.append(said(ask(port, **asked)))
            again = said(ask(port, **asked))
            assert again == texts[-1], "what was kept of the first is no other answer"
            before = count_passes(port)
            ask(port, **long)
            passes.append(count_passes(port) - before)
            peak = peak_bytes(process.pid)
        told = [int(line.split()[-1]) for line in (folder / "output").read_text().splitlines() if LOADED in line]
        assert len(told) >= 50, "each hundredth of a load is told, but for those of a larger tensor"
        assert told == sorted(told)
        size_bytes = (1 if draft is None else 2) * geometry.weights_bytes
        assert 0.95 * size_bytes <= told[-1] <= size_bytes
    assert texts[1] == texts[0]
    # Both read the prompt, which is some five steps.
    assert passes[0] > 4
    assert passes[1] >= passes[0] + 4
    lane = Lane(engine=EngineName.MLX, compute=Compute.CPU, state=LaneState.INSTALLED, version="1", digest="0" * 64)
    formulas = with_companions(
        cost_formulas(geometry, lane, options, 0), [(CompanionRole.DRAFT, geometry)], lane, options
    )
    (total,) = (each.total_bytes(WINDOW) for each in formulas)
    assert peak <= total <= 1.25 * peak + 64 * MIB, f"{total / MIB:.0f} MiB estimated, {peak / MIB:.0f} MiB taken"


def test_a_draft_of_another_vocabulary_is_refused_in_words(tmp_path: Path) -> None:
    mlx_packages()
    description, weights, geometry, program = asyncio.run(prepare(EngineName.MLX))
    other = tmp_path / "other"
    other.mkdir()
    for each in weights.iterdir():
        if each.name != "tokenizer.json":
            (other / each.name).symlink_to(each)
    tokenizer = json.loads((weights / "tokenizer.json").read_text())
    vocabulary: dict[str, int] = tokenizer["model"]["vocab"]
    last = max(vocabulary.values())
    tokenizer["model"]["vocab"] = {token: last - number for token, number in vocabulary.items()}
    (other / "tokenizer.json").write_text(json.dumps(tokenizer))
    options = stamp_options(
        geometry, cpu_cores=2, context_tokens=WINDOW, slots=1, kv_cache_type=KvCacheType.F16, has_projector=False
    )
    with (
        pytest.raises(AssertionError, match=r"NoUsableEngine: Unfit: \d+ tokens of the model are others in its"),
        running(description, program, weights, options, str(tmp_path), draft=other),
    ):
        pass
