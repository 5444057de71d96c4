"""The decision about one Placement in full: what each instance takes of its node, and why not the other nodes.

A pure function of the stamped Instances and the nodes' totals and reservations, so two prints of an unchanged fleet are
the same text. It must not know live readings.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from covey_api.instance import Costs, Instance, InstanceSpec, Member, MemberRole
from covey_api.units import format_bytes

from covey_planner.choice.expected import explain_order, order_variants
from covey_planner.choice.nodes import find_pool
from covey_planner.choice.shapes import Shape
from covey_planner.choice.window import bound_of
from covey_planner.fit.calibration import explain_factor
from covey_planner.text.shape import render_shape, shape_data
from covey_planner.types import Chosen, NodeView, Pending, Pool, Refusal, Wish
from covey_planner.words import render_exactly

_COSTS = (
    ("weights", "weights_bytes"),
    ("KV cache", "kv_cache_bytes"),
    ("compute buffers", "compute_bytes"),
    ("host cache", "host_cache_bytes"),
    ("checkpoints", "checkpoint_bytes"),
    ("workspace", "workspace_bytes"),
    ("engine floor", "floor_bytes"),
)
# Told only where there are any.
_COMPANIONS = ("companions", "companion_bytes")


@dataclass(frozen=True, slots=True)
class WhyPlacement:
    """All that the text is made from."""

    wish: Wish
    replicas: int
    """How many are wished."""
    instances: tuple[Instance, ...]
    """Those that exist, draining ones too."""
    nodes: tuple[NodeView, ...]
    """With the reservations of all Instances, these ones too."""
    results: tuple[Chosen | Refusal, ...]
    """`explain_nodes(wish, nodes)`: each node's answer for one more replica."""
    pending: Pending | None = None
    shape: Shape | None = None
    """Nodes that could hold a replica together, where none can alone."""


def render_why(why: WhyPlacement) -> str:
    """The text of `covey why placement/NAME`."""
    return "\n".join(_lines(why)) + "\n"


def why_data(why: WhyPlacement) -> dict[str, Any]:
    """The same as data, JSON-ready."""
    nodes = {node.name: node for node in why.nodes}
    instances = sorted(why.instances, key=_name)
    return {
        "placement": why.wish.placement,
        "model": why.wish.model,
        "replicas": why.replicas,
        "slots": why.wish.slots,
        "kvCacheType": why.wish.kv_cache_type.value,
        "expectedRequests": why.wish.expected_requests,
        "variants": [each.name for each in order_variants(why.wish)],
        "pending": {"reason": why.pending.reason, "message": why.pending.message} if why.pending else None,
        "instances": [_instance_data(why.wish, instance, nodes) for instance in instances],
        "shape": shape_data(why.shape) if why.shape else None,
        "nodes": [_result_data(result, why.wish.placed.get(result.node, 0)) for result in _by_node(why)],
    }


def _lines(why: WhyPlacement) -> Iterator[str]:
    wish = why.wish
    replicas = f"{why.replicas} {'replica' if why.replicas == 1 else 'replicas'}"
    yield (
        f"placement/{wish.placement} wishes {replicas} of model '{wish.model}': {wish.slots} slots each, "
        f"KV cache {wish.kv_cache_type}, {_wished_window(wish)}"
    )
    if order := explain_order(wish):
        yield order
    if why.pending:
        yield f"{why.pending.reason}: {why.pending.message}"
    nodes = {node.name: node for node in why.nodes}
    for instance in sorted(why.instances, key=_name):
        yield ""
        yield from _instance_lines(wish, instance, nodes)
    yield ""
    yield "One more replica, node by node:"
    results = _by_node(why)
    width = max((len(result.node) for result in results), default=0)
    for result in results:
        yield f"  {result.node:<{width}}  {_result_text(wish, result, nodes)}"
    if why.shape:
        yield from render_shape(why.shape, why.wish.spread)
    if not results:
        yield "  not asked: what the model needs is not known" if nodes else "  no node has joined yet"


def _wished_window(wish: Wish) -> str:
    if wish.context_tokens is not None and wish.min_context_tokens is not None:
        return f"a window of {wish.context_tokens} tokens, or the largest from {wish.min_context_tokens} on that fits"
    if wish.context_tokens is not None:
        return f"a window of exactly {wish.context_tokens} tokens"
    if wish.min_context_tokens is not None:
        return f"the largest window that fits, at least {wish.min_context_tokens} tokens"
    return "the largest window that fits"


def _instance_lines(wish: Wish, instance: Instance, nodes: dict[str, NodeView]) -> Iterator[str]:
    spec = instance.spec
    for member in spec.members:
        yield (
            f"instance/{instance.metadata.name} on node '{member.node}'{_role(member)}, "
            f"lane {spec.engine}/{spec.compute}, variant '{spec.variant}', goal {spec.goal}"
        )
        yield (
            f"  window {spec.options.context_tokens} tokens x {spec.options.slots} slots, "
            f"KV cache {spec.options.kv_cache_type}; bounded by {_bound(wish, instance)}"
        )
        if not spec.options.repack:
            yield f"  matrices stay as the file has them (`--no-repack`): {_why_no_repack(spec)}"
        for beside in spec.companions:
            yield f"  {beside.role.lower()} '{beside.artifact.name}', {format_bytes(beside.artifact.size_bytes)}"
        if options := spec.runtime.options_of(spec.engine):
            yield f"  {spec.engine} runs with {', '.join(f'{name} {value}' for name, value in options.items())}"
        for costs in member.costs:
            yield from _costs_lines(costs)
        for name in dict.fromkeys(costs.pool for costs in member.costs):
            yield f"  {_pool_text(name, _pool_of(nodes, member, name), member.bytes_in(name))}"


def _why_no_repack(spec: InstanceSpec) -> str:
    return "donors have them so" if len(spec.members) > 1 else "laying out this family's ends the engine"


def _role(member: Member) -> str:
    return "" if member.role is MemberRole.SINGLE else f" as {member.role.lower()} '{member.name}'"


def _costs_lines(costs: Costs) -> Iterator[str]:
    parts = (*_COSTS, _COMPANIONS) if costs.companion_bytes else _COSTS
    rows = [(label, _part(costs, field)) for label, field in parts]
    rows.append(("total", costs.total_bytes))
    layers = f" for {costs.layers} layers" if costs.layers else ""
    yield f"  takes of pool '{costs.pool}'{layers}{_calibrated(costs)}:"
    for label, count in rows:
        yield f"    {label:<16}{format_bytes(count):>12}  {count:>16} bytes"


def _calibrated(costs: Costs) -> str:
    if costs.calibration_percent == 100:
        return ""
    return f", at {explain_factor(costs.calibration_percent)} of what is computed, by what earlier loads took"


def _pool_text(name: str, pool: Pool | None, own_bytes: int) -> str:
    if pool is None:
        return f"pool '{name}': the node has reported no such pool"
    others = max(pool.reserved_bytes - own_bytes, 0)
    left = pool.total_bytes - pool.reserve_bytes - others - own_bytes
    return (
        f"of pool '{name}': {render_exactly(pool.total_bytes)} in total, {render_exactly(pool.reserve_bytes)} reserve, "
        f"{render_exactly(others)} reserved by others; leaves {render_exactly(left)}"
    )


def _result_text(wish: Wish, result: Chosen | Refusal, nodes: dict[str, NodeView]) -> str:
    if isinstance(result, Refusal):
        return f"no: {result.reason}: {result.message}"
    options = result.options
    parts = [
        f"yes: {result.lane.engine}/{result.lane.compute}, variant '{result.variant}', "
        f"window {options.context_tokens} tokens x {options.slots} slots"
    ]
    if here := wish.placed.get(result.node):
        parts.append(f"runs {here} of it already, so equal nodes with fewer come first")
    if shares := [f"{costs.layers} layers in '{costs.pool}'" for costs in result.costs if costs.layers]:
        parts.append(f"over {len(shares)} devices: {', '.join(shares)}")
    for costs in result.costs:
        pool = find_pool(nodes[result.node], costs.pool) if result.node in nodes else None
        free = f" of {render_exactly(pool.unreserved_bytes)} unreserved" if pool else ""
        parts.append(f"takes {render_exactly(costs.total_bytes)}{free} in pool '{costs.pool}'{_calibrated(costs)}")
    return "; ".join(parts)


def _bound(wish: Wish, instance: Instance) -> str:
    """What keeps the stamped window from being larger; the wish may have changed since."""
    for variant in wish.variants:
        if variant.name == instance.spec.variant and variant.geometry is not None:
            return bound_of(wish, variant.geometry, instance.spec.options.context_tokens)
    return "what was wished when it was stamped"


def _pool_of(nodes: dict[str, NodeView], member: Member, name: str) -> Pool | None:
    return find_pool(nodes[member.node], name) if member.node in nodes else None


def _instance_data(wish: Wish, instance: Instance, nodes: dict[str, NodeView]) -> dict[str, Any]:
    spec = instance.spec
    return {
        "name": instance.metadata.name,
        "variant": spec.variant,
        "engine": spec.engine.value,
        "compute": spec.compute.value,
        "goal": spec.goal.value,
        "options": spec.options.to_wire(),
        "runtime": spec.runtime.options_of(spec.engine),
        "companions": [each.to_wire() for each in spec.companions],
        "boundedBy": _bound(wish, instance),
        "members": [_member_data(member, nodes) for member in spec.members],
    }


def _member_data(member: Member, nodes: dict[str, NodeView]) -> dict[str, Any]:
    pools: list[dict[str, Any]] = []
    for name in dict.fromkeys(costs.pool for costs in member.costs):
        pool = _pool_of(nodes, member, name)
        if pool is None:
            continue
        pools.append(
            {
                "name": name,
                "totalBytes": pool.total_bytes,
                "reserveBytes": pool.reserve_bytes,
                "reservedByOthersBytes": max(pool.reserved_bytes - member.bytes_in(name), 0),
            }
        )
    costs = [entry.to_wire() | {"totalBytes": entry.total_bytes} for entry in member.costs]
    role = {} if member.role is MemberRole.SINGLE else {"role": member.role.value}
    return {"name": member.name, "node": member.node, **role, "costs": costs, "pools": pools}


def _result_data(result: Chosen | Refusal, replicas: int) -> dict[str, Any]:
    if isinstance(result, Refusal):
        return {
            "node": result.node,
            "fits": False,
            "replicas": replicas,
            "reason": result.reason.value,
            "message": result.message,
            "shortBytes": result.short_bytes,
        }
    return {
        "node": result.node,
        "fits": True,
        "replicas": replicas,
        "variant": result.variant,
        "engine": result.lane.engine.value,
        "compute": result.lane.compute.value,
        "options": result.options.to_wire(),
        "costs": [entry.to_wire() | {"totalBytes": entry.total_bytes} for entry in result.costs],
    }


def _part(costs: Costs, field: str) -> int:
    count: int = getattr(costs, field)
    return count


def _by_node(why: WhyPlacement) -> list[Chosen | Refusal]:
    return sorted(why.results, key=lambda result: result.node)


def _name(instance: Instance) -> str:
    return instance.metadata.name
