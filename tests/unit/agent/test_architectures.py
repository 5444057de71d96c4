"""Kinds of models that a build of an engine has no code for: refused where it is known, told in its lanes, and no
longer once the build is another."""

import asyncio
from pathlib import Path

import pytest
from covey_agent.engines.architectures import find_code, is_lacking
from covey_agent.engines.native import LlamaServerSource
from covey_agent.engines.provision import NodeEngines
from covey_agent.ports import AgentError, EngineProgram, OnTransfer
from covey_api.engines import MAX_LACKS, EngineName, Lane, LaneBuild, LaneState
from covey_api.node import EngineOverride, NodeSpec
from covey_api.reasons import FailureCause
from kit import builders

TABLE = b"\x7fELF\0llama\0rwkv6qwen2\0gemma-embedding\0unknown model architecture: '\0"


def library(folder: Path, content: bytes = TABLE) -> Path:
    (folder / "bin").mkdir(exist_ok=True)
    program = folder / "bin" / "llama-server"
    program.write_bytes(b"\x7fELF")
    (folder / "bin" / "libllama.so").write_bytes(content)
    return program


def packages(folder: Path) -> Path:
    models = folder / "mlx_lm" / "models"
    models.mkdir(parents=True)
    (models / "llama.py").touch()
    (models / "lfm2-vl.py").touch()
    (models / "gemma4_text").mkdir()
    (models.parent / "utils.py").write_text('MODEL_REMAPPING = {\n    "mistral": "llama",\n}\n')
    return folder


@pytest.mark.parametrize(
    ("architecture", "lacks"),
    [("llama", False), ("qwen2", False), ("gemma-embedding", False), ("gemma", True), ("no name", False), ("", False)],
)
def test_llama_cpp_lacks_what_its_library_never_names(tmp_path: Path, architecture: str, lacks: bool) -> None:
    code = find_code(EngineName.LLAMA_SERVER, EngineProgram(library(tmp_path), {}, "1", ""))
    assert code is not None
    assert code == tmp_path / "bin" / "libllama.so"
    assert is_lacking(code, architecture) is lacks


@pytest.mark.parametrize("content", [b"", b"\x7fELF\0llama\0", b"unknown model architecture\0"])
def test_of_a_library_that_is_not_understood_nothing_is_said(tmp_path: Path, content: bytes) -> None:
    code = find_code(EngineName.LLAMA_SERVER, EngineProgram(library(tmp_path, content), {}, "1", ""))
    assert code is not None
    assert not is_lacking(code, "gemma")
    assert not is_lacking(tmp_path / "nowhere", "gemma")


@pytest.mark.parametrize(
    ("model_type", "lacks"),
    [("llama", False), ("mistral", False), ("lfm2-vl", False), ("gemma4_text", False), ("qwen9", True), ("a.b", False)],
)
def test_mlx_lacks_what_is_no_module_of_it_and_in_no_table(tmp_path: Path, model_type: str, lacks: bool) -> None:
    program = EngineProgram(Path("/python"), {}, "1", "d", packages=packages(tmp_path))
    code = find_code(EngineName.MLX, program)
    assert code is not None
    assert is_lacking(code, model_type) is lacks


@pytest.mark.parametrize("engine", [EngineName.VLLM, EngineName.MLX, EngineName.LLAMA_CPP])
def test_nothing_is_known_of_an_engine_somewhere_else(engine: EngineName) -> None:
    assert find_code(engine, EngineProgram(Path("/usr/bin/python3"), {}, "1", "")) is None


class _Source(LlamaServerSource):
    def __init__(self) -> None:
        self.version = "10434"
        self.builds: tuple[LaneBuild, ...] = ()

    async def observe_lanes(self, override: EngineOverride | None) -> tuple[Lane, ...]:
        own = builders.lane(version=self.version, builds=self.builds)
        return (own, own.changed(compute="Vulkan", pool="Gpu"))

    async def ensure(
        self, override: EngineOverride | None, on_transfer: OnTransfer, version: str | None = None
    ) -> EngineProgram:
        raise NotImplementedError


async def _lacks(engines: NodeEngines) -> list[tuple[str, ...]]:
    return [lane.lacks for lane in await engines.observe_lanes(NodeSpec())]


async def _refuse(engines: NodeEngines, program: EngineProgram, architecture: str) -> str:
    with pytest.raises(AgentError) as caught:
        await engines.require_architecture(EngineName.LLAMA_SERVER, program, architecture)
    assert caught.value.cause is FailureCause.NO_USABLE_ENGINE
    return caught.value.message


def test_what_was_refused_is_told_by_every_lane_of_the_build_until_it_is_another(tmp_path: Path) -> None:
    async def story() -> None:
        source, program = _Source(), EngineProgram(library(tmp_path), {}, "10434", "")
        engines = NodeEngines(source)
        await engines.require_architecture(EngineName.LLAMA_SERVER, program, "qwen2")
        assert await _lacks(engines) == [(), ()]
        words = await _refuse(engines, program, "gemma")
        assert words.startswith("LlamaServer 10434 on this node has no code for models of architecture 'gemma'.")
        await _refuse(engines, program, "bert9")
        assert await _lacks(engines) == [("bert9", "gemma")] * 2
        for index in range(MAX_LACKS):
            await _refuse(engines, program, f"x{index:02}")
        told = await _lacks(engines)
        assert [len(each) for each in told] == [MAX_LACKS] * 2
        pinned = tmp_path / "pinned"
        pinned.mkdir()
        await _refuse(engines, EngineProgram(library(pinned), {}, "10092", "d"), "qwen8")
        assert await _lacks(engines) == told, "another build beside it, for Instances that are pinned to it"
        source.builds = (LaneBuild(version="10092", state=LaneState.INSTALLED, digest="d"),)
        assert [each.lacks for lane in await engines.observe_lanes(NodeSpec()) for each in lane.builds] == [
            ("qwen8",)
        ] * 2
        source.version = "10435"
        assert await _lacks(engines) == [(), ()]
        source.version = "10434"
        library(tmp_path, TABLE + b"gemma\0")
        assert await _lacks(engines) == [(), ()], "the same version, built anew"

    asyncio.run(story())
