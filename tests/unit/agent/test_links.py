"""What is heard on the link between two members of one attempt, above all once this one's own end was told."""

import selectors
import socket
from collections.abc import Iterator

import pytest
from covey_agent.keeper.links import MembersLink


class ScriptedPeer:
    """The other keeper, as far as a link asks for it."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.has_ended = False
        self.is_full = False
        self.coming = b""
        self.sent: list[bytes] = []

    def receive(self) -> bytes:
        coming, self.coming = self.coming, b""
        return coming

    def send(self, chunk: bytes) -> None:
        self.sent.append(chunk)

    def flush(self) -> None: ...

    def end(self) -> None: ...


class Story:
    def __init__(self, selector: selectors.BaseSelector, connection: socket.socket, *, hears_on: bool) -> None:
        self.heard: list[str] = []
        self.peer = ScriptedPeer(connection)
        self.link = MembersLink(selector, self.peer, "member '1'", self.heard.append, hears_on=hears_on)
        self.link.begin()

    def say(self, *lines: bytes, ends: bool = False) -> None:
        self.peer.coming, self.peer.has_ended = b"".join(line + b"\n" for line in lines), ends
        self.link.advance()


@pytest.fixture
def ends() -> Iterator[tuple[selectors.BaseSelector, socket.socket]]:
    one, other = socket.socketpair()
    with one, other, selectors.DefaultSelector() as selector:
        yield selector, one


@pytest.mark.parametrize("hears_on", [True, False])
def test_whoever_dialled_hears_an_end_that_came_before_its_own(
    ends: tuple[selectors.BaseSelector, socket.socket], *, hears_on: bool
) -> None:
    story = Story(*ends, hears_on=hears_on)
    story.link.tell_end("lost its engine", is_own=True)
    assert story.peer.sent[-1] == b"end lost its engine\n"
    story.say(b"", b"end was killed", b"end again", ends=True)
    assert story.heard == (["member '1' was killed"] if hears_on else [])


def test_what_answers_an_end_is_nobodys_end(ends: tuple[selectors.BaseSelector, socket.socket]) -> None:
    story = Story(*ends, hears_on=True)
    story.link.tell_end("lost its engine", is_own=True)
    story.link.check(float("inf"))
    story.say(b"for member '0' lost its engine", ends=True)
    assert story.heard == []


def test_an_end_is_heard_once(ends: tuple[selectors.BaseSelector, socket.socket]) -> None:
    story = Story(*ends, hears_on=True)
    story.say(b"for member '2' was killed", ends=True)
    assert story.heard == ["member '2' was killed (heard from member '1')"]
    assert story.peer.sent == [b"\n"]
