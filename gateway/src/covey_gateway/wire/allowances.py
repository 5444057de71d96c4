"""What a key may still ask for, as headers that SDKs and agents read: OpenAI's names, or Anthropic's."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime


@dataclass(frozen=True, slots=True)
class Allowance:
    """What is left of one limit that counts by the minute."""

    allowed: int
    left: int
    resets_after_seconds: int
    """Until all of it is there again."""


RenderAllowances = Callable[[Allowance | None, Allowance | None, float], bytes]
"""Header lines, each with its end. The time is in seconds since the epoch."""


def render_openai(requests: Allowance | None, tokens: Allowance | None, wall: float) -> bytes:
    """Ollama's clients know none; they get these too."""
    return b"".join(
        b"x-ratelimit-limit-%b: %d\r\nx-ratelimit-remaining-%b: %d\r\nx-ratelimit-reset-%b: %ds\r\n"
        % (what, each.allowed, what, each.left, what, each.resets_after_seconds)
        for what, each in ((b"requests", requests), (b"tokens", tokens))
        if each is not None
    )


def render_anthropic(requests: Allowance | None, tokens: Allowance | None, wall: float) -> bytes:
    """The reset is a time here. `wall`: now, in seconds since the epoch."""
    lines: list[str] = []
    for what, each in (("requests", requests), ("tokens", tokens)):
        if each is not None:
            resets = datetime.fromtimestamp(int(wall) + each.resets_after_seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            name = f"anthropic-ratelimit-{what}"
            lines.append(f"{name}-limit: {each.allowed}\r\n{name}-remaining: {each.left}\r\n{name}-reset: {resets}\r\n")
    return "".join(lines).encode()
