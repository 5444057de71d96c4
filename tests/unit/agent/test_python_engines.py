"""The descriptions of LlamaCpp, Mlx and Vllm: command lines from the stamp and the allow-list, and their last words."""

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from conftest import Golden
from covey_agent.engines.adapter import Adapter
from covey_agent.engines.commands import VllmSource
from covey_agent.engines.descriptions import DESCRIPTIONS
from covey_agent.engines.features import parse_features
from covey_agent.engines.mlx import step_seconds
from covey_agent.engines.packages import PythonSource
from covey_agent.engines.vllm import VLLM
from covey_agent.ports import AgentError, EngineProgram, Launch, Ring
from covey_api.engines import Compute, EngineName, KvCacheType, KvLayout, Task
from covey_api.instance import Costs, EngineOptions, Member, MemberRole
from covey_api.node import EngineOverride
from covey_api.reasons import FailureCause
from covey_api.runtime import (
    LlamaCppRuntime,
    LlamaServerRuntime,
    MlxRuntime,
    Numa,
    ReasoningFormat,
    Runtime,
    Speculation,
    Switch,
    VllmRuntime,
)
from covey_planner.fit.estimate import cost_formulas, estimate_costs
from covey_planner.fit.vllm import PROCESS_BYTES
from kit import builders

KEY = "0123456789abcdef"
PROGRAMS = {
    EngineName.LLAMA_SERVER: EngineProgram(Path("/engines/llama-server"), {}, "10434", ""),
    EngineName.LLAMA_CPP: EngineProgram(
        Path("/python"), {}, "1", "d", ("-I", "-S", "serve.py", "LlamaCpp", "--packages", "/envs/d/packages")
    ),
    EngineName.MLX: EngineProgram(
        Path("/python"), {}, "1", "d", ("-I", "-S", "serve.py", "Mlx", "--packages", "/envs/d/packages")
    ),
    EngineName.VLLM: EngineProgram(Path("/opt/vllm/bin/vllm"), {}, "0.32", ""),
}
OPTIONS = EngineOptions(context_tokens=4096, slots=3, kv_cache_type=KvCacheType.Q8_0, threads=6)
EVERYTHING = Runtime(
    llama_server=LlamaServerRuntime(
        numa=Numa.ISOLATE,
        mlock=Switch.ON,
        poll_percent=0,
        cache_reuse_tokens=256,
        reasoning_format=ReasoningFormat.DEEPSEEK,
        speculation=Speculation.NGRAM_SIMPLE,
    ),
    llama_cpp=LlamaCppRuntime(mlock=Switch.ON),
    mlx=MlxRuntime(default_chat_template=Switch.ON),
    vllm=VllmRuntime(enforce_eager=Switch.ON, tool_call_parser="hermes", reasoning_parser="qwen3"),
)


def adapter(engine: EngineName) -> Adapter:
    (found,) = (each for each in DESCRIPTIONS if each.engine is engine)
    return Adapter(found, httpx.AsyncClient(trust_env=False))


def render(engine: EngineName, *, program: EngineProgram | None = None, **spec: Any) -> Launch:
    costs = (Costs(kv_cache_bytes=3 * 2**30, host_cache_bytes=2**20, floor_bytes=PROCESS_BYTES),)
    fields: dict[str, Any] = {"engine": engine, "options": OPTIONS, "members": (Member(node="a", costs=costs),)}
    instance = builders.instance(**(fields | spec))
    return adapter(engine).render(program or PROGRAMS[engine], instance, Path("/blobs/w"), Path("/state/m"), 40001, KEY)


def text_of(launch: Launch) -> str:
    environment = "".join(f"{name}={value}\n" for name, value in sorted(launch.environment.items()))
    return "\n".join(launch.argv) + "\n\n" + environment


@pytest.mark.parametrize("engine", list(EngineName))
@pytest.mark.parametrize("runtime", [Runtime(), EVERYTHING], ids=["plain", "every-option"])
def test_command_lines_are_as_recorded(golden: Golden, engine: EngineName, runtime: Runtime) -> None:
    name = "plain" if runtime == Runtime() else "every-option"
    golden(f"argv/{engine.value.lower()}-{name}.txt", text_of(render(engine, runtime=runtime)))


@pytest.mark.parametrize(
    ("name", "engine", "spec"),
    [
        ("metal", EngineName.MLX, {"compute": Compute.METAL}),
        ("metal", EngineName.LLAMA_CPP, {"compute": Compute.METAL}),
        ("cuda", EngineName.VLLM, {"compute": Compute.CUDA}),
        ("embedding", EngineName.VLLM, {"task": Task.EMBEDDING}),
        ("embedding", EngineName.LLAMA_SERVER, {"task": Task.EMBEDDING}),
        ("rerank", EngineName.LLAMA_SERVER, {"task": Task.RERANK}),
        (
            "unified",
            EngineName.LLAMA_SERVER,
            {"options": OPTIONS.model_copy(update={"kv_layout": KvLayout.UNIFIED})},
        ),
    ],
)
def test_lanes_and_tasks_are_rendered_as_recorded(
    golden: Golden, name: str, engine: EngineName, spec: dict[str, Any]
) -> None:
    golden(f"argv/{engine.value.lower()}-{name}.txt", text_of(render(engine, **spec)))


@pytest.mark.parametrize(("name", "layers"), [("pipeline", (10, 12, 8)), ("tensor", (0, 0, 0))])
def test_ranks_are_rendered_as_recorded(golden: Golden, name: str, layers: tuple[int, ...]) -> None:
    members = tuple(
        Member(name=str(rank), node=f"n{rank}", role=MemberRole.RANK, costs=(Costs(layers=count),))
        for rank, count in enumerate(layers)
    )
    instance = builders.instance(engine=EngineName.MLX, options=OPTIONS, members=members)
    texts: list[str] = []
    for rank in range(3):
        files = Path("/blobs/w"), Path("/state/m")
        ring = Ring(rank, 42000 + rank, 43000 + rank)
        launch = adapter(EngineName.MLX).render(PROGRAMS[EngineName.MLX], instance, *files, 40001, KEY, ring=ring)
        hosts = dict(launch.files)["ring.json"]
        texts += [text_of(launch), f"ring.json: {hosts}\n\n"]
        # It listens at its own entry, and dials the next one's.
        assert json.loads(hosts)[rank] == [f"127.0.0.1:{42000 + rank}"]
        assert json.loads(hosts)[(rank + 1) % 3] == [f"127.0.0.1:{43000 + rank}"]
    golden(f"argv/mlx-{name}.txt", "".join(texts))


@pytest.mark.parametrize(("slots", "seconds"), [(1, 60), (8, 409)])
def test_a_step_of_a_ring_may_take_as_long_as_all_slots_prompts_need(slots: int, seconds: int) -> None:
    options = OPTIONS.model_copy(update={"slots": slots, "micro_batch_tokens": 512})
    assert step_seconds(builders.instance(engine=EngineName.MLX, options=options)) == seconds


def test_engines_without_ranks_say_so() -> None:
    with pytest.raises(AgentError, match="engine 'LlamaServer' has no ranks"):
        adapter(EngineName.LLAMA_SERVER).render(
            *(PROGRAMS[EngineName.LLAMA_SERVER], builders.instance(), Path("/w"), Path("/m"), 1, KEY),
            ring=Ring(0, 1, 2),
        )


@pytest.mark.parametrize("engine", list(EngineName))
def test_no_key_is_in_a_command_line(engine: EngineName) -> None:
    launch = render(engine)
    assert KEY not in " ".join(launch.argv)
    assert launch.files[0] == ("engine.key", f"{KEY}\n")


def test_vllm_on_a_processor_is_given_the_cache_that_is_stamped_and_no_card() -> None:
    lane = builders.lane(engine=EngineName.VLLM)
    costs = estimate_costs(builders.geometry(), lane, OPTIONS, 0)
    environment = render(EngineName.VLLM, members=(Member(node="a", costs=costs),)).environment
    assert int(environment["VLLM_CPU_KVCACHE_SPACE"]) * 2**30 == costs[0].kv_cache_bytes
    assert (environment["CUDA_VISIBLE_DEVICES"], environment["HIP_VISIBLE_DEVICES"]) == ("", "")
    assert "CUDA_VISIBLE_DEVICES" not in render(EngineName.VLLM, compute=Compute.CUDA).environment


@pytest.mark.parametrize("percent", [85, 100, 150])
def test_a_stamp_that_prices_vllm_as_itself_hides_cards_however_calibrated(percent: int) -> None:
    lane = builders.lane(engine=EngineName.VLLM)
    (formula,) = cost_formulas(builders.geometry(), lane, OPTIONS, 0, percent)
    costs = (formula.costs(OPTIONS.context_tokens),)
    environment = render(EngineName.VLLM, members=(Member(node="a", costs=costs),)).environment
    assert environment["CUDA_VISIBLE_DEVICES"] == ""


def test_vllm_that_was_stamped_before_cards_were_hidden_is_restarted_as_it_ran() -> None:
    costs = (Costs(kv_cache_bytes=3 * 2**30, floor_bytes=48 * 2**20 + 50_000_000),)
    environment = render(EngineName.VLLM, members=(Member(node="a", costs=costs),)).environment
    assert "CUDA_VISIBLE_DEVICES" not in environment
    assert environment["VLLM_CPU_KVCACHE_SPACE"] == "3"


@pytest.mark.parametrize(
    ("version", "is_offered"),
    [
        ("0.11.0", False),
        ("0.11.0+cu129", False),
        ("0.11.0+cpu", True),
        ("0.11.1.dev3+gabc1234.cpu", True),
        (None, True),
    ],
)
def test_a_build_of_vllm_for_cards_is_not_offered(tmp_path: Path, version: str | None, is_offered: bool) -> None:
    """It would be fetched for, and end at its start, node after node: cards are hidden from it, or there is none."""
    programs, packages = tmp_path / "vllm" / "bin", tmp_path / "vllm" / "lib" / "python3.12" / "site-packages"
    programs.mkdir(parents=True)
    packages.mkdir(parents=True)
    path = tmp_path / "bin"
    path.mkdir()
    write_program(programs / "vllm", "exit 0")
    (path / "vllm").symlink_to(programs / "vllm")
    if version is not None:
        (packages / f"vllm-{version}.dist-info").mkdir()
    look = VllmSource({"PATH": str(path)}).observe_lanes(None)
    if is_offered:
        assert [lane.compute for lane in asyncio.run(look)] == [Compute.CPU]
    else:
        with pytest.raises(AgentError, match=re.escape(f"vLLM {version}, a build for cards")):
            asyncio.run(look)


@pytest.mark.parametrize(
    ("said", "version", "is_told"),
    [("0.32.0", "0.32.0", False), ("0.32.0+cpu", "0.32.0+cpu", False), ("0.9.2", "0.9.2", True), ("ok", "", False)],
)
def test_vllm_is_told_not_to_write_prompts_down_where_it_would(
    tmp_path: Path, said: str, version: str, is_told: bool
) -> None:
    """It says its version and nothing else, after what its libraries warn of; later ones have no such option."""
    write_program(tmp_path / "vllm", f"echo 'WARNING 12-01 1.5 of something'; echo '{said}'")
    source = VllmSource({"PATH": f"{tmp_path}:/bin:/usr/bin"})
    program = asyncio.run(source.ensure(None, lambda transfer: None))
    assert program.version == version
    (lane,) = asyncio.run(source.observe_lanes(None))
    assert lane.version == version
    argv = render(EngineName.VLLM, program=program).argv
    assert ("--disable-log-requests" in argv) is is_told


def test_a_given_python_has_its_version_in_its_lane(tmp_path: Path) -> None:
    write_program(tmp_path / "python", "echo 'version: 0.32.2 (mlx 0.30.1, Device(cpu, 0))'")
    source = PythonSource(EngineName.MLX, lambda: None, (Compute.CPU,), {}, is_at_home=False)
    given = EngineOverride(engine=EngineName.MLX, path=str(tmp_path / "python"))
    asyncio.run(source.ensure(given, lambda transfer: None))
    (lane,) = asyncio.run(source.observe_lanes(given))
    assert lane.version.startswith("0.32.2")


def test_memory_that_llama_cpp_lacks_is_no_fault_of_the_file() -> None:
    tail = (
        "ggml_backend_cpu_buffer_type_alloc_buffer: failed to allocate buffer of size 99\n"
        "covey-engine: ArtifactCorrupt: LoadFailed: Failed to load model from file: /m.gguf\n"
    )
    judge = adapter(EngineName.LLAMA_CPP).classify_exit
    assert judge(1, tail)[0] is FailureCause.OUT_OF_MEMORY
    other = judge(1, tail.splitlines()[1])
    assert other[0] is FailureCause.ARTIFACT_CORRUPT


def write_program(path: Path, line: str) -> None:
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o755)


def test_a_cache_type_that_vllm_lacks_is_refused() -> None:
    with pytest.raises(AgentError, match=r"`kvCache\.type` is 'Q4_0'"):
        render(EngineName.VLLM, options=OPTIONS.model_copy(update={"kv_cache_type": KvCacheType.Q4_0}))


def test_a_flag_that_a_build_lacks_is_refused_by_name() -> None:
    instance = builders.instance(runtime=EVERYTHING)
    told = "--numa TYPE\n--mlock\n-fa,  --flash-attn\n--cache-ram N\n--ctx-checkpoints N"
    old = EngineProgram(Path("/old"), {}, "4000", "", features=parse_features(told))
    with pytest.raises(AgentError, match=r"`--cache-reuse`, `--poll`, `--reasoning-format`, `--spec-type`") as raised:
        adapter(EngineName.LLAMA_SERVER).render(old, instance, Path("/w"), Path("/m"), 1, KEY)
    assert raised.value.cause is FailureCause.NO_USABLE_ENGINE


@pytest.mark.parametrize("engine", [EngineName.LLAMA_CPP, EngineName.MLX])
@pytest.mark.parametrize(
    ("status", "tail", "cause", "words"),
    [
        (
            1,
            "covey-engine: ArtifactCorrupt: LoadFailed: ValueError: no such type",
            FailureCause.ARTIFACT_CORRUPT,
            "load",
        ),
        (1, "covey-engine: OutOfMemory: MemoryError: x", FailureCause.OUT_OF_MEMORY, "exited with code 1"),
        (1, "covey-engine: NoUsableEngine: ImportError: x", FailureCause.NO_USABLE_ENGINE, "packages"),
        (1, "covey-engine: Exited: OSError: [Errno 98] Address already in use", FailureCause.PORT_TAKEN, "port"),
        (-9, "", FailureCause.KILLED, "SIGKILL"),
        (-6, "terminate called after throwing an instance of 'std::bad_alloc'", FailureCause.OUT_OF_MEMORY, "SIGABRT"),
    ],
)
def test_last_words_of_our_servers_are_read(
    engine: EngineName, status: int, tail: str, cause: FailureCause, words: str
) -> None:
    found, message = adapter(engine).classify_exit(status, tail)
    assert found is cause
    assert words in message


@pytest.mark.parametrize(
    ("tail", "cause"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", FailureCause.OUT_OF_MEMORY),
        ("ValueError: No available memory for the cache blocks.", FailureCause.OUT_OF_MEMORY),
        ("OSError: [Errno 98] Address already in use", FailureCause.PORT_TAKEN),
        ("safetensors_rust.SafetensorError: header too large", FailureCause.ARTIFACT_CORRUPT),
    ],
)
def test_last_words_of_vllm_are_read(tail: str, cause: FailureCause) -> None:
    assert adapter(EngineName.VLLM).classify_exit(1, tail)[0] is cause


VLLM_PAGE = """\
# HELP vllm:prompt_tokens_total Number of prefill tokens processed.
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{engine="0",model_name="a {strange} name"} 7.0
vllm:prompt_tokens_created{engine="0",model_name="a {strange} name"} 1.7e+09
vllm:generation_tokens_total{engine="0",model_name="a {strange} name"} %s
"""


def test_vllms_counters_move_with_what_it_reads_and_generates() -> None:
    """Names and shape as vLLM's reference of its metrics has them."""
    pages = iter((VLLM_PAGE % "3.0", VLLM_PAGE % "4.0"))

    async def look() -> list[str | None]:
        transport = httpx.MockTransport(lambda request: httpx.Response(200, text=next(pages)))
        async with httpx.AsyncClient(transport=transport) as http:
            return [await Adapter(VLLM, http).observe_progress(1, "key") for _ in range(2)]

    assert asyncio.run(look()) == ["7.0 3.0", "7.0 4.0"]
