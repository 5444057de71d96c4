"""Refusals in words: what was needed, what there is, what to do. Bytes come from totals and reservations only."""

from collections.abc import Sequence
from itertools import product

from covey_api.engines import Lane
from covey_api.instance import Costs
from covey_api.reasons import RefusalReason
from covey_api.units import format_bytes

from covey_planner.choice.builds import is_version_known
from covey_planner.choice.nodes import Miss, find_pool
from covey_planner.choice.splits import shared_lanes
from covey_planner.choice.taints import find_untolerated
from covey_planner.choice.ways import Question, Way
from covey_planner.choice.window import Span, Tenant, widest_window
from covey_planner.fit.estimate import CostFormula
from covey_planner.types import Refusal
from covey_planner.words import render_exactly

# How near a refusal is to a fit: the further down the filters, the nearer. Missing bytes decide within the first two.
_NEARNESS = {
    reason: index
    for index, reason in enumerate(
        (
            RefusalReason.CONTEXT_TOO_SMALL,
            RefusalReason.INSUFFICIENT_MEMORY,
            RefusalReason.RECENT_FAILURE,
            RefusalReason.OFFLINE,
            RefusalReason.NO_USABLE_ENGINE,
            RefusalReason.FACTS_PENDING,
            RefusalReason.NODE_UNKNOWN,
            RefusalReason.CORDONED,
            RefusalReason.TAINTED,
            RefusalReason.EXCLUDED,
            RefusalReason.NOT_SELECTED,
        )
    )
}


def nearness(miss: Miss) -> tuple[bool, int, int, str]:
    """The smallest is the closest: the fewest missing bytes; without any, the most filters passed; ties by name."""
    return (not miss.short_bytes, miss.short_bytes, _NEARNESS[miss.reason], miss.node.name)


def explain_miss(question: Question, miss: Miss) -> Refusal:
    return Refusal(miss.node.name, miss.reason, _message(question, miss), miss.short_bytes)


def _message(question: Question, miss: Miss) -> str:
    wish = question.wish
    match miss.reason:
        case RefusalReason.CORDONED:
            return "`spec.unschedulable` of the Node is true"
        case RefusalReason.TAINTED:
            taint = find_untolerated(miss.node.taints, wish.tolerations)
            return f"`spec.taints` of the Node has '{taint}', which `spec.nodes.tolerations` does not tolerate"
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
            return _failed(question, miss)
        case RefusalReason.OFFLINE:
            variants = " or ".join(dict.fromkeys(f"'{way.variant}'" for way in question.ways if not way.is_held))
            return f"`spec.offline` of the Node is true, and no node has the files of variant {variants}"
        case RefusalReason.INSUFFICIENT_MEMORY | RefusalReason.CONTEXT_TOO_SMALL:
            return _memory(question, miss)


def _failed(question: Question, miss: Miss) -> str:
    here = sorted(each for each in question.wish.failed if each.node == miss.node.name)
    lanes = ", ".join(f"{each.engine} in pool '{each.pool}'" if each.pool else each.engine for each in here)
    return f"this revision failed on it with {lanes}; annotate `covey.dev/retry` to try it again"


def _not_selected(question: Question, miss: Miss) -> str:
    wish = question.wish
    if wish.include and miss.node.name not in wish.include:
        return "`spec.nodes.include` does not name it"
    missing = sorted(f"{key}={value}" for key, value in wish.selector.items() if miss.node.labels.get(key) != value)
    return f"`spec.nodes.selector` asks for labels that it lacks: {', '.join(missing)}"


def _no_engine(question: Question, miss: Miss) -> str:
    computes = question.wish.computes
    lanes = [lane for lane in miss.node.lanes if not computes or lane.compute in computes]
    if lacking := _lacking(question, lanes):
        return lacking
    engines = {lane.engine for lane in lanes}
    if way := next((way for way in question.ways if way.engine in engines), None):
        beside = " and a ".join(each.role.lower() for each in way.companions)
        return f"its agent is of a version that starts no {way.engine} with a {beside}; upgrade it"
    more = f" ({question.unfit})" if question.unfit else ""
    offered = sorted(f"{lane.engine}/{lane.compute}" for lane in miss.node.lanes)
    only = f" on {' or '.join(computes)} (`spec.nodes.computes`)" if computes else ""
    return f"it offers {', '.join(offered) or 'no lane'}; the model needs {' or '.join(question.engines)}{only}{more}"


def _lacking(question: Question, lanes: Sequence[Lane]) -> str:
    """What the builds that new Instances would get can't do; empty where it isn't known of any."""
    unknown: dict[str, None] = {}
    lacking: dict[str, None] = {}
    for lane, way in product(lanes, question.ways):
        build = f"{lane.engine} {lane.version}".rstrip()
        if lane.engine is not way.engine:
            continue
        if not is_version_known(lane):
            unknown[f"{build} is pinned, and its agent can install {' or '.join(lane.versions)}"] = None
        elif way.architecture in lane.lacks:
            lacking[f"{build} has no code for architecture '{way.architecture}'"] = None
        elif missing := way.missing_features(lane):
            lacking[f"{build} has no `{'`, `'.join(missing)}`, which variant '{way.variant}' needs"] = None
    parts = (
        [f"{' and '.join(sorted(unknown))}; correct `spec.engines[].version` of the Node or the Fleet"]
        if unknown
        else []
    )
    parts += [f"its {' and '.join(sorted(lacking))}; give it a newer build"] if lacking else []
    return ". ".join(parts)


def _memory(question: Question, miss: Miss) -> str:
    way, lane = miss.way, miss.lane
    if way is None or lane is None or way.span.refusal:
        return way.span.refusal if way else ""
    pool = find_pool(miss.node, miss.pool)
    if pool is None:
        return f"it has no memory pool '{miss.pool}', which {lane.engine}/{lane.compute} fills"
    formulas = question.price(way, lane).formulas
    formula = next(formula for formula in formulas if formula.pool == miss.pool)
    taken = (miss.taken or {}).get(miss.pool, 0)
    free = pool.unreserved_bytes - taken
    costs = formula.costs(way.span.least)
    where = f"what {lane.compute} can fill of pool '{lane.pool}'" if formula.is_limit else f"pool '{pool.name}'"
    text = (
        f"a window of {way.span.least} tokens x {question.wish.slots} slots needs {render_exactly(costs.total_bytes)}"
        f" in {where} ({_parts(costs)}); {render_exactly(max(free, 0))} of"
        f" {render_exactly(pool.total_bytes)} are unreserved ({format_bytes(pool.reserve_bytes)} reserve,"
        f" {format_bytes(pool.reserved_bytes + taken)} reserved): {render_exactly(miss.short_bytes)} short"
    )
    if shared_lanes(miss.node, way):
        text += ", and it does not fit shared among the node's devices"
    if miss.reason is RefusalReason.CONTEXT_TOO_SMALL:
        return f"{text}; {_room(question, way, miss, formulas)}"
    return f"{text}. Lower `spec.concurrency`, choose a smaller variant, or add memory"


def _room(question: Question, way: Way, miss: Miss, formulas: tuple[CostFormula, ...]) -> str:
    """The window that would fit if less were asked for."""
    taken = miss.taken or {}
    free = {pool.name: pool.unreserved_bytes - taken.get(pool.name, 0) for pool in miss.node.pools}
    fits = widest_window((Tenant(Span(0, way.span.most), formulas),), free)
    if not fits:
        return "lower `spec.concurrency` or add memory"
    wish = question.wish
    is_exact = wish.context_tokens is not None and wish.min_context_tokens is None
    field = "`spec.context.tokens`" if is_exact else "`spec.context.minTokens`"
    return f"a window of {fits} tokens would fit. Set {field} to at most that, or lower `spec.concurrency`"


def _parts(costs: Costs) -> str:
    """The parts that aren't zero, in words."""
    parts = (
        ("weights", costs.weights_bytes),
        ("KV cache", costs.kv_cache_bytes),
        ("compute buffers", costs.compute_bytes),
        ("host cache", costs.host_cache_bytes),
        ("checkpoints", costs.checkpoint_bytes),
        ("workspace", costs.workspace_bytes),
        ("engine floor", costs.floor_bytes),
        ("companions", costs.companion_bytes),
    )
    return ", ".join(f"{name} {format_bytes(count)}" for name, count in parts if count)
