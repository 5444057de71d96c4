"""Stamp and engine agree: what was counted is what the engine is told, to the last option that costs memory."""

from pathlib import Path

from covey_agent.ports import EngineProgram
from covey_api.engines import KvCacheType
from covey_api.instance import EngineOptions
from covey_planner.fit.estimate import cost_formulas
from hypothesis import given
from hypothesis import strategies as st
from kit.builders import geometry
from kit.loading import render
from kit.measured import LANE

PROGRAM = EngineProgram(Path("/engines/llama-server"), {}, "10434", "")


@st.composite
def options(draw: st.DrawFn) -> EngineOptions:
    return EngineOptions(
        context_tokens=draw(st.integers(1, 1 << 20)),
        slots=draw(st.integers(1, 64)),
        kv_cache_type=draw(st.sampled_from(KvCacheType)),
        host_cache_mib=draw(st.integers(0, 1 << 16)),
        context_checkpoints=draw(st.integers(0, 32)),
        repack=draw(st.booleans()),
    )


def value_after(argv: tuple[str, ...], flag: str) -> str:
    assert argv.count(flag) == 1
    return argv[argv.index(flag) + 1]


@given(options())
def test_every_slot_has_the_whole_window_that_is_stamped_and_counted(stamped: EngineOptions) -> None:
    argv = render(PROGRAM, Path("/w.gguf"), stamped, Path("/m"), 4001).argv
    assert int(value_after(argv, "-c")) == stamped.context_tokens * stamped.slots
    assert int(value_after(argv, "-np")) == stamped.slots
    assert "--no-kv-unified" in argv
    (formula,) = cost_formulas(geometry(), LANE, stamped, 0)
    cells = -(-stamped.context_tokens // 256) * 256
    assert formula.kv_cache_bytes(stamped.context_tokens) % (stamped.slots * cells) == 0


@given(options())
def test_nothing_that_costs_memory_is_left_to_the_engine(stamped: EngineOptions) -> None:
    argv = render(PROGRAM, Path("/w.gguf"), stamped, Path("/m"), 4001).argv
    assert value_after(argv, "--cache-ram") == str(stamped.host_cache_mib)
    assert value_after(argv, "--ctx-checkpoints") == str(stamped.context_checkpoints)
    assert value_after(argv, "--fit") == "off"
    assert value_after(argv, "--flash-attn") == "on"
    assert value_after(argv, "-ctk") == value_after(argv, "-ctv") == stamped.kv_cache_type.value.lower()
    assert (value_after(argv, "-b"), value_after(argv, "-ub")) == ("2048", "512")
    assert ("--no-repack" in argv) == (not stamped.repack)
    assert "--no-mmap" in argv
    assert "--no-context-shift" in argv
