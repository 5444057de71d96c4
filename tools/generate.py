"""Writes everything that is made from the types: the CRDs in `manifests/crds/`, the copies of them in the chart and in
the kustomize base (neither may name a file outside itself), the pages in `docs/spec/`, `docs/reference/cli.md`,
`docs/reference/metrics.md` and Grafana's dashboard.

Run by `make verify`, which fails when the files in git differ. The output depends on nothing but the types.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from covey.reference import render_cli
from covey_api.registry import KINDS
from covey_api.schema import render_crd
from render_dashboard import DASHBOARD, render_dashboard
from render_metrics import PAGE as METRICS
from render_metrics import render_metrics
from render_spec import SPEC, render_pages

ROOT = Path(__file__).resolve().parent.parent
CRDS = ROOT / "manifests" / "crds"
COMMAND = ROOT / "docs" / "reference" / "cli.md"
CHART_CRDS = ROOT / "manifests" / "chart" / "files" / "crds"
BASE_CRDS = ROOT / "manifests" / "base" / "crds.yaml"

_HEADER = "# Generated from crds/src/covey_api by tools/generate.py; do not edit.\n"


def render_yaml(document: Mapping[str, Any]) -> str:
    """One generated YAML file."""
    unshared = json.loads(json.dumps(document))  # equal lists are written out instead of as YAML aliases
    # PyYAML's stubs name an unknown type for `width`.
    text = yaml.safe_dump(unshared, sort_keys=False, width=120, allow_unicode=True)  # pyright: ignore[reportUnknownMemberType]
    return _HEADER + text


def render_files() -> dict[Path, str]:
    """Every generated file and its text."""
    crds = [render_crd(kind) for kind in KINDS.values()]
    texts = {f"{crd['metadata']['name']}.yaml": render_yaml(crd) for crd in crds}
    files = {folder / name: text for folder in (CRDS, CHART_CRDS) for name, text in texts.items()}
    return (
        files
        | {BASE_CRDS: render_base_crds(crds)}
        | render_pages()
        | {COMMAND: render_cli(), METRICS: render_metrics(), DASHBOARD: render_dashboard()}
    )


def render_base_crds(crds: Sequence[Mapping[str, Any]]) -> str:
    """All in one file, as the chart has them: kept by helm and by Argo CD when the rest goes."""
    kept = {"annotations": {"helm.sh/resource-policy": "keep"}}
    return "---\n".join(render_yaml({**crd, "metadata": crd["metadata"] | kept}) for crd in crds)


def main() -> None:
    """Write every generated file and remove CRDs that no kind makes any more."""
    files = render_files()
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    for path in (*CRDS.glob("*.yaml"), *CHART_CRDS.glob("*.yaml"), *SPEC.glob("*.md")):
        if path not in files:
            path.unlink()


if __name__ == "__main__":
    main()
