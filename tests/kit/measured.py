"""What the real engine reported of its memory, kept as a fixture, beside what the estimator says of the same load.

`tools/estimator_table.py` measures and writes both files; the tests hold the estimator against the fixture.
"""

from collections.abc import Sequence
from pathlib import Path

from covey_api.companion import CompanionRole
from covey_api.engines import Compute, EngineName, Lane, LaneState
from covey_api.instance import Costs, EngineOptions
from covey_api.model import Geometry
from covey_planner.fit.companions import with_companions
from covey_planner.fit.estimate import cost_formulas
from pydantic import BaseModel, TypeAdapter

ROOT = Path(__file__).parents[2]
FIXTURE = ROOT / "tests" / "unit" / "planner" / "measured_loads.json"
DOCUMENT = ROOT / "docs" / "reference" / "estimator.md"
TABLE_START = "<!-- table: written by tools/estimator_table.py -->\n"
TABLE_END = "<!-- end of table -->\n"
MIB = 2**20

# A lane of the engine build that was measured: one with a digest.
LANE = Lane(
    engine=EngineName.LLAMA_SERVER, compute=Compute.CPU, state=LaneState.INSTALLED, version="10434", digest="0" * 64
)


class Load(BaseModel):
    """One load of the engine. Bytes of buffers are the engine's own words, `peak_bytes` is the kernel's."""

    model: str
    geometry: Geometry
    options: EngineOptions
    weights_bytes: int
    kv_cache_bytes: int
    compute_bytes: int
    peak_bytes: int
    companions: tuple[tuple[CompanionRole, Geometry], ...] = ()
    """Loaded beside it; what the engine printed of them is in the sums above."""

    def estimate(self) -> Costs:
        """Companions' parts are among the model's as far as the engine prints them (not a projector's weights)."""
        plain = cost_formulas(self.geometry, LANE, self.options, 0)
        (formula,) = with_companions(plain, self.companions, LANE, self.options)
        costs = formula.costs(self.options.context_tokens)
        for (role, _), companion in zip(self.companions, formula.companions, strict=True):
            beside = companion.costs(self.options.context_tokens)
            parts = {
                "weights_bytes": beside.weights_bytes if role is CompanionRole.DRAFT else 0,
                "kv_cache_bytes": beside.kv_cache_bytes,
                "compute_bytes": beside.compute_bytes,
            }
            moved = {name: getattr(costs, name) + count for name, count in parts.items()}
            costs = costs.model_copy(update=moved | {"companion_bytes": costs.companion_bytes - sum(parts.values())})
        return costs


_LOADS = TypeAdapter(tuple[Load, ...])


def parse_loads(text: str) -> tuple[Load, ...]:
    return _LOADS.validate_json(text)


def render_loads(loads: Sequence[Load]) -> str:
    return _LOADS.dump_json(tuple(loads), indent=1, by_alias=True).decode() + "\n"


def render_table(loads: Sequence[Load]) -> str:
    """Markdown: estimated over reported for each component, in MiB."""
    rows = [
        "| model | window x slots | KV | micro batch | weights | KV cache | compute | total | peak | total / peak |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for load in loads:
        costs, options = load.estimate(), load.options
        pairs = (
            (costs.weights_bytes, load.weights_bytes),
            (costs.kv_cache_bytes, load.kv_cache_bytes),
            (costs.compute_bytes, load.compute_bytes),
        )
        cells = [f"{estimated / MIB:.1f} / {reported / MIB:.1f}" for estimated, reported in pairs]
        rows.append(
            f"| {load.model} | {options.context_tokens} x {options.slots} | {options.kv_cache_type} "
            f"| {options.micro_batch_tokens} | {' | '.join(cells)} | {costs.total_bytes / MIB:.0f} "
            f"| {load.peak_bytes / MIB:.0f} | {costs.total_bytes / load.peak_bytes:.2f} |"
        )
    return "\n".join(rows) + "\n"


def replace_table(document: str, table: str, start: str = TABLE_START, end: str = TABLE_END) -> str:
    """The document with its table between these lines replaced."""
    before, _, rest = document.partition(start)
    _, _, after = rest.partition(end)
    return before + start + table + end + after
