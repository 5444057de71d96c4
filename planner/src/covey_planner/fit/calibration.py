"""What earlier loads took of host memory, beside what was computed: one factor per variant and lane, in percent.

Raised at once, by a single load that took more: the next one would too. Lowered only after some loads that all took
less, and only to the most that one of them took: an engine takes its memory when it is used, so a load that nobody
asked much of proves little. It changes what is stamped on new Instances only; what runs keeps what it was given.

Only what is computed is scaled: a limit (host cache, checkpoints) or a wish (workspace) stays itself, and counts as
unused when it comes to lowering. vLLM's cache is a wish too (`as_learned`). Devices have no such observation, so what
lies in their pools is never scaled.
"""

from dataclasses import dataclass

from covey_api.engines import EngineName
from covey_api.instance import MAX_CALIBRATION_PERCENT, MIN_CALIBRATION_PERCENT, Costs

from covey_planner.fit import vllm

# Loads in a row that must have taken less before the factor falls.
LOADS_TO_LOWER = 5
_FORMULAS = {EngineName.VLLM: 2}


@dataclass(frozen=True, slots=True)
class Calibration:
    """`percent` of what is computed; since it changed, `loads` ended and the most that one took was `most_percent`."""

    percent: int = 100
    loads: int = 0
    most_percent: int = 0


def formula_of(engine: EngineName) -> int:
    """Counts up when an engine's numbers become others: what was learned beside the old ones says nothing then."""
    return _FORMULAS.get(engine, 1)


def as_learned(engine: EngineName, costs: Costs) -> Costs | None:
    """What was stamped, as far as it says something of the formula of now; None: it was stamped by another one.

    vLLM takes as much cache as it is told to, and doesn't start with less than its window needs. Before it had a
    formula of its own it was stamped as llama.cpp, with a process of some dozens of MiB (docs/adr/0049).
    """
    if engine is not EngineName.VLLM:
        return costs
    if costs.floor_bytes * 100 < vllm.PROCESS_BYTES * costs.calibration_percent:
        return None
    wished = costs.workspace_bytes + costs.kv_cache_bytes
    return costs.model_copy(update={"kv_cache_bytes": 0, "workspace_bytes": wished})


def observe_use(known: Calibration, costs: Costs, used_bytes: int) -> Calibration:
    """After a look at a load that may go on: raised if it takes more than is stamped and was known."""
    computed = _computed_bytes(costs)
    limits = costs.total_bytes - _scaled_bytes(costs)
    percent = _percent(used_bytes - limits, computed)
    if used_bytes <= costs.total_bytes or percent <= known.percent:
        return known
    return Calibration(percent)


def observe_end(known: Calibration, costs: Costs, most_bytes: int) -> Calibration:
    """After a load has ended that took at most `most_bytes`: lowered if it was one of enough."""
    known = observe_use(known, costs, most_bytes)
    most = max(known.most_percent, _percent(most_bytes, _computed_bytes(costs)))
    loads = known.loads + 1
    if loads < LOADS_TO_LOWER:
        return Calibration(known.percent, loads, most)
    return Calibration(min(known.percent, most))


def explain_factor(percent: int) -> str:
    """In words: a factor at its upper bound may hide how much more was taken."""
    if percent < MAX_CALIBRATION_PERCENT:
        return f"{percent} %"
    return f"{percent} % or more (no more is counted: raise the Model's `spec.memory.workspace` by what is missing)"


def _scaled_bytes(costs: Costs) -> int:
    own = costs.weights_bytes + costs.kv_cache_bytes + costs.compute_bytes + costs.floor_bytes
    return own + costs.companion_bytes


def _computed_bytes(costs: Costs) -> int:
    """The scaled part before it was scaled."""
    return max(1, _scaled_bytes(costs) * 100 // costs.calibration_percent)


def _percent(part: int, whole: int) -> int:
    return max(MIN_CALIBRATION_PERCENT, min(-(-part * 100 // whole), MAX_CALIBRATION_PERCENT))
