"""Which variants come first for the requests that are expected of one replica at a time (docs/adr/0035).

What a Model prefers is its author's word; how many ask at a time is the Placement's. vLLM is made for many: it batches
whatever is there and pages its cache. The others have a fixed number of slots, each with a window of its own.
Between both ends the Model's order holds, and engines that the Placement names are taken in its order whatever is
expected. A variant that is brought forward is no reason to leave a card idle: accelerators come before processors then,
whatever the variant (docs/adr/0049).
"""

from covey_api.engines import EngineName

from covey_planner.types import VariantView, Wish

# Judgement, not measurement: several times the slots that a replica has by default (4), and no more than one.
MANY_REQUESTS = 16
FEW_REQUESTS = 1


def order_variants(wish: Wish) -> tuple[VariantView, ...]:
    """Best first: the Model's order, but for those whose first engine is made for another number of requests."""
    if wish.engines or FEW_REQUESTS < wish.expected_requests < MANY_REQUESTS:
        return wish.variants
    is_many = wish.expected_requests >= MANY_REQUESTS
    return tuple(sorted(wish.variants, key=lambda each: _is_for_many(each) is not is_many))


def brings_forward(wish: Wish) -> bool:
    """Whether a variant comes before others that its Model prefers, since many requests are expected."""
    return wish.expected_requests >= MANY_REQUESTS and order_variants(wish) != wish.variants


def explain_order(wish: Wish) -> str:
    """Why variants are not taken in the Model's order; empty where they are."""
    ordered = order_variants(wish)
    if ordered == wish.variants:
        return ""
    names = ", ".join(f"'{each.name}'" for each in ordered)
    whom = "many: variants for Vllm" if wish.expected_requests >= MANY_REQUESTS else "one: variants for other than Vllm"
    where = ", each on accelerators before any on a processor" if brings_forward(wish) else ""
    return (
        f"{wish.expected_requests} at a time are expected of a replica, which is {whom} come first ({names}){where}; "
        "`spec.engines` decides otherwise"
    )


def _is_for_many(variant: VariantView) -> bool:
    return bool(variant.engines) and variant.engines[0] is EngineName.VLLM
