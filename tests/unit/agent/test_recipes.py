"""Recipes from the locks: one file for each project that this interpreter can use, and digests that tell them apart."""

import json
from collections.abc import Callable
from dataclasses import replace
from importlib.resources import files

import pytest
from covey_agent.engines.environments import Recipe
from covey_agent.engines.recipes import LLAMA_SERVER, llama_cpp_recipe, mlx_recipe
from packaging.tags import sys_tags
from packaging.utils import parse_wheel_filename


def lock(name: str) -> list[dict[str, object]]:
    text = files("covey_agent.engines").joinpath("locks", f"{name}.json").read_text(encoding="utf-8")
    return json.loads(text)["projects"]


@pytest.mark.parametrize("name", ["mlx", "llama-cpp"])
def test_every_file_of_a_lock_has_a_digest_and_a_size(name: str) -> None:
    for project in lock(name):
        listed = project["files"]
        assert isinstance(listed, list)
        for file in listed:
            assert (len(file["sha256"]), file["sizeBytes"] > 0) == (64, True), project["project"]


@pytest.mark.parametrize("find", [mlx_recipe, llama_cpp_recipe])
def test_the_chosen_files_are_one_of_each_project_and_run_here(find: Callable[[], Recipe | None]) -> None:
    recipe = find()
    if recipe is None:
        pytest.skip("this machine has no such recipe")
    projects = [file.project for file in recipe.files]
    assert len(projects) == len(set(projects))
    usable = set(sys_tags())
    for file in (*recipe.files, *recipe.tools):
        if file.filename.endswith(".whl"):
            assert parse_wheel_filename(file.filename)[3] & usable, file.filename


def test_one_wheel_identifies_itself_and_many_are_told_apart_by_all_that_they_are_made_from() -> None:
    assert LLAMA_SERVER.digest == LLAMA_SERVER.files[0].sha256
    other = replace(LLAMA_SERVER.files[0], sha256="0" * 64)
    many = replace(LLAMA_SERVER, files=(LLAMA_SERVER.files[0], other), python="cp311")
    digests = {
        many.digest,
        replace(many, python="cp312").digest,
        replace(many, settings={"CMAKE_ARGS": "-DX=ON"}).digest,
        replace(many, tools=(other,)).digest,
        LLAMA_SERVER.digest,
    }
    assert len(digests) == 5
