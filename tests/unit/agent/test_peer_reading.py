"""A part of a blob that other nodes are asked for, one after the other."""

from collections.abc import Sequence
from typing import Any, cast

import pytest
from covey_agent.peers import reading
from covey_agent.peers.reading import TRIES, FarBlob
from covey_agent.peers.taking import Dialler, PeerBusy, PeerFailed, PeerShut
from covey_agent.ports import AgentError
from covey_api.messages import Holder, Wanted, WantedAnswer

pytestmark = pytest.mark.anyio

DIGEST = "a" * 64


class Site:
    """A leader that names two nodes at a time, and nodes that fail as they are told to, each so often."""

    def __init__(self, **failures: Sequence[Exception]) -> None:
        self.failures = {name: list(each) for name, each in failures.items()}
        self.asks = 0

    async def ask(self, wanted: Wanted) -> WantedAnswer:
        self.asks += 1
        names = [name for name in self.failures if name not in wanted.tried][:2]
        return WantedAnswer(holders=tuple(Holder(node=name, address="127.0.0.1", port=1) for name in names))

    async def read_range(self, holder: Holder, sha256: str, at: int, length: int) -> tuple[bytes, int]:
        if left := self.failures[holder.node]:
            raise left.pop(0)
        return holder.node.encode(), 10

    async def read(self) -> bytes:
        return await FarBlob(self, cast(Dialler, cast(Any, self)), DIGEST, "'w'").read_at(0, 1)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "BUSY_SECONDS", 0.01)


async def test_where_all_that_were_named_failed_others_are_asked() -> None:
    site = Site(a=[PeerFailed("no")], b=[PeerFailed("no")], c=[])
    assert await site.read() == b"c"
    assert site.asks == 2


@pytest.mark.parametrize("failure", [PeerBusy(), PeerShut("it ended the connection")], ids=["busy", "shut"])
async def test_who_has_no_place_now_is_asked_again(failure: Exception) -> None:
    site = Site(a=[failure, failure])
    assert await site.read() == b"a"
    assert site.asks == 3


async def test_a_read_ends_when_nobody_is_left_and_when_all_stay_busy() -> None:
    with pytest.raises(AgentError, match=r"in the cache of no node.*asked in vain: 'a'"):
        await Site(a=[PeerFailed("no")]).read()
    many = Site(**{f"n{index:02}": [PeerFailed("no")] for index in range(20)})
    with pytest.raises(AgentError, match="in the cache of no node"):
        await many.read()
    assert many.asks == TRIES
    with pytest.raises(AgentError, match="are busy giving others"):
        await Site(a=[PeerBusy()] * TRIES).read()
