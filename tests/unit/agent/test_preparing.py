"""What a machine with an accelerator does before its lanes are told: llama-server is installed, once and bounded."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest
from covey_agent.artifacts.cache import Cache
from covey_agent.artifacts.download import Downloader
from covey_agent.artifacts.index import IndexSettings
from covey_agent.artifacts.web import Patience, Web
from covey_agent.engines import environments, native
from covey_agent.engines.environments import Environment, Recipe
from covey_agent.engines.features import WATCHED
from covey_agent.engines.native import LlamaServerSource
from covey_agent.engines.probe import Answer
from covey_agent.engines.recipes import LLAMA_SERVER
from covey_agent.ports import AgentError, OnTransfer
from covey_api.engines import EngineName, LaneState
from covey_api.node import EngineOverride
from covey_api.reasons import FailureCause

LOOK_SECONDS = 0.05


class FakeEnvironment(Environment):
    """Installs when `may_end` is set, and fails in the order of `failures` before."""

    def __init__(self, *failures: FailureCause) -> None:
        self.recipe = LLAMA_SERVER
        self.failures = list(failures)
        self.may_end = asyncio.Event()
        self.begun, self.broken_off = 0, 0
        self.packages: Path | None = None

    def find(self) -> Path | None:
        return self.packages

    async def ensure(self, on_transfer: OnTransfer) -> Path:
        self.begun += 1
        if self.failures:
            raise AgentError(self.failures.pop(0), "no")
        try:
            await self.may_end.wait()
        except asyncio.CancelledError:
            self.broken_off += 1
            raise
        self.packages = Path("/packages")
        return self.packages


@pytest.fixture
def card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The environment of an agent on a machine that has one, and on which the managed llama-server runs."""
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'GPU-1, NVIDIA H200, 143771'\n")
    program.chmod(0o755)
    monkeypatch.setattr(native, "is_llama_server_fit", lambda: True)
    monkeypatch.setattr(native, "_INSTALL_SECONDS", LOOK_SECONDS)
    return {"PATH": str(tmp_path)}


class Looks:
    def __init__(self, card: dict[str, str], managed: FakeEnvironment) -> None:
        self.managed = managed
        self.source = LlamaServerSource((managed,), card)

    async def look(
        self, override: EngineOverride | None = None, *, is_wished: bool = True, has_members: bool = False
    ) -> bool:
        return await self.source.prepare(override, is_wished=is_wished, has_members=has_members)


def run(card: dict[str, str], *failures: FailureCause, story: Callable[[Looks], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(30):
            await story(Looks(card, FakeEnvironment(*failures)))

    asyncio.run(bounded())


def test_an_installation_that_takes_longer_than_a_look_is_not_begun_anew(card: dict[str, str]) -> None:
    async def story(looks: Looks) -> None:
        assert [await looks.look() for _ in range(3)] == [False] * 3
        looks.managed.may_end.set()
        assert await looks.look()
        assert (looks.managed.begun, looks.managed.broken_off) == (1, 0)

    run(card, story=story)


def test_what_outlasts_the_wait_holds_lanes_back_no_more_and_still_comes(
    card: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native, "_PREPARE_SECONDS", LOOK_SECONDS)

    async def story(looks: Looks) -> None:
        assert await looks.look()
        assert looks.managed.packages is None
        looks.managed.may_end.set()
        while looks.managed.packages is None:  # noqa: ASYNC110 seen from outside only
            await asyncio.sleep(0.005)
        assert (looks.managed.begun, looks.managed.broken_off) == (1, 0)

    run(card, story=story)


def test_an_index_that_is_back_at_the_next_look_is_asked_again(card: dict[str, str]) -> None:
    async def story(looks: Looks) -> None:
        looks.managed.may_end.set()
        assert [await looks.look() for _ in range(3)] == [False, False, True]
        assert looks.managed.begun == 3

    run(card, FailureCause.ARTIFACT_UNAVAILABLE, FailureCause.ARTIFACT_UNAVAILABLE, story=story)


def test_an_index_that_stays_away_is_not_waited_for_without_end(
    card: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native, "_PREPARE_SECONDS", 0.0)

    async def story(looks: Looks) -> None:
        assert [await looks.look() for _ in range(3)] == [True] * 3
        assert looks.managed.begun == 1, "what failed isn't tried at every look"

    run(card, FailureCause.ARTIFACT_UNAVAILABLE, story=story)


def test_what_will_fail_again_is_given_up_at_once(card: dict[str, str]) -> None:
    async def story(looks: Looks) -> None:
        assert [await looks.look() for _ in range(2)] == [True] * 2
        assert looks.managed.begun == 1

    run(card, FailureCause.NO_USABLE_ENGINE, story=story)


@pytest.mark.parametrize(
    ("cause", "is_told"),
    [
        (FailureCause.ARTIFACT_UNAVAILABLE, False),
        (FailureCause.DISK_FULL, False),
        (FailureCause.NO_USABLE_ENGINE, True),
    ],
)
def test_a_source_that_is_away_or_a_full_disk_is_not_told_as_the_engines_problem(
    card: dict[str, str], cause: FailureCause, is_told: bool
) -> None:
    async def story(looks: Looks) -> None:
        await looks.look()
        assert await looks.source.observe_lanes(None)
        assert (looks.source.problem is not None) is is_told

    run(card, cause, story=story)


def test_who_has_members_waits_for_nothing_and_gets_the_program_meanwhile(card: dict[str, str]) -> None:
    async def story(looks: Looks) -> None:
        assert await looks.look(is_wished=False, has_members=True)
        assert looks.managed.begun == 0, "nobody has wished it yet"
        assert await looks.look(has_members=True)
        assert await looks.look(has_members=True)
        assert (looks.managed.begun, looks.managed.broken_off) == (1, 0)

    run(card, story=story)


def test_nothing_is_installed_beside_a_path_that_leads_nowhere(card: dict[str, str]) -> None:
    async def story(looks: Looks) -> None:
        assert await looks.look(EngineOverride(engine=EngineName.LLAMA_SERVER, path="/nowhere/llama-server"))
        assert looks.managed.begun == 0

    run(card, story=story)


class SlowDisk(Environment):
    """On which the last step takes until it may end; it is written down when it does."""

    is_marking = False
    marked = False
    may_end = threading.Event()

    def _complete(self, staging: Path) -> None:
        self.is_marking = True
        self.may_end.wait(60)
        super()._complete(staging)
        self.marked = True


def test_an_installation_that_is_broken_off_has_ended_when_the_next_one_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its thread would mark what the next one has half made as complete."""

    async def install(*arguments: object, **named: object) -> Answer:
        return Answer(0, "")

    monkeypatch.setattr(environments, "ask", install)

    async def story() -> None:
        web, cache = Web(IndexSettings(url="http://127.0.0.1:9/simple"), Patience()), Cache(tmp_path)
        recipe = Recipe("Tiny", "1.0", (), 1, "tiny", "Nothing helps.")
        environment = SlowDisk(recipe, web, cache, Downloader(web, cache))
        installing = asyncio.create_task(environment.ensure(lambda transfer: None))
        while not environment.is_marking:  # noqa: ASYNC110 seen from outside only
            await asyncio.sleep(0.005)
        installing.cancel()
        asyncio.get_running_loop().call_later(0.2, environment.may_end.set)
        await asyncio.wait({installing})
        assert installing.cancelled()
        assert environment.marked
        await web.close()

    asyncio.run(story())


HELP = "--mmproj FILE\n--poll N\n"


def build(folder: Path, version: str, text: str) -> Path:
    """A program that answers `--help` with the text, and counts how often it is asked."""
    packages = folder / version
    packages.mkdir()
    program = packages / "llama-server"
    program.write_text(
        f'#!/bin/sh\ncase $1 in\n--version) echo "version: {version}";;\n--help) echo x >> {packages}/asked\n'
        f"cat <<END\n{text}END\n;;\nesac\n"
    )
    program.chmod(0o755)
    return packages


def test_each_version_tells_what_its_own_build_lacks(
    card: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that is pinned beside the own one, and one that isn't here, of which nothing is known."""
    monkeypatch.setattr(native, "_PROBE_SECONDS", 60.0)

    def managed(version: str, packages: Path | None) -> FakeEnvironment:
        made = FakeEnvironment()
        made.recipe, made.packages = replace(made.recipe, version=version, program="llama-server"), packages
        return made

    async def story() -> None:
        own, pinned = build(tmp_path, "3", HELP), build(tmp_path, "2", "--reranking\n--embeddings\n")
        (tmp_path / "2" / "rpc-server").touch()
        source = LlamaServerSource((managed("3", own), managed("2", pinned), managed("1", None)), card)
        for _ in range(2):
            (lane,) = await source.observe_lanes(None)
            assert (lane.version, lane.versions, lane.roles) == ("3", ("3", "2", "1"), ())
            assert set(lane.lacks_features) == WATCHED - {"--mmproj", "--poll"}
            older, oldest = lane.builds
            assert (older.version, older.state, older.roles) == ("2", LaneState.INSTALLED, ("Driver", "Donor"))
            assert set(older.lacks_features) == WATCHED - {"--reranking", "--embeddings"}
            assert (oldest.version, oldest.state, oldest.lacks_features) == ("1", LaneState.INSTALLABLE, ())
        assert [(each / "asked").read_text() for each in (own, pinned)] == ["x\n", "x\n"], "each is asked once"

    asyncio.run(story())
