"""What a model needs, from its header alone: per lane, per pool, in bytes, and the largest window that a memory allows.

The numbers are the estimator's, so what `covey fit` says is what the planner will reserve: with the Model's workspace
and what earlier loads took, where a Model of a fleet is asked about. Lanes are kinds of machine, not of a fleet: a
processor, an accelerator with memory of its own, one that shares the machine's. What an engine can't do is told by the
planner's own tables.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from covey_api.engines import HOST_POOL, Compute, EngineName, KvCacheType, Lane, LaneState, Task
from covey_api.instance import Costs, EngineOptions
from covey_api.model import Geometry
from covey_api.units import format_bytes

from covey_planner.choice.ways import find_unfit, slots_of
from covey_planner.choice.window import Tenant, fits_together, widest_window, window_span
from covey_planner.fit.companions import draft_formulas, projector_formulas
from covey_planner.fit.estimate import CostFormula, cost_formulas
from covey_planner.fit.options import stamp_options
from covey_planner.types import Wish

DEVICE_POOL = "Device"
# A managed build: its digest is known to the estimator as one that keeps few rows of logits.
_MANAGED = "0" * 64
_PROCESSOR = ("a processor", Compute.CPU, HOST_POOL)
_APPLE = ("Apple Silicon", Compute.METAL, HOST_POOL)
_LANES = {
    EngineName.LLAMA_SERVER: (
        _PROCESSOR,
        ("an accelerator with its own memory", Compute.CUDA, DEVICE_POOL),
        _APPLE,
    ),
    EngineName.LLAMA_CPP: (_PROCESSOR, _APPLE),
    EngineName.MLX: (_APPLE,),
    EngineName.VLLM: (_PROCESSOR,),
}


@dataclass(frozen=True, slots=True)
class FitQuestion:
    """What is asked about one artifact."""

    name: str
    geometry: Geometry
    context_tokens: int | None
    """Window of one slot; None: the model's own."""
    slots: int
    kv_cache_type: KvCacheType
    memory_bytes: Mapping[str, int]
    """By pool (`Host`, `Device`): what an engine may take there. A pool that isn't named has no ceiling."""
    draft: Geometry | None = None
    """A smaller model that drafts for it, in the same engine."""
    projector: Geometry | None = None
    """What makes tokens of images for it, in the same engine."""
    engines: tuple[EngineName, ...] = (EngineName.LLAMA_SERVER,)
    """Of its variant; of a file or folder the one that runs such."""
    model_context_tokens: int | None = None
    """The Model's cap."""
    workspace_bytes: int = 0
    calibrations: Mapping[tuple[EngineName, Compute], int] = field(
        default_factory=dict[tuple[EngineName, Compute], int]
    )
    """What earlier loads took, of each hundred that are computed."""
    task: Task = Task.CHAT
    metal_bytes: int | None = None
    """Of the host's memory on Apple Silicon, where more is left; None: as `memory_bytes` says."""


@dataclass(frozen=True, slots=True)
class LaneFit:
    """One kind of machine. `ceiling_tokens` is None where no memory was given, 0 where nothing fits."""

    engine: EngineName
    words: str
    compute: Compute
    slots: int
    costs: tuple[Costs, ...]
    draft_costs: tuple[Costs, ...]
    projector_costs: tuple[Costs, ...]
    ceiling_tokens: int | None


def fit_lanes(question: FitQuestion) -> tuple[LaneFit, ...]:
    """The answer for each engine on each kind of machine that it runs on."""
    return tuple(
        _fit_lane(question, engine, *kind)
        for engine in question.engines
        if not _left_out(question, engine)
        for kind in _LANES[engine]
    )


def _left_out(question: FitQuestion, engine: EngineName) -> str:
    """Why an engine has no lane here; empty if it has."""
    if unfit := find_unfit(_any_window(question), engine):
        return unfit
    if (question.draft or question.projector) and engine is not EngineName.LLAMA_SERVER:
        return "it loads no draft model and no projector, so none of it runs there"
    return ""


def render_fit(question: FitQuestion) -> str:
    """The text of `covey fit`."""
    return "\n".join(_lines(question)) + "\n"


def fit_data(question: FitQuestion) -> dict[str, Any]:
    """The same as data, JSON-ready."""
    geometry = question.geometry
    return {
        "source": question.name,
        "architecture": geometry.architecture,
        "parameters": geometry.parameter_count,
        "modelContextTokens": geometry.context_tokens,
        "contextTokens": _window(question),
        "slots": question.slots,
        "kvCacheType": question.kv_cache_type.value,
        "weightsBytes": geometry.weights_bytes,
        "kvCacheBytes": _kv_cache_bytes(question),
        "lanes": [
            {
                "engine": lane.engine.value,
                "compute": lane.compute.value,
                "slots": lane.slots,
                "ceilingTokens": lane.ceiling_tokens,
                "pools": _pools_data(lane.costs),
                "draftPools": _pools_data(lane.draft_costs),
                "projectorPools": _pools_data(lane.projector_costs),
            }
            for lane in fit_lanes(question)
        ],
    }


def _pools_data(costs: tuple[Costs, ...]) -> list[dict[str, Any]]:
    return [each.to_wire() | {"totalBytes": each.total_bytes} for each in costs]


def _kv_cache_bytes(question: FitQuestion) -> int:
    """Of all slots, with what recurrent layers keep, by the first engine that runs it: each keeps them its own way."""
    engine = next((each for each in question.engines if not _left_out(question, each)), question.engines[0])
    _, compute, pool = _LANES[engine][0]
    lane = Lane(engine=engine, compute=compute, state=LaneState.INSTALLABLE, digest=_MANAGED, pool=pool)
    options = _options(question, engine)
    formula, *_ = cost_formulas(question.geometry, lane, options, 0)
    return formula.kv_cache_bytes(options.context_tokens)


def _options(question: FitQuestion, engine: EngineName = EngineName.LLAMA_SERVER) -> EngineOptions:
    return stamp_options(
        question.geometry,
        cpu_cores=1,
        context_tokens=_window(question),
        slots=slots_of(engine, question.slots),
        kv_cache_type=question.kv_cache_type,
        has_projector=question.projector is not None,
    )


def _window(question: FitQuestion) -> int:
    return question.context_tokens or own_window(question)


def own_window(question: FitQuestion) -> int:
    """The model's own, or the Model's cap below it."""
    own, cap = question.geometry.context_tokens, question.model_context_tokens
    return min(own, cap) if cap else own


def _fit_lane(question: FitQuestion, engine: EngineName, words: str, compute: Compute, pool: str) -> LaneFit:
    lane = Lane(engine=engine, compute=compute, state=LaneState.INSTALLABLE, digest=_MANAGED, pool=pool)
    options = _options(question, engine)
    percent = question.calibrations.get((engine, compute), 100)
    formulas = cost_formulas(question.geometry, lane, options, question.workspace_bytes, percent)
    drafts, projectors = (
        tuple(each.calibrated(percent if each.pool == HOST_POOL else 100) for each in some)
        for some in (
            draft_formulas(question.draft, lane, options) if question.draft else (),
            projector_formulas(question.projector, lane, options) if question.projector else (),
        )
    )
    costs, draft_costs, projector_costs = (
        tuple(each.costs(options.context_tokens) for each in some) for some in (formulas, drafts, projectors)
    )
    ceiling = _ceiling_tokens(question, compute, (*formulas, *drafts, *projectors))
    return LaneFit(engine, words, compute, options.slots, costs, draft_costs, projector_costs, ceiling)


def _memory_bytes(question: FitQuestion, compute: Compute) -> Mapping[str, int]:
    if compute is not Compute.METAL or question.metal_bytes is None:
        return question.memory_bytes
    return {**question.memory_bytes, HOST_POOL: question.metal_bytes}


def _ceiling_tokens(question: FitQuestion, compute: Compute, formulas: tuple[CostFormula, ...]) -> int | None:
    memory = _memory_bytes(question, compute)
    if not {formula.pool for formula in formulas} <= memory.keys():
        return None
    tenant = Tenant(window_span(_any_window(question), question.geometry), formulas)
    fits = fits_together([tenant], memory, tenant.span.least)
    return widest_window([tenant], memory) if fits else 0


def _any_window(question: FitQuestion) -> Wish:
    """The wish of somebody who asks for nothing but the model: the same bounds as a Placement without a context."""
    return Wish(
        placement="",
        model=question.name,
        variants=(),
        engines=(),
        selector={},
        include=frozenset(),
        exclude=frozenset(),
        failed=frozenset(),
        context_tokens=None,
        min_context_tokens=None,
        model_context_tokens=question.model_context_tokens,
        slots=question.slots,
        kv_cache_type=question.kv_cache_type,
        workspace_bytes=0,
        task=question.task,
    )


def _lines(question: FitQuestion) -> Iterator[str]:
    geometry = question.geometry
    yield (
        f"{question.name}: {geometry.architecture}, {_count(geometry.parameter_count)} parameters, "
        f"own window {geometry.context_tokens} tokens"
    )
    yield f"window {_window(question)} tokens x {question.slots} slots, KV cache {question.kv_cache_type}"
    for engine in question.engines:
        if why := _left_out(question, engine):
            weights, cache = format_bytes(geometry.weights_bytes), format_bytes(_kv_cache_bytes(question))
            yield f"{engine}: {why}; weights {weights} as stored, KV cache {cache}"
    for lane in fit_lanes(question):
        yield ""
        one = ", one sequence at a time" if lane.slots < question.slots else ""
        yield f"{lane.engine} on {lane.words} ({lane.compute}){one}:"
        rows = [("pool", costs) for costs in lane.costs]
        rows += [("draft in", costs) for costs in lane.draft_costs]
        rows += [("projector in", costs) for costs in lane.projector_costs]
        for words, costs in rows:
            yield (
                f"  {words} {costs.pool:<7} {format_bytes(costs.total_bytes):>10}  = weights "
                f"{format_bytes(costs.weights_bytes)} + KV cache {format_bytes(costs.kv_cache_bytes)} + compute "
                f"{format_bytes(costs.compute_bytes)} + {_rest(costs)}"
            )
        yield f"  {_ceiling(question, lane)}"


def _rest(costs: Costs) -> str:
    extra = costs.host_cache_bytes + costs.checkpoint_bytes
    caches = f"prompt caches {format_bytes(extra)} + " if extra else ""
    workspace = f"workspace {format_bytes(costs.workspace_bytes)} + " if costs.workspace_bytes else ""
    scaled = f", at {costs.calibration_percent} % of what is computed, by what earlier loads took"
    return f"{caches}{workspace}engine {format_bytes(costs.floor_bytes)}" + (
        scaled if costs.calibration_percent != 100 else ""
    )


def _ceiling(question: FitQuestion, lane: LaneFit) -> str:
    pools = sorted({costs.pool for costs in lane.costs})
    if lane.ceiling_tokens is None:
        missing = " and ".join(pool for pool in pools if pool not in question.memory_bytes)
        return f"largest window: not asked (how much memory pool {missing} has was not said)"
    memory = _memory_bytes(question, lane.compute)
    given = ", ".join(f"{format_bytes(memory[pool])} of pool {pool}" for pool in pools)
    if not lane.ceiling_tokens:
        return f"does not fit into {given}, not even with the smallest window"
    own = " (the model's own)" if lane.ceiling_tokens >= question.geometry.context_tokens else ""
    if question.model_context_tokens and lane.ceiling_tokens == own_window(question):
        own = own or " (the Model's cap)"
    return f"largest window in {given}: {lane.ceiling_tokens} tokens{own}"


def _count(parameters: int) -> str:
    for size, unit in ((10**12, "T"), (10**9, "B"), (10**6, "M")):
        if parameters >= size:
            return f"{parameters / size:.1f} {unit}"
    return str(parameters)
