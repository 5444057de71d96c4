"""What a replica that serves would gain in the best place that there is now: told, and never done by itself (ADR 50).

In the order of the choice: a way that is preferred, an accelerator in place of a processor, a wider window. Less than
half as much window again is not told: it would not be worth a load.
"""

from covey_api.engines import Compute, EngineName
from covey_api.instance import InstanceSpec

from covey_planner.choice.ways import list_ways
from covey_planner.types import Chosen, Wish

_WINDOW_PERCENT = 150


def explain_gain(wish: Wish, running: InstanceSpec, place: Chosen) -> str:
    """Empty: none that is worth a load. `place`: where one more would go if this one weren't there."""
    now, then = (
        _rank(wish, variant, engine, compute)
        for variant, engine, compute in (
            (running.variant, running.engine, running.compute),
            (place.variant, place.lane.engine, place.lane.compute),
        )
    )
    if now is None or then is None or then > now:
        return ""
    if then < now:
        return f"variant '{place.variant}' on {place.lane.engine} is preferred"
    if running.compute is Compute.CPU and place.lane.compute is not Compute.CPU:
        return f"on {place.lane.compute} in place of a processor"
    before, after = running.options.context_tokens, place.options.context_tokens
    if _is_processor(running.compute) == _is_processor(place.lane.compute) and 100 * after >= _WINDOW_PERCENT * before:
        return f"a window of {after} tokens in place of {before}"
    return ""


def _is_processor(compute: Compute) -> bool:
    return compute is Compute.CPU


def _rank(wish: Wish, variant: str, engine: EngineName, compute: Compute) -> int | None:
    """None: no such way is wished any more."""
    found = (
        way.rank
        for way in list_ways(wish)
        if (way.variant, way.engine) == (variant, engine)
        and not (way.is_off_processor and _is_processor(compute))
        and (not way.computes or compute in way.computes)
    )
    return next(found, None)
