"""The agent's last look before it spawns: do the stamped bytes fit what is free right now."""

from collections.abc import Collection, Iterable, Mapping, Sequence

from covey_api.engines import HOST_POOL
from covey_api.instance import Costs

from covey_planner.words import render_exactly


def check_costs(
    costs: Sequence[Costs], available: Mapping[str, int], promised: Mapping[str, int], shared: Collection[str]
) -> str:
    """Empty when the stamped bytes fit the fresh readings, less what is promised, in every pool; else the refusal.

    `shared`: devices that fill the host's memory. Stamps from when such a one was a pool of its own are of that.
    A pool without a reading refuses: unknown memory is not free memory.
    """
    needed = _in_pools_of_now(((entry.pool, entry.total_bytes) for entry in costs), shared)
    taken = _in_pools_of_now(promised.items(), shared)
    refusals: list[str] = []
    for pool, wanted in sorted(needed.items()):
        free = available[pool] - taken.get(pool, 0) if pool in available else None
        if free is None:
            refusals.append(f"pool '{pool}' has no reading, and {render_exactly(wanted)} must be free in it")
        elif wanted > free:
            short = f"{render_exactly(wanted - free)} short"
            refusals.append(
                f"pool '{pool}' must have {render_exactly(wanted)} free; got {render_exactly(free)}: {short}"
            )
    return "; ".join(refusals)


def _in_pools_of_now(stamped: Iterable[tuple[str, int]], shared: Collection[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for name, count in stamped:
        pool = HOST_POOL if name in shared else name
        found[pool] = found.get(pool, 0) + count
    return found
