"""The agent's last look before it spawns: do the stamped bytes fit what is free right now."""

from collections.abc import Collection, Iterable, Mapping, Sequence

from covey_api.engines import HOST_POOL
from covey_api.instance import Costs

from covey_planner.words import render_exactly


def find_shortages(
    costs: Sequence[Costs], available: Mapping[str, int], promised: Mapping[str, int], shared: Collection[str]
) -> list[tuple[str, str]]:
    """Pools that are short, by name, in words; none: the stamped bytes fit the fresh readings, less what is promised.

    `shared`: devices that fill the host's memory. Stamps from when such a one was a pool of its own are of that.
    A pool without a reading refuses: unknown memory is not free memory.
    """
    needed = _in_pools_of_now(((entry.pool, entry.total_bytes) for entry in costs), shared)
    taken = _in_pools_of_now(promised.items(), shared)
    short: list[tuple[str, str]] = []
    for pool, wanted in sorted(needed.items()):
        free = available[pool] - taken.get(pool, 0) if pool in available else None
        if free is None:
            short.append((pool, f"pool '{pool}' has no reading, and {render_exactly(wanted)} must be free in it"))
        elif wanted > free:
            found = f"must have {render_exactly(wanted)} free; got {render_exactly(free)}"
            short.append((pool, f"pool '{pool}' {found}: {render_exactly(wanted - free)} short"))
    return short


def promise_left(costs: Sequence[Costs], taken_bytes: int) -> dict[str, int]:
    """By pool, what an engine that loads will still take. `taken_bytes`: of the host's memory, already: the reading of
    what is free lacks it, so it would count twice."""
    left: dict[str, int] = {}
    for entry in costs:
        left[entry.pool] = left.get(entry.pool, 0) + entry.total_bytes
    if HOST_POOL in left:
        left[HOST_POOL] = max(0, left[HOST_POOL] - taken_bytes)
    return left


def pools_of(costs: Sequence[Costs], shared: Collection[str]) -> frozenset[str]:
    """Where it takes memory, by the pools of now."""
    return frozenset(HOST_POOL if entry.pool in shared else entry.pool for entry in costs if entry.total_bytes)


def _in_pools_of_now(stamped: Iterable[tuple[str, int]], shared: Collection[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for name, count in stamped:
        pool = HOST_POOL if name in shared else name
        found[pool] = found.get(pool, 0) + count
    return found
