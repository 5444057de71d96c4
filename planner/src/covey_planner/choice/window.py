"""The window of one slot: what is wished, what bounds it, and the largest that fits on a node.

Observed free memory never enters: the answer comes from totals and reservations, so every replan of an unchanged fleet
gives the same window.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from covey_api.model import Geometry

from covey_planner.fit.estimate import CELL_STEP, CostFormula
from covey_planner.types import Wish

# Without a wish, smaller windows are refused: a system prompt and one answer hardly fit, so the model would be Ready
# and fail most chats. `spec.context.minTokens` goes below it; so does a model whose own window is smaller.
LEAST_WINDOW = 2048


@dataclass(frozen=True, slots=True)
class Span:
    """Windows that may be stamped: at least `least`, at most `most`. `refusal`: why there is none, else empty."""

    least: int
    most: int
    refusal: str = ""


def window_span(wish: Wish, geometry: Geometry) -> Span:
    """Bounds that hold on every node.

    1. The model's own window, and the Model's cap below it, bound everything.
    2. A wished window is stamped exactly; beside `minTokens` it is the most that is stamped, where memory allows it.
    3. Else windows are multiples of the engine's cell step (a smaller bound counts as it is), from `minTokens` or
       LEAST_WINDOW upwards.
    """
    own, cap = geometry.context_tokens, wish.model_context_tokens
    bound = min(own, cap) if cap else own  # 1
    name = f"`spec.contextTokens` of model '{wish.model}'" if cap and cap < own else "the model's own window"
    if wish.context_tokens is not None:  # 2
        if wish.context_tokens > bound:
            text = f"`spec.context.tokens` must be at most {bound} ({name}); got {wish.context_tokens}"
            return Span(0, 0, text)
        least = wish.min_context_tokens or wish.context_tokens
        return Span(min(_round_up(least), wish.context_tokens), wish.context_tokens)
    most = bound // CELL_STEP * CELL_STEP or bound  # 3
    least = wish.min_context_tokens or LEAST_WINDOW
    if wish.min_context_tokens and wish.min_context_tokens > most:
        text = f"`spec.context.minTokens` must be at most {most} ({name}, whole steps of {CELL_STEP})"
        return Span(0, 0, f"{text}; got {wish.min_context_tokens}")
    return Span(min(_round_up(least), most), most)


def _round_up(tokens: int) -> int:
    return -(-tokens // CELL_STEP) * CELL_STEP


def bound_of(wish: Wish, geometry: Geometry, window: int) -> str:
    """What keeps a stamped window from being larger, for people."""
    span = window_span(wish, geometry)
    if wish.context_tokens == window:
        return "the wish (`spec.context.tokens`)"
    if window < span.most:
        return "memory"
    cap = wish.model_context_tokens
    if cap and cap < geometry.context_tokens:
        return f"the Model's cap (`spec.contextTokens`: {cap})"
    return f"the model's own window ({geometry.context_tokens})"


@dataclass(frozen=True, slots=True)
class Tenant:
    """One replica that shares a node with others."""

    span: Span
    formulas: tuple[CostFormula, ...]

    def window_at(self, window: int) -> int:
        return max(self.span.least, min(window, self.span.most))


def widest_window(tenants: Sequence[Tenant], unreserved: Mapping[str, int]) -> int:
    """The largest window at which all tenants fit together; each takes it within its own span.

    They must fit at their least windows. Costs only grow with the window, so halving finds it.
    """
    most = max((tenant.span.most for tenant in tenants), default=0)
    if fits_together(tenants, unreserved, most):
        return most
    low, high = 0, most // CELL_STEP
    while low < high:
        middle = (low + high + 1) // 2
        if fits_together(tenants, unreserved, middle * CELL_STEP):
            low = middle
        else:
            high = middle - 1
    return low * CELL_STEP


def fits_together(tenants: Sequence[Tenant], unreserved: Mapping[str, int], window: int) -> bool:
    """Whether all of them fit, each at this window within its own span."""
    needed: dict[str, int] = {}
    for tenant in tenants:
        own = tenant.window_at(window)
        for formula in tenant.formulas:
            needed[formula.pool] = needed.get(formula.pool, 0) + formula.total_bytes(own)
    return all(count <= unreserved.get(pool, 0) for pool, count in needed.items())
