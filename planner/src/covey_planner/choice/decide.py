"""Where new replicas go: total and deterministic, whatever the order of the nodes.

Replicas are placed one after the other at the least window, each reservation counting for the next; only then is the
window of every chosen node widened to the largest at which all that were placed there fit. The other order (widest
window first) would let the first replica take the memory of the second.
"""

from collections.abc import Sequence
from dataclasses import replace

from covey_api.instance import StampedCompanion
from covey_api.reasons import ReadyReason

from covey_planner.choice.groups import choose_group, explain_no_group
from covey_planner.choice.nodes import NOTHING_TAKEN, Offer, evaluate_node
from covey_planner.choice.refusals import explain_miss
from covey_planner.choice.roster import Roster
from covey_planner.choice.search import Search, Tally
from covey_planner.choice.ways import Question, pending_geometry
from covey_planner.choice.window import Tenant, widest_window
from covey_planner.types import Chosen, Decision, NodeState, NodeView, Pending, Refusal, Spread, Wish


def choose(wish: Wish, nodes: Roster | Sequence[NodeView], count: int) -> Decision:
    """Places for `count` new replicas: as many as fit, and for the rest why not."""
    if count <= 0:
        return Decision((), None, (), None)
    if pending := pending_geometry(wish):
        return Decision((), pending, (), None)
    roster = nodes if isinstance(nodes, Roster) else Roster(nodes, wish.selector)
    question = Question(wish)
    spread = wish.spread
    if spread is not None and spread.is_asked:
        group = choose_group(question, spread, tuple(roster), roster.links)
        return Decision((group,), None, (), None) if group else _no_group(question, spread, roster)
    search = Search(question, roster)
    placed: list[Offer] = []
    while len(placed) < count and (offer := search.take_best()) is not None:
        placed.append(offer)
    chosen = _stamp(question, placed)
    if len(chosen) == count:
        return Decision(chosen, None, (), None)
    tally = search.tally()
    # A group stays one: nodes whose facts are on their way may be enough alone. Silent ones aren't waited for.
    if spread is not None and not chosen and not tally.waiting:
        group = choose_group(question, spread, tuple(roster), roster.links)
        if group is not None:
            return Decision((group,), None, (), None)
    refusal = explain_miss(question, tally.closest) if tally.closest else None
    if refusal is not None and spread is not None and not chosen:
        together = explain_no_group(question, spread, tuple(roster)).message
        refusal = replace(refusal, message=f"{refusal.message}; {together}")
    return Decision(chosen, _pending_facts(tally, len(roster)), tuple(sorted(tally.counts.items())), refusal)


def _no_group(question: Question, spread: Spread, roster: Roster) -> Decision:
    waiting = Tally(waiting=[view.name for view in roster if view.state is NodeState.FACTS_PENDING])
    return Decision((), _pending_facts(waiting, len(roster)), (), explain_no_group(question, spread, tuple(roster)))


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
        costs=tuple(formula.costs(own) for formula in tenant.formulas if not formula.is_limit),
        companions=tuple(StampedCompanion(role=each.role, artifact=each.artifact) for each in way.companions),
    )


def _tenant(question: Question, offer: Offer) -> Tenant:
    return Tenant(offer.way.span, offer.split or question.price(offer.way, offer.lane).formulas)


def _pending_facts(tally: Tally, nodes: int) -> Pending | None:
    """Facts that may still bring a place: another answer than 'does not fit'."""
    if not nodes:
        return Pending(ReadyReason.FACTS_PENDING, "no node has joined yet")
    waiting = sorted(tally.waiting)
    if not waiting:
        return None
    names = ", ".join(f"'{name}'" for name in waiting[:3])
    more = f" and {len(waiting) - 3} more" if len(waiting) > 3 else ""
    return Pending(ReadyReason.FACTS_PENDING, f"facts have not arrived from {names}{more}")
