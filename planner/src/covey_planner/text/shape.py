"""A shape of several nodes in words and as data, with what is not there yet said beside it."""

from collections.abc import Iterator
from typing import Any

from covey_planner.choice.shapes import Shape, ShapeMember, can_join, can_rank
from covey_planner.types import ShapeKind, Spread
from covey_planner.words import render_exactly


def render_shape(shape: Shape, spread: Spread | None = None) -> Iterator[str]:
    """Lines of text. `spread`: what its Placement asks for already."""
    names = ", ".join(f"'{member.node}'" for member in shape.members)
    yield (
        f"together {names} could hold it: {shape.engine} as {shape.kind}, variant '{shape.variant}', window "
        f"{shape.window} tokens x {shape.slots} slots, over {shape.link}"
    )
    for member in shape.members:
        yield (
            f"  {member.role.lower()} '{member.node}', {member.lane.compute}: {_part(shape, member)}, "
            f"{render_exactly(member.total_bytes)} of {render_exactly(member.usable_bytes)} unreserved in pool "
            f"'{member.lane.pool}'"
        )
    if can_run(shape):
        yield f"  It runs like this where its Placement says `shape: {{{_wish_for(shape, spread)}}}`."
    else:
        yield "  It is not started: so far `LlamaServer` as `Rpc` and `Mlx` are, where all their agents know how."


def _wish_for(shape: Shape, spread: Spread | None) -> str:
    """With the number of nodes, where those that are asked for are too few or too many."""
    count = len(shape.members)
    words = ["type: Auto" if shape.kind is ShapeKind.RPC else f"type: {shape.kind}"]
    if spread is not None and spread.least > count:
        words.append(f"minNodes: {count}")
    if spread is not None and spread.most < count:
        words.append(f"maxNodes: {count}")
    return ", ".join(words)


def can_run(shape: Shape) -> bool:
    """Whether there is anybody to run it: of its kind, with agents that know how."""
    is_able = can_join if shape.kind is ShapeKind.RPC else can_rank
    return all(is_able(member.lane) for member in shape.members)


def shape_data(shape: Shape) -> dict[str, Any]:
    """The same as data, JSON-ready."""
    return {
        "kind": shape.kind.value,
        "variant": shape.variant,
        "engine": shape.engine.value,
        "contextTokens": shape.window,
        "slots": shape.slots,
        "link": str(shape.link),
        "canRun": can_run(shape),
        "members": [
            {
                "node": member.node,
                "role": member.role,
                "compute": member.lane.compute.value,
                "pool": member.lane.pool,
                "firstLayer": member.first_layer,
                "lastLayer": member.last_layer,
                "bytes": member.total_bytes,
                "usableBytes": member.usable_bytes,
            }
            for member in shape.members
        ],
    }


def _part(shape: Shape, member: ShapeMember) -> str:
    if shape.kind is ShapeKind.TENSOR:
        return f"one part in {len(shape.members)} of all {shape.layer_count} layers"
    return f"layers {member.first_layer} to {member.last_layer} of {shape.layer_count}"
