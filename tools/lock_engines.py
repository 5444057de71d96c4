"""Writes `node-agent/src/covey_agent/engines/locks/*.json`: which files an engine's environment is made of.

    python tools/lock_engines.py [NAME…]

Versions are resolved once, here, by uv and for every platform at a time; what a node installs is what was resolved, by
digest. For each project the files of its version that run on a platform and Python we build for are listed, from the
index's page. Review the diff as code: it is what runs on nodes.
"""

import asyncio
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import uv
from covey_agent.artifacts.index import observe_index_settings
from covey_agent.artifacts.pages import list_files
from covey_agent.artifacts.web import Patience, Web
from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    canonicalize_name,
    parse_sdist_filename,
    parse_wheel_filename,
)
from packaging.version import InvalidVersion, Version

LOCKS = Path(__file__).resolve().parents[1] / "node-agent" / "src" / "covey_agent" / "engines" / "locks"
# Name: what is wanted, what builds the projects without wheels, and those projects.
WANTED: dict[str, tuple[list[str], list[str], set[str]]] = {
    "mlx": (
        ["mlx-lm==0.32.2", "mlx==0.32.4; sys_platform == 'darwin'", "mlx[cpu]==0.32.4; sys_platform == 'linux'"],
        [],
        set(),
    ),
    "llama-cpp": (
        ["llama-cpp-python==0.3.36"],
        ["scikit-build-core==0.11.6", "cmake==4.1.2", "ninja==1.13.0"],
        {"llama-cpp-python"},
    ),
    # Not an engine: what looks at signatures, in an environment of its own.
    "signatures": (["model-signing==1.1.1", "pyopenssl==26.4.0", "pypi-attestations==0.0.30"], [], set()),
}
_PYTHONS = {"cp311", "cp312", "cp313", "cp314", "py3", "py2.py3"}
_PLATFORMS = re.compile(r"^(any|manylinux\w*_(x86_64|aarch64)|macosx_\w+_(arm64|universal2))$")
_LINE = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;]+)(?:\s*;\s*(.+))?$")

_FILE = re.compile(r'\{\s+"name": (.+),\s+"sha256": (.+),\s+"sizeBytes": (\d+)\s+\}')


def resolve(requirements: list[str]) -> list[tuple[str, str, str]]:
    """(project, version, marker) of everything that they need."""
    if not requirements:
        return []
    command = [uv.find_uv_bin(), "pip", "compile", "--universal", "--python-version", "3.11", "--no-header", "-"]
    flags = ["--no-annotate", "--no-config", "--quiet"]
    done = subprocess.run([*command, *flags], input="\n".join(requirements), capture_output=True, text=True, check=True)
    found = [match.groups(default="") for line in done.stdout.splitlines() if (match := _LINE.match(line))]
    return [(canonicalize_name(name), version, marker) for name, version, marker in found]


def is_for_us(filename: str, version: Version) -> bool:
    """Whether it is a wheel of this version that runs where we do."""
    try:
        _, found, _, tags = parse_wheel_filename(filename)
    except (InvalidWheelFilename, InvalidVersion):
        return False
    return found == version and any(
        (tag.interpreter in _PYTHONS or tag.abi == "abi3")
        and not tag.abi.endswith("t")
        and _PLATFORMS.match(tag.platform)
        for tag in tags
    )


def is_source(filename: str, version: Version) -> bool:
    try:
        return filename.endswith(".tar.gz") and parse_sdist_filename(filename)[1] == version
    except (InvalidSdistFilename, InvalidVersion):
        return False


async def lock(name: str, web: Web) -> dict[str, Any]:
    wanted, build, built = WANTED[name]
    entries: list[dict[str, Any]] = []
    for purpose, requirements in (("run", wanted), ("build", build)):
        for project, version, marker in await asyncio.to_thread(resolve, requirements):
            is_wanted = is_source if project in built else is_for_us
            page = await list_files(web, project)
            files = sorted((f for f in page if is_wanted(f.filename, Version(version))), key=lambda f: f.filename)
            if not files:
                raise SystemExit(f"{project}=={version} has no file for us")
            entries.append(
                {
                    "project": project,
                    "version": version,
                    **({"marker": marker} if marker else {}),
                    **({"purpose": purpose} if purpose != "run" else {}),
                    "files": [{"name": f.filename, "sha256": f.sha256, "sizeBytes": f.size_bytes} for f in files],
                }
            )
    return {"projects": entries}


async def main(names: list[str]) -> None:
    web = Web(observe_index_settings(os.environ, Path.home()), Patience())
    try:
        for name in names or sorted(WANTED):
            text = json.dumps(await lock(name, web), indent=1)
            # One file a line: a diff shows what changed and nothing else.
            text = _FILE.sub(r'{"name": \1, "sha256": \2, "sizeBytes": \3}', text)
            (LOCKS / f"{name}.json").write_text(text + "\n", encoding="utf-8")
    finally:
        await web.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
