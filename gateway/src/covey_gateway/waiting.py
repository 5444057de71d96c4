"""Requests for models that have no endpoint yet: who waits, and what of it the controller hears.

A request waits only where waiting helps: the controller says so by `holdSeconds` of its model, 0 for one that can't be
served. That somebody waits is what starts a model that is scaled to zero; so is, for a while, a refusal of who doesn't
wait. When a table comes, each waiter looks again: by the priority of its key, then in the order in which they came.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from covey_api.messages import REFUSED_COUNTS_SECONDS, ModelDemand, ModelState, ServedModel

from covey_gateway.limits import MAX_HELD_PER_MODEL
from covey_gateway.routing.table import RoutingTable

_Name = tuple[str, str]


class Waiter(Protocol):
    """A request that waits."""

    def look_again(self) -> None:
        """Its model may be ready, or can't be any more."""
        ...

    def give_way(self) -> None:
        """Its place is another one's, of a higher priority."""
        ...


@dataclass(frozen=True, slots=True)
class _Place:
    since: float
    priority: int


class Waiting:
    """`clock` is monotonic; `on_news`: the controller should hear of it at once."""

    def __init__(self, clock: Callable[[], float], on_news: Callable[[], None]) -> None:
        self._clock = clock
        self._on_news = on_news
        self._waiters: dict[_Name, dict[Waiter, _Place]] = {}
        """In the order in which they came."""
        self._refused: dict[_Name, float] = {}

    @property
    def has_any(self) -> bool:
        return bool(self._waiters)

    def count(self) -> int:
        """How many wait."""
        return sum(map(len, self._waiters.values()))

    def add(self, model: ServedModel, waiter: Waiter, since: float, priority: int = 0) -> bool:
        """False: as many wait as may, none of a lower priority. `since`: when it began to."""
        name = (model.namespace, model.name)
        waiters = self._waiters.get(name, {})
        displaced: Waiter | None = None
        if len(waiters) >= MAX_HELD_PER_MODEL:
            displaced = min(reversed(waiters), key=lambda each: waiters[each].priority)  # of the lowest, who came last
            if waiters[displaced].priority >= priority:
                return False
        self._waiters[name] = waiters
        waiters[waiter] = _Place(since, priority)
        if len(waiters) == 1:
            self._on_news()
        if displaced is not None:
            displaced.give_way()
        return True

    def remove(self, model: ServedModel, waiter: Waiter) -> None:
        name = (model.namespace, model.name)
        waiters = self._waiters.get(name, {})
        if waiters.pop(waiter, None) is not None and not waiters:
            del self._waiters[name]
            self._on_news()

    def refuse(self, model: ServedModel) -> None:
        """It was asked for by somebody who doesn't wait. Of an unknown model nothing is kept, so this is bounded."""
        if model.state is ModelState.NOT_PLACED and not model.wakes:
            return
        name = (model.namespace, model.name)
        is_new = not self._is_refused_lately(name)
        self._refused[name] = self._clock()
        if is_new:
            self._on_news()

    def tell(self, table: RoutingTable) -> None:
        """A table came: those whose model has an endpoint, or for which waiting helps no more, look again.

        Who was refused has what was asked for, too: it must not bring the model back once it made room for another.
        """
        missing = table.models.keys() - table.targets.keys()
        self._refused = {name: at for name, at in self._refused.items() if name in missing}
        for name, waiters in list(self._waiters.items()):
            model = table.models.get(name)
            if name in table.targets or model is None or not model.hold_seconds:
                for waiter in sorted(waiters, key=lambda each: -waiters[each].priority):
                    waiter.look_again()

    def observe_demand(self) -> tuple[ModelDemand, ...]:
        now = self._clock()
        names = {name for name in self._refused if self._is_refused_lately(name)} | self._waiters.keys()
        self._refused = {name: at for name, at in self._refused.items() if name in names}
        return tuple(self._observe(name, now) for name in sorted(names))

    def _observe(self, name: _Name, now: float) -> ModelDemand:
        waiters, refused_at = self._waiters.get(name, {}), self._refused.get(name)
        return ModelDemand(
            namespace=name[0],
            name=name[1],
            held=len(waiters),
            oldest_seconds=now - min((place.since for place in waiters.values()), default=now),
            refused_seconds=None if refused_at is None else now - refused_at,
        )

    def _is_refused_lately(self, name: _Name) -> bool:
        at = self._refused.get(name)
        return at is not None and self._clock() - at < REFUSED_COUNTS_SECONDS


class Hold:
    """One request's wait, however often it is told to look again. `wish`: the longest that its client wants."""

    def __init__(self, waiting: Waiting, waiter: Waiter, wish: int | None, priority: int = 0) -> None:
        self._waiting = waiting
        self._waiter = waiter
        self._wish = wish
        self._priority = priority
        self._since: float | None = None
        self._model: ServedModel | None = None

    @property
    def is_held(self) -> bool:
        return self._model is not None

    def begin(self, model: ServedModel, now: float) -> bool:
        """Whether it waits from now on."""
        since = now if self._since is None else self._since
        if now < since + self._limit_seconds(model) and self._waiting.add(model, self._waiter, since, self._priority):
            self._since, self._model = since, model
            return True
        self._waiting.refuse(model)
        return False

    def end(self) -> None:
        if self._model is not None:
            self._waiting.remove(self._model, self._waiter)
            self._model = None

    def give_up(self) -> None:
        """Its time is over. Its client may ask again: that counts for a while."""
        if self._model is not None:
            self._waiting.refuse(self._model)
        self.end()

    def is_over(self, now: float) -> bool:
        model, since = self._model, self._since
        return model is not None and since is not None and now >= since + self._limit_seconds(model)

    def _limit_seconds(self, model: ServedModel) -> int:
        return model.hold_seconds if self._wish is None else min(self._wish, model.hold_seconds)
