"""One line about replicas that found no place: for status and the log."""

from covey_planner.types import Decision


def render_refusals(decision: Decision) -> str:
    """Counts by reason and the closest refusal in bytes; empty when there is nothing to say."""
    counts = ", ".join(f"{nodes} {'node' if nodes == 1 else 'nodes'} {reason}" for reason, nodes in decision.counts)
    parts = [decision.pending.message] if decision.pending else []
    parts += [counts] if counts else []
    if decision.closest:
        parts.append(decision.closest.closest_words)
    return "; ".join(parts)
