"""Measure the real engine's memory and write the fixture and the table that the estimator is held against.

    PYTHONPATH=tests python tools/estimator_table.py [--only WORD]…

Each load starts the engine as the adapter does, runs prompts that fill a micro batch, and reads the engine's own buffer
sizes and the peak of its resident memory. Engine and real models are fetched into the tests' cache; made-up models
(right geometry, weights of zeros) widen the table to architectures that have no small file. One thread, one engine at a
time. With `--only`, loads of models whose name has one of the words are measured and the others kept. With `--python`
only the engines in Python are, which report no parts (`kit.python_loads`).
"""

import argparse
import asyncio
import tempfile
from collections.abc import Generator
from pathlib import Path

from covey_agent.ports import EngineProgram
from covey_api.companion import CompanionRole
from covey_api.engines import KvCacheType
from covey_api.instance import EngineOptions
from covey_planner.fit.options import stamp_options
from kit import python_loads
from kit.gguf import GgufFile, Shape, build_model
from kit.gguf_families import build_deepseek2, build_granite_hybrid, build_lfm2, build_mamba, build_mamba2
from kit.gguf_projectors import build_projector
from kit.loading import Loadable, measure, read_geometry
from kit.measured import DOCUMENT, FIXTURE, Load, parse_loads, render_loads, render_table, replace_table
from kit.real import provide_real_parts
from kit.real_models import MINILM_NAME, QWEN_NAME, provide_minilm, provide_qwen

SMOLLM2_NAME = "SmolLM2-135M-Instruct.Q4_1"
Wish = tuple[int, int, KvCacheType]
F16, Q8_0, Q4_0 = KvCacheType.F16, KvCacheType.Q8_0, KvCacheType.Q4_0
# (window, slots, cache type); the last window of each model is the longest that it was made for.
SMOLLM2: tuple[Wish, ...] = (
    *((512, 1, F16), (512, 8, F16), (1024, 4, F16), (2048, 2, F16), (4096, 1, F16), (8192, 1, F16), (8192, 4, F16)),
    *((1024, 8, Q8_0), (4096, 2, Q8_0), (8192, 1, Q8_0), (2048, 4, Q4_0), (8192, 1, Q4_0)),
)
QWEN: tuple[Wish, ...] = (
    *((512, 1, F16), (2048, 2, F16), (8192, 1, F16), (32_768, 1, F16), (512, 8, Q8_0), (4096, 3, Q8_0)),
    *((32_768, 1, Q8_0), (1024, 4, Q4_0), (8192, 2, Q4_0), (32_768, 1, Q4_0)),
)
MINILM: tuple[Wish, ...] = ((512, 1, F16), (512, 4, F16), (512, 8, F16))
DRAFTED: tuple[Wish, ...] = ((2048, 2, F16), (1024, 4, Q8_0))
SEEING: tuple[Wish, ...] = ((2048, 1, F16), (2048, 2, F16))
SHORT: tuple[Wish, ...] = ((2048, 1, F16), (2048, 4, F16))
# An encoder reads a text in one micro batch, and answers with one vector for all of it.
ENCODER_ARGUMENTS = ("--embeddings", "--pooling", "mean")
MADE_UP = {
    "llama, 1.5 B, Q4_0": Shape(
        layers=16, embedding=2048, feed_forward=8192, heads=32, kv_heads=8, vocabulary=128_256, context=131_072,
        tied=False, type="Q4_0",
    ),
    "qwen2, 0.5 B, Q8_0": Shape(
        "qwen2", layers=24, embedding=896, feed_forward=4864, heads=14, kv_heads=2, vocabulary=151_936,
        context=32_768,
    ),
    "qwen3, 0.3 B, Q6_K": Shape(
        "qwen3", layers=8, embedding=1024, feed_forward=3072, heads=16, kv_heads=8, head_length=128,
        vocabulary=151_936, context=32_768, type="Q6_K",
    ),
    "gemma3, 1 B, Q4_0": Shape(
        "gemma3", layers=26, embedding=1152, feed_forward=6912, heads=4, kv_heads=1, head_length=256,
        vocabulary=262_144, context=32_768, sliding_window=512, type="Q4_0",
    ),
    "qwen3moe, 0.4 B, Q8_0": Shape(
        "qwen3moe", layers=8, embedding=1024, feed_forward=384, heads=16, kv_heads=4, head_length=128,
        vocabulary=32_000, context=32_768, experts=32, experts_used=8, tied=False,
    ),
    "llama, 0.2 B, F16": Shape(
        layers=8, embedding=1024, feed_forward=2816, heads=16, kv_heads=16, vocabulary=32_000, context=32_768,
        tied=False, type="F16",
    ),
}  # fmt: skip

# Siglip's base tower at 512 pixels, as small models that see have it.
PROJECTOR = build_projector(layers=12, embedding=768, feed_forward=3072, heads=12, side=512, patch=16)

FAMILIES: dict[str, GgufFile] = {
    "mamba, 0.05 B, Q8_0": build_mamba(),
    "mamba2, 0.05 B, Q8_0": build_mamba2(),
    "lfm2, 0.1 B, Q8_0": build_lfm2(),
    "granitehybrid, 0.1 B, Q8_0": build_granite_hybrid(),
    "deepseek2, 0.2 B, Q8_0": build_deepseek2(),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", action="append", default=[], help="a word of the models to measure; may be repeated")
    parser.add_argument("--python", action="store_true", help="measure the engines in Python, and no other")
    given = parser.parse_args()
    if given.python:
        measure_python()
        return
    only: list[str] = given.only
    program = provide_real_parts().program
    kept = {(load.model, load.options.model_dump_json()): load for load in parse_loads(FIXTURE.read_text())}
    found: list[Load] = []
    with tempfile.TemporaryDirectory() as folder:
        for model, wishes in list_models(Path(folder)):
            for options in (options_of(wish, model) for wish in wishes):
                known = kept.get((model.name, options.model_dump_json()))
                is_asked = not only or any(word in model.name for word in only)
                load = observe(program, model, options) if is_asked or known is None else known
                found.append(load)
    FIXTURE.write_text(render_loads(found))
    DOCUMENT.write_text(replace_table(DOCUMENT.read_text(), render_table(found)))


def measure_python() -> None:
    loads = [asyncio.run(python_loads.measure(wish)) for wish in python_loads.WISHES]
    python_loads.FIXTURE.write_text(python_loads.render_loads(loads))
    table = python_loads.render_table(loads)
    print(table)
    marks = python_loads.TABLE_START, python_loads.TABLE_END
    DOCUMENT.write_text(replace_table(DOCUMENT.read_text(), table, *marks))


def list_models(folder: Path) -> Generator[tuple[Loadable, tuple[Wish, ...]]]:
    yield Loadable(SMOLLM2_NAME, provide_real_parts().model), SMOLLM2
    yield Loadable(QWEN_NAME, provide_qwen()), QWEN
    smollm2 = provide_real_parts().model
    yield (
        Loadable(f"{SMOLLM2_NAME} and itself as draft", smollm2, companions=((CompanionRole.DRAFT, smollm2),)),
        DRAFTED,
    )
    eyes = PROJECTOR.write(folder / "mmproj.gguf")
    beside = ((CompanionRole.PROJECTOR, eyes),)
    yield Loadable(f"{SMOLLM2_NAME} and a projector of 0.1 B (made up)", smollm2, companions=beside), SEEING
    yield Loadable(MINILM_NAME, provide_minilm(), ENCODER_ARGUMENTS, is_encoder=True), MINILM
    for name, made in ({name: build_model(shape) for name, shape in MADE_UP.items()} | FAMILIES).items():
        path = made.write(folder / "made-up.gguf")
        yield Loadable(f"{name} (made up)", path, full_slots=False), SHORT


def options_of(wish: Wish, model: Loadable) -> EngineOptions:
    window, slots, kind = wish
    stamped = stamp_options(
        read_geometry(model.path),
        cpu_cores=2,
        context_tokens=window,
        slots=slots,
        kv_cache_type=kind,
        has_projector=model.has_projector,
    )
    return stamped.model_copy(update={"batch_tokens": stamped.micro_batch_tokens}) if model.is_encoder else stamped


def observe(program: EngineProgram, model: Loadable, options: EngineOptions) -> Load:
    load = measure(program, model, options)
    print(render_table([load]).splitlines()[-1], flush=True)
    return load


if __name__ == "__main__":
    main()
