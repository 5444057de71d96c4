"""The best place for one more replica among many nodes: the same answer as asking each, by asking classes.

Nodes that differ by name from their class (named, failed or used by the wish) are asked one by one; they are few.
"""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice

from covey_api.engines import Lane
from covey_api.reasons import RefusalReason

from covey_planner.choice.nodes import (
    NOTHING_TAKEN,
    Miss,
    Offer,
    OfferOrder,
    Taken,
    evaluate_node,
    filter_node,
    offer_split,
    order_offer,
    wants_split,
)
from covey_planner.choice.refusals import nearness
from covey_planner.choice.roster import Free, NodeClass, Ranking, Roster, free_in
from covey_planner.choice.splits import least_shared_bytes, shared_lanes
from covey_planner.choice.ways import Price, Question, Way


@dataclass(slots=True)
class Tally:
    """All nodes' refusals in sum."""

    counts: dict[RefusalReason, int] = field(default_factory=dict[RefusalReason, int])
    closest: Miss | None = None
    waiting: list[str] = field(default_factory=list[str])
    """Names of nodes whose facts are on their way."""

    def add(self, miss: Miss, nodes: int = 1) -> None:
        """`miss`: of the first by name of so many nodes, all of which say the same."""
        self.counts[miss.reason] = self.counts.get(miss.reason, 0) + nodes
        if self.closest is None or nearness(miss) < nearness(self.closest):
            self.closest = miss


class Search:
    """One wish among the nodes of a roster, and what this decision has put on them so far."""

    def __init__(self, question: Question, roster: Roster) -> None:
        self._question = question
        self._roster = roster
        classes = roster.classes(question.wish.selector)
        self._filtered = [(each, filter_node(question, each.example, "")) for each in classes]
        self._open = [each for each, reason in self._filtered if reason is None]
        self._taken: dict[str, Taken] = {}
        self._apart: dict[str, Offer | Miss] = {}
        self._unasked: list[str] = []
        """Nodes that took a replica since they were asked."""
        wish = question.wish
        for name in {*wish.include, *wish.exclude, *wish.placed, *(each.node for each in wish.failed)}:
            self._ask(name)

    def _ask(self, name: str) -> None:
        if (view := self._roster.view(name)) is not None:
            self._apart[name] = evaluate_node(self._question, view, self._taken.get(name, NOTHING_TAKEN))

    def _ask_again(self) -> None:
        names, self._unasked = self._unasked, []
        for name in names:
            self._ask(name)

    def take_best(self) -> Offer | None:
        """The best offer of all nodes, taken; None when there is none."""
        self._ask_again()
        best = min((each for each in self._apart.values() if isinstance(each, Offer)), key=_by_order, default=None)
        for way in self._question.ways:
            if way.span.refusal:
                continue
            if best is not None and best.way.rank < way.rank:
                break
            best = self._better(way, best)
            if wants_split(way, best):
                splits = (offer for offer in self._splits(way) if best is None or offer.order < best.order)
                best = min(splits, key=_by_order, default=best)
        if best is not None:
            name = best.node.name
            self._taken[name] = self._taken.get(name, NOTHING_TAKEN).with_offer(best)
            self._unasked.append(name)
        return best

    def _better(self, way: Way, best: Offer | None) -> Offer | None:
        """The best of all open classes on each lane, or what was the best before."""
        for each in self._open:
            example = each.example
            if not way.comes_to(example):
                continue
            for index, lane in enumerate(example.lanes):
                if not way.runs_on(lane):
                    continue
                price = self._question.price(way, lane)
                order = self._best_of(each, way, lane, price)
                if order is not None and (best is None or order < best.order):
                    view = each.views[order[-1]]
                    best = Offer(order, view, way, view.lanes[index], price.least, price.most)
        return best

    def _splits(self, way: Way) -> Iterator[Offer]:
        """Of nodes that aren't asked by themselves; of those with as much free, the first, and the first that has the
        file."""
        for each in self._open:
            if not (lanes := shared_lanes(each.example, way)):
                continue
            needed = least_shared_bytes(self._question, way, lanes.values())
            for group in each.alike():
                free = each.free[group[0]]
                if sum(max(0, count) for pool, count in free if pool in lanes) < needed:
                    continue
                names = [name for name in group if name not in self._apart]
                cached = (name for name in names if way.digest in each.views[name].cached)
                for name in {*names[:1], *islice(cached, 1)}:
                    offer = offer_split(self._question, each.views[name], way, NOTHING_TAKEN)
                    if offer is not None:
                        yield offer

    def _best_of(self, among: NodeClass, way: Way, lane: Lane, price: Price) -> OfferOrder | None:
        """Nodes that have the file first; of those the whole window with the fewest bytes left, else the widest."""
        for is_cached in (True, False) if way.digest and among.has_file(way.digest) else (False,):
            ranking = among.ranking(lane.pool, way.digest if is_cached else "")
            name = self._tightest(among, ranking, price.most)
            is_narrower = name is None
            costs = price.most
            if name is None and price.most != price.least:
                costs, name = price.least, self._roomiest(among, ranking, price.least)
            if name is not None:
                left = free_in(among.free[name], lane.pool) - costs[0][1]
                return order_offer(way, lane, name, left, replicas=0, is_cached=is_cached, is_narrower=is_narrower)
        return None

    def _tightest(self, among: NodeClass, ranking: Ranking, costs: tuple[tuple[str, int], ...]) -> str | None:
        for index in range(bisect_left(ranking, (costs[0][1], "")), len(ranking)):
            name = ranking[index][1]
            if name not in self._apart and _has_room(among.free[name], costs):
                return name
        return None

    def _roomiest(self, among: NodeClass, ranking: Ranking, costs: tuple[tuple[str, int], ...]) -> str | None:
        """Where the whole window fits nowhere: the most free bytes; ties by name."""
        end = len(ranking)
        while end and ranking[end - 1][0] >= costs[0][1]:
            begin = bisect_left(ranking, (ranking[end - 1][0], ""))
            for index in range(begin, end):
                name = ranking[index][1]
                if name not in self._apart and _has_room(among.free[name], costs):
                    return name
            end = begin
        return None

    def tally(self) -> Tally:
        """Why no node takes one more; to be asked when none does."""
        self._ask_again()
        tally = Tally()
        for miss in self._apart.values():
            if isinstance(miss, Miss):
                tally.add(miss)
                if miss.reason is RefusalReason.FACTS_PENDING:
                    tally.waiting.append(miss.node.name)
        for among, reason in self._filtered:
            apart = [name for name in self._apart if name in among.views]
            for group in among.alike() if reason is None else [among.names()]:
                self._tally_group(among, reason, group, apart, tally)
        return tally

    def _tally_group(
        self, among: NodeClass, reason: RefusalReason | None, group: list[str], apart: list[str], tally: Tally
    ) -> None:
        """Nodes that say the same, but for those that were asked one by one."""
        first = next((name for name in group if name not in self._apart), None)
        if first is None:
            return
        view, free = among.views[first], among.free[first]
        nodes = len(group) - sum(reason is not None or among.free[name] == free for name in apart)
        outcome = Miss(reason, view) if reason else evaluate_node(self._question, view, NOTHING_TAKEN)
        if isinstance(outcome, Miss):
            tally.add(outcome, nodes)
        if reason is RefusalReason.FACTS_PENDING:
            tally.waiting += [name for name in group if name not in self._apart]


def _by_order(offer: Offer) -> OfferOrder:
    return offer.order


def _has_room(free: tuple[Free, ...], costs: tuple[tuple[str, int], ...]) -> bool:
    for pool, needed in costs:  # noqa: SIM110  (the inner loop of every choice)
        if free_in(free, pool) < needed:
            return False
    return True
