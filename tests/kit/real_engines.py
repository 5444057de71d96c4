"""Engines in Python and a model for them, provided once in the tests' shared cache; skipped where they can't be.

`make engines` builds llama-cpp-python, which takes a compiler some minutes; tests never do.
"""

import asyncio
import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path

import pytest
from covey_agent.artifacts.cache import Cache
from covey_agent.artifacts.download import Downloader
from covey_agent.artifacts.index import observe_index_settings
from covey_agent.artifacts.web import Patience, Web
from covey_agent.engines.environments import Environment, Recipe
from covey_agent.engines.recipes import llama_cpp_recipe, mlx_recipe
from covey_agent.ports import Transfer

from kit.cache import shared_cache
from kit.real import provide_real_parts

_CONVERTER = Path(__file__).with_name("gguf_to_mlx.py")


@asynccontextmanager
async def environment_of(recipe: Recipe) -> AsyncGenerator[Environment]:
    """That environment in the shared cache."""
    web = Web(observe_index_settings(os.environ, Path.home()), Patience())
    store = Cache(shared_cache())
    try:
        yield Environment(recipe, web, store, Downloader(web, store))
    finally:
        await web.close()


def ensure(recipe: Recipe) -> Path:
    async def whole() -> Path:
        async with environment_of(recipe) as environment:
            return await environment.ensure(_ignore)

    return asyncio.run(whole())


@cache
def mlx_packages() -> Path:
    recipe = mlx_recipe()
    if recipe is None:
        pytest.skip("there are no wheels of MLX for this machine and Python")
    if sys.platform == "linux" and not any(Path("/usr/lib").glob("*/libopenblas.so.0")):
        pytest.skip("MLX on a processor needs OpenBLAS to be quick enough: apt-get install libopenblas0-pthread")
    return ensure(recipe)


def given_llama_cpp() -> str:
    """A Python that has llama-cpp-python already, where `COVEY_TEST_LLAMA_CPP` names one."""
    return os.environ.get("COVEY_TEST_LLAMA_CPP", "")


@cache
def llama_cpp_packages() -> Path:
    recipe = llama_cpp_recipe()
    if recipe is None:
        pytest.skip("there is no compiler for llama-cpp-python")
    packages = shared_cache() / "envs" / recipe.digest
    if not (packages / "complete").is_file():
        pytest.skip("llama-cpp-python isn't built: `make engines` builds it, once")
    return ensure(recipe)


@cache
def mlx_model(family: str = "llama") -> Path:
    """SmolLM2 as mlx-lm loads it, made from the GGUF file; kept. `ministral3`: in a form that it runs as a pipeline."""
    folder = shared_cache() / "converted" / ("smollm2-mlx-f32" if family == "llama" else f"smollm2-{family}-f32")
    folder.parent.mkdir(exist_ok=True)
    with (folder.parent / "lock").open("w") as lock:  # test workers come at the same time
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            staging = folder.with_suffix(".new")
            shutil.rmtree(staging, ignore_errors=True)
            command = [sys.executable, "-I", "-S", str(_CONVERTER), str(mlx_packages())]
            subprocess.run([*command, str(provide_real_parts().model), str(staging), family], check=True, timeout=300)
            staging.rename(folder)
    return folder


def _ignore(transfer: Transfer) -> None:
    assert transfer.done_bytes >= 0


if __name__ == "__main__":
    found = llama_cpp_recipe()
    if found is not None:
        print(ensure(found))
