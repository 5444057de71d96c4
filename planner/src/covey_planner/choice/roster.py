"""Nodes in classes: those that every wish sees alike, but for their names, their files and what is free on them.

A filter is asked once per class, and of a class only the nodes that can be the best one are looked at: they are kept in
order of what is free in each pool that a lane fills. So a choice costs by the number of classes and the logarithm of
the nodes, whatever the size of the fleet.

The one mutable value of the planner: whoever plans many wishes keeps one and puts in each node that changed. It must
not know what a wish is. Labels count as far as somebody selects by them: else each machine with a label of its own
would be a class of its own.

- A new sorted list for each wish: as much work as asking every node.
- Classes of equal free bytes: as many as there are nodes with something on them.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from covey_planner.choice.builds import is_version_known
from covey_planner.choice.links import Links, unknown_links
from covey_planner.types import NodeView

# (free bytes, name), ascending.
Ranking = list[tuple[int, str]]


class Free(NamedTuple):
    pool: str
    unreserved_bytes: int


def free_in(free: tuple[Free, ...], pool: str) -> int:
    """A pool that isn't there has nothing."""
    for each in free:
        if each.pool == pool:
            return each.unreserved_bytes
    return 0


@dataclass(slots=True)
class NodeClass:
    """One class; at least one node."""

    views: dict[str, NodeView] = field(default_factory=dict[str, NodeView])
    free: dict[str, tuple[Free, ...]] = field(default_factory=dict[str, tuple[Free, ...]])
    _names: list[str] | None = None
    _rankings: dict[tuple[str, str], Ranking] = field(default_factory=dict[tuple[str, str], Ranking])
    """By pool and digest of a file on their disks; without a digest all of them."""
    _alike: list[list[str]] | None = None
    _holders: dict[str, list[str]] | None = None
    """By digest: names of nodes that have the file."""

    @property
    def example(self) -> NodeView:
        return next(iter(self.views.values()))

    def has_file(self, digest: str) -> bool:
        """Whether some node of it has the file."""
        return bool(self._holding(digest))

    def names(self) -> list[str]:
        """Sorted."""
        if self._names is None:
            self._names = sorted(self.views)
        return self._names

    def alike(self) -> list[list[str]]:
        """Names, sorted, of nodes with the same free bytes: they refuse alike."""
        if self._alike is None:
            groups: dict[tuple[Free, ...], list[str]] = {}
            for name in self.names():
                groups.setdefault(self.free[name], []).append(name)
            self._alike = list(groups.values())
        return self._alike

    def ranking(self, pool: str, digest: str) -> Ranking:
        """Nodes in order of what is free in `pool`; with a digest only those that have the file."""
        found = self._rankings.get((pool, digest))
        if found is None:
            names = self._holding(digest) if digest else self.views
            found = sorted((free_in(self.free[name], pool), name) for name in names)
            if found or not digest:
                self._rankings[pool, digest] = found
        return found

    def _holding(self, digest: str) -> list[str]:
        if self._holders is None:
            self._holders = {}
            for name, view in self.views.items():
                for each in view.cached:
                    self._holders.setdefault(each, []).append(name)
        return self._holders.get(digest, [])

    def add(self, view: NodeView) -> None:
        self.views[view.name] = view
        self.free[view.name] = free = _free_of(view)
        self._names = self._holders = self._alike = None
        for (pool, digest), ranking in self._rankings.items():
            if not digest or digest in view.cached:
                insort(ranking, (free_in(free, pool), view.name))

    def replace(self, view: NodeView) -> None:
        """One that is in it, with other free bytes or the same."""
        before, free = self.free[view.name], _free_of(view)
        self.views[view.name], self.free[view.name] = view, free
        self._alike = None
        for (pool, digest), ranking in self._rankings.items():
            old, new = free_in(before, pool), free_in(free, pool)
            if old != new and (not digest or digest in view.cached):
                del ranking[bisect_left(ranking, (old, view.name))]
                insort(ranking, (new, view.name))

    def remove(self, name: str) -> None:
        view, free = self.views.pop(name), self.free.pop(name)
        self._names = self._holders = self._alike = None
        for (pool, digest), ranking in self._rankings.items():
            if not digest or digest in view.cached:
                del ranking[bisect_left(ranking, (free_in(free, pool), name))]


def _free_of(view: NodeView) -> tuple[Free, ...]:
    return tuple(Free(pool.name, pool.unreserved_bytes) for pool in view.pools)


class Roster:
    """All nodes of one plan, in classes."""

    def __init__(self, views: Iterable[NodeView], label_keys: Iterable[str] = (), links: Links = unknown_links) -> None:
        """`label_keys`: what wishes will select by, as far as it is known."""
        self.links = links
        self._label_keys = tuple(sorted(set(label_keys)))
        self._classes: dict[tuple[object, ...], NodeClass] = {}
        self._class_of: dict[str, NodeClass] = {}
        for view in views:
            self._add(view)

    def __len__(self) -> int:
        return len(self._class_of)

    def __iter__(self) -> Iterator[NodeView]:
        """By name."""
        for name in sorted(self._class_of):
            yield self._class_of[name].views[name]

    def view(self, name: str) -> NodeView | None:
        found = self._class_of.get(name)
        return found.views[name] if found else None

    def classes(self, label_keys: Iterable[str]) -> Iterable[NodeClass]:
        """For a wish that selects by these labels."""
        if missing := set(label_keys).difference(self._label_keys):
            views = list(self)
            self._label_keys = tuple(sorted(missing.union(self._label_keys)))
            self._classes, self._class_of = {}, {}
            for view in views:
                self._add(view)
        return self._classes.values()

    def put(self, view: NodeView) -> None:
        """A new node, or one that changed."""
        known = self._class_of.get(view.name)
        if known is not None:
            before = known.views[view.name]
            if before.cached == view.cached and self._key(before) == self._key(view):
                known.replace(view)
                return
            self._remove(before)
        self._add(view)

    def refill(self, view: NodeView) -> None:
        """One that is there, with other free bytes and nothing else."""
        self._class_of[view.name].replace(view)

    def _add(self, view: NodeView) -> None:
        key = self._key(view)
        found = self._classes.get(key)
        if found is None:
            found = self._classes[key] = NodeClass()
        found.add(view)
        self._class_of[view.name] = found

    def _remove(self, view: NodeView) -> None:
        found = self._class_of.pop(view.name)
        found.remove(view.name)
        if not found.views:
            del self._classes[self._key(view)]

    def _key(self, view: NodeView) -> tuple[object, ...]:
        """All that filters and costs depend on."""
        lanes = tuple(
            (
                each.engine,
                each.compute,
                each.state,
                each.digest,
                each.pool,
                each.companions,
                each.lacks,
                each.lacks_features,
                is_version_known(each),
                each.limit_bytes > 0,
            )
            for each in view.lanes
        )
        labels = tuple(view.labels.get(key) for key in self._label_keys)
        taints = tuple((each.key, each.value, each.effect) for each in view.taints)
        return (view.state, view.schedulable, view.is_offline, lanes, labels, taints)
