"""The door through which blobs leave: what the system refuses costs one connection, and no more."""

import errno
import socket
import threading
from pathlib import Path

import pytest
from covey_agent.peers.serving import BlobServer

pytestmark = pytest.mark.anyio


class NoBlobs:
    def find_given(self, sha256: str) -> Path | None:
        return None


@pytest.fixture
def server(tmp_path: Path) -> BlobServer:
    """Without an identity: whoever comes is let go at once."""
    return BlobServer(NoBlobs(), tmp_path)


class Listener:
    """One that the system gives an error."""

    def __init__(self, number: int) -> None:
        self.number = number

    def accept(self) -> tuple[socket.socket, tuple[str, int]]:
        raise OSError(self.number, "no")


@pytest.mark.parametrize(
    ("number", "rests"),
    [
        (errno.ECONNABORTED, 0),
        (errno.EAGAIN, 0),
        (errno.EPERM, 0),
        (errno.EMFILE, 1),
        (errno.ENFILE, 1),
        (errno.ENOBUFS, 1),
        (errno.ENOMEM, 1),
    ],
    ids=errno.errorcode.get,
)
async def test_only_a_system_without_room_makes_it_rest(
    server: BlobServer, monkeypatch: pytest.MonkeyPatch, number: int, rests: int
) -> None:
    rested: list[int] = []
    monkeypatch.setattr(server, "_rest", lambda: rested.append(1))
    monkeypatch.setattr(server, "_listener", Listener(number))
    server._accept()  # pyright: ignore[reportPrivateUsage]
    assert len(rested) == rests


async def test_a_connection_without_a_thread_is_closed_and_takes_no_place(
    server: BlobServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    server.listen("127.0.0.1", 0)
    try:
        with socket.create_connection(("127.0.0.1", server.port), 5) as mine:
            monkeypatch.setattr(threading.Thread, "start", refuse)
            server._accept()  # pyright: ignore[reportPrivateUsage]
            monkeypatch.undo()
            assert mine.recv(1) == b""
        assert not server._open  # pyright: ignore[reportPrivateUsage]
        assert any("can't start new thread" in line for line in caplog.messages)
    finally:
        server.close()


async def test_at_another_address_it_listens_there_and_no_more_where_it_was(server: BlobServer) -> None:
    server.listen("127.0.0.1", 0)
    before = server.port
    server.move("127.0.0.3", before)
    assert server.port == before
    socket.create_connection(("127.0.0.3", before), timeout=30).close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", before), timeout=30)
    server.close()
