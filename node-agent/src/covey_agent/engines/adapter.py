"""What an engine's adapter is: a description, and the one class that acts by it.

Engines differ in how they are rendered and in what their last words mean; that is what a `Description` holds. How they
are asked for a first token, how an exit status is put into words and what a client's words must never do (become a
cause, be quoted) is the same for all, and is here. A class per engine was the alternative: four copies of the same
three methods, of which one would forget to leave a client's words out.
"""

import asyncio
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from covey_api.companion import LOADED_BY, CompanionRole
from covey_api.engines import EngineName
from covey_api.instance import Instance
from covey_api.reasons import FailureCause

from covey_agent.engines.libraries import explain_missing_library
from covey_agent.engines.proof import MAX_ANSWER_BYTES, explain_unproven, explain_unwell, read_answer
from covey_agent.keeper.observed import explain_status
from covey_agent.keeper.output import EXIT_TAIL_BYTES, drop_cut_line
from covey_agent.ports import AgentError, EngineProgram, Launch, Ring

KEY_FILE = "engine.key"
# An engine may count between two batches only, and one takes long where the model is large for the machine.
PROGRESS_SECONDS = 60.0
# Longest line of output that is quoted in a message.
_MAX_QUOTE = 300
_ERROR_LINE = re.compile(r" E |error|failed|abort", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Start:
    """What one engine process is rendered from."""

    program: EngineProgram
    instance: Instance
    weights: Path
    folder: Path
    port: int
    key: str
    companions: Mapping[CompanionRole, Path] = field(default_factory=dict[CompanionRole, Path])
    donors: tuple[int, ...] = ()
    """Ports of loopback at which a driver finds its donors."""
    ring: Ring | None = None
    """Of a rank: where it finds the others."""

    @property
    def key_file(self) -> Path:
        return self.folder / KEY_FILE

    def launch(self, *arguments: str, environment: dict[str, str] | None = None) -> Launch:
        """The program with these arguments; its key goes by a 0600 file, since an argv is everybody's to read."""
        argv = (*self.program.command, *arguments)
        return Launch(argv, self.program.environment | (environment or {}), ((KEY_FILE, f"{self.key}\n"),))


@dataclass(frozen=True, slots=True)
class Sign:
    """Words in the last output, and what they say of the end. `prefix` comes before status and quote."""

    pattern: re.Pattern[str]
    cause: FailureCause
    prefix: str = ""
    is_only_of_exits: bool = False
    """Means nothing when a signal ended it."""


@dataclass(frozen=True, slots=True)
class Counters:
    """A page of the engine's on which it counts its work. `pattern` finds what is counted."""

    path: str
    pattern: re.Pattern[str]
    asked: re.Pattern[str] | None = None
    """Finds how many requests are under way or wait. Only of a page that the thread which generates answers itself, or
    where each request has a thread of its own that does."""


@dataclass(frozen=True, slots=True)
class Description:
    """One engine."""

    engine: EngineName
    render: Callable[[Start], Launch]
    """Pure. Every option that costs memory or context comes from the stamp."""
    signs: tuple[Sign, ...]
    """The first that is found counts."""
    clients_words: re.Pattern[str] | None = None
    """Lines that may hold words of a client's: they are no cause of an exit, and no status may show them."""
    counters: Counters | None = None
    takes_donors: bool = False
    """Whether it can compute layers on other nodes (`engines.donors`)."""
    takes_ranks: bool = False
    """Whether it runs as one of several ranks."""


class Adapter:
    """The port `EngineAdapter`, by a description. `http`: a client without proxies, for loopback."""

    def __init__(self, description: Description, http: httpx.AsyncClient) -> None:
        self.engine = description.engine
        self._description = description
        self._http = http

    def render(
        self,
        program: EngineProgram,
        instance: Instance,
        weights: Path,
        folder: Path,
        port: int,
        key: str,
        companions: tuple[Path, ...] = (),
        donors: tuple[int, ...] = (),
        ring: Ring | None = None,
    ) -> Launch:
        if donors and not self._description.takes_donors:
            raise AgentError(FailureCause.NO_USABLE_ENGINE, f"engine '{self.engine}' takes no donors")
        if ring and not self._description.takes_ranks:
            raise AgentError(FailureCause.NO_USABLE_ENGINE, f"engine '{self.engine}' has no ranks")
        stamped = instance.spec.companions
        loaded = LOADED_BY.get(self.engine, frozenset())
        if refused := [each.role for each in stamped if each.role not in loaded]:
            names = " and ".join(f"a {role.lower()}" for role in refused)
            raise AgentError(
                FailureCause.NO_USABLE_ENGINE,
                f"engine '{self.engine}' can't load {names} beside a model; 'LlamaServer' can. Give this engine a "
                "variant of its own, without.",
            )
        beside = {each.role: path for each, path in zip(stamped, companions, strict=True)}
        return self._description.render(Start(program, instance, weights, folder, port, key, beside, donors, ring))

    async def explain_unwell(self, port: int) -> str:
        return await explain_unwell(self._http, port)

    async def explain_unready(self, instance: Instance, port: int, key: str) -> str:
        return await explain_unproven(self._http, instance, port, key)

    async def observe_progress(self, port: int, key: str) -> str | None:
        counters = self._description.counters
        page = await self.read_metrics(port, key)
        return " ".join(counters.pattern.findall(page)) or None if counters and page else None

    async def is_at_rest(self, port: int, key: str) -> bool:
        counters = self._description.counters
        page = await self.read_metrics(port, key) if counters and counters.asked else None
        found = counters.asked.findall(page) if counters and counters.asked and page else []
        return bool(found) and not any(float(each) for each in found)

    async def read_metrics(self, port: int, key: str) -> str | None:
        counters = self._description.counters
        if counters is None:
            return None
        url, headers = f"http://127.0.0.1:{port}{counters.path}", {"authorization": f"Bearer {key}"}
        request = self._http.build_request("GET", url, headers=headers, timeout=PROGRESS_SECONDS)
        try:
            async with asyncio.timeout(PROGRESS_SECONDS):
                _, page = await read_answer(self._http, request, MAX_ANSWER_BYTES)
            return page.decode("utf-8", "replace")
        except (httpx.HTTPError, TimeoutError):
            return None

    def blank(self, output: str) -> str:
        return self._description.clients_words.sub("", output) if self._description.clients_words else output

    def classify_exit(self, status: int, tail: str) -> tuple[FailureCause, str]:
        tail = self.blank(drop_cut_line(tail, EXIT_TAIL_BYTES))
        if missing := explain_missing_library("the engine", tail):
            return FailureCause.MISSING_LIBRARY, missing
        words = f"{explain_status(status)}{quote_last_error(tail)}"
        for sign in self._description.signs:
            if sign.pattern.search(tail) and not (sign.is_only_of_exits and status < 0):
                return sign.cause, f"{sign.prefix}{words}"
        return (FailureCause.KILLED if status < 0 else FailureCause.EXITED), words


def quote_last_error(tail: str) -> str:
    """The first error line of the last words, as the cause comes before its consequences; empty if there is none."""
    for line in tail.splitlines():
        if _ERROR_LINE.search(line):
            return f": {re.sub(r'^[0-9.]+ [A-Z] ', '', line.strip())[:_MAX_QUOTE]}"
    return ""
