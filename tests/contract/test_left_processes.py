"""What an engine started, when its keeper is killed: it ends, and nothing that is another's does."""

import asyncio
import calendar
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import psutil
import pytest
from covey_agent.keeper.keepers import ProcessKeepers
from covey_agent.keeper.left import end_engine, is_of_this_boot, observe_marked, render_mark
from covey_agent.keeper.observed import ask_start_time, observe_start_time
from covey_agent.ports import EngineExit, Launch
from covey_agent.stop_all import stop_all
from kit.ports import free_port
from kit.processes import assert_none_left, engine_double, is_running, processes_of, wait_for

ID, OTHER = "00000000000000aa", "00000000000000bb"
SLEEP = "import time; time.sleep(3600)"
# A leader that ends at once, and leaves a child in its group.
LEADER = f"import os\nif os.fork() == 0:\n {SLEEP.replace('; ', chr(10) + ' ')}\n"


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    members = tmp_path / "members"
    members.mkdir()
    yield members
    left = processes_of(members)
    for process in left:
        process.kill()
    assert not left, f"a test must leave no process behind; left {left}"


def run(story: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(120):
            await story()

    asyncio.run(bounded())


class Member:
    """An engine with a child in its group, and two processes in sessions of their own."""

    def __init__(self, folder: Path, instance_id: str) -> None:
        self.folder, self.id = folder, instance_id
        self.left = folder.parent / f"left-{instance_id}"

    async def start(self, keepers: ProcessKeepers) -> None:
        port, home = free_port(), self.folder.parent / f"program-{self.id}"
        home.mkdir()
        program = engine_double(home, fork="yes", daemon=str(self.left))
        launch = Launch((str(program), "--port", str(port)), {"PATH": os.environ["PATH"]}, ())
        await keepers.start(self.id, 1, port, launch)
        await asyncio.to_thread(wait_for, lambda: len(self.running()) == 4, "engine, child and daemons run")

    def running(self) -> list[psutil.Process]:
        found: list[psutil.Process] = []
        for each in processes_of(self.folder / self.id):
            with contextlib.suppress(psutil.Error):  # it ended meanwhile
                if "keeper.py" not in " ".join(each.cmdline()):
                    found.append(each)
        return found

    def kill_keeper(self) -> None:
        record = json.loads((self.folder / self.id / "keeper.json").read_text())
        os.kill(record["pid"], signal.SIGKILL)


def sleeper(mark: dict[str, str], cwd: Path) -> psutil.Popen:
    return psutil.Popen([sys.executable, "-c", SLEEP], env=mark, cwd=cwd, start_new_session=True)


def test_killed_keeper_leaves_nothing_of_its_engine_behind_while_an_agent_runs(folder: Path) -> None:
    async def story() -> None:
        keepers, member = ProcessKeepers(folder, 60), Member(folder, ID)
        await member.start(keepers)
        member.kill_keeper()
        ended = await keepers.wait_exit(ID)
        assert ended.status is None
        assert not member.running(), "they are gone before the end is told"

    run(story)
    assert_none_left(folder)


@pytest.mark.parametrize("how", ["start", "stop_all"])
def test_what_a_killed_keeper_left_while_no_agent_ran_ends_with_the_next(folder: Path, how: str) -> None:
    """Whoever else runs goes on: what a living keeper's engine started, and what bears the mark of another folder."""

    async def story() -> None:
        dead, killed, living = ProcessKeepers(folder, 60), Member(folder, ID), Member(folder, OTHER)
        await killed.start(dead)
        if how == "start":
            await living.start(dead)
        dead.close()
        elsewhere = folder.parent / "elsewhere"
        strangers = [sleeper(render_mark(elsewhere / "members" / ID), folder.parent), sleeper({}, folder.parent)]
        killed.kill_keeper()
        keepers = ProcessKeepers(folder, 60)
        try:
            await asyncio.to_thread(wait_for, lambda: len(killed.running()) < 4, "the engine ends with its keeper")
            await (keepers.end_left() if how == "start" else stop_all(folder))
            assert not killed.running()
            assert all(each.is_running() for each in strangers)
            assert len(living.running()) == (4 if how == "start" else 0)
        finally:
            for each in strangers:
                each.kill()
                each.wait()
        if how == "start":
            await keepers.find(OTHER, "")
            await keepers.stop(OTHER, 0)
            await keepers.wait_exit(OTHER)
            await keepers.release(OTHER)
        assert isinstance(await keepers.find(ID, ""), EngineExit)

    run(story)
    assert_none_left(folder)


def test_engine_that_nobody_wrote_down_ends_with_the_next_start_of_an_agent(folder: Path) -> None:
    """As on macOS, where it lives on: its keeper was killed before it wrote its record."""
    (folder / ID).mkdir()
    engine = sleeper(render_mark(folder / ID), folder / ID)
    wait_for(lambda: observe_marked(folder), "it bears its mark")
    run(ProcessKeepers(folder, 60).end_left)
    assert engine.wait(30) == -signal.SIGKILL


def test_recorded_engine_without_a_mark_ends_with_the_next_start_of_an_agent(folder: Path) -> None:
    """Of an agent of the version before; as on macOS."""
    (folder / ID).mkdir()
    engine = sleeper({}, folder / ID)
    record = {"pid": 1, "startTime": "gone", "enginePid": engine.pid, "instanceId": ID, "attempt": 1, "port": 1}
    record |= {"engineStartTime": observe_start_time(engine.pid)}
    (folder / ID / "keeper.json").write_text(json.dumps(record))
    run(ProcessKeepers(folder, 60).end_left)
    assert engine.wait(30) == -signal.SIGKILL


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a start time names no boot")
def test_group_of_a_daemon_that_has_the_id_of_an_engine_before_a_boot_is_left_alone(tmp_path: Path) -> None:
    leader = subprocess.Popen([sys.executable, "-c", LEADER], start_new_session=True, cwd=tmp_path)
    leader.wait()
    daemon = next(each for each in processes_of(tmp_path) if os.getpgid(each.pid) == leader.pid)
    try:
        boot, _, ticks = observe_start_time(os.getpid()).partition(":")
        end_engine(leader.pid, f"another boot:{ticks}")
        time.sleep(0.2)
        assert is_running(daemon.pid)
        end_engine(leader.pid, f"{boot}:{ticks}")
        wait_for(lambda: not is_running(daemon.pid), "one of this boot is ended")
    finally:
        if is_running(daemon.pid):
            daemon.kill()


def test_start_time_is_told_in_the_same_words_to_whoever_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A keeper has no environment, an agent its user's; and a laptop travels."""
    seen: set[str] = set()
    for zone, language in (("UTC", "C"), ("Asia/Tokyo", "de_DE.UTF-8"), ("America/Lima", "fr_FR.UTF-8")):
        monkeypatch.setenv("TZ", zone)
        monkeypatch.setenv("LC_ALL", language)
        seen.add(ask_start_time(os.getpid()))
    (told,) = seen
    assert time.strptime(told)


def test_start_times_of_macos_are_told_from_those_before_the_boot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(psutil, "boot_time", lambda: calendar.timegm((2026, 3, 2, 8, 0, 0)))
    assert is_of_this_boot("Mon Mar  2 08:00:00 2026")
    assert not is_of_this_boot("Sun Mar  1 07:59:59 2026")
    assert is_of_this_boot("Lun  2 mar 08:00:00 2026")
