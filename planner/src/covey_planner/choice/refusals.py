"""Refusals in words: what was needed, what there is, what to do. Bytes come from totals and reservations only."""

from collections.abc import Sequence

from covey_api.instance import Costs
from covey_api.reasons import RefusalReason
from covey_api.units import format_bytes

from covey_planner.choice.nodes import Miss, find_pool
from covey_planner.choice.ways import Question, Way
from covey_planner.choice.window import Span, Tenant, widest_window
from covey_planner.types import Refusal

# How near a refusal is to a fit: the further down the filters, the nearer. Missing bytes decide within the first two.
_NEARNESS = {
    reason: index
    for index, reason in enumerate(
        (
            RefusalReason.CONTEXT_TOO_SMALL,
            RefusalReason.INSUFFICIENT_MEMORY,
            RefusalReason.RECENT_FAILURE,
            RefusalReason.NO_USABLE_ENGINE,
            RefusalReason.FACTS_PENDING,
            RefusalReason.NODE_UNKNOWN,
            RefusalReason.CORDONED,
            RefusalReason.EXCLUDED,
            RefusalReason.NOT_SELECTED,
        )
    )
}


def count_reasons(misses: Sequence[Miss]) -> tuple[tuple[RefusalReason, int], ...]:
    counts: dict[RefusalReason, int] = {}
    for miss in misses:
        counts[miss.reason] = counts.get(miss.reason, 0) + 1
    return tuple(sorted(counts.items()))


def closest_miss(misses: Sequence[Miss]) -> Miss | None:
    """The fewest missing bytes; without any, the one that passed the most filters; ties by name."""
    return min(
        misses,
        key=lambda miss: (not miss.short_bytes, miss.short_bytes, _NEARNESS[miss.reason], miss.node.name),
        default=None,
    )


def explain_miss(question: Question, miss: Miss) -> Refusal:
    return Refusal(miss.node.name, miss.reason, _message(question, miss), miss.short_bytes)


def _message(question: Question, miss: Miss) -> str:
    wish = question.wish
    match miss.reason:
        case RefusalReason.CORDONED:
            return "`spec.unschedulable` of the Node is true"
        case RefusalReason.EXCLUDED:
            return "`spec.nodes.exclude` names it"
        case RefusalReason.NOT_SELECTED:
            return _not_selected(question, miss)
        case RefusalReason.NODE_UNKNOWN:
            return "it is silent"
        case RefusalReason.FACTS_PENDING:
            return question.blocked[1] if question.blocked else "it has not reported its facts yet"
        case RefusalReason.NO_USABLE_ENGINE:
            return question.blocked[1] if question.blocked else _no_engine(question, miss)
        case RefusalReason.RECENT_FAILURE:
            engines = sorted(engine for node, engine in wish.failed if node == miss.node.name)
            return f"this revision failed on it with {', '.join(engines)}; annotate `covey.dev/retry` to try it again"
        case RefusalReason.INSUFFICIENT_MEMORY | RefusalReason.CONTEXT_TOO_SMALL:
            return _memory(question, miss)


def _not_selected(question: Question, miss: Miss) -> str:
    wish = question.wish
    if wish.include and miss.node.name not in wish.include:
        return "`spec.nodes.include` does not name it"
    missing = sorted(f"{key}={value}" for key, value in wish.selector.items() if miss.node.labels.get(key) != value)
    return f"`spec.nodes.selector` asks for labels that it lacks: {', '.join(missing)}"


def _no_engine(question: Question, miss: Miss) -> str:
    offered = sorted(f"{lane.engine}/{lane.compute}" for lane in miss.node.lanes)
    return f"it offers {', '.join(offered) or 'no lane'}; the model needs {' or '.join(question.engines)}"


def _memory(question: Question, miss: Miss) -> str:
    way, lane = miss.way, miss.lane
    if way is None or lane is None or way.span.refusal:
        return way.span.refusal if way else ""
    formula, needed = question.price(way, lane)
    pool = find_pool(miss.node, lane.pool)
    if pool is None:
        return f"it has no memory pool '{lane.pool}' for {lane.engine}/{lane.compute}"
    taken = (miss.taken or {}).get(lane.pool, 0)
    free = pool.unreserved_bytes - taken
    parts = describe_costs(formula.costs(way.span.least, lane.pool))
    text = (
        f"a window of {way.span.least} tokens x {question.wish.slots} slots needs {_exactly(needed)}"
        f" in pool '{pool.name}' ({parts}); {_exactly(max(free, 0))} of {_exactly(pool.total_bytes)} are unreserved"
        f" ({format_bytes(pool.reserve_bytes)} reserve, {format_bytes(pool.reserved_bytes + taken)} reserved):"
        f" {_exactly(miss.short_bytes)} short"
    )
    if miss.reason is RefusalReason.CONTEXT_TOO_SMALL:
        return f"{text}; {_room(question, way, Tenant(way.span, formula, lane.pool), free)}"
    return f"{text}. Lower `spec.concurrency`, choose a smaller variant, or add memory"


def _room(question: Question, way: Way, tenant: Tenant, free: int) -> str:
    """The window that would fit if less were asked for."""
    loose = Tenant(Span(0, way.span.most), tenant.formula, tenant.pool)
    fits = widest_window((loose,), {tenant.pool: free})
    wish = question.wish
    field = "`spec.context.tokens`" if wish.context_tokens is not None else "`spec.context.minTokens`"
    return f"a window of {fits} tokens would fit. Set {field} to at most that, or lower `spec.concurrency`"


def describe_costs(costs: Costs) -> str:
    """The parts that aren't zero, in words."""
    parts = (
        ("weights", costs.weights_bytes),
        ("KV cache", costs.kv_cache_bytes),
        ("compute buffers", costs.compute_bytes),
        ("host cache", costs.host_cache_bytes),
        ("checkpoints", costs.checkpoint_bytes),
        ("workspace", costs.workspace_bytes),
        ("engine", costs.floor_bytes),
    )
    return ", ".join(f"{name} {format_bytes(count)}" for name, count in parts if count)


def _exactly(count: int) -> str:
    return f"{format_bytes(count)} ({count} bytes)"
