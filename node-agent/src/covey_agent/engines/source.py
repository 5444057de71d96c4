"""How one engine gets on this node: the port of its source, and what all sources share.

A program is believed once it answered `--version`: what can't start is told apart before weights are waited for.
"""

import errno
import os
import platform
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from covey_api.engines import EngineName, Lane
from covey_api.node import EngineOverride, Provisioning
from covey_api.reasons import FailureCause

from covey_agent.engines.libraries import explain_missing_library
from covey_agent.engines.probe import CANNOT_START, Answer, ask
from covey_agent.ports import AgentError, EngineProgram, OnTransfer

PROVISIONING_OFF = "COVEY_NO_ENGINE_PROVISIONING"

_VERSION = re.compile(r"^version: (.{1,64})", re.MULTILINE)
# vLLM says nothing but the number, after whatever its libraries warn of.
_BARE_VERSION = re.compile(r"^v?(\d+\.\d+[\w.+-]{0,60})\s*\Z", re.MULTILINE)

Identity = tuple[str, int, int, int]

# What lasts until a person does something; a source that can't be reached, or a full disk, are not the engine's.
_LASTING = frozenset({FailureCause.NO_USABLE_ENGINE, FailureCause.MISSING_LIBRARY})


class EngineSource(Protocol):
    """One engine on this node. `override`: what the Node's spec says of it, if anything."""

    engine: EngineName

    async def observe_lanes(self, override: EngineOverride | None) -> tuple[Lane, ...]:
        """Lanes offered now. AgentError says why there is none, where a person may want to know."""
        ...

    async def ensure(
        self, override: EngineOverride | None, on_transfer: OnTransfer, version: str | None = None
    ) -> EngineProgram:
        """The engine, provisioned if needed; it answered. `version`: of what is installed; a program that the operator
        gave is what it is."""
        ...

    def is_here(self, override: EngineOverride | None, version: str | None = None) -> bool:
        """Whether `ensure` would find it on the machine, and fetch nothing."""
        ...


def is_provisioning_on(override: EngineOverride | None, environment: dict[str, str]) -> bool:
    is_forbidden = environment.get(PROVISIONING_OFF, "0") not in ("", "0")
    return (override is None or override.provisioning is Provisioning.MANAGED) and not is_forbidden


def given_path(text: str) -> Path:
    """The program that a Node's spec names; a loud error where there is none, never another in its place."""
    path = Path(text)
    if not path.is_absolute() or not path.is_file() or not os.access(path, os.X_OK):
        raise unusable(
            f"`spec.engines[].path` of this Node must be the absolute path of a program that the agent's user may run; "
            f"got '{text}', which is not. Correct it, or leave it out."
        )
    return path


def identify(path: Path) -> Identity:
    """Changes whenever the program does."""
    try:
        found = path.stat()
    except OSError:
        return str(path), 0, 0, 0
    return str(path), found.st_size, found.st_mtime_ns, found.st_ino


def parse_version(text: str) -> str:
    match = _VERSION.search(text) or _BARE_VERSION.search(text)
    return match.group(1).strip() if match else ""


class UnknownVersion(AgentError):
    """Whoever pinned it is to blame, and not the engine."""


def is_lasting(error: AgentError) -> bool:
    """Whether it is told of the node: the engine itself is to blame, until a person does something."""
    return error.cause in _LASTING and not isinstance(error, UnknownVersion)


def refuse_version(engine: EngineName, version: str, known: Sequence[str]) -> UnknownVersion:
    return UnknownVersion(
        FailureCause.NO_USABLE_ENGINE,
        f"this agent can't install version '{version}' of engine '{engine}'; it can install "
        f"{', '.join(known) or 'none'}. Correct `spec.engines[].version` of the Node or the Fleet, which counts for "
        "the next Instance, or upgrade the agent.",
    )


def unusable(message: str) -> AgentError:
    return AgentError(FailureCause.NO_USABLE_ENGINE, message)


async def ask_version(program: EngineProgram, seconds: float) -> str:
    """The version that it answers with. AgentError with its last words when it can't start or doesn't answer."""
    arguments = (*program.arguments, "--version")
    answer = await ask(program.path, *arguments, environment=program.environment, seconds=seconds)
    if answer is None:
        raise unusable(f"{' '.join(program.command)} did not answer `--version` within {seconds:.0f} s.")
    return judge_version(program, answer)


def judge_version(program: EngineProgram, answer: Answer) -> str:
    """The version in what it answered to `--version`. AgentError when that says that it can't start."""
    name = " ".join(program.command)
    if missing := explain_missing_library(str(program.path), answer.text):
        raise AgentError(FailureCause.MISSING_LIBRARY, missing)
    if answer.status == CANNOT_START and answer.text == os.strerror(errno.ENOEXEC):
        raise unusable(
            f"{program.path} is no program for this machine ({platform.machine()}, {sys.platform}): it is built for "
            "another processor or system, or damaged. Give one that fits in the Node's `spec.engines`."
        )
    if answer.status != 0:
        last = " ".join(answer.text.split())[-200:]
        raise unusable(f"{name} must answer `--version`; it ended with {answer.status}: {last}")
    return parse_version(answer.text)
