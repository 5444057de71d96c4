"""What an independent estimator says of models that can't be loaded here, kept as a fixture, beside what ours says.

`tools/estimator_peers.py` asks it and writes both files; the tests hold the estimator against the fixture.
"""

from collections.abc import Sequence
from pathlib import Path

from covey_api.instance import Costs, EngineOptions
from covey_api.model import Geometry
from covey_planner.fit.estimate import estimate_costs
from pydantic import BaseModel, TypeAdapter

from kit.measured import LANE, MIB

ROOT = Path(__file__).parents[2]
FIXTURE = ROOT / "tests" / "unit" / "planner" / "peer_estimates.json"
DOCUMENT = ROOT / "docs" / "reference" / "estimator.md"
TABLE_START = "<!-- table: written by tools/estimator_peers.py -->\n"
TABLE_END = "<!-- end of peers -->\n"
WINDOW = 4096
# A larger difference is explained below the table.
ALIKE = 0.05


class Peer(BaseModel):
    """One model as the other estimator sees it."""

    model: str
    geometry: Geometry
    weights_bytes: int
    kv_cache_bytes: int

    def estimate(self) -> Costs:
        (costs,) = estimate_costs(self.geometry, LANE, EngineOptions(context_tokens=WINDOW, slots=1), 0)
        return costs

    @property
    def weights_ratio(self) -> float:
        """As stored: what an engine adds when it lays matrices out anew is no part of the other's number."""
        return self.geometry.weights_bytes / self.weights_bytes

    @property
    def kv_cache_ratio(self) -> float:
        return self.estimate().kv_cache_bytes / self.kv_cache_bytes if self.kv_cache_bytes else float("inf")


_PEERS = TypeAdapter(tuple[Peer, ...])


def parse_peers(text: str) -> tuple[Peer, ...]:
    return _PEERS.validate_json(text)


def render_peers(peers: Sequence[Peer]) -> str:
    return _PEERS.dump_json(tuple(peers), indent=1, by_alias=True).decode() + "\n"


def render_table(peers: Sequence[Peer]) -> str:
    """Markdown: ours beside theirs, in MiB."""
    rows = ["| model | weights, ours / theirs | ratio | KV cache, ours / theirs | ratio |", "|---|---|---|---|---|"]
    for peer in peers:
        ours = peer.estimate().kv_cache_bytes
        rows.append(
            f"| {peer.model} | {peer.geometry.weights_bytes / MIB:.0f} / {peer.weights_bytes / MIB:.0f} "
            f"| {peer.weights_ratio:.2f} | {ours / MIB:.1f} / {peer.kv_cache_bytes / MIB:.1f} "
            f"| {peer.kv_cache_ratio:.2f} |"
        )
    return "\n".join(rows) + "\n"


def replace_table(document: str, table: str) -> str:
    """The document with its table replaced."""
    before, _, rest = document.partition(TABLE_START)
    _, _, after = rest.partition(TABLE_END)
    return f"{before}{TABLE_START}{table}{TABLE_END}{after}"
