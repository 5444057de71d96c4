"""Where new replicas go: total and deterministic, whatever the order of the nodes.

Replicas are placed one after the other at the least window, each reservation counting for the next; only then is the
window of every chosen node widened to the largest at which all that were placed there fit. The other order (widest
window first) would let the first replica take the memory of the second.
"""

import heapq
from collections.abc import Sequence

from covey_api.reasons import ReadyReason, RefusalReason

from covey_planner.choice.nodes import NOTHING_TAKEN, Miss, Offer, Taken, evaluate_node
from covey_planner.choice.refusals import closest_miss, count_reasons, explain_miss
from covey_planner.choice.ways import Question, pending_geometry
from covey_planner.choice.window import Tenant, widest_window
from covey_planner.types import Chosen, Decision, NodeView, Pending, Refusal, Wish


def choose(wish: Wish, nodes: Sequence[NodeView], count: int) -> Decision:
    """Places for `count` new replicas: as many as fit, and for the rest why not."""
    if count <= 0:
        return Decision((), None, (), None)
    if pending := pending_geometry(wish):
        return Decision((), pending, (), None)
    question = Question(wish)
    placed, misses = _place(question, nodes, count)
    chosen = _stamp(question, placed)
    if len(chosen) == count:
        return Decision(chosen, None, (), None)
    closest = closest_miss(misses)
    refusal = explain_miss(question, closest) if closest else None
    return Decision(chosen, _pending_facts(nodes, misses), count_reasons(misses), refusal)


def explain_nodes(wish: Wish, nodes: Sequence[NodeView]) -> tuple[Chosen | Refusal, ...]:
    """Each node's answer for one more replica, by name."""
    question = Question(wish)
    answers: list[Chosen | Refusal] = []
    for node in sorted(nodes, key=lambda node: node.name):
        outcome = evaluate_node(question, node, NOTHING_TAKEN)
        answers.append(
            _stamp(question, [outcome])[0] if isinstance(outcome, Offer) else explain_miss(question, outcome)
        )
    return tuple(answers)


def _place(question: Question, nodes: Sequence[NodeView], count: int) -> tuple[list[Offer], list[Miss]]:
    """The best offers in their order, and the misses of all nodes once one replica found no place."""
    offers: list[tuple[tuple[int | bool | str, ...], int, Offer]] = []
    misses: list[Miss] = []
    for index, node in enumerate(nodes):
        outcome = evaluate_node(question, node, NOTHING_TAKEN)
        if isinstance(outcome, Offer):
            offers.append((outcome.order, index, outcome))
        else:
            misses.append(outcome)
    heapq.heapify(offers)
    placed: list[Offer] = []
    taken: dict[int, Taken] = {}
    while offers and len(placed) < count:
        _, index, offer = offers[0]
        placed.append(offer)
        here = taken[index] = taken.get(index, NOTHING_TAKEN).with_offer(offer)
        outcome = evaluate_node(question, offer.node, here)
        if isinstance(outcome, Offer):
            heapq.heapreplace(offers, (outcome.order, index, outcome))
        else:
            heapq.heappop(offers)
            misses.append(outcome)
    return placed, misses


def _stamp(question: Question, placed: Sequence[Offer]) -> tuple[Chosen, ...]:
    """All that is stamped on each replica: one window per node, at which all of its replicas fit."""
    windows: dict[str, int] = {}
    for name in dict.fromkeys(offer.node.name for offer in placed):
        here = [offer for offer in placed if offer.node.name == name]
        unreserved = {pool.name: pool.unreserved_bytes for pool in here[0].node.pools}
        windows[name] = widest_window([_tenant(question, offer) for offer in here], unreserved)
    return tuple(_chosen(question, offer, windows[offer.node.name]) for offer in placed)


def _chosen(question: Question, offer: Offer, window: int) -> Chosen:
    way, tenant = offer.way, _tenant(question, offer)
    own = tenant.window_at(window)
    return Chosen(
        node=offer.node.name,
        variant=way.variant,
        lane=offer.lane,
        artifact=way.artifact,
        options=question.options(way, cpu_cores=offer.node.cpu_cores, window=own),
        costs=tuple(formula.costs(own) for formula in tenant.formulas),
    )


def _tenant(question: Question, offer: Offer) -> Tenant:
    return Tenant(offer.way.span, question.price(offer.way, offer.lane).formulas)


def _pending_facts(nodes: Sequence[NodeView], misses: Sequence[Miss]) -> Pending | None:
    """Facts that may still bring a place: another answer than 'does not fit'."""
    if not nodes:
        return Pending(ReadyReason.FACTS_PENDING, "no node has joined yet")
    waiting = sorted(miss.node.name for miss in misses if miss.reason is RefusalReason.FACTS_PENDING)
    if not waiting:
        return None
    names = ", ".join(f"'{name}'" for name in waiting[:3])
    more = f" and {len(waiting) - 3} more" if len(waiting) > 3 else ""
    return Pending(ReadyReason.FACTS_PENDING, f"facts have not arrived from {names}{more}")
