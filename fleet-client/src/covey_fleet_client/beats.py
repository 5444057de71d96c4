"""When what is done again and again is next due, so that the parts of one machine wake together.

A process that wakes on an idle machine finds its caches cold and its processor asleep; five that wake within a few
milliseconds pay for that once. All clocks of a machine's processes run from its start, so its parts need no word with
each other: beats lie on a grid of that clock. Machines have a phase of their own, or a hundred started by one power
switch would call the controller at the same moment.
"""

import zlib
from typing import Final

from covey_api.messages import REPORT_SECONDS

BEAT_SECONDS: Final = REPORT_SECONDS


def next_beat(now: float, at_most_seconds: float, machine: str) -> float:
    """The last beat of the machine that comes within `at_most_seconds`, on the clock that says `now`.

    `machine` as `observe_machine` says. Where it says nothing, and where no beat comes, it is the latest moment itself.
    """
    latest = now + at_most_seconds
    if not machine:
        return latest
    phase = zlib.crc32(machine.encode()) / 2**32 * BEAT_SECONDS
    beat = (latest - phase) // BEAT_SECONDS * BEAT_SECONDS + phase
    return beat if beat > now else latest
