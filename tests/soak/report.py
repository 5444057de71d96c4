"""A soak as one page: what was done, what was lost, what it took before and after, and what must not be."""

import os
import platform
import time
from collections import Counter
from collections.abc import Iterator
from importlib.metadata import version

import psutil
from kit.chaos import Footprint

from soak.story import MORE_FILES, MORE_MEMORY_BYTES, MORE_STATE_BYTES, MOST_LOG_BYTES, Soaked, Story

# So that the page stays one.
MOST_ROWS, MOST_FINDINGS, MOST_LETTERS = 16, 20, 600


def render_report(story: Story, began: float) -> str:
    return "\n".join(_lines(story, began)) + "\n"


def _lines(story: Story, began: float) -> Iterator[str]:
    when = time.strftime("%Y-%m-%d %H:%M", time.gmtime(began))
    whole = psutil.virtual_memory().total / 2**30
    yield f"# Soak of Covey {version('covey')}\n"
    machine = f"{os.cpu_count()} cores ({platform.machine()}), {whole:.0f} GiB, {platform.system()}"
    yield f"`make soak MINUTES={story.seconds / 60:g} SEED={story.seed}`, {when} UTC; {machine}, Python"
    yield f"{platform.python_version()}; one-minute load at the end {os.getloadavg()[0]:.1f}.\n"
    judged = f"{len(story.findings)} findings." if story.findings else "It holds."
    yield f"**{judged if story.is_over else 'It did not come to its end.'}**\n"
    for finding in story.findings[:MOST_FINDINGS]:
        yield f"- {finding[:MOST_LETTERS]}"
    yield "\n## What was done\n"
    if not story.cuts:
        yield "No connection was cut: that needs root, `ss`, and a kernel that destroys sockets.\n"
    yield "| fleet | models | edits | faults | kills | pauses | cuts |\n|---|---|---|---|---|---|---|"
    for each in story.soaked:
        kinds = Counter(fault.what.split()[0] for fault in each.chaos.faults)
        counted = " | ".join(str(kinds[kind]) for kind in ("kill", "pause", "cut"))
        yield f"| {each.name} | {', '.join(each.models)} | {len(each.edits)} | {len(each.chaos.faults)} | {counted} |"
    victims = Counter(f"{f.what.split()[0]} {f.victim}" for each in story.soaked for f in each.chaos.faults)
    yield "\n" + ", ".join(f"{name} {count}" for name, count in sorted(victims.items())) + "."
    yield "\n## Requests\n"
    yield "| fleet | answered | lost | were at risk | without a fault | told to wait | refused |"
    yield "|---|---|---|---|---|---|---|"
    for each in story.soaked:
        traffic, at_risk = each.traffic, sum(fault.at_risk for fault in each.chaos.faults)
        told = f"{len(traffic.told_to_wait)} | {traffic.refused}"
        lost = f"{len(traffic.failures)} | {at_risk} | {len(each.chaos.unexplained())}"
        yield f"| {each.name} | {traffic.done} | {lost} | {told} |"
    yield "\nWho is told to wait, or refused, tries again, as SDKs do.\n\n## What it took\n"
    state, memory, logs = map(_megabytes, (MORE_STATE_BYTES, MORE_MEMORY_BYTES, MOST_LOG_BYTES))
    yield f"May grow by {MORE_FILES} files, {state} of state, {memory} of memory (parts, not engines); logs are rings"
    yield f"of {logs} in all.\n"
    yield "| fleet | when | processes | ports | open files | state | logs | memory |\n|---|---|---|---|---|---|---|---|"
    for each in story.soaked:
        yield from _rows(each)
    yield "\n## At the end\n"
    for each in story.soaked:
        woken = _known(each.wakeups_per_second, "wakeups a second of its parts")
        yield f"- fleet {each.name}: converged after {_known(each.converged_seconds, 's')}; at rest then {woken}."


def _rows(soaked: Soaked) -> Iterator[str]:
    if soaked.before:
        yield f"| {soaked.name} | before | {_cells(soaked.before)} |"
    every = max(1, len(soaked.looks) // MOST_ROWS)
    for seconds, answered, footprint in soaked.looks[::every]:
        yield f"| {soaked.name} | {seconds:.0f} s, {answered} answered | {_cells(footprint)} |"
    if soaked.after:
        yield f"| {soaked.name} | **after** | {_cells(soaked.after)} |"


def _cells(footprint: Footprint) -> str:
    counts = f"{footprint.processes} | {footprint.listening_ports} | {footprint.open_files}"
    state = _megabytes(footprint.state_bytes - footprint.log_bytes)
    return f"{counts} | {state} | {_megabytes(footprint.log_bytes)} | {_megabytes(footprint.memory_bytes)}"


def _megabytes(count: int) -> str:
    return f"{count / 1e6:.1f} MB"


def _known(value: float | None, unit: str) -> str:
    return "an unknown time" if value is None else f"{value:.1f} {unit}"
