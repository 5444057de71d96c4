"""What is generated is in git as it would be generated now."""

import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import yaml
from covey.main import cli
from covey.reference import EXAMPLES, walk_commands
from covey_api.registry import KINDS

ROOT = Path(__file__).resolve().parents[3]
GENERATE = ROOT / "tools" / "generate.py"


def test_generated_files_are_current() -> None:
    for path, text in runpy.run_path(str(GENERATE))["render_files"]().items():
        assert path.read_text(encoding="utf-8") == text, f"{path.relative_to(ROOT)} is stale; run `make verify`"


def test_every_command_has_an_example_that_calls_it() -> None:
    commands = dict(walk_commands(cli))
    assert EXAMPLES.keys() == commands.keys()
    for name, example in EXAMPLES.items():
        assert f"covey {name}" in example


def test_one_crd_for_every_kind_and_no_other() -> None:
    names = {path.name for path in (ROOT / "manifests" / "crds").iterdir()}
    assert names == {f"{kind.PLURAL}.covey.dev.yaml" for kind in KINDS.values()}


def test_generated_yaml_has_no_aliases_and_parses_to_what_was_rendered() -> None:
    for text in runpy.run_path(str(GENERATE))["render_files"]().values():
        if text.startswith("# Generated"):
            assert not any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, Loader=yaml.CSafeLoader))


def test_generating_twice_changes_nothing_and_removes_what_no_kind_makes(tmp_path: Path) -> None:
    script = shutil.copytree(GENERATE.parent, tmp_path / "tools") / GENERATE.name

    def generate() -> dict[str, bytes]:
        subprocess.run([sys.executable, script], check=True, timeout=120)
        return {
            str(path): path.read_bytes() for path in tmp_path.rglob("*") if path.suffix != ".pyc" and path.is_file()
        }

    first = generate()
    stale = [tmp_path / "manifests" / "crds" / "oldkinds.covey.dev.yaml", tmp_path / "docs" / "spec" / "old.md"]
    for path in stale:
        path.write_text("kind: Old\n")
    assert generate() == first
    assert not any(path.exists() for path in stale)
