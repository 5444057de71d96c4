"""All that Covey is has one version."""

import tomllib
from collections import Counter
from pathlib import Path

import pytest
import version as tool
from version import PARTS, ROOT, apply_version, observe_copies, observe_version


def test_every_copy_of_the_version_is_the_roots() -> None:
    assert {(file, said) for file, said in observe_copies() if said != observe_version()} == set()
    told = Counter(file for file, _ in observe_copies())
    assert told["manifests/chart/Chart.yaml"] == 2
    assert set(told) >= {*(f"{part}/pyproject.toml" for part in PARTS), "manifests/overlays/default/kustomization.yaml"}
    assert told["manifests/base/agent.yaml"]


def test_the_parts_take_each_other_in_this_version_only() -> None:
    projects = [tomllib.loads((ROOT / part / "pyproject.toml").read_text())["project"] for part in PARTS]
    names = {project["name"] for project in projects}
    needed = [each for project in projects for each in project["dependencies"] if each.partition("==")[0] in names]
    assert len(needed) > len(PARTS)
    assert {each.partition("==")[2] for each in needed} == {observe_version()}


def test_a_version_is_written_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for file in {file for file, _ in observe_copies()}:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text((ROOT / file).read_text())
    before = observe_copies()
    monkeypatch.setattr(tool, "ROOT", tmp_path)
    apply_version("7.8.9")
    assert (observe_version(), observe_copies()) == ("7.8.9", [(file, "7.8.9") for file, _ in before])


@pytest.mark.parametrize("version", ["", "1.2", "v1.2.3", "1.2.3-rc.1", "1.2.3rc1"])
def test_a_version_that_helm_or_pip_reads_otherwise_is_refused(version: str) -> None:
    with pytest.raises(ValueError, match="must be three numbers"):
        apply_version(version)
