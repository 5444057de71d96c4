"""The keeper against a real child with knobs."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from covey_agent.keeper import keepers as keepers_module
from covey_agent.keeper import link
from covey_agent.keeper.keepers import ProcessKeepers
from covey_agent.keeper.link import connect
from covey_agent.keeper.memory import AHEAD
from covey_agent.keeper.observed import observe_start_time
from covey_agent.ports import AgentError, EngineExit, EngineProcess, Launch
from covey_fleet_client.files import write_private
from kit.ports import free_port
from kit.processes import (
    assert_none_left,
    engine_double,
    is_running,
    observe_pss_bytes,
    processes_of,
    wait_for,
)

ID = "00000000000000aa"


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    members = tmp_path / "members"
    yield members
    left = processes_of(members)
    for process in left:
        process.kill()
    assert not left, f"a test must leave no process behind; left {left}"


def launch(folder: Path, port: int, **knobs: str) -> Launch:
    folder.parent.mkdir(parents=True, exist_ok=True)
    program = engine_double(folder.parent, **knobs)
    return Launch((str(program), "--port", str(port)), {"PATH": os.environ["PATH"]}, (("engine.key", "k"),))


def run(story: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):
            await story()

    asyncio.run(bounded())


async def end(keepers: ProcessKeepers, instance_id: str = ID) -> EngineExit:
    await keepers.stop(instance_id, 2)
    ended = await keepers.wait_exit(instance_id)
    await keepers.release(instance_id)
    return ended


def is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_keeper_takes_what_an_agent_of_the_version_before_wrote(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After an upgrade the old agent runs on, and starts the new keeper."""

    def write(path: Path, content: str) -> None:
        if path.name == "launch.json":
            content = json.dumps({key: value for key, value in json.loads(content).items() if key != "memoryBytes"})
        write_private(path, content)

    monkeypatch.setattr(keepers_module, "write_private", write)

    async def story() -> None:
        keepers, port = ProcessKeepers(folder, 60), free_port()
        assert (await keepers.start(ID, 1, port, launch(folder, port))).attempt == 1
        assert (await end(keepers)).ended_by == "Stop"

    run(story)


def test_keeper_starts_an_engine_and_stops_it_when_asked(folder: Path) -> None:
    async def story() -> None:
        keepers, port = ProcessKeepers(folder, 60), free_port()
        process = await keepers.start(ID, 3, port, launch(folder, port))
        assert (process.attempt, process.port) == (3, port)
        await asyncio.to_thread(wait_for, lambda: is_open(port), "the engine listens")
        assert keepers.observe_living() == {ID: ""}
        ended = await end(keepers)
        assert (ended.ended_by, ended.status, ended.attempt) == ("Stop", -signal.SIGTERM, 3)
        assert not is_running(process.pid)
        assert keepers.observe_living() == {}

    run(story)
    assert_none_left(folder)


def test_keeper_holds_files_that_only_its_user_reads(folder: Path) -> None:
    async def story() -> None:
        keepers, port = ProcessKeepers(folder, 60), free_port()
        await keepers.start(ID, 1, port, launch(folder, port))
        modes = {path.name: path.stat().st_mode & 0o077 for path in (folder / ID).iterdir()}
        assert {"launch.json", "keeper.json", "k.sock", "output.log", "engine.key"} <= modes.keys()
        assert set(modes.values()) == {0}
        await end(keepers)

    run(story)


async def sleeps_for_a_second(process: psutil.Process) -> bool:
    """In one of ten seconds it doesn't wake up once: what was asked of it before may be under way on a busy machine."""
    for _ in range(10):
        before = process.num_ctx_switches().voluntary
        await asyncio.sleep(1)
        if process.num_ctx_switches().voluntary == before:
            return True
    return False


def test_keeper_takes_less_than_15_mb_and_sleeps_while_nothing_happens(folder: Path) -> None:
    async def story() -> None:
        keepers, port = ProcessKeepers(folder, 60), free_port()
        await keepers.start(ID, 1, port, launch(folder, port))
        await asyncio.to_thread(wait_for, lambda: is_open(port), "the engine listens")
        pid = json.loads((folder / ID / "keeper.json").read_text())["pid"]
        assert observe_pss_bytes(pid) < 15_000_000
        # Claimed or not, nothing is due: it must not wake up once.
        for is_claimed in (True, False):
            if not is_claimed:
                keepers.close()
                await asyncio.sleep(0.5)
            assert await sleeps_for_a_second(psutil.Process(pid))
        await keepers.find(ID, "")
        await end(keepers)

    run(story)


def test_killed_keeper_takes_its_engine_with_it(folder: Path) -> None:
    async def story() -> None:
        keepers, port = ProcessKeepers(folder, 60), free_port()
        process = await keepers.start(ID, 1, port, launch(folder, port, fork="yes"))
        os.kill(json.loads((folder / ID / "keeper.json").read_text())["pid"], signal.SIGKILL)
        ended = await keepers.wait_exit(ID)
        assert ended.status is None
        assert not is_running(process.pid)

    run(story)
    assert_none_left(folder)


def test_stop_kills_an_engine_that_ignores_sigterm_and_what_it_started(folder: Path) -> None:
    async def story() -> None:
        keepers, port = ProcessKeepers(folder, 60), free_port()
        await keepers.start(ID, 1, port, launch(folder, port, ignore_term="yes", fork="yes"))
        await asyncio.to_thread(wait_for, lambda: is_open(port), "the engine listens")
        await keepers.stop(ID, 0.5)
        ended = await keepers.wait_exit(ID)
        assert (ended.ended_by, ended.status) == ("Stop", -signal.SIGKILL)
        await keepers.release(ID)

    run(story)
    assert_none_left(folder)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux gives a keeper what its engine left")
@pytest.mark.parametrize("how", ["stop", "crash"])
def test_what_an_engine_started_ends_with_it_also_in_a_session_of_its_own(folder: Path, how: str) -> None:
    left = folder.parent / "left"

    def left_behind() -> list[int]:
        return [int(line) for line in left.read_text().splitlines()] if left.exists() else []

    async def story() -> None:
        keepers, port = ProcessKeepers(folder, 60), free_port()
        process = await keepers.start(ID, 1, port, launch(folder, port, daemon=str(left)))
        await asyncio.to_thread(wait_for, lambda: is_open(port) and len(left_behind()) == 2, "all of it runs")
        assert all(is_running(pid) for pid in left_behind())
        if how == "stop":
            await keepers.stop(ID, 0.5)
        else:
            os.kill(process.pid, signal.SIGKILL)
        ended = await keepers.wait_exit(ID)
        assert not [pid for pid in left_behind() if is_running(pid)], "they are gone before the end is told"
        assert ended.status == (-signal.SIGTERM if how == "stop" else -signal.SIGKILL)
        await keepers.release(ID)

    run(story)
    assert_none_left(folder)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux gives a keeper what its engine left")
def test_a_keeper_lets_go_what_ended_while_its_engine_runs(folder: Path) -> None:
    left = folder.parent / "left"

    async def story() -> None:
        keepers, port = ProcessKeepers(folder, 60), free_port()
        process = await keepers.start(ID, 1, port, launch(folder, port, daemon=str(left)))
        await asyncio.to_thread(wait_for, lambda: is_open(port) and len(left.read_text().split()) == 2, "all runs")
        orphan = next(int(pid) for pid in left.read_text().split() if psutil.Process(int(pid)).ppid() != process.pid)
        os.kill(orphan, signal.SIGKILL)
        await asyncio.to_thread(wait_for, lambda: not psutil.pid_exists(orphan), "no zombie is left")
        assert is_running(process.pid)
        await end(keepers)

    run(story)
    assert_none_left(folder)


def test_exit_record_holds_status_and_last_words(folder: Path) -> None:
    async def story() -> None:
        keepers, port = ProcessKeepers(folder, 60), free_port()
        await keepers.start(ID, 2, port, launch(folder, port, die_at_load="no such weights", exit_code="7"))
        ended = await keepers.wait_exit(ID)
        assert (ended.status, ended.ended_by, ended.out_of_memory) == (7, "Engine", False)
        assert ended.tail.endswith("no such weights\n")
        assert "no such weights" in await keepers.read_tail(ID, 1000)
        await keepers.release(ID)
        # Whoever comes later, without a living keeper, reads the same.
        assert await ProcessKeepers(folder, 60).find(ID, "") == ended
        assert "no such weights" in await keepers.read_tail(ID, 1000)
        keepers.forget(ID)
        assert await keepers.find(ID, "") is None

    run(story)


def test_engine_that_prints_a_lot_costs_two_mebibytes_of_disk(folder: Path) -> None:
    async def story() -> None:
        keepers, port = ProcessKeepers(folder, 60), free_port()
        await keepers.start(ID, 1, port, launch(folder, port, print_bytes=str(200 * 1024 * 1024)))
        await asyncio.to_thread(wait_for, lambda: is_open(port), "the engine got rid of its output and listens")
        sizes = [path.stat().st_size for path in (folder / ID).glob("output.log*")]
        assert len(sizes) == 2
        assert sum(sizes) <= 2 * 1024 * 1024
        pid = json.loads((folder / ID / "keeper.json").read_text())["pid"]
        assert observe_pss_bytes(pid) < 15_000_000
        tail = ""
        for _ in range(1200):
            tail = await keepers.read_tail(ID, 200_000)
            if tail.rstrip().endswith("bytes"):
                break
            await asyncio.sleep(0.1)
        assert (len(tail), tail.rstrip()[-5:]) == (200_000, "bytes")
        await end(keepers)

    run(story)


def test_unclaimed_keeper_stops_its_engine_and_says_why(folder: Path) -> None:
    async def story() -> None:
        keepers, port = ProcessKeepers(folder, 5), free_port()
        process = await keepers.start(ID, 1, port, launch(folder, port))
        await asyncio.sleep(6)
        assert is_running(process.pid), "a claimed engine runs on whatever the grace is"
        keepers.close()  # as an agent's death does

    run(story)
    assert_none_left(folder)
    record = json.loads((folder / ID / "exit.json").read_text())
    assert (record["endedBy"], record["attempt"]) == ("Orphaned", 1)


def test_restarted_agent_finds_the_same_engine(folder: Path) -> None:
    port = free_port()
    processes: list[EngineProcess] = []

    async def start() -> None:
        keepers = ProcessKeepers(folder, 30)
        processes.append(await keepers.start(ID, 4, port, launch(folder, port)))
        keepers.close()

    async def find() -> None:
        keepers = ProcessKeepers(folder, 30)
        found = await keepers.find(ID, "")
        assert found == processes[0]
        await end(keepers)

    run(start)
    run(find)
    assert_none_left(folder)


@pytest.mark.parametrize("lost", [("keeper.json",), ("k.sock",), ("keeper.json", "k.sock")])
def test_restarted_agent_finds_the_same_engine_without_what_was_lost(folder: Path, lost: tuple[str, ...]) -> None:
    async def story() -> None:
        dead, keepers, port = ProcessKeepers(folder, 60), ProcessKeepers(folder, 60), free_port()
        process = await dead.start(ID, 4, port, launch(folder, port))
        record = json.loads((folder / ID / "keeper.json").read_text())
        for name in lost:
            (folder / ID / name).unlink()
        dead.close()
        assert await keepers.find(ID, "") == process
        # And whoever looks at the folder later finds it whole.
        keepers.close()
        made = (folder / ID / "keeper.json", folder / ID / "k.sock")
        await asyncio.to_thread(wait_for, lambda: all(each.exists() for each in made), "both are made anew")
        assert json.loads((folder / ID / "keeper.json").read_text()) == record
        assert (folder / ID / "k.sock").is_socket()
        assert await keepers.find(ID, "") == process
        await end(keepers)

    run(story)
    assert_none_left(folder)


def test_exit_is_told_by_a_keeper_without_a_record(folder: Path) -> None:
    async def story() -> None:
        dead, keepers, port = ProcessKeepers(folder, 60), ProcessKeepers(folder, 60), free_port()
        process = await dead.start(ID, 4, port, launch(folder, port))
        dead.close()
        (folder / ID / "keeper.json").unlink()
        os.kill(process.pid, signal.SIGTERM)
        await asyncio.to_thread(wait_for, lambda: (folder / ID / "exit.json").exists(), "the end is written down")
        assert await keepers.find(ID, "") == process
        ended = await keepers.wait_exit(ID)
        assert (ended.ended_by, ended.status) == ("Engine", -signal.SIGTERM)
        await keepers.release(ID)

    run(story)
    assert_none_left(folder)


def test_frozen_keeper_without_a_record_is_killed_with_its_engine(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        dead, keepers, port = ProcessKeepers(folder, 60), ProcessKeepers(folder, 60), free_port()
        process = await dead.start(ID, 1, port, launch(folder, port))
        monkeypatch.setattr(link, "ANSWER_SECONDS", 0.2)
        monkeypatch.setattr(keepers_module, "FIND_SECONDS", 0.5)
        os.kill(json.loads((folder / ID / "keeper.json").read_text())["pid"], signal.SIGSTOP)
        (folder / ID / "keeper.json").unlink()
        dead.close()
        assert await keepers.find(ID, process.identity) is None
        assert not is_running(process.pid)

    run(story)
    assert_none_left(folder)


# It holds the lock and answers with the record of another process, as a keeper would.
STRANGER = """
import fcntl, os, socket, sys
os.chdir(sys.argv[1])
lock = open("keeper.lock", "w")
fcntl.flock(lock, fcntl.LOCK_EX)
listener = socket.socket(socket.AF_UNIX)
listener.bind("k.sock")
listener.listen()
print(1, flush=True)
while True:
    peer = listener.accept()[0]
    if peer.recv(1000):
        peer.sendall(sys.argv[2].encode() + b"\\n")
"""


def test_stranger_that_answers_as_a_keeper_is_refused_and_left_alone(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keepers_module, "FIND_SECONDS", 0.5)
    monkeypatch.setattr(keepers_module, "END_SECONDS", 0.5)
    (folder / ID).mkdir(parents=True)
    named = os.getpid()
    record = {"pid": named, "startTime": observe_start_time(named), "enginePid": named, "exit": None}
    record |= {"engineStartTime": observe_start_time(named), "instanceId": ID, "attempt": 1, "port": 1}
    command = ["python3", "-c", STRANGER, str(folder / ID), json.dumps(record)]
    stranger = psutil.Popen(command, stdout=-1, stderr=-3)
    try:
        stranger.stdout.readline()

        async def story() -> None:
            with pytest.raises(AgentError, match="held by a process that is no keeper"):
                await ProcessKeepers(folder, 5).find(ID, "")

        run(story)
        assert stranger.is_running()
    finally:
        stranger.kill()
        stranger.wait()
        stranger.stdout.close()


def test_keeper_serves_on_when_nothing_can_be_put_back(folder: Path) -> None:
    """No write in its folder succeeds; as soon as one does, it is found."""

    async def story() -> None:
        dead, keepers, port = ProcessKeepers(folder, 60), ProcessKeepers(folder, 60), free_port()
        process = await dead.start(ID, 1, port, launch(folder, port))
        (folder / ID / "keeper.json").unlink()
        (folder / ID / "keeper.json.new").mkdir()
        (folder / ID / "k.sock").unlink()
        (folder / ID / "k.sock").mkdir()
        dead.close()
        await asyncio.sleep(4)
        assert is_running(process.pid)
        (folder / ID / "k.sock").rmdir()
        assert await keepers.find(ID, "") == process
        assert "Traceback" not in await keepers.read_tail(ID, 10_000)
        await end(keepers)

    run(story)
    assert_none_left(folder)


def test_start_claims_what_runs_instead_of_starting_a_second(folder: Path) -> None:
    async def story() -> None:
        first, second = ProcessKeepers(folder, 30), ProcessKeepers(folder, 30)
        port = free_port()
        process = await first.start(ID, 1, port, launch(folder, port))
        assert await second.start(ID, 2, free_port(), launch(folder, port)) == process
        assert sum("keeper.py" in " ".join(process.cmdline()) for process in processes_of(folder)) == 1
        first.close()
        await end(second)

    run(story)
    assert_none_left(folder)


def test_two_launchers_at_once_make_one_engine(folder: Path) -> None:
    async def story() -> None:
        port = free_port()
        both = ProcessKeepers(folder, 60), ProcessKeepers(folder, 60)
        starts = (keepers.start(ID, 1, port, launch(folder, port)) for keepers in both)
        started = await asyncio.gather(*starts, return_exceptions=True)
        processes = {one.pid for one in started if isinstance(one, EngineProcess)}
        assert len(processes) == 1
        for one in started:
            assert isinstance(one, EngineProcess) or "another keeper holds" in str(one)
        keepers = ProcessKeepers(folder, 5)
        await keepers.find(ID, "")
        for other in both:
            other.close()
        await end(keepers)

    run(story)
    assert_none_left(folder)


def test_lock_of_a_process_that_is_no_keeper_is_refused_and_left_alone(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keepers_module, "FIND_SECONDS", 0.5)
    monkeypatch.setattr(keepers_module, "END_SECONDS", 0.5)
    (folder / ID).mkdir(parents=True)
    script = "import fcntl,sys,time; f=open(sys.argv[1],'w'); fcntl.flock(f,2); print(1,flush=True); time.sleep(60)"
    stranger = psutil.Popen(["python3", "-c", script, str(folder / ID / "keeper.lock")], stdout=-1, stderr=-3)
    try:
        stranger.stdout.readline()
        # As after a power cut: the id of the dead keeper belongs to somebody else now.
        record = {"pid": stranger.pid, "startTime": "another boot:1", "enginePid": stranger.pid}
        record |= {"engineStartTime": "another boot:1", "instanceId": ID, "attempt": 1, "port": 1}
        (folder / ID / "keeper.json").write_text(json.dumps(record))

        async def story() -> None:
            with pytest.raises(AgentError, match="held by a process that is no keeper"):
                await ProcessKeepers(folder, 5).find(ID, "")

        run(story)
        assert stranger.is_running()
    finally:
        stranger.kill()
        stranger.wait()
        stranger.stdout.close()


def test_keeper_that_was_frozen_is_killed_with_its_engine(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        keepers, port = ProcessKeepers(folder, 60), free_port()
        process = await keepers.start(ID, 1, port, launch(folder, port))
        monkeypatch.setattr(link, "ANSWER_SECONDS", 0.2)
        os.kill(json.loads((folder / ID / "keeper.json").read_text())["pid"], signal.SIGSTOP)
        await keepers.stop(ID, 1)
        assert (await keepers.wait_exit(ID)).status is None
        assert not is_running(process.pid)

    run(story)
    assert_none_left(folder)


def test_program_that_is_missing_is_named(folder: Path) -> None:
    async def story() -> None:
        with pytest.raises(AgentError, match="'/nowhere/engine': No such file or directory"):
            await ProcessKeepers(folder, 5).start(ID, 1, 1, Launch(("/nowhere/engine",), {}, ()))

    run(story)
    assert_none_left(folder)


def test_folder_with_a_path_longer_than_a_socket_address_works(tmp_path: Path) -> None:
    folder = tmp_path / ("d" * 150) / "members"

    async def story() -> None:
        keepers, port = ProcessKeepers(folder, 60), free_port()
        await keepers.start(ID, 1, port, launch(folder, port))
        assert isinstance(await keepers.find(ID, ""), EngineProcess)
        await end(keepers)

    run(story)
    assert_none_left(folder)


def test_keeper_survives_strangers_on_its_socket(folder: Path) -> None:
    async def story() -> None:
        keepers, port = ProcessKeepers(folder, 60), free_port()
        process = await keepers.start(ID, 1, port, launch(folder, port))
        for junk in (b"\xff\xfe\n", b"[]\n", b'{"do": "dance"}\n', b'{"do": "stop"}\n', b"x" * 100_000, b"\n" * 5000):
            with socket.socket(socket.AF_UNIX) as peer:
                peer.connect(str(folder / ID / "k.sock"))
                peer.settimeout(0.5)
                try:
                    peer.sendall(junk)
                    peer.recv(100)
                except OSError:
                    continue
        link = await connect(folder / ID)
        status = await link.ask("status")
        link.close()
        assert status["enginePid"] == process.pid
        assert is_running(process.pid)
        await end(keepers)

    run(story)
    assert_none_left(folder)


def test_engine_runs_on_when_the_folder_vanishes_below_the_keeper(folder: Path) -> None:
    async def story() -> None:
        keepers, port = ProcessKeepers(folder, 60), free_port()
        process = await keepers.start(ID, 1, port, launch(folder, port, print_bytes=str(3 * 1024 * 1024)))
        await asyncio.to_thread(wait_for, lambda: is_open(port), "the engine listens")
        keepers.forget(ID)
        await asyncio.sleep(0.2)
        assert is_running(process.pid)
        await end(keepers)

    run(story)
    assert_none_left(folder)


def test_keeper_whose_folder_is_gone_ends_soon_after_its_agent(folder: Path) -> None:
    async def story() -> None:
        keepers, port = ProcessKeepers(folder, 3600), free_port()
        process = await keepers.start(ID, 1, port, launch(folder, port))
        keepers.forget(ID)
        await asyncio.sleep(4)
        assert is_running(process.pid), "while an agent is there it runs on"
        keepers.close()  # as an agent's death does
        await asyncio.to_thread(wait_for, lambda: not is_running(process.pid), "the engine ends without its folder")

    run(story)
    assert_none_left(folder)


def score_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/oom_score_adj").read_text())


@contextmanager
def limited_group(limit_bytes: int) -> Generator[Path]:
    """A control group for memory below this process's own; skips where none may be made."""
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    own = next((line.split(":")[2] for line in lines if line.split(":")[1] == "memory"), None)
    group = Path(f"/sys/fs/cgroup/memory{own}/covey-test-{os.getpid()}")
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(limit_bytes))
    except OSError as error:
        pytest.skip(f"no control group with a limit can be made here: {error}")
    try:
        yield group
    finally:
        wait_for(lambda: not (group / "cgroup.procs").read_text(), "the group is empty")
        group.rmdir()


GROWS = """
import os, time
while not os.path.exists({begin!r}):
    time.sleep(0.02)
grown = [b'x' * 2**20 for _ in range({mib})]
open({begin!r} + '.grown', 'w').close()
time.sleep(60)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="what the kernel does is Linux's")
def test_engine_that_takes_all_memory_dies_and_nobody_else(folder: Path, tmp_path: Path) -> None:
    """The bystander is larger when memory ends; and it started before."""

    def grow(mib: int, begin: Path) -> tuple[str, ...]:
        return (sys.executable, "-I", "-S", "-c", GROWS.format(mib=mib, begin=str(begin)))

    large, small = tmp_path / "large", tmp_path / "small"

    async def story() -> None:
        keepers = ProcessKeepers(folder, 60)
        process = await keepers.start(ID, 1, free_port(), Launch(grow(80, large), {}, ()))
        keeper = json.loads((folder / ID / "keeper.json").read_text())["pid"]
        assert score_of(process.pid) == score_of(os.getpid()) + AHEAD
        assert score_of(keeper) == score_of(os.getpid())
        with limited_group(100 * 2**20) as group:
            bystander = await asyncio.create_subprocess_exec(*grow(55, small), stdin=subprocess.DEVNULL)
            for pid in (process.pid, keeper, bystander.pid):
                (group / "cgroup.procs").write_text(str(pid))
            try:
                small.touch()
                await asyncio.to_thread(wait_for, Path(f"{small}.grown").exists, "the bystander has grown")
                large.touch()
                ended = await keepers.wait_exit(ID)
                assert (ended.status, ended.ended_by, ended.out_of_memory) == (-signal.SIGKILL, "Engine", True)
                assert is_running(keeper)
                assert bystander.returncode is None
                await keepers.release(ID)
            finally:
                bystander.kill()
                await bystander.wait()

    run(story)
    assert_none_left(folder)
