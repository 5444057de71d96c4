"""The CRD of a Placement as it is written: it has every feature that a CRD of ours can have."""

import runpy
from pathlib import Path

from conftest import Golden
from covey_api.placement import Placement
from covey_api.schema import render_crd

GENERATE = Path(__file__).resolve().parents[2] / "tools" / "generate.py"


def test_crd_of_placement(golden: Golden) -> None:
    golden("placements.covey.dev.yaml", runpy.run_path(str(GENERATE))["render_yaml"](render_crd(Placement)))
