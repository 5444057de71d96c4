"""Asking the leader who has what: bounded, whatever the leader does."""

from types import SimpleNamespace

import pytest
from covey_agent.peers import directory as module
from covey_agent.peers.directory import FleetDirectory
from covey_api.messages import Wanted
from covey_api.meta import Message
from covey_fleet_client.errors import FleetError, FleetErrorKind
from kit.outside import Answer, FakeFleet

pytestmark = pytest.mark.anyio

WANTED = Wanted(sha256="a" * 64)


class FailingFleet(FakeFleet):
    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds
        self.now = 0.0
        self.calls = 0

    async def post(self, path: str, message: Message, answer: type[Answer]) -> Answer:
        self.calls += 1
        self.now += self.seconds
        raise FleetError(FleetErrorKind.UNREACHABLE, "no answer")


@pytest.mark.parametrize(("seconds", "posts"), [(module.SLOW_SECONDS, 1), (0.0, 3)], ids=["silent", "refused at once"])
async def test_a_controller_that_does_not_answer_is_let_rest(
    monkeypatch: pytest.MonkeyPatch, seconds: float, posts: int
) -> None:
    directory, fleet = FleetDirectory("a"), FailingFleet(seconds)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: fleet.now))
    with directory.reached_by(fleet):
        for _ in range(3):
            assert await directory.ask(WANTED) is None
    assert fleet.calls == posts
    with directory.reached_by(fleet):
        await directory.ask(WANTED)
    assert fleet.calls == posts + 1, "a new connection is asked"
