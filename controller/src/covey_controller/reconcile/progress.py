"""How far a member's slowest step is, as its status says it: each change is a write of the status, so few are made.

The finest step of which each takes long enough at the present rate is told, so a download of an hour is told in 5 %,
one of half a minute in quarters. What was told stays until there is more to tell: else a rate that changes from one
report to the next, or the time that is left, would be a write each. That reads what was written before, for its
words alone; nothing is decided by it.
"""

import re

from covey_api.messages import Progress
from covey_api.units import format_seconds, seconds_left

# Percent, and how long such a step must take at least.
_STEPS = ((1, 300), (5, 60), (10, 30))
_COARSEST = 25
# Less than this is over before anybody has read it.
_LEAST_SECONDS_LEFT = 60
_MAX_PROGRESS = 80
_TOLD = re.compile(r"(.*) (\d+) %(, .* left)?")


def render_progress(progress: Progress, told: str = "") -> str:
    """`model 35 %, 12 min left`; empty below the first step. `told`: what the status says now.

    Of what a node says that makes no sense, nothing below 0 and nothing above 100: a status has bounds.
    """
    done = min(max(0, progress.done_bytes), progress.total_bytes)
    exact = done * 100 // progress.total_bytes if progress.total_bytes > 0 else 0
    size = _choose_step(progress)
    percent = exact // size * size
    before = _TOLD.fullmatch(told)
    if before and before[1] == progress.step and percent <= int(before[2]) <= exact:
        return told
    if not percent:
        return ""
    text = f"{progress.step} {percent} %"
    left = seconds_left(done, progress.total_bytes, progress.bytes_per_second)
    timed = f"{text}, {format_seconds(left)} left" if left is not None and left >= _LEAST_SECONDS_LEFT else text
    return timed if len(timed) <= _MAX_PROGRESS else text


def _choose_step(progress: Progress) -> int:
    """Percent."""
    if progress.bytes_per_second <= 0 or progress.total_bytes <= 0:
        return _COARSEST
    seconds = progress.total_bytes / progress.bytes_per_second / 100
    return next((size for size, least in _STEPS if seconds * size >= least), _COARSEST)
