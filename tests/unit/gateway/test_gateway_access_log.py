"""The access log's file: lines, bounds, and what becomes of them when nobody takes them."""

import asyncio
import errno
import json
import os
import select
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from covey_gateway import access_log
from covey_gateway.access_log import AccessLog
from covey_gateway.records import Record
from covey_gateway.wire.metering import Cost

pytestmark = pytest.mark.anyio


def record(**fields: Any) -> Record:
    known: dict[str, Any] = {"method": "POST", "path": "/v1/x", "request_id": "r", "began_at": 1.0, "ended_at": 1.25}
    return Record(**known | fields)


def opened(path: Path) -> AccessLog:
    log = AccessLog(path)
    log.open()
    return log


async def written(log: AccessLog, dropped: int = 0) -> None:
    """Its writer runs until nothing is pending and so many lines have been dropped in all, and is ended."""
    task = asyncio.create_task(log.run())
    await asyncio.sleep(access_log.WRITE_SECONDS + 0.1)
    await lost(log, dropped)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


async def test_a_line_has_what_is_known_and_no_more(tmp_path: Path) -> None:
    log = opened(tmp_path / "a.log")
    log.write(record(status=200, model="m", key="default/ann", sent_at=1.1, first_byte_at=1.2, cost=Cost(5, 2, 3)))
    log.write(record(status=404, code="not_found"))
    await written(log)
    first, second = lines(tmp_path / "a.log")
    assert first.pop("time").endswith("Z")
    assert first == {
        "method": "POST",
        "path": "/v1/x",
        "status": 200,
        "duration_ms": 250.0,
        "request_bytes": 0,
        "answer_bytes": 0,
        "request_id": "r",
        "key": "default/ann",
        "model": "m",
        "held_ms": 100.0,
        "first_byte_ms": 200.0,
        "prompt_tokens": 5,
        "cached_tokens": 2,
        "completion_tokens": 3,
    }
    assert second["error"] == "not_found"
    assert "prompt_tokens" not in second


async def test_a_key_in_a_place_that_its_client_chose_is_blanked(tmp_path: Path) -> None:
    log = opened(tmp_path / "a.log")
    log.write(record(path="/v1/models/sk-covey-hunter2\n{", request_id="sk-covey-hunter2"))
    log.write(record(path="/" + "x" * 10_000))
    await written(log)
    text = (tmp_path / "a.log").read_text()
    assert "hunter2" not in text
    assert text.count("\n") == 2
    assert len(text) < 1000


async def test_a_file_that_was_moved_away_is_made_anew(tmp_path: Path) -> None:
    log = opened(tmp_path / "a.log")
    log.write(record())
    await written(log)
    (tmp_path / "a.log").rename(tmp_path / "moved")
    log.write(record())
    await written(log)
    assert (len(lines(tmp_path / "moved")), len(lines(tmp_path / "a.log"))) == (1, 1)


async def test_a_file_that_is_full_becomes_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access_log, "MAX_FILE_BYTES", 100)
    log = opened(tmp_path / "a.log")
    for number in range(3):
        log.write(record(status=number))
        await written(log)
    assert [one["status"] for one in lines(tmp_path / "a.log")] == [2]
    assert [one["status"] for one in lines(tmp_path / "a.log.1")] == [1]


async def test_a_file_that_is_full_and_cannot_be_renamed_says_so_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(access_log, "MAX_FILE_BYTES", 100)
    path, before = tmp_path / "a.log", tmp_path / "a.log.1"
    before.mkdir()
    (before / "in the way").touch()
    log = opened(path)
    for number in range(3):
        log.write(record(status=number))
        await written(log, dropped=number)
    assert [one["status"] for one in lines(path)] == [0]
    assert log.dropped == 2
    words = f"the access log '{path}' can't be written, its lines are dropped until it can: it is full, and can't be"
    assert caplog.text.count(f"{words} renamed to '{before}'") == 1
    (before / "in the way").unlink()
    before.rmdir()
    log.write(record(status=3))
    await written(log)
    assert [one.get("dropped") or one["status"] for one in lines(path)] == [2, 3]


def test_a_pipe_that_nobody_reads_is_refused_at_once(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with pytest.raises(OSError, match=os.strerror(errno.ENXIO)):
        AccessLog(path).open()


async def test_a_pipe_that_somebody_reads_is_written(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        log = opened(path)
        for number in range(100):  # more than one write takes
            log.write(record(status=number))
        await written(log)
        assert [json.loads(line)["status"] for line in read_some(reader).splitlines()] == list(range(100))
    finally:
        os.close(reader)


async def test_lines_that_nobody_takes_are_bounded_and_the_next_one_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access_log, "MAX_PENDING_BYTES", 300)
    log = opened(tmp_path / "a.log")
    for _ in range(50):
        log.write(record())
    assert log.dropped > 40
    await written(log)
    log.write(record(status=7))
    await written(log)
    found = lines(tmp_path / "a.log")
    assert [one["dropped"] for one in found if "dropped" in one] == [log.dropped]
    assert found[-1]["status"] == 7


async def test_a_disk_that_refuses_costs_lines_and_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = AccessLog(Path("/dev/full"))
    log.open()
    for number in range(2):
        log.write(record())
        await written(log, dropped=number + 1)
    assert log.dropped == 2
    assert caplog.text.count("the access log '/dev/full' can't be written") == 1


async def test_a_reader_that_stopped_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    read_end, write_end = os.pipe()
    output = os.fdopen(write_end, "w")
    try:
        log = AccessLog(None)
        monkeypatch.setattr("sys.stdout", output)
        log.open()
        for _ in range(2000):  # more than a pipe takes
            log.write(record())
        async with asyncio.timeout(60):
            task = asyncio.create_task(log.run())
            await lost(log, 1)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
    finally:
        os.close(read_end)
        output.close()


def read_some(descriptor: int, most: int = 1_000_000) -> bytes:
    found = b""
    with suppress(BlockingIOError):
        while len(found) < most and (piece := os.read(descriptor, min(most, 65_536))):
            found += piece
    return found


@contextmanager
def piped(monkeypatch: pytest.MonkeyPatch) -> Generator[tuple[AccessLog, int]]:
    """A log to standard output, and where to read it."""
    read_end, write_end = os.pipe()
    os.set_blocking(read_end, False)
    try:
        with os.fdopen(write_end, "w") as output:
            monkeypatch.setattr("sys.stdout", output)
            log = AccessLog(None)
            log.open()
            yield log, read_end
    finally:
        os.close(read_end)


async def lost(log: AccessLog, count: int) -> None:
    for _ in range(6000):
        if log.dropped >= count:
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"{log.dropped} lines were dropped")


async def test_a_line_that_was_cut_is_no_part_of_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access_log, "STUCK_SECONDS", 0.01)
    with piped(monkeypatch) as (log, pipe):
        for _ in range(2000):
            log.write(record(status=1))
        task = asyncio.create_task(log.run())
        await lost(log, 1)
        known = log.dropped
        log.write(record(status=2))  # while it is stuck
        await lost(log, known + 1)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        first = read_some(pipe)
        assert not first.endswith(b"\n"), "it was cut"
        log.write(record(status=3))
        await written(log)
        cut, *rest = read_some(pipe).splitlines()
    assert cut == b"", "what ends the line that was cut"
    assert [json.loads(line).get("status") for line in rest] == [None, 3]
    assert json.loads(rest[0])["dropped"] == log.dropped == 2001 - first.count(b"\n")


async def test_one_writes_at_a_time_also_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access_log, "STUCK_SECONDS", 60)
    monkeypatch.setattr(access_log, "END_SECONDS", 60)
    has_ended = threading.Event()

    def read() -> bytes:
        """On a thread: the writer's last line is written on the event loop's."""
        taken = b""
        while not has_ended.wait(0.01):
            taken += read_some(pipe)
        return taken + read_some(pipe)

    with piped(monkeypatch) as (log, pipe):
        for _ in range(1000):
            log.write(record(status=1))
        task = asyncio.create_task(log.run())
        await asyncio.to_thread(select.select, [pipe], [], [], 60)  # its thread writes, and waits for the reader
        log.write(record(status=2))
        task.cancel()
        reading = asyncio.create_task(asyncio.to_thread(read))
        await asyncio.wait((task,), timeout=60)
        has_ended.set()
        found = await reading
    assert [json.loads(line)["status"] for line in found.splitlines()] == [1] * 1000 + [2]


async def test_a_reader_that_is_slow_doesnt_keep_the_gateway_from_ending(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access_log, "END_SECONDS", 0.5)
    with piped(monkeypatch) as (log, pipe):
        for _ in range(20_000):
            log.write(record())
        task = asyncio.create_task(log.run())
        await asyncio.sleep(access_log.WRITE_SECONDS + 0.2)
        task.cancel()
        for _ in range(200):  # at this pace all of it takes a minute
            await asyncio.sleep(0.1)
            read_some(pipe, 4096)
            if task.done():
                break
        assert task.done()
