"""An engine's control group, on a tree of files that has the shape of the kernel's."""

import os
import subprocess
from pathlib import Path

import psutil
import pytest
from covey_agent.keeper.group import LEAF, EngineGroup, choose_limit, find_unit, open_group
from kit.processes import wait_for

UNIT = "system.slice/covey-join.service"
GIB = 1 << 30


def make_tree(root: Path, own: str, mounts: str = "31 24 0:27 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n") -> Path:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(f"0::/{own}\n")
    (root / "proc/self/mountinfo").write_text(f"22 1 8:1 / / rw - ext4 /dev/sda1 rw\n{mounts}")
    unit = root / "sys/fs/cgroup" / UNIT
    engine = unit / "engine-abc"
    engine.mkdir(parents=True)
    for name in ("cgroup.procs", "memory.max"):
        (engine / name).touch()
    (engine / "memory.events").write_text("low 0\noom 2\noom_kill 2\n")  # of an attempt before
    return unit


def test_engine_enters_a_group_with_its_limit_beside_the_services_own(tmp_path: Path) -> None:
    unit = make_tree(tmp_path, f"{UNIT}/{LEAF}")
    group = open_group("abc", 4 * GIB, str(tmp_path))
    assert group is not None
    assert (unit / "cgroup.subtree_control").read_text() == "+memory"
    assert (unit / "engine-abc/memory.max").read_text() == str(choose_limit(4 * GIB)) == str(6 * GIB + GIB // 2)
    assert (unit / "engine-abc/memory.oom.group").read_text() == "1"
    group.enter()
    assert (unit / "engine-abc/cgroup.procs").read_text() == "0"
    assert not group.has_killed()
    (unit / "engine-abc/memory.events").write_text("low 0\noom 3\noom_kill 3\noom_group_kill 1\n")
    assert group.has_killed()


@pytest.mark.parametrize(
    ("own", "mounts"),
    [
        (UNIT, ""),
        ("", ""),
        (f"{UNIT}/{LEAF}", "31 24 0:27 / /sys/fs/cgroup rw - cgroup cgroup rw,memory\n"),
        ("user.slice/user-1000.slice/session-1.scope", ""),
    ],
)
def test_where_nothing_was_delegated_there_is_no_group(tmp_path: Path, own: str, mounts: str) -> None:
    """A systemd before 254 leaves the agent in the unit's own group; a container shows none; version 1 has none."""
    if mounts:
        make_tree(tmp_path, own, mounts)
    else:
        make_tree(tmp_path, own)
    assert find_unit(str(tmp_path)) is None
    assert open_group("abc", GIB, str(tmp_path)) is None


def test_a_kernel_that_hands_nothing_down_costs_the_limit_and_not_the_engine(tmp_path: Path) -> None:
    unit = make_tree(tmp_path, f"{UNIT}/{LEAF}")
    (unit / "cgroup.subtree_control").mkdir()  # cannot be written
    assert open_group("abc", GIB, str(tmp_path)) is None
    assert open_group("other", GIB, str(tmp_path)) is None
    assert not (unit / "engine-other").exists()


def test_an_engine_without_memory_of_the_machine_has_no_limit(tmp_path: Path) -> None:
    make_tree(tmp_path, f"{UNIT}/{LEAF}")
    assert open_group("abc", 0, str(tmp_path)) is None


def test_all_that_an_engine_started_ends_with_its_group(tmp_path: Path) -> None:
    """On the kernel's own tree: also what made a session for itself, which no signal to the engine's group reaches."""
    mounts = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines() if " - cgroup2 " in line]
    path = Path(mounts[0][4]) / f"covey-test-{os.getpid()}" if mounts else None
    try:
        if path is None:
            pytest.skip("no control groups of version 2 are mounted here")
        path.mkdir()
    except OSError as error:
        pytest.skip(f"control groups can't be made here: {error.strerror}")
    group = EngineGroup(str(path))
    command = f"setsid sleep 300 & echo $! > '{tmp_path}/child'; wait"
    with subprocess.Popen(["/bin/sh", "-c", command], preexec_fn=group.enter) as engine:
        wait_for((tmp_path / "child").exists, "the child was started")
        wait_for(lambda: (tmp_path / "child").read_text().strip(), "its id is written")
        child = psutil.Process(int((tmp_path / "child").read_text()))
        assert {engine.pid, child.pid} <= {int(line) for line in (path / "cgroup.procs").read_text().split()}
        group.remove()
        assert engine.wait(20) == -9
        wait_for(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE, "the child ends")
    assert not path.exists()
