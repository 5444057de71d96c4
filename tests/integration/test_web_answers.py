"""Answers that no server should give, and more downloads than there are connections, over real sockets."""

import asyncio
import email.utils
import hashlib
import shutil
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from covey_agent.artifacts.body import Remote
from covey_agent.artifacts.cache import Cache
from covey_agent.artifacts.download import Downloader
from covey_agent.artifacts.index import IndexSettings
from covey_agent.artifacts.remote import RemoteFile
from covey_agent.artifacts.web import Origin, Patience, Web, persist
from covey_agent.ports import AgentError
from covey_api.reasons import FailureCause
from kit.artifact_rig import IMPATIENT, QUICK, ignore, rig_on
from kit.checkpoints import build_checkpoint
from kit.gguf import Shape
from kit.servers import stop_accepting

pytestmark = pytest.mark.integration

Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def asked(answer: Answer, patience: Patience = QUICK) -> AsyncGenerator[tuple[Web, str]]:
    """A client, and the address of a server that answers so."""
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/file"
    web = Web(IndexSettings(url=url), patience)
    try:
        yield web, url
    finally:
        await web.close()
        await stop_accepting(server)
        await server.wait_closed()


def test_bodies_that_take_hours_hold_up_no_header(tmp_path: Path) -> None:
    """Eight of them come; a page is read all the same, and a ninth body waits for its turn."""
    begun, may_end = asyncio.Semaphore(0), asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        is_page = b"/page" in await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nConnection: close\r\n\r\nhe")
        await writer.drain()
        if not is_page:
            begun.release()
            await may_end.wait()
        writer.write(b"ad")
        await writer.drain()
        writer.close()

    async def scenario() -> None:
        async with asyncio.timeout(60), asked(answer, IMPATIENT) as (web, url):

            async def take() -> bytes:
                async with web.open_body(url, {}) as response:
                    return await response.aread()

            async with asyncio.TaskGroup() as group, AsyncExitStack() as stack:
                eight = [await stack.enter_async_context(web.open_body(url, {})) for _ in range(8)]
                for _ in eight:
                    await begun.acquire()
                ninth = group.create_task(take())
                _, page = await web.read(f"{url}/page", {}, 100)
                assert page == b"head"
                # Longer than a connection of a full pool is waited for.
                await asyncio.sleep(IMPATIENT.stall_seconds * 1.5)
                assert not ninth.done()
                may_end.set()
                assert await eight[0].aread() == b"head"
                await stack.aclose()
                assert await ninth == b"head"

    asyncio.run(scenario())


def always(text: bytes) -> Answer:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(text)
        await writer.drain()
        writer.close()

    return answer


def refuse(text: bytes) -> AgentError:
    """What becomes of such an answer."""

    async def scenario() -> AgentError:
        async with asyncio.timeout(30), asked(always(text)) as (web, url):
            with pytest.raises(AgentError) as raised:
                await persist(QUICK, "page", lambda: web.read(url, {}, 100))
            return raised.value

    return asyncio.run(scenario())


@pytest.mark.parametrize(
    "location",
    [
        b"https://[::1/",
        b"http://host:port/",
        b"http://host:99999/",
        b"/a\x01b",
        b"http://a..b/",
        b"http://%s/" % (b"x" * 70),
        b"//[",
        b"http://\xff/",
    ],
)
def test_a_redirect_to_what_is_no_address_is_said(location: bytes) -> None:
    found = refuse(b"HTTP/1.1 302 Found\r\nLocation: %s\r\nContent-Length: 0\r\n\r\n" % location)
    assert found.cause is FailureCause.ARTIFACT_UNAVAILABLE


@pytest.mark.parametrize(
    "after",
    ["²".encode(), "²".encode("latin-1"), b"Mon, 01 Jan 0001 00:00:00 +2359", b"Fri, 31 Dec 9999 23:59:59 -2359"],
)
def test_a_pause_that_is_none_is_not_kept(after: bytes) -> None:
    found = refuse(b"HTTP/1.1 503 Busy\r\nRetry-After: %s\r\nContent-Length: 0\r\n\r\n" % after)
    assert found.cause is FailureCause.ARTIFACT_UNAVAILABLE
    assert "answers 503" in found.message


def test_a_token_that_is_withheld_is_said_and_not_asked_for() -> None:
    async def scenario() -> None:
        answer = always(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n")
        async with asyncio.timeout(30), asked(answer) as (web, url):
            # Another name of this machine, which isn't known as one.
            for host, words in (("0.0.0.0", "The token is not shown without TLS"), ("127.0.0.1", "Log in")):  # noqa: S104
                origin = Origin("as it says", "Check it.", "Log in.", "It is missing.", token="t")
                with pytest.raises(AgentError, match=words) as raised:
                    await web.read(url.replace("127.0.0.1", host), {}, 100, origin)
                assert ("Log in" in raised.value.message) is (host == "127.0.0.1")

    asyncio.run(scenario())


def test_who_asks_for_a_long_pause_is_left_alone_by_everybody() -> None:
    asks: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asks.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 429 Busy\r\nRetry-After: 86400\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()
        writer.close()

    async def scenario() -> None:
        async with asyncio.timeout(30), asked(answer) as (web, url):
            for words in ("answers 429; it asks to come back in 86400 s", "isn't asked for another 3[0-9]+ s"):
                with pytest.raises(AgentError, match=words) as raised:
                    await persist(QUICK, "page", lambda: web.read(f"{url}/{len(asks)}", {}, 100))
                assert 3000 < raised.value.retry_after_seconds <= 3600
            assert len(asks) == 1

    asyncio.run(scenario())


def test_a_date_to_come_back_at_is_by_the_clock_of_who_asks() -> None:
    tomorrow = time.time() + 86400
    date, after = (email.utils.formatdate(at, usegmt=True).encode() for at in (tomorrow, tomorrow + 1))
    found = refuse(b"HTTP/1.1 503 Busy\r\nDate: %s\r\nRetry-After: %s\r\nContent-Length: 0\r\n\r\n" % (date, after))
    assert f"({QUICK.tries} tries)" in found.message


def test_a_header_that_does_not_come_in_time_says_what_went_wrong_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("covey_agent.artifacts.node._HEADER_SECONDS", 2.0)
    patience = Patience(backoff_seconds=30)

    async def scenario() -> None:
        answer = always(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n")
        async with (
            asyncio.timeout(60),
            asked(answer) as (_, url),
            rig_on(tmp_path, IndexSettings(url), patience) as rig,
        ):
            with pytest.raises(AgentError, match=r"gave no header within 2 s\. Last: http://.*/file answers 502\."):
                await rig.artifacts.read_header(url, "")

    asyncio.run(scenario())


@pytest.mark.parametrize("total", ["²".encode("latin-1"), b"1" * 5000, b"*", b"-5"])
def test_a_size_that_is_none_is_said(total: bytes) -> None:
    text = b"HTTP/1.1 206 Partial\r\nContent-Range: bytes 0-0/%s\r\nContent-Length: 1\r\n\r\nx" % total

    async def scenario() -> None:
        async with asyncio.timeout(30), asked(always(text)) as (web, url):
            with pytest.raises(AgentError, match="does not tell its size"):
                await RemoteFile(web, url, "model.gguf", 0).observe_size()

    asyncio.run(scenario())


def test_a_disk_that_refuses_after_a_whole_download_is_said(tmp_path: Path) -> None:
    text = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nhead"

    async def scenario() -> None:
        async with asyncio.timeout(30), asked(always(text)) as (web, url):
            cache = Cache(tmp_path)
            shutil.rmtree(tmp_path / "blobs")
            remote = Remote(url, "model.gguf", hashlib.sha256(b"head").hexdigest(), 4)
            with pytest.raises(AgentError, match=r"'model\.gguf' can't be written to") as raised:
                await Downloader(web, cache).download(remote, ignore)
            assert raised.value.cause is FailureCause.ARTIFACT_UNAVAILABLE

    asyncio.run(scenario())


def test_a_folder_with_a_name_that_no_artifact_can_have_is_said(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    build_checkpoint(Shape()).write(tmp_path / "model")
    (tmp_path / "model" / "a\nb.json").write_text("{}")

    async def scenario() -> None:
        async with rig_on(tmp_path / "cache", IndexSettings(url="http://127.0.0.1:9/")) as rig:
            with pytest.raises(AgentError, match="`name`") as raised:
                await rig.artifacts.read_header(f"file://{tmp_path / 'model'}", "")
            assert raised.value.cause is FailureCause.ARTIFACT_CORRUPT

    asyncio.run(scenario())
