"""Which node a blob is taken from and when it is left, with a leader and peers that are scripted."""

import asyncio
import hashlib
import os
import ssl
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from covey_agent.artifacts.disk import hold_partial
from covey_agent.artifacts.pace import Pace
from covey_agent.artifacts.partial import PartialFile
from covey_agent.peers import search
from covey_agent.peers import sources as module
from covey_agent.peers.sources import Peers
from covey_agent.peers.taking import PeerBusy, PeerFailed, PeerUnreached
from covey_agent.ports import Transfer
from covey_api.messages import MAX_HOLDERS, Holder, Wanted, WantedAnswer

pytestmark = pytest.mark.anyio

CONTENT = os.urandom(2 * 1024 * 1024)
DIGEST = hashlib.sha256(CONTENT).hexdigest()
FAR = 10**9


@dataclass
class Clock:
    """In the place of the module's `time`: moved by who gives bytes, and by each look at it."""

    now: float = 0.0
    seconds_a_look: float = 0.0

    def monotonic(self) -> float:
        self.now += self.seconds_a_look
        return self.now


@dataclass
class Node:
    """`breaks_after`: so many bytes of a connection. `seconds`: for each piece of `piece_bytes`. `gate`: it gives
    nothing before.
    """

    content: bytes = CONTENT
    breaks_after: int = FAR
    seconds: float = 0.0
    piece_bytes: int = 256 * 1024
    gate: asyncio.Event | None = None
    is_busy: bool = False
    is_far: bool = False
    asked: int = 0


@dataclass
class Peer:
    node: Node
    at: int
    clock: Clock
    given: int = 0

    async def read(self, view: memoryview) -> int:
        if self.given >= self.node.breaks_after:
            raise PeerFailed("it broke off")
        if self.node.gate is not None:
            await self.node.gate.wait()
        await asyncio.sleep(0)
        self.clock.now += self.node.seconds
        piece = self.node.content[self.at :][: min(len(view), self.node.piece_bytes)]
        view[: len(piece)] = piece
        self.at, self.given = self.at + len(piece), self.given + len(piece)
        return len(piece)


@dataclass
class Site:
    """One node that looks for a blob; all others have it, if they aren't passed over."""

    folder: Path
    nodes: dict[str, Node] = field(default_factory=dict[str, Node])
    asks: list[Wanted] = field(default_factory=list[Wanted])
    answer: Callable[[Wanted], WantedAnswer | None] | None = None
    jitter: Callable[[], float] = lambda: 0.0
    clock: Clock = field(default_factory=Clock)

    def __post_init__(self) -> None:
        self.peers = Peers(self, ssl.create_default_context, Pace(), 60.0, self.jitter)
        self.peers._dialler = self  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue]

    async def ask(self, wanted: Wanted) -> WantedAnswer | None:
        self.asks.append(wanted)
        if self.answer is not None:
            return self.answer(wanted)
        holders = [holder(name) for name in self.nodes if name not in wanted.tried]
        return WantedAnswer(holders=tuple(holders[:MAX_HOLDERS]))

    @asynccontextmanager
    async def open(self, holder: Holder, sha256: str, at: int, size_bytes: int) -> AsyncGenerator[Peer]:
        node = self.nodes[holder.node]
        node.asked += 1
        if node.is_far:
            raise PeerUnreached("it can't be reached: timeout")
        if node.is_busy:
            raise PeerBusy
        yield Peer(node, at, self.clock)

    async def fill(self, name: str = "w", content: bytes = CONTENT, *, has_origin: bool = True) -> bytes:
        """What is in the partial file when the origin's turn has come, or all is there."""
        sha256, path = hashlib.sha256(content).hexdigest(), self.folder / name
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
        try:
            partial = PartialFile(descriptor, path)
            partial.open(len(content))
            async with asyncio.timeout(60):
                await self.peers.fill(name, sha256, len(content), partial, ignore, has_origin=has_origin)
        finally:
            os.close(descriptor)
        return path.read_bytes()


def holder(name: str) -> Holder:
    return Holder(node=name, address="127.0.0.1", port=1)


def ignore(transfer: Transfer) -> None:
    assert transfer.done_bytes <= transfer.total_bytes


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    made = Site(tmp_path)
    monkeypatch.setattr(module, "time", made.clock)
    return made


# Nodes behind a firewall


async def test_of_many_nodes_that_cannot_be_reached_a_few_are_tried_and_none_again_for_another_blob(site: Site) -> None:
    site.nodes = {f"n{number:02}": Node(is_far=True) for number in range(40)}
    assert await site.fill() == b""
    assert sum(node.asked for node in site.nodes.values()) == module.MOST_UNREACHED
    site.nodes["near"] = Node()
    for number in range(8):
        assert await site.fill(f"other-{number}") in (b"", CONTENT)
    assert [node.asked for node in site.nodes.values() if node.is_far] == [1] * 40
    assert await site.fill("last") == CONTENT


# Slow nodes


@pytest.fixture
def soon_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SLOW_SECONDS", 0.05)
    monkeypatch.setattr(module, "SLOW_BYTES_PER_SECOND", 10**9)


def slow() -> Node:
    return Node(seconds=0.01, piece_bytes=64 * 1024)


@pytest.mark.usefixtures("soon_slow")
async def test_a_slow_node_is_left_for_another_and_what_it_gave_is_gone_on_from(site: Site) -> None:
    site.nodes = {"a": slow(), "b": Node()}
    assert await site.fill() == CONTENT
    assert [node.asked for node in site.nodes.values()] == [1, 1]


@pytest.mark.usefixtures("soon_slow")
async def test_a_slow_node_is_left_for_the_origin_unless_that_failed(site: Site) -> None:
    site.nodes = {"a": slow()}
    found = await site.fill()
    assert 0 < len(found) < len(CONTENT)
    with pytest.raises(RuntimeError), site.peers.at_origin(DIGEST, ignore):
        raise RuntimeError
    assert await site.fill("again") == CONTENT
    assert [wanted.tried for wanted in site.asks] == [(), ("a",), ()]


@pytest.mark.usefixtures("soon_slow")
async def test_slow_large_ones_hold_up_no_small_one(site: Site) -> None:
    site.nodes = {"a": slow()}
    with pytest.raises(RuntimeError), site.peers.at_origin(DIGEST, ignore):
        raise RuntimeError
    node = site.nodes["a"]
    node.gate = asyncio.Event()
    large = [asyncio.create_task(site.fill(f"large{number}")) for number in range(module.AT_ONCE)]
    async with asyncio.timeout(60):
        while node.asked < module.AT_ONCE:  # noqa: ASYNC110 - only polling sees it
            await asyncio.sleep(0.01)
    small = b"small"
    site.nodes = {"b": Node(small)}
    assert await site.fill("small", small) == small
    assert not any(task.done() for task in large)
    node.gate.set()
    await asyncio.gather(*large)


# Nodes that lie


async def test_who_gives_a_part_of_what_is_wrong_bars_nobody_else(site: Site) -> None:
    liar = Node(bytes(len(CONTENT)), breaks_after=256 * 1024)
    site.nodes = {"liar": liar, "a": Node(breaks_after=1024 * 1024), "b": Node()}
    assert await site.fill() == CONTENT
    assert [set(wanted.tried) for wanted in site.asks] == [set(), {"liar"}]
    assert liar.asked <= 3


async def test_a_lie_is_dropped_also_where_nobody_else_may_be_asked(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_TRIED", 1)
    site.nodes = {"broken": Node(breaks_after=0), "liar": Node(content=bytes(len(CONTENT)))}
    assert await site.fill() == b""


async def test_after_a_lie_it_is_taken_whole_from_one_node_and_only_a_sole_giver_is_barred(site: Site) -> None:
    """Each time it breaks, the liar has a part in it."""
    lie = bytes(len(CONTENT))
    site.nodes = {"liar": Node(lie, breaks_after=256 * 1024), "other": Node(lie), "a": Node()}
    assert await site.fill() == CONTENT
    assert [set(wanted.tried) for wanted in site.asks] == [set(), {"liar"}, {"liar", "other"}]


async def test_what_was_here_before_bars_nobody(site: Site) -> None:
    (site.folder / "w").write_bytes(bytes(1024 * 1024))
    site.nodes = {"a": Node()}
    descriptor = os.open(site.folder / "w", os.O_RDWR)
    partial = PartialFile(descriptor, site.folder / "w")
    partial.open(len(CONTENT))
    while partial.take_up():
        pass
    await site.peers.fill("w", DIGEST, len(CONTENT), partial, ignore)
    os.close(descriptor)
    assert (site.folder / "w").read_bytes() == CONTENT
    assert [wanted.tried for wanted in site.asks] == [(), ()]


# Waiting for others


@pytest.fixture
def impatient(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.clock.seconds_a_look = 0.01
    monkeypatch.setattr(search, "AGAIN_SECONDS", 0.01)
    monkeypatch.setattr(search, "LONGEST_AGAIN_SECONDS", 0.01)
    monkeypatch.setattr(search, "PATIENCE_SECONDS", 0.1)
    monkeypatch.setattr(search, "LONGEST_WAIT_SECONDS", 1.0)
    monkeypatch.setattr(module, "LONGEST_DELAY_SECONDS", 0.0)


@pytest.mark.usefixtures("impatient")
async def test_who_says_that_it_fetches_and_gets_nothing_is_waited_for_for_minutes(site: Site) -> None:
    site.answer = lambda wanted: WantedAnswer() if wanted.passed == "liar" else WantedAnswer(fetcher="liar")
    assert await site.fill() == b""
    assert len(site.asks) > 2
    assert [wanted.passed for wanted in site.asks if wanted.passed] == ["liar"]


@pytest.mark.usefixtures("impatient")
async def test_when_patience_ends_one_node_has_the_turn_and_the_others_wait_for_it(site: Site) -> None:
    answers = {"": "liar", "liar": "honest", "honest": ""}
    now = "liar"

    def answer(wanted: Wanted) -> WantedAnswer:
        nonlocal now
        now = answers[wanted.passed] if wanted.passed else now
        return WantedAnswer(fetcher=now)

    site.answer = answer
    await site.fill()
    assert [wanted.passed for wanted in site.asks if wanted.passed] == ["liar", "honest"]


@pytest.mark.usefixtures("impatient")
async def test_who_gets_more_is_waited_for_but_not_for_ever(site: Site) -> None:
    site.answer = lambda _: WantedAnswer(fetcher="b", fetched_bytes=len(site.asks) * search.PROGRESS_BYTES)
    await site.fill()
    assert not any(wanted.passed for wanted in site.asks)
    assert len(site.asks) > 15


@pytest.mark.usefixtures("impatient")
async def test_who_is_always_busy_is_passed_over(site: Site) -> None:
    site.nodes = {"a": Node(is_busy=True)}
    assert await site.fill() == b""
    assert [wanted.tried for wanted in site.asks][-1] == ("a",)


async def test_a_small_one_is_waited_for_only_where_it_has_no_origin(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "AGAIN_SECONDS", 0.01)
    small = CONTENT[:1000]
    busy = Node(content=small, is_busy=True)
    site.nodes = {"a": busy}

    def answer(wanted: Wanted) -> WantedAnswer:
        busy.is_busy = len(site.asks) < 3
        return WantedAnswer(holders=(holder("a"),))

    site.answer = answer
    assert await site.fill("with", small) == b""
    assert len(site.asks) == 1
    assert await site.fill("without", small, has_origin=False) == small
    assert len(site.asks) == 3


async def test_what_a_fetch_has_got_is_told(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TURN_AGAIN_SECONDS", 0.01)
    running = asyncio.create_task(site.peers.run())
    with site.peers.at_origin(DIGEST, ignore) as told:
        told(Transfer(7, 10, 1))
        async with asyncio.timeout(60):
            while not site.asks:  # noqa: ASYNC110 - only polling sees it
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)  # in which it would be told again
    running.cancel()
    assert [(wanted.fetching, wanted.done_bytes) for wanted in site.asks] == [(True, 7)]


@pytest.mark.usefixtures("impatient")
async def test_another_process_sees_that_who_holds_the_file_only_waits(site: Site) -> None:
    path, other = site.folder / "w", b"another"
    site.answer = lambda _: WantedAnswer(fetcher="b")

    async def hold_it(patience_seconds: float) -> None:
        async with hold_partial(path, patience_seconds):
            path.write_bytes(other)

    async with hold_partial(path, 1) as descriptor:
        waiting = asyncio.create_task(hold_it(3))
        partial = PartialFile(descriptor, path)
        until = asyncio.get_running_loop().time() + 4
        while asyncio.get_running_loop().time() < until:
            await site.peers.fill("w", DIGEST, len(CONTENT), partial, ignore)
        assert not waiting.done()
    await waiting
    assert path.read_bytes() == other
