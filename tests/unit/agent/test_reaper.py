"""The reaper as a real process: the agent's deaths, orphans, and the end of the pod."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from covey_agent.reaper import LONGEST_DELAY_SECONDS, STEADY_SECONDS, next_delay_seconds
from kit.processes import is_running, observe_pss_bytes, wait_for

# Writes its pid, leaves a keeper in a session of its own, and stays.
AGENT = """
import os, subprocess, sys, time
keeper = subprocess.Popen(["sleep", "600"], start_new_session=True)
with open("keepers", "a") as file:
    file.write(f"{keeper.pid}\\n")
with open("agents", "a") as file:
    file.write(f"{os.getpid()}\\n")
time.sleep(600)
"""
# The interpreter alone takes less than ten; an agent takes five times as much.
TINY_BYTES = 16 << 20


class Pod:
    """A reaper around a small agent, in a folder of its own."""

    def __init__(self, folder: Path, agent: list[str], reaper: str = "import covey_agent.reaper as reaper") -> None:
        self.folder = folder
        start = f"import sys; {reaper}; sys.exit(reaper.main(sys.argv[1:]))"
        self.log = (folder / "log").open("w+")
        self.process = subprocess.Popen(
            [sys.executable, "-c", start, "--", *agent], cwd=folder, stderr=self.log, stdin=subprocess.DEVNULL
        )

    def pids(self, name: str) -> list[int]:
        path = self.folder / name
        return [int(line) for line in path.read_text().splitlines()] if path.exists() else []

    def said(self) -> str:
        return (self.folder / "log").read_text()

    def end(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=60)


@pytest.fixture
def pods(tmp_path: Path) -> Iterator[list[Pod]]:
    """Pods that a test starts; all of them are gone afterwards, keepers too."""
    started: list[Pod] = []
    yield started
    for pod in started:
        for pid in [pod.process.pid, *pod.pids("agents"), *pod.pids("keepers")]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        pod.process.wait(timeout=20)
        pod.log.close()


@pytest.fixture
def pod(tmp_path: Path, pods: list[Pod]) -> Pod:
    pods.append(Pod(tmp_path, [sys.executable, "-c", AGENT]))
    wait_for(lambda: pods[0].pids("agents"), "the agent has started")
    return pods[0]


def test_a_killed_agent_is_started_again_and_its_keeper_runs_on(pod: Pod) -> None:
    (agent,), (keeper,) = pod.pids("agents"), pod.pids("keepers")
    os.kill(agent, signal.SIGKILL)
    wait_for(lambda: len(pod.pids("agents")) == 2, "the agent has started again")
    assert is_running(keeper)
    assert psutil.Process(keeper).ppid() == pod.process.pid
    assert "the agent ended with status 137; it starts again in 0.2 s" in pod.said()


def test_an_orphan_that_ends_leaves_no_zombie(pod: Pod) -> None:
    (agent,), (keeper,) = pod.pids("agents"), pod.pids("keepers")
    os.kill(agent, signal.SIGKILL)
    wait_for(lambda: len(pod.pids("agents")) == 2, "the agent has started again")
    os.kill(keeper, signal.SIGKILL)
    wait_for(lambda: not psutil.pid_exists(keeper), "the orphan is reaped")


def test_sigterm_is_passed_to_the_agent_and_keepers_are_left_to_the_end_of_the_pod(pod: Pod) -> None:
    (agent,), (keeper,) = pod.pids("agents"), pod.pids("keepers")
    assert pod.end() == 128 + signal.SIGTERM
    assert not psutil.pid_exists(agent)
    assert is_running(keeper)


def test_an_agent_that_ignores_sigterm_is_killed(tmp_path: Path, pods: list[Pod]) -> None:
    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + AGENT
    impatient = "import covey_agent.reaper as reaper; reaper.END_SECONDS = 0.3"
    pods.append(Pod(tmp_path, [sys.executable, "-c", deaf], impatient))
    wait_for(lambda: pods[0].pids("agents"), "the agent has started")
    assert pods[0].end() == 128 + signal.SIGKILL
    assert "the agent must end within 0.3 s of SIGTERM; it did not, and is killed" in pods[0].said()


def test_an_agent_that_keeps_dying_is_started_ever_slower_and_the_end_waits_for_no_start(
    tmp_path: Path, pods: list[Pod]
) -> None:
    pods.append(Pod(tmp_path, ["false"]))
    wait_for(lambda: "again in 1.6 s" in pods[0].said(), "the fourth start is announced")
    assert pods[0].end() == 0
    delays = [line.split(" again in ")[1].split(" s")[0] for line in pods[0].said().splitlines()]
    assert delays[:4] == ["0.2", "0.4", "0.8", "1.6"]


def test_a_command_that_is_not_there_is_told_and_tried_again(tmp_path: Path, pods: list[Pod]) -> None:
    pods.append(Pod(tmp_path, ["no-such-agent"]))
    wait_for(lambda: "again in 0.4 s" in pods[0].said(), "it was tried twice")
    assert "'no-such-agent' can't be started:" in pods[0].said()
    assert "ended with status 127" in pods[0].said()
    assert pods[0].end() == 0


def test_the_reaper_takes_little_memory(pod: Pod) -> None:
    assert observe_pss_bytes(pod.process.pid) < TINY_BYTES


def test_as_pid_1_it_ends_everything_with_the_pod(tmp_path: Path, pods: list[Pod]) -> None:
    own = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child"]
    if shutil.which("unshare") is None or subprocess.run([*own, "true"], capture_output=True, check=False).returncode:
        pytest.skip("needs `unshare` with namespaces of users and processes")
    agent = "import os; assert os.getppid() == 1\n" + AGENT
    reaper = [sys.executable, "-m", "covey_agent.reaper", "--", sys.executable, "-c", agent]
    with (tmp_path / "log").open("w") as log:
        outer = subprocess.Popen([*own, *reaper], cwd=tmp_path, stderr=log, stdin=subprocess.DEVNULL)
    try:
        wait_for((tmp_path / "agents").exists, "the agent has started")
        inside = psutil.Process(outer.pid).children(recursive=True)
        pid_one = psutil.Process(outer.pid).children()[0]
        assert {process.name() for process in inside} > {"sleep"}
        pid_one.send_signal(signal.SIGTERM)
        assert outer.wait(timeout=30) == 128 + signal.SIGTERM
        wait_for(lambda: not any(is_running(process.pid) for process in inside), "nothing is left of the pod")
    finally:
        outer.kill()
        outer.wait(timeout=20)


def test_wrong_use_is_told() -> None:
    answer = subprocess.run(
        [sys.executable, "-m", "covey_agent.reaper", "sleep"], capture_output=True, text=True, timeout=60, check=False
    )
    assert answer.returncode == 2
    assert "usage: python -m covey_agent.reaper -- COMMAND" in answer.stderr


def test_delays_double_up_to_a_bound_and_begin_anew_after_a_steady_life() -> None:
    delays = [0.0]
    for _ in range(8):
        delays.append(next_delay_seconds(delays[-1], 0.0))
    assert delays[1:] == [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, LONGEST_DELAY_SECONDS, LONGEST_DELAY_SECONDS]
    assert next_delay_seconds(LONGEST_DELAY_SECONDS, STEADY_SECONDS) == 0.2
