"""The real llama-server with a model over several files, given the first of them."""

import asyncio
from pathlib import Path

import pytest
from covey_agent.artifacts.cache import Cache
from covey_agent.artifacts.local import LocalFiles
from covey_agent.artifacts.local_set import LocalSets
from covey_api.instance import EngineOptions
from covey_api.model import Geometry
from kit.gguf import Shape, build_set
from kit.loading import Loadable, prompt, running
from kit.real import provide_real_parts

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]


def test_the_engine_finds_the_other_files_beside_the_first(tmp_path: Path) -> None:
    for number, file in enumerate(build_set(Shape(), 3), 1):
        file.write(tmp_path / f"made-up-{number:05}-of-00003.gguf")
    second = str(tmp_path / "made-up-00002-of-00003.gguf")

    async def fetch() -> Path:
        sets = LocalSets(LocalFiles(Cache(tmp_path / "cache")))
        artifact, geometry = await sets.read_header(f"file://{second}", second, "")
        assert isinstance(geometry, Geometry)
        assert geometry.layer_count == 4
        return await sets.fetch(artifact, second, lambda _: None)

    model = Loadable("made up", asyncio.run(fetch()))
    options = EngineOptions(context_tokens=1024, slots=1)
    with running(provide_real_parts().program, model, options, tmp_path) as (_, port):
        prompt(port, model, 10)
