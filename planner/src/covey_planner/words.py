"""Words that several texts share."""

from covey_api.units import format_bytes


def render_exactly(count: int) -> str:
    """Bytes for people, and the very number beside them."""
    return f"{format_bytes(count)} ({count} bytes)"
