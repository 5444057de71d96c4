"""The ways to run a wish: each variant on each engine, in the order in which they are preferred, priced once."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import product

from covey_api.companion import CompanionRole
from covey_api.engines import KV_CACHE_TYPES, TASKS, Compute, EngineName, Lane, Task
from covey_api.instance import EngineOptions
from covey_api.model import Geometry, ResolvedArtifact, architecture_for
from covey_api.reasons import ReadyReason, RefusalReason
from covey_api.runtime import Runtime

from covey_planner.choice.builds import is_version_known, needed_features
from covey_planner.choice.expected import brings_forward, order_variants
from covey_planner.choice.window import Span, window_span
from covey_planner.fit.companions import with_companions
from covey_planner.fit.estimate import CostFormula, cost_formulas
from covey_planner.fit.limits import limit_formula
from covey_planner.fit.options import stamp_options
from covey_planner.types import KnownCompanion, NodeView, Pending, VariantView, Wish


@dataclass(frozen=True, slots=True)
class Way:
    """One variant on one engine. `rank`: 0 is preferred."""

    rank: int
    variant: str
    engine: EngineName
    geometry: Geometry
    artifact: ResolvedArtifact
    digest: str
    span: Span
    calibrations: Mapping[tuple[EngineName, Compute], int] = field(
        default_factory=dict[tuple[EngineName, Compute], int]
    )
    companions: tuple[KnownCompanion, ...] = ()
    is_held: bool = True
    """Whether nodes that are offline can get its files."""
    computes: tuple[Compute, ...] = ()
    """Only lanes of these, if any are named."""
    is_off_processor: bool = False
    """Whether it is looked at on accelerators alone: the same on every lane comes later."""
    task: Task = Task.CHAT
    runtime: Runtime = field(default_factory=Runtime)

    def comes_to(self, node: NodeView) -> bool:
        """Whether the node can get its files at all."""
        return self.is_held or not node.is_offline

    @property
    def architecture(self) -> str:
        """The model's kind, as its engine calls it."""
        return architecture_for(self.engine, self.geometry)

    def runs_on(self, lane: Lane) -> bool:
        """Whether the lane has its engine, in a build that can do what is needed, under an agent that starts it with
        all that is loaded beside the model."""
        if lane.engine is not self.engine or (self.is_off_processor and lane.compute is Compute.CPU):
            return False
        if self.computes and lane.compute not in self.computes:
            return False
        if not is_version_known(lane) or (lane.lacks and self.architecture in lane.lacks):
            return False
        if lane.lacks_features and self.missing_features(lane):
            return False
        return not self.companions or all(each.role in lane.companions for each in self.companions)

    def missing_features(self, lane: Lane) -> list[str]:
        """Flags that it needs and that the lane's build is known not to have, sorted."""
        roles = [each.role for each in self.companions]
        needed = needed_features(self.engine, self.task, self.runtime, roles, lane.compute)
        return sorted(needed.intersection(lane.lacks_features))


@dataclass(frozen=True, slots=True)
class Price:
    """What one way takes on one kind of lane."""

    formulas: tuple[CostFormula, ...]
    least: tuple[tuple[str, int], ...]
    """(pool, bytes) at the least window."""
    most: tuple[tuple[str, int], ...]
    """The same at the widest."""


class Question:
    """One wish, prepared for many nodes: its ways, and what each costs on each kind of lane.

    Costs depend on a lane only through compute, pool and whether its build is known: nodes of a kind share them.
    """

    __slots__ = ("_options", "_prices", "blocked", "engines", "unfit", "ways", "wish")

    def __init__(self, wish: Wish) -> None:
        self.wish = wish
        self.ways = list_ways(wish)
        self.unfit = explain_unfit(wish)
        """Why engines of its variants are not asked at all; empty: all are."""
        self.engines = tuple(dict.fromkeys(way.engine for way in self.ways))
        self.blocked = None if self.ways else blocked_reason(wish)
        self._prices: dict[tuple[int, Compute, str, bool, bool], Price] = {}
        self._options: dict[int, EngineOptions] = {}
        """Those that costs depend on, by the way's rank."""

    def price(self, way: Way, lane: Lane) -> Price:
        key = (way.rank, lane.compute, lane.pool, bool(lane.digest), bool(lane.limit_bytes))
        found = self._prices.get(key)
        if found is None:
            options = self._options.get(way.rank)
            if options is None:
                options = self._options[way.rank] = self.options(way, cpu_cores=1, window=way.span.least)
            percent = way.calibrations.get((way.engine, lane.compute), 100)
            formulas = cost_formulas(way.geometry, lane, options, self.wish.workspace_bytes, percent)
            if way.companions:
                beside = [(each.role, each.geometry) for each in way.companions]
                formulas = with_companions(formulas, beside, lane, options, percent)
            if lane.limit_bytes:
                formulas = (*formulas, limit_formula(lane, formulas[0], way.geometry.token_embedding_bytes))
            least = tuple((formula.pool, formula.total_bytes(way.span.least)) for formula in formulas)
            most = tuple((formula.pool, formula.total_bytes(way.span.most)) for formula in formulas)
            found = self._prices[key] = Price(formulas, least, most)
        return found

    def options(self, way: Way, *, cpu_cores: int, window: int) -> EngineOptions:
        return stamp_options(
            way.geometry,
            cpu_cores=cpu_cores,
            context_tokens=window,
            slots=slots_of(way.engine, self.wish.slots),
            kv_cache_type=self.wish.kv_cache_type,
            has_projector=any(each.role is CompanionRole.PROJECTOR for each in way.companions),
        )


def slots_of(engine: EngineName, wished: int) -> int:
    """Sequences that an engine runs at a time: llama-cpp-python's context has one."""
    return 1 if engine is EngineName.LLAMA_CPP else wished


def list_ways(wish: Wish) -> tuple[Way, ...]:
    """Preferred first: the Placement's engines in their order, each with the variants in theirs; without any, the
    variants in the order of `choice.expected`, each with its own engines. Variants without a known header are left
    out.

    What many requests bring to the front is no author's word, so it puts no processor before an accelerator.
    """
    variants = order_variants(wish)
    if wish.engines:
        pairs = [(variant, engine) for engine in wish.engines for variant in variants if engine in variant.engines]
    else:
        pairs = [(variant, engine) for variant in variants for engine in variant.engines]
    ways: list[Way] = []
    passes = (True, False) if brings_forward(wish) else (False,)
    for is_off_processor, (variant, engine) in product(passes, pairs):
        beside = variant.known_companions()
        if find_unfit(wish, engine) or variant.geometry is None or variant.artifact is None or beside is None:
            continue
        span = window_span(wish, variant.geometry)
        digest = variant.artifact.digest
        ways.append(
            Way(
                rank=len(ways),
                variant=variant.name,
                engine=engine,
                geometry=variant.geometry,
                artifact=variant.artifact,
                digest=digest,
                span=span,
                calibrations=variant.calibrations,
                companions=beside,
                is_held=variant.is_held,
                computes=wish.computes,
                is_off_processor=is_off_processor,
                task=wish.task,
                runtime=variant.runtime,
            )
        )
    return tuple(ways)


def find_unfit(wish: Wish, engine: EngineName) -> str:
    """Why the engine can't do what is wished, on whatever node: known before anything is fetched. Empty: it can."""
    if wish.task not in TASKS[engine]:
        return f"{engine} does {' and '.join(sorted(TASKS[engine]))}, not {wish.task}"
    types = KV_CACHE_TYPES[engine]
    if wish.kv_cache_type not in types:
        return f"{engine} keeps keys and values as {' or '.join(sorted(types))}, not as {wish.kv_cache_type}"
    return ""


def explain_unfit(wish: Wish) -> str:
    engines = sorted({engine for variant in wish.variants for engine in variant.engines})
    chosen = [engine for engine in engines if not wish.engines or engine in wish.engines]
    return "; ".join(words for engine in chosen if (words := find_unfit(wish, engine)))


def pending_geometry(wish: Wish) -> Pending | None:
    """Not None while a variant's header is still being read, or when none could be read.

    A variant that is still being read may be the preferred one, so the choice waits for it. It doesn't for one that no
    node can read, where another is known.
    """
    unread = [variant for variant in wish.variants if not variant.is_known]
    is_known = len(unread) < len(wish.variants)
    waiting = [v.name for v in unread if not v.errors and (v.is_offered or not is_known)]
    if waiting:
        return Pending(ReadyReason.GEOMETRY_PENDING, f"the header of {_quoted(waiting)} is being read")
    if len(unread) == len(wish.variants):
        return Pending(ReadyReason.GEOMETRY_UNAVAILABLE, _errors(unread) or f"model '{wish.model}' has no variant")
    return None


def blocked_reason(wish: Wish) -> tuple[RefusalReason, str]:
    """Why there is no way at all, for the text about each node."""
    pending = pending_geometry(wish)
    if pending is None:
        if unfit := explain_unfit(wish):
            return RefusalReason.NO_USABLE_ENGINE, unfit
        engines = ", ".join(wish.engines)
        return RefusalReason.NO_USABLE_ENGINE, f"no variant of model '{wish.model}' runs on `spec.engines` ({engines})"
    if pending.reason == ReadyReason.GEOMETRY_PENDING:
        return RefusalReason.FACTS_PENDING, pending.message
    return RefusalReason.NO_USABLE_ENGINE, pending.message


def _errors(variants: list[VariantView]) -> str:
    return "; ".join(f"header of variant '{each.name}': {error}" for each in variants for error in each.errors)


def _quoted(names: list[str]) -> str:
    return ("variant " if len(names) == 1 else "variants ") + ", ".join(f"'{name}'" for name in names)
