"""What whoever started a parent sees of it: lines worth showing, signals, and how it ended."""

import asyncio
import contextlib
import signal
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from covey.up.left import observe_left

STOPPED = "Stopped; nothing that Covey started is left running."
# Levels at which a part's line is shown to the person in front, beside going to its log.
SHOWN_LEVELS = (" WARNING ", " ERROR ", " CRITICAL ")


def say(console: Console, words: str) -> None:
    """Words for whoever watches. A terminal that is gone, or a full disk behind a redirection, costs them alone."""
    with contextlib.suppress(OSError, SystemExit):  # at a broken pipe rich would end the process
        console.print(words, markup=False, highlight=False, soft_wrap=True)


def show_lines(console: Console, *, everything: bool) -> Callable[[str, str], None]:
    """For `on_line`: warnings and ends, or each line."""

    def show(part: str, line: str) -> None:
        if everything or any(level in line for level in SHOWN_LEVELS) or line.startswith("ended "):
            say(console, f"[{part}] {line}")

    return show


def watch_signals(ending: asyncio.Event, hurry: Callable[[], None], console: Console) -> None:
    """Ctrl-C and its like set `ending`; a second one hurries."""

    def on_signal() -> None:
        if ending.is_set():
            say(console, "Interrupted again: ending the parts at once.")
            hurry()
        ending.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, on_signal)


def describe_end(state: Path, *, is_asked: bool, left_engines: bool) -> str:
    """What is left, as it is seen after the end: engines under keepers, and parts of another parent."""
    left = observe_left(state)
    others = "".join(f" Still running, from an earlier parent: {each}." for each in left.parts)
    if is_asked and (left_engines or left.engines):
        members = state / "agent" / "members"
        return f"Stopped, but an engine may still run: what could not be ended is in '{members}/*/keeper.json'.{others}"
    if left.engines:
        grace = f" for {left.grace_seconds:.0f} s" if left.grace_seconds else ""
        engines, keepers = f"{left.engines} engines run", "their keepers"
        if left.engines == 1:
            engines, keepers = "1 engine runs", "its keeper"
        return (
            f"The parts have ended; {engines} on under {keepers}{grace}. Mend the cause and start again: what runs is "
            f"taken over as it is. To stop it: covey agent --stop-all --state '{state}'.{others}"
        )
    return f"Stopped; nothing that this command started is left running.{others}" if others else STOPPED
