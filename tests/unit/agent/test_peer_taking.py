"""What goes wrong on a connection to another node is that node's, and no fault of this machine's disk."""

import errno
import socket
import ssl
from concurrent.futures import ThreadPoolExecutor

import pytest
from covey_agent.peers.taking import Dialler, OpenPeer, PeerConnection, PeerFailed, PeerUnreached
from covey_api.messages import Holder

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.EHOSTUNREACH, "No route to host"),
        OSError(errno.ENETDOWN, "Network is down"),
        OSError(errno.ENOBUFS, "No buffer space available"),
        TimeoutError("timed out"),
        ssl.SSLError("bad record"),
        ConnectionResetError(errno.ECONNRESET, "reset"),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_errors_of_a_socket_are_the_peers(error: OSError) -> None:
    def fail() -> None:
        raise error

    holder = Holder(node="a", address="127.0.0.1", port=1)
    with socket.socket() as plain, ThreadPoolExecutor(1) as threads:
        connection = PeerConnection(plain, ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), holder, 1.0)
        with pytest.raises(PeerFailed):
            await OpenPeer(connection, threads).run(fail)


async def test_errors_of_the_disk_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    def begin(connection: PeerConnection, sha256: str, at: int, size_bytes: int) -> None:
        assert (sha256, at, size_bytes) == ("a" * 64, 0, 1)

    monkeypatch.setattr(PeerConnection, "begin", begin)
    with socket.create_server(("127.0.0.1", 0)) as server:
        dialler = Dialler(lambda: ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), 1.0, 1)
        holder = Holder(node="a", address="127.0.0.1", port=server.getsockname()[1])
        for error in (OSError(errno.ENOSPC, "full"), TimeoutError("of a network disk")):
            with pytest.raises(type(error)) as raised:
                async with dialler.open(holder, "a" * 64, 0, 1):
                    raise error
            assert raised.value is error
        dialler.close()


async def test_who_cannot_be_reached_is_said_with_where_and_why(monkeypatch: pytest.MonkeyPatch) -> None:
    """A firewall that drops says nothing at all."""

    async def drop(_: Holder) -> socket.socket:
        raise TimeoutError

    monkeypatch.setattr("covey_agent.peers.taking._dial", drop)
    dialler = Dialler(lambda: ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), 1.0, 1)
    words = r"can't be reached at 10\.0\.0\.9, port 52416: no connection within 5 s"
    with pytest.raises(PeerUnreached, match=words):
        async with dialler.open(Holder(node="a", address="10.0.0.9", port=52416), "a" * 64, 0, 1):
            pass
    dialler.close()
