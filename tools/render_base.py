"""Writes `manifests/base/`, the kustomize base, from the chart: `helm template` with its own values, a file a template.

The kinds are left to `generate.py`, so that a changed type needs no helm. The chart is the one truth; a test holds the
base to it. Helm is needed here, in that test, and by who installs with it, and nowhere else.
Usage: `make manifests`, or `python tools/render_base.py HELM…` with the words that start helm.
"""

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CHART = ROOT / "manifests" / "chart"
BASE = ROOT / "manifests" / "base"
CRDS = "crds.yaml"
HELM_SECONDS = 120
_HEADER = "# Generated from manifests/chart by tools/render_base.py; do not edit: patch it in an overlay.\n"
_SOURCE = re.compile(r"^# Source: covey/templates/(?P<file>\S+)\n", re.MULTILINE)


def render_chart(helm: Sequence[str]) -> str:
    """What `helm template` makes of the chart. ValueError with helm's own words."""
    command = [*helm, "template", "covey", str(CHART)]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=HELM_SECONDS, check=False)
    if answer.returncode:
        raise ValueError(answer.stderr)
    return answer.stdout


def render_base(helm: Sequence[str]) -> dict[Path, str]:
    """Every file of the base and its text, but the kinds."""
    documents: dict[str, list[str]] = {}
    for document in render_chart(helm).split("\n---\n"):
        if found := _SOURCE.search(document):
            documents.setdefault(found["file"], []).append(document[found.end() :].strip() + "\n")
    files = {BASE / name: _HEADER + "---\n".join(parts) for name, parts in sorted(documents.items())}
    del files[BASE / CRDS]
    names = "".join(f"- {name}\n" for name in sorted(documents))
    kustomization = "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources:\n"
    return files | {BASE / "kustomization.yaml": _HEADER + kustomization + names}


def main(helm: list[str]) -> None:
    """Write every file, and remove those that no template makes any more."""
    files = render_base(helm)
    BASE.mkdir(parents=True, exist_ok=True)
    for path, text in files.items():
        path.write_text(text, encoding="utf-8")
    for path in BASE.iterdir():
        if path not in files and path.name != CRDS:
            path.unlink()


if __name__ == "__main__":
    main(sys.argv[1:] or ["helm"])
