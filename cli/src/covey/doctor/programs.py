"""Asking a tool of the system: bounded, told apart from one that isn't there, and never with our credentials."""

import os
import shutil
import subprocess
from dataclasses import dataclass

from covey_agent.engines.probe import clean_environment

# Tools answer from memory; one that doesn't waits for a driver or a bus that is stuck.
TOOL_SECONDS = 4.0


@dataclass(frozen=True, slots=True)
class Said:
    """`status` None: it didn't end in time."""

    status: int | None
    text: str


def ask_tool(*command: str, extra: tuple[str, ...] = (), seconds: float = TOOL_SECONDS) -> Said | None:
    """What it said; None where there is no such program. `extra`: names of variables that it needs beside the usual."""
    program = shutil.which(command[0])
    if program is None:
        return None
    kept = {name: os.environ[name] for name in extra if name in os.environ}
    try:
        done = subprocess.run(
            [program, *command[1:]],
            env=clean_environment(kept),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Said(None, "")
    except OSError as error:
        return Said(126, error.strerror or type(error).__name__)
    return Said(done.returncode, done.stdout + done.stderr)
