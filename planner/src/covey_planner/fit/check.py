"""The agent's last look before it spawns: do the stamped bytes fit what is free right now."""

from collections.abc import Mapping, Sequence

from covey_api.instance import Costs

from covey_planner.words import render_exactly


def check_costs(costs: Sequence[Costs], available: Mapping[str, int]) -> str:
    """Empty when the stamped bytes fit the fresh readings in every pool; else the refusal, in bytes.

    A pool without a reading refuses: unknown memory is not free memory.
    """
    needed: dict[str, int] = {}
    for entry in costs:
        needed[entry.pool] = needed.get(entry.pool, 0) + entry.total_bytes
    refusals: list[str] = []
    for pool, wanted in sorted(needed.items()):
        free = available.get(pool)
        if free is None:
            refusals.append(f"pool '{pool}' has no reading, and {render_exactly(wanted)} must be free in it")
        elif wanted > free:
            short = f"{render_exactly(wanted - free)} short"
            refusals.append(
                f"pool '{pool}' must have {render_exactly(wanted)} free; got {render_exactly(free)}: {short}"
            )
    return "; ".join(refusals)
