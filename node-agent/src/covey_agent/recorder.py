"""The flight recorder: the last transitions of each member, in its folder, for whoever asks what became of it.

It outlives the agent and the engine, and goes with the member (ADR 33). What can't be written is said once and is lost:
no engine waits for it.
"""

import json
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from covey_fleet_client.files import PRIVATE_FILE_MODE, ensure_private_folder

from covey_agent.supervisor.state import MemberState, State

logger = logging.getLogger(__name__)

FILE = "timeline.jsonl"
MAX_TRANSITIONS = 128
MAX_MESSAGE = 512
# A file that is longer isn't ours: twice as many lines of the longest message, each character escaped.
MAX_FILE_BYTES = 2 * MAX_TRANSITIONS * (6 * MAX_MESSAGE + 512)


@dataclass(frozen=True, slots=True)
class Transition:
    """What is told of a member's step."""

    attempt: int
    phase: str
    goal: str
    pid: int | None
    cause: str
    message: str


class Recorder:
    """Writes under `members`, a folder a member. `boot_id` tells which clock the monotonic seconds are of."""

    def __init__(
        self, members: Path, boot_id: str, utc_now: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        self._members = members
        self._boot_id = boot_id
        self._utc_now = utc_now
        self._counts: dict[str, int] = {}
        """Lines of each member's file."""
        self._has_failed = False

    def observe(self, before: State, after: State, now: float) -> None:
        """Record what changed between two steps; `now` in monotonic seconds."""
        for key in before.members.keys() - after.members.keys():
            self._counts.pop(key, None)
        for key, member in after.members.items():
            old = before.members.get(key)
            if old is not member and (old is None or describe(old) != describe(member)):
                self._record(key, describe(member), now)

    def _record(self, key: str, transition: Transition, now: float) -> None:
        entry = {
            "at": self._utc_now().isoformat(timespec="milliseconds"),
            "monotonicSeconds": round(now, 3),
            "bootId": self._boot_id,
            "attempt": transition.attempt,
            "phase": transition.phase,
            "goal": transition.goal,
            "pid": transition.pid,
            "cause": transition.cause,
            "message": transition.message[:MAX_MESSAGE],
        }
        try:
            self._append(key, json.dumps(entry) + "\n")
            self._has_failed = False
        except OSError as error:
            if not self._has_failed:
                logger.warning("transitions of members can't be recorded: %s", error)
            self._has_failed = True

    def _append(self, key: str, line: str) -> None:
        folder = self._members / key
        count = self._counts.get(key)
        if count is None:
            ensure_private_folder(self._members)
            ensure_private_folder(folder)
            count = len(read_lines(folder))
        if count >= 2 * MAX_TRANSITIONS:
            count = self._shorten(folder)
        _write(folder / FILE, line, os.O_APPEND)
        self._counts[key] = count + 1

    def _shorten(self, folder: Path) -> int:
        """Keep the last ones; how many are left. Whole or not at all, whenever the agent is killed."""
        kept = read_lines(folder)[-MAX_TRANSITIONS:]
        aside = folder / f"{FILE}.new"
        _write(aside, "".join(f"{line}\n" for line in kept), os.O_TRUNC)
        os.replace(aside, folder / FILE)
        return len(kept)


def _write(path: Path, text: str, how: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | how, PRIVATE_FILE_MODE)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def describe(member: MemberState) -> Transition:
    failure = member.failure
    return Transition(
        attempt=member.spec.attempt,
        phase=member.phase.value,
        goal=member.goal.value,
        pid=member.keeper.pid if member.keeper else None,
        cause=failure.cause.value if failure else "",
        message=failure.message if failure else "",
    )


def read_lines(folder: Path) -> list[str]:
    """What was recorded, the oldest first; empty when nothing was, or it can't be read."""
    try:
        with open(folder / FILE, encoding="utf-8", errors="replace") as file:
            return file.read(MAX_FILE_BYTES).splitlines()
    except OSError:
        return []
