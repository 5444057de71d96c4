"""Engines that failed when an Instance wanted them: what is tried again, what is told of the node, and for how long."""

import asyncio

from covey_agent.engines.failed import AGAIN_SECONDS, UNASKED_SECONDS, FailedEngines
from covey_agent.ports import AgentError
from covey_api.engines import EngineName
from covey_api.node import EngineOverride
from covey_api.reasons import FailureCause

ENGINE = EngineName.LLAMA_SERVER
ERROR = AgentError(FailureCause.NO_USABLE_ENGINE, "uv could not install it")


class Node:
    """Its clock is set by hand. `here`: versions that are on the machine."""

    def __init__(self, *here: str | None) -> None:
        self.now = 0.0
        self.here = here
        self.tried: list[str | None] = []
        self.failed = FailedEngines(lambda: self.now)

    async def look(self, override: EngineOverride | None = None) -> AgentError | None:
        self.failed.try_again(ENGINE, override, lambda version: version in self.here, self._start)
        await asyncio.sleep(0)
        return self.failed.find(ENGINE, override)

    async def _start(self, version: str | None) -> None:
        self.tried.append(version)
        self.failed.fail(ENGINE, version, None, ERROR, is_trial=True)


def test_only_a_version_that_is_here_is_tried_again() -> None:
    async def story() -> None:
        node = Node("1")
        for version in ("1", "2", None):
            node.failed.fail(ENGINE, version, None, ERROR)
        assert await node.look() is ERROR
        assert node.tried == [], "it failed just now"
        node.now = AGAIN_SECONDS
        await node.look()
        await node.look()
        assert node.tried == ["1"], "the others would be fetched and installed"
        node.now += AGAIN_SECONDS
        await node.look()
        assert node.tried == ["1", "1"]

    asyncio.run(story())


def test_a_version_that_no_instance_asks_for_is_told_no_longer_and_never_again_by_its_own_trials() -> None:
    async def story() -> None:
        node = Node("1")
        node.failed.fail(ENGINE, "1", None, ERROR)
        node.now = UNASKED_SECONDS - 1
        assert await node.look() is ERROR
        node.now = UNASKED_SECONDS
        assert await node.look() is None
        node.failed.fail(ENGINE, "1", None, ERROR, is_trial=True)
        assert await node.look() is None, "a trial that began before it was forgotten"

    asyncio.run(story())


def test_who_asks_again_keeps_it_told_and_the_agents_own_choice_lasts_by_itself() -> None:
    async def story() -> None:
        node = Node()
        node.failed.fail(ENGINE, "1", None, ERROR)
        node.now = UNASKED_SECONDS / 2
        node.failed.fail(ENGINE, "1", None, ERROR)
        node.now = UNASKED_SECONDS
        assert await node.look() is ERROR
        own = Node()
        own.failed.fail(ENGINE, None, None, ERROR)
        own.now = 2 * UNASKED_SECONDS
        assert await own.look() is ERROR

    asyncio.run(story())


def test_another_spec_forgets_it_for_good() -> None:
    async def story() -> None:
        node = Node("1", None)
        node.failed.fail(ENGINE, "1", None, ERROR)
        node.failed.fail(ENGINE, None, None, ERROR)
        pinned = EngineOverride(engine=ENGINE, version="2")
        assert await node.look(pinned) is None
        node.now = AGAIN_SECONDS
        assert await node.look() is None
        assert node.tried == []

    asyncio.run(story())


def test_what_a_source_or_a_disk_is_to_blame_for_is_not_the_engines() -> None:
    async def story() -> None:
        node = Node("1")
        node.failed.fail(ENGINE, "1", None, AgentError(FailureCause.DISK_FULL, "no room"))
        node.failed.fail(ENGINE, None, None, AgentError(FailureCause.ARTIFACT_UNAVAILABLE, "away"))
        assert await node.look() is None

    asyncio.run(story())
