"""What an engine takes, as the kernel says it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from covey_agent.facts import usage
from covey_agent.facts.usage import Usage, observe_taken_bytes, observe_used_bytes

MIB = 2**20


def write(root: Path, pid: int, status: str, pss_kib: int, children: str = "") -> None:
    folder = root / f"proc/{pid}"
    (folder / f"task/{pid}").mkdir(parents=True)
    (folder / "status").write_text(status)
    (folder / "smaps_rollup").write_text(f"00-01 ---p 0 00:00 0 [rollup]\nRss: 1 kB\nPss: {pss_kib} kB\n")
    (folder / f"task/{pid}/children").write_text(children)


def test_peak_counts_with_the_shares_of_keeper_and_children(tmp_path: Path) -> None:
    write(tmp_path, 10, "Name:\tpython\nPPid:\t1\nVmHWM:\t  9000 kB\n", 7000)
    write(tmp_path, 11, "Name:\tengine\nPPid:\t10\nVmHWM:\t  200000 kB\n", 5, "12 13 ")
    write(tmp_path, 12, "Name:\tworker\nPPid:\t11\nVmHWM:\t  1000 kB\n", 300)
    write(tmp_path, 13, "Name:\tworker\nPPid:\t11\nVmHWM:\t  1000 kB\n", 400)
    assert observe_used_bytes(tmp_path, 11) == (200_000 + 7000 + 300 + 400) * 1024


def test_memory_that_is_taken_now_has_no_pages_of_files(tmp_path: Path) -> None:
    write(tmp_path, 11, "PPid:\t10\nVmHWM:\t9000 kB\nRssAnon:\t500 kB\nRssFile:\t4000 kB\nRssShmem:\t20 kB\n", 5, "12 ")
    write(tmp_path, 12, "PPid:\t11\nRssAnon:\t30 kB\n", 0)
    assert observe_taken_bytes(tmp_path, 11) == 550 * 1024
    assert observe_taken_bytes(tmp_path, 99) == 0


def test_process_that_is_gone_is_not_known(tmp_path: Path) -> None:
    assert observe_used_bytes(tmp_path, 11) == 0


def test_engine_is_looked_at_as_a_whole_when_its_peak_has_grown_and_now_and_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    status = "Name:\tengine\nPPid:\t1\nVmHWM:\t  1000 kB\n"
    write(tmp_path, 11, status, 5, "12 ")
    write(tmp_path, 12, "Name:\tworker\nPPid:\t11\n", 300)
    seen = Usage(tmp_path)
    assert seen.observe_used_bytes(11) == 1300 * 1024
    (tmp_path / "proc/12/smaps_rollup").write_text("Pss: 400 kB\n")
    assert seen.observe_used_bytes(11) == 1300 * 1024
    (tmp_path / "proc/11/status").write_text(status.replace("1000", "2000"))
    assert seen.observe_used_bytes(11) == 2400 * 1024
    (tmp_path / "proc/12/smaps_rollup").write_text("Pss: 500 kB\n")
    monkeypatch.setattr(usage, "LOOK_SECONDS", 0.0)
    assert seen.observe_used_bytes(11) == 2500 * 1024
    (tmp_path / "proc/11/status").unlink()
    assert seen.observe_used_bytes(11) == 0


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a peak")
def test_real_process_is_seen_with_its_peak() -> None:
    code = "x = bytearray(64 << 20); del x; print('done', flush=True); input()"
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == b"done\n"
        assert observe_used_bytes(Path("/"), child.pid) > 64 * MIB
        assert observe_used_bytes(Path("/"), os.getpid()) > 0
    finally:
        child.kill()
        child.wait(10)
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                pipe.close()
