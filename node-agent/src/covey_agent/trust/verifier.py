"""Signatures looked at in a process of their own, whose environment is installed when one is looked at first.

The libraries (16 MB, 40 wheels) are pinned and installed as an engine's are, so other nodes give them, and a node
without a network that has them once looks at signatures for ever. Rejected: dependencies of the agent (every node would
carry them, and parse what strangers wrote in the process that holds its engines), and an extra of the package (a Model
that demands a signature would fail until a person installs it on each node).
"""

import asyncio
import json
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import cast

from covey_api.reasons import FailureCause

from covey_agent.artifacts.cache import Cache
from covey_agent.artifacts.download import Downloader
from covey_agent.artifacts.web import Web
from covey_agent.engines.environments import Environment
from covey_agent.engines.probe import ask
from covey_agent.engines.recipes import signatures_recipe
from covey_agent.ports import AgentError, Transfer

_PROGRAM = Path(__file__).parent / "verify.py"
# Importing its libraries takes a second or two, from a slow disk under load far more.
_SECONDS = 120.0


class SignatureRefused(Exception):
    """In words: what was expected and what was found."""


class Verifier:
    """`find_environment`: None where its libraries can't be on this machine."""

    def __init__(self, find_environment: Callable[[], Environment | None]) -> None:
        self._find_environment = find_environment

    async def look(self, request: Mapping[str, object]) -> str:
        """Who signed. SignatureRefused, or AgentError where it can't be looked at."""
        environment = self._find_environment()
        if environment is None:
            raise _blind("its libraries aren't for this machine and Python. Run the Model elsewhere.")
        try:
            packages = await environment.ensure(_ignore)
        except AgentError as error:
            if error.cause is FailureCause.ARTIFACT_UNAVAILABLE:
                raise AgentError(error.cause, f"what looks at signatures can't be fetched: {error.message}") from error
            raise _blind(error.message) from error
        return await self._ask(packages, request)

    async def _ask(self, packages: Path, request: Mapping[str, object]) -> str:
        with tempfile.TemporaryDirectory(prefix="covey-") as folder:
            path = Path(folder) / "request.json"
            await asyncio.to_thread(path.write_text, json.dumps(request), encoding="utf-8")
            answer = await ask(
                Path(sys.executable),
                *("-I", "-S", str(_PROGRAM), str(packages), str(path)),
                # Sigstore's library writes its root to the user's folders.
                environment={"HOME": folder, "TMPDIR": folder},
                seconds=_SECONDS,
            )
        if answer is None:
            raise AgentError(
                FailureCause.ARTIFACT_UNAVAILABLE,
                f"a signature was not looked at within {_SECONDS:.0f} s on this node.",
            )
        said = _read(answer.text)
        if "by" in said:
            return said["by"]
        if "refused" in said:
            raise SignatureRefused(said["refused"])
        if "unread" in said:
            raise AgentError(FailureCause.ARTIFACT_UNAVAILABLE, said["unread"])
        raise _blind(f"its program ended with {answer.status}: {' '.join(answer.text.split())[-300:]}")


def open_verifier(web: Web, cache: Cache, downloader: Downloader) -> Verifier:
    recipe = signatures_recipe()
    made = Environment(recipe, web, cache, downloader) if recipe else None
    return Verifier(lambda: made)


def _read(text: str) -> dict[str, str]:
    """The last line that is an answer: libraries print too."""
    for line in reversed(text.splitlines()):
        try:
            found: object = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(found, dict):
            return {name: each for name, each in cast("dict[str, object]", found).items() if isinstance(each, str)}
    return {}


def _blind(why: str) -> AgentError:
    return AgentError(FailureCause.SIGNATURE_REFUSED, f"signatures can't be looked at on this node: {why}")


def _ignore(transfer: Transfer) -> None:
    """It is small, and nobody waits for it alone."""
