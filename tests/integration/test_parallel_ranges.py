"""A large file by several connections at once: over real sockets, from a server with faults."""

import asyncio
import hashlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from dataclasses import replace
from pathlib import Path

import pytest
from covey_agent.artifacts import parts
from covey_agent.artifacts.body import Remote
from covey_agent.artifacts.index import IndexSettings
from covey_agent.artifacts.partial import Validators
from covey_agent.artifacts.web import SERVER, Patience
from covey_agent.ports import AgentError
from kit.artifact_rig import QUICK, ignore, rig_on
from kit.index import PackageIndex, running_index

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

MIB = 1024 * 1024
PART_BYTES = 2 * MIB
# Five parts.
CONTENT = random.Random(62).randbytes(5 * PART_BYTES)
DIGEST = hashlib.sha256(CONTENT).hexdigest()
NAME = "large-1.gguf"


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a file of 10 MiB needs them: one of 80 MiB would test the same, and take the machine for longer."""
    monkeypatch.setattr(parts, "LEAST_PART_BYTES", PART_BYTES)
    monkeypatch.setattr(parts, "SPLIT_BYTES", 2 * PART_BYTES)


@pytest.fixture
def server() -> Generator[PackageIndex]:
    """One connection gets 6 MiB/s at most."""
    with running_index() as running:
        running.add(NAME, CONTENT)
        running.faults.trickle_bytes, running.faults.trickle_seconds = 64 * 1024, 0.01
        yield running


def url_of(server: PackageIndex) -> str:
    return f"{server.base}/files/large/{NAME}"


def download(server: PackageIndex, folder: Path, patience: Patience = QUICK, *, limit: int | None = None) -> Path:
    async def whole() -> Path:
        async with rig_on(folder, IndexSettings(url=server.url), patience) as rig:
            rig.web.pace.limit(limit)
            return await rig.downloader.download(Remote(url_of(server), NAME, DIGEST, len(CONTENT), SERVER), ignore)

    return asyncio.run(whole())


def is_right(path: Path) -> bool:
    return path.name == DIGEST and path.read_bytes() == CONTENT


def ranges_of(server: PackageIndex) -> list[str]:
    return [seen.headers.get("Range", "") for seen in server.requests_for(NAME)]


def test_parts_come_at_once_and_each_byte_once(tmp_path: Path, server: PackageIndex) -> None:
    assert is_right(download(server, tmp_path))
    assert 2 <= server.state.most_open_bodies <= parts.AT_ONCE
    assert server.state.sent_bytes == len(CONTENT)
    assert sorted(ranges_of(server)) == sorted(
        f"bytes={at}-{at + PART_BYTES - 1}" for at in range(0, len(CONTENT), PART_BYTES)
    )
    # All but the first say which file they mean.
    assert [seen.headers.get("If-Range") for seen in server.requests_for(NAME)] == [None, *['"one"'] * 4]
    assert list((tmp_path / "partial").iterdir()) == []


def test_a_server_without_ranges_is_read_by_one_connection(tmp_path: Path, server: PackageIndex) -> None:
    server.faults.no_ranges = True
    assert is_right(download(server, tmp_path))
    assert (len(ranges_of(server)), server.state.most_open_bodies) == (1, 1)


@pytest.mark.parametrize("etag", ["", 'W/"weak"'])
def test_without_a_strong_validator_parts_come_one_after_the_other(
    tmp_path: Path, server: PackageIndex, etag: str
) -> None:
    server.faults.etag = etag
    assert is_right(download(server, tmp_path))
    assert server.state.most_open_bodies == 1


@pytest.mark.parametrize("ignores_if_range", [False, True])
def test_a_file_that_changes_meanwhile_is_begun_anew_by_one_connection(
    tmp_path: Path, server: PackageIndex, ignores_if_range: bool
) -> None:
    server.faults.ignores_if_range = ignores_if_range
    # All but the last part are asked for by then.
    server.faults.changes_after = 4
    assert is_right(download(server, tmp_path))
    # The last one brought all of it.
    last = server.requests_for(NAME)[-1].headers
    assert "Range" not in last or last["Range"] == f"bytes=0-{PART_BYTES - 1}"
    assert server.state.open_bodies == 0


def test_a_server_that_takes_few_connections_is_asked_by_few(tmp_path: Path, server: PackageIndex) -> None:
    server.faults.most_open, server.faults.busy_status = 2, 429
    assert is_right(download(server, tmp_path))
    assert server.state.most_open_bodies == 2
    assert server.state.sent_bytes == len(CONTENT)


def test_one_too_many_that_is_sent_away_for_long_leaves_and_holds_up_nobody(
    tmp_path: Path, server: PackageIndex
) -> None:
    """Nor the next part of the connection that is served: the server gets a request for it."""
    server.faults.most_open, server.faults.busy_status, server.faults.retry_after = 1, 429, "3600"
    assert is_right(download(server, tmp_path))
    assert server.state.sent_bytes == len(CONTENT)
    assert len(ranges_of(server)) == 6  # five parts, and one too many


@pytest.mark.parametrize("status", [403, 404])
def test_one_that_is_refused_as_too_many_costs_nothing(tmp_path: Path, server: PackageIndex, status: int) -> None:
    server.faults.most_open, server.faults.busy_status = 1, status
    assert is_right(download(server, tmp_path))
    assert server.state.sent_bytes == len(CONTENT)


def test_a_reset_and_a_silent_connection_cost_their_part_a_new_one(tmp_path: Path, server: PackageIndex) -> None:
    server.faults.resets, server.faults.reset_after_bytes = 2, MIB * 3 // 4
    server.faults.stalls, server.faults.stall_after_bytes = 1, MIB // 2
    server.faults.stall_seconds = 120
    assert is_right(download(server, tmp_path, replace(QUICK, stall_seconds=2)))
    # What had come stayed.
    assert server.state.sent_bytes < len(CONTENT) + PART_BYTES


def test_a_server_that_is_away_is_said_so_and_gone_on_with(tmp_path: Path, server: PackageIndex) -> None:
    # All but the last part are begun by then.
    server.faults.busy_from, server.faults.busy_status = 4, 503
    with pytest.raises(AgentError, match=r"download of 'large-1\.gguf': .* answers 503 \(4 tries\)"):
        download(server, tmp_path)
    (notes,) = (tmp_path / "partial").glob("*.json")
    spans = Validators.model_validate_json(notes.read_bytes()).spans or ()
    there = sum(end - start for start, end in spans)
    assert there >= MIB
    server.faults.busy_from = 0
    before = server.state.sent_bytes
    assert is_right(download(server, tmp_path))
    assert server.state.sent_bytes - before == len(CONTENT) - there


def test_all_connections_keep_within_what_downloads_may_take(tmp_path: Path, server: PackageIndex) -> None:
    server.faults.trickle_bytes = 0
    began = time.monotonic()
    assert is_right(download(server, tmp_path, limit=10 * MIB))
    assert time.monotonic() - began >= len(CONTENT) / (10 * MIB) * 0.9


def test_what_came_of_each_part_survives_a_kill(tmp_path: Path, server: PackageIndex) -> None:
    server.faults.trickle_seconds = 0.05  # 1.3 MiB/s each
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "COVEY_CACHE": str(tmp_path / "cache")}
    script = (
        "import asyncio, sys; from pathlib import Path; sys.path[:0] = sys.argv[4:]\n"
        "from covey_agent.artifacts import parts; from covey_agent.artifacts.body import Remote\n"
        "from covey_agent.artifacts.index import IndexSettings; from covey_agent.artifacts.web import SERVER\n"
        "from kit.artifact_rig import rig_on, ignore\n"
        "async def main():\n"
        "    async with rig_on(Path(sys.argv[1]), IndexSettings(url='http://127.0.0.1:1')) as rig:\n"
        f"        remote = Remote(sys.argv[2], {NAME!r}, sys.argv[3], {len(CONTENT)}, SERVER)\n"
        "        await rig.downloader.download(remote, ignore)\n"
        f"parts.LEAST_PART_BYTES, parts.SPLIT_BYTES = {PART_BYTES}, {2 * PART_BYTES}\n"
        "asyncio.run(main())\n"
    )
    tests = str(Path(__file__).parents[1])
    folder = tmp_path / "cache"
    words = [sys.executable, "-c", script, str(folder), url_of(server), DIGEST, tests]
    process = subprocess.Popen(words, env=environment)
    try:
        _wait(lambda: _stops_with_holes(process, folder))
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    there = _there(folder)
    assert len(_spans(folder)) > 1, "it has holes"
    _wait(lambda: server.state.open_bodies == 0)
    before, server.faults.trickle_bytes = server.state.sent_bytes, 0
    assert is_right(download(server, folder))
    assert server.state.sent_bytes - before == len(CONTENT) - there


def _wait(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline, "not within a minute"
        time.sleep(0.02)


def _stops_with_holes(process: subprocess.Popen[bytes], folder: Path) -> bool:
    """Once it has some, it stands still: else they may be filled before it is killed."""
    if not _has_holes(folder):
        return False
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
    if _has_holes(folder):
        return True
    process.send_signal(signal.SIGCONT)
    return False


def _has_holes(folder: Path) -> bool:
    return len(_spans(folder)) > 1 and _there(folder) > 2 * MIB


def _spans(folder: Path) -> tuple[tuple[int, int], ...]:
    for notes in (folder / "partial").glob("*.json"):
        return Validators.model_validate_json(notes.read_bytes()).spans or ()
    return ()


def _there(folder: Path) -> int:
    return sum(end - start for start, end in _spans(folder))
