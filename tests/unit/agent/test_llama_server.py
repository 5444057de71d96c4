"""The adapter of llama-server: its argv from the stamp, and what an engine's end is taken for."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from conftest import Golden
from covey_agent.engines.adapter import Adapter, Description
from covey_agent.engines.donors import find_donor_program, render_donor
from covey_agent.engines.features import WATCHED
from covey_agent.engines.llama_cpp import LLAMA_CPP
from covey_agent.engines.llama_server import LLAMA_SERVER
from covey_agent.engines.mlx import MLX
from covey_agent.engines.vllm import VLLM
from covey_agent.ports import AgentError, EngineProgram, Launch
from covey_api.companion import CompanionRole
from covey_api.engines import Compute, EngineName, KvCacheType, Task
from covey_api.instance import Costs, EngineOptions, Instance, Member, MemberRole, StampedCompanion
from covey_api.reasons import FailureCause
from covey_api.runtime import LlamaServerRuntime, Numa, ReasoningFormat, Runtime, Speculation, Switch
from covey_planner.choice.builds import needed_features
from kit import builders

PROGRAM = EngineProgram(Path("/engines/llama-server"), {"LD_LIBRARY_PATH": "/engines"}, "10434", "")
KEY = "0123456789abcdef"


@pytest.fixture
def adapter() -> Adapter:
    return Adapter(LLAMA_SERVER, httpx.AsyncClient(trust_env=False))


def render(adapter: Adapter, instance: Instance) -> Launch:
    companions = tuple(Path(f"/blobs/{each.role.lower()}.gguf") for each in instance.spec.companions)
    return adapter.render(PROGRAM, instance, Path("/blobs/w.gguf"), Path("/state/m"), 40001, KEY, companions)


def lane(compute: Compute, pool: str) -> Instance:
    member = Member(node="a", costs=(Costs(pool=pool, weights_bytes=100), Costs(pool="Host", floor_bytes=1)))
    return builders.instance(compute=compute, members=(member,))


COMPANIONS = tuple(StampedCompanion(role=role, artifact=builders.artifact()) for role in CompanionRole)


def accompanied(compute: Compute = Compute.CPU, **spec: Any) -> Instance:
    """With a projector and a draft model."""
    options = EngineOptions(context_tokens=2048, slots=2, image_tokens=2048)
    members = lane(compute, "Vulkan1").spec.members if compute is not Compute.CPU else builders.instance().spec.members
    return builders.instance(compute=compute, members=members, options=options, companions=COMPANIONS, **spec)


def shared() -> Instance:
    """Over two devices."""
    costs = (*(Costs(pool=f"CUDA{index}", weights_bytes=50, layers=15) for index in (1, 0)), Costs(floor_bytes=1))
    return builders.instance(compute=Compute.CUDA, members=(Member(node="a", costs=costs),))


OPTIONS = EngineOptions(
    context_tokens=4096,
    slots=3,
    kv_cache_type=KvCacheType.Q8_0,
    batch_tokens=1024,
    micro_batch_tokens=256,
    host_cache_mib=64,
    context_checkpoints=2,
    threads=6,
)


@pytest.mark.parametrize(
    ("name", "instance"),
    [
        ("cpu", builders.instance()),
        ("cpu-every-option", builders.instance(options=OPTIONS)),
        ("cuda", lane(Compute.CUDA, "CUDA0")),
        ("two-devices", shared()),
        ("vulkan", lane(Compute.VULKAN, "Vulkan1")),
        ("metal", lane(Compute.METAL, "Host")),
        ("cpu-companions", accompanied()),
        ("vulkan-companions", accompanied(Compute.VULKAN)),
    ],
)
def test_argv_is_as_recorded(adapter: Adapter, golden: Golden, name: str, instance: Instance) -> None:
    golden(f"argv/llama-server-{name}.txt", "\n".join(render(adapter, instance).argv) + "\n")


def group(compute: Compute, *pools: str) -> Instance:
    """A driver with ten layers, and a donor for each pool with ten more."""
    own = Costs(pool="Host" if compute is Compute.CPU else "CUDA0", weights_bytes=50, layers=10)
    members = [Member(name="0", node="a", role=MemberRole.DRIVER, costs=(own, Costs(floor_bytes=1)))]
    for number, pool in enumerate(pools, 1):
        costs = (Costs(pool=pool, weights_bytes=50, layers=10),)
        members.append(Member(name=str(number), node=f"n{number}", role=MemberRole.DONOR, costs=costs))
    return builders.instance(compute=compute, members=tuple(members))


@pytest.mark.parametrize(
    ("name", "instance"),
    [
        ("cpu-one-donor", group(Compute.CPU, "Host")),
        ("cpu-two-donors", group(Compute.CPU, "Host", "Vulkan0")),
        ("cuda-two-donors", group(Compute.CUDA, "Host", "CUDA1")),
    ],
)
def test_argv_of_a_driver_and_its_donors_is_as_recorded(
    adapter: Adapter, golden: Golden, name: str, instance: Instance
) -> None:
    donors = instance.spec.members[1:]
    ports = tuple(41000 + index for index in range(len(donors)))
    driver = adapter.render(PROGRAM, instance, Path("/blobs/w.gguf"), Path("/state/m"), 40001, KEY, (), ports)
    assert driver.environment["GGML_NO_BACKTRACE"] == "1"
    lines = [*driver.argv, *(word for each in donors for word in ("", *render_donor(PROGRAM, instance, each, 1).argv))]
    golden(f"argv/llama-server-{name}.txt", "\n".join(lines) + "\n")


def test_engines_that_take_no_donors_say_so() -> None:
    adapter = Adapter(MLX, httpx.AsyncClient(trust_env=False))
    with pytest.raises(AgentError, match="engine 'Mlx' takes no donors"):
        adapter.render(PROGRAM, group(Compute.CPU, "Host"), Path("/w"), Path("/m"), 1, KEY, (), (41000,))


def test_a_llama_server_without_the_donors_program_says_how_to_get_one(tmp_path: Path) -> None:
    program = replace(PROGRAM, path=tmp_path / "llama-server")
    with pytest.raises(AgentError, match="GGML_RPC=ON"):
        find_donor_program(program)
    (tmp_path / "rpc-server").touch()
    assert find_donor_program(program).path == tmp_path / "rpc-server"


def test_a_projector_is_on_the_device_of_its_model(adapter: Adapter) -> None:
    assert render(adapter, accompanied(Compute.VULKAN)).environment["MTMD_BACKEND_DEVICE"] == "Vulkan1"
    assert "MTMD_BACKEND_DEVICE" not in render(adapter, accompanied()).environment
    assert "MTMD_BACKEND_DEVICE" not in render(adapter, lane(Compute.VULKAN, "Vulkan1")).environment


RUNTIMES = (
    LlamaServerRuntime(),
    LlamaServerRuntime(numa=Numa.ISOLATE, mlock=Switch.ON, poll_percent=0, cache_reuse_tokens=0),
    LlamaServerRuntime(mlock=Switch.OFF, reasoning_format=ReasoningFormat.NONE),
    LlamaServerRuntime(speculation=Speculation.NGRAM_SIMPLE),
)


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("roles", [(), (CompanionRole.DRAFT,), (CompanionRole.PROJECTOR,), tuple(CompanionRole)])
@pytest.mark.parametrize("compute", [Compute.CPU, Compute.VULKAN])
def test_what_the_planner_looks_for_in_a_build_is_what_is_rendered(
    adapter: Adapter, compute: Compute, roles: tuple[CompanionRole, ...], runtime: LlamaServerRuntime
) -> None:
    assert set(CompanionRole) == {CompanionRole.DRAFT, CompanionRole.PROJECTOR}
    beside = tuple(each for each in COMPANIONS if each.role in roles)
    for task in (Task.CHAT, Task.EMBEDDING, Task.RERANK):
        whole = Runtime(llama_server=runtime)
        instance = accompanied(compute, runtime=whole, task=task)
        spec = instance.spec.model_copy(update={"companions": beside})
        argv = render(adapter, instance.model_copy(update={"spec": spec})).argv
        needed = needed_features(EngineName.LLAMA_SERVER, task, whole, roles, compute)
        assert needed == WATCHED & set(argv)


def test_both_ways_of_guessing_are_told_in_one_argument(adapter: Adapter) -> None:
    runtime = Runtime(llama_server=LlamaServerRuntime(speculation=Speculation.NGRAM_SIMPLE))
    argv = render(adapter, accompanied(runtime=runtime)).argv
    assert argv.count("--spec-type") == 1
    assert argv[argv.index("--spec-type") + 1] == "ngram-simple,draft-simple"


@pytest.mark.parametrize("description", [LLAMA_CPP, MLX, VLLM], ids=lambda each: each.engine)
def test_an_engine_that_loads_no_companions_refuses_them_by_name(description: Description) -> None:
    other = Adapter(description, httpx.AsyncClient(trust_env=False))
    with pytest.raises(AgentError) as refused:
        render(other, accompanied(engine=description.engine))
    assert refused.value.cause is FailureCause.NO_USABLE_ENGINE
    assert f"engine '{description.engine}' can't load a projector and a draft beside a model" in refused.value.message


def test_a_build_without_the_flags_of_a_companion_is_refused_by_name(adapter: Adapter) -> None:
    old = replace(PROGRAM, features=frozenset({"--spec-type", "--model-draft"}))
    with pytest.raises(AgentError, match="has no `--image-max-tokens`, `--mmproj`, `--no-mmproj-offload`"):
        adapter.render(old, accompanied(), Path("/w"), Path("/m"), 1, KEY, (Path("/p"), Path("/d")))


def test_key_is_in_a_file_and_nowhere_else(adapter: Adapter) -> None:
    launch = render(adapter, builders.instance())
    assert KEY not in " ".join(launch.argv)
    assert KEY not in " ".join(launch.environment.values())
    assert launch.files == (("engine.key", f"{KEY}\n"),)
    assert "/state/m/engine.key" in launch.argv


# What the real program printed, shortened.
@pytest.mark.parametrize(
    ("status", "tail", "cause", "words"),
    [
        (-9, "", FailureCause.KILLED, "ended by SIGKILL"),
        (-6, "GGML_ASSERT(x) failed", FailureCause.KILLED, "ended by SIGABRT: GGML_ASSERT(x) failed"),
        (-70, "", FailureCause.KILLED, "ended by signal 70"),
        (3, "listening", FailureCause.EXITED, "exited with code 3"),
        (
            127,
            "llama-server: error while loading shared libraries: libgomp.so.1: cannot open shared object file: No such",
            FailureCause.MISSING_LIBRARY,
            "apt-get install libgomp1",
        ),
        (
            127,
            "llama-server: error while loading shared libraries: libodd.so.3: cannot open shared object file",
            FailureCause.MISSING_LIBRARY,
            "libodd.so.3",
        ),
        (
            -6,
            "dyld[4711]: Library not loaded: @rpath/libggml.0.dylib\n  Referenced from: /opt/homebrew/bin/llama-server",
            FailureCause.MISSING_LIBRARY,
            "`brew reinstall llama.cpp`",
        ),
        (
            1,
            "0.00.004.062 E srv         start: couldn't bind HTTP server socket, hostname: 127.0.0.1, port: 18999\n",
            FailureCause.PORT_TAKEN,
            "another process took the engine's port",
        ),
        (
            0,
            "Starting RPC server v5.0.0\n  transport      : TCP\nFailed to create server socket\n",
            FailureCause.PORT_TAKEN,
            "another process took the engine's port",
        ),
        (
            1,
            "0.00.004.685 E gguf_init_from_reader: invalid magic characters: '???:', expected 'GGUF'\n"
            "0.00.004.690 E llama_model_load: error loading model: failed to load model from /tmp/r.gguf\n",
            FailureCause.ARTIFACT_CORRUPT,
            "invalid magic characters: '???:', expected 'GGUF'",
        ),
        (
            1,
            "0.00.181.464 E ggml_aligned_malloc: insufficient memory (attempted to allocate  95.34 MB)\n"
            "0.00.193.280 E llama_model_load: error loading model: unable to allocate AMX buffer\n",
            FailureCause.OUT_OF_MEMORY,
            "insufficient memory (attempted to allocate  95.34 MB)",
        ),
    ],
)
def test_exit_is_classified(adapter: Adapter, status: int, tail: str, cause: FailureCause, words: str) -> None:
    found, message = adapter.classify_exit(status, tail)
    assert found is cause
    assert words in message


@pytest.mark.parametrize(
    "words",
    [
        "insufficient memory",
        "error while loading shared libraries: libx.so:",
        "error loading model",
        "last read: 'my prompt'",
    ],
)
def test_words_of_a_client_in_the_output_are_no_cause_and_are_not_quoted(adapter: Adapter, words: str) -> None:
    line = f'0.03.025.536 W srv    operator(): got exception: {{"error":{{"code":500,"message":"{words}"}}}}'
    found, message = adapter.classify_exit(-11, f"0.00.001 I main: starting\n{line}\n{line}")
    assert (found, message) == (FailureCause.KILLED, "ended by SIGSEGV")
