"""One version for all that Covey is: the root's `pyproject.toml` says it, and everything else holds a copy.

A copy is a text in a file that other tools read as it is (wheels without a plugin, helm, kustomize), so it is stamped
and not computed. A test holds that all are equal.
Usage: `version.py` prints it; `version.py VERSION` writes it everywhere but into what is made from these files.
"""

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PARTS = ("crds", "planner", "fleet-client", "controller", "node-agent", "gateway", "simulator", "cli")
# PEP 440's and SemVer's common ground: helm takes no other, and to pip `1.2.3-rc.1` is another text.
_VERSION = re.compile(r"\d+\.\d+\.\d+")
_OWN = re.compile(r'^(?P<before>version = ")(?P<version>[^"]+)(?=")', re.MULTILINE)
_PINNED = re.compile(r'(?P<before>"covey(?:-[a-z-]+)?(?:\[[a-z,]+\])?==)(?P<version>[^"]+)(?=")')
_CHART = re.compile(r"^(?P<before>(?:version|appVersion): )(?P<version>\S+)", re.MULTILINE)
_TAG = re.compile(r"^(?P<before>  newTag: )(?P<version>\S+)", re.MULTILINE)
_IMAGE = re.compile(r"(?P<before>image: covey:)(?P<version>\S+)")


def observe_version() -> str:
    """What the root says."""
    return str(tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"])


def observe_copies() -> list[tuple[str, str]]:
    """Every file that says a version of Covey's, with each that it says."""
    return [
        (str(path.relative_to(ROOT)), found["version"])
        for path, pattern in _places()
        for found in pattern.finditer(path.read_text(encoding="utf-8"))
    ]


def check_version(version: str) -> None:
    """ValueError if helm or pip would not take it."""
    if not _VERSION.fullmatch(version):
        raise ValueError(f"a version must be three numbers, such as '0.2.0'; got '{version}'")


def apply_version(version: str) -> None:
    """Write it into every file. ValueError if helm or pip would not take it."""
    check_version(version)
    for path, pattern in _places():
        text = path.read_text(encoding="utf-8")
        path.write_text(pattern.sub(rf"\g<before>{version}", text), encoding="utf-8")


def _places() -> Iterator[tuple[Path, re.Pattern[str]]]:
    yield ROOT / "pyproject.toml", _OWN
    for part in PARTS:
        yield ROOT / part / "pyproject.toml", _OWN
        yield ROOT / part / "pyproject.toml", _PINNED
    yield ROOT / "manifests" / "chart" / "Chart.yaml", _CHART
    yield ROOT / "manifests" / "overlays" / "default" / "kustomization.yaml", _TAG
    for path in sorted((ROOT / "manifests" / "base").glob("*.yaml")):
        yield path, _IMAGE


def main(arguments: list[str]) -> int:
    if not arguments:
        print(observe_version())
        return 0
    try:
        apply_version(arguments[0])
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
