"""Seeded faults on a running fleet: a random part is killed or paused, and what it may cost is counted."""

import contextlib
import os
import random
import signal
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

from kit.fleet import RunningFleet, Sent, Traffic
from kit.parts import GATEWAY, PARTS, find_part, kill_process, members

LONGEST_PAUSE_SECONDS = 3.0
# A request whose connection was torn down is seen to fail this much later, on a busy machine: 1.4 s were seen. How many
# a fault may cost is counted, whenever they are seen.
NOTICE_SECONDS = 20.0
# A killed process's socket takes connections until its last thread has ended.
TEARDOWN_SECONDS = 0.2
ENGINE, KEEPER = "engine", "keeper"


@dataclass(frozen=True, slots=True)
class Fault:
    """One kill or pause, and the requests that were in flight on what was killed."""

    number: int
    what: str
    victim: str
    pid: int
    began: float
    ended: float
    at_risk: int

    def __str__(self) -> str:
        return f"{self.number:2} at {self.began:.2f}: {self.what} {self.victim} ({self.pid}); at risk: {self.at_risk}"


class Chaos:
    """Draws faults from one seed. `story` is what it did, for the words of a failure."""

    def __init__(self, fleet: RunningFleet, traffic: Traffic, seed: int) -> None:
        self._fleet = fleet
        self._traffic = traffic
        self._random = random.Random(seed)
        self.seed = seed
        self.faults: list[Fault] = []

    @property
    def story(self) -> str:
        return "\n".join([f"seed {self.seed}", *map(str, self.faults)])

    def strike(self) -> None:
        """One fault, then a moment of peace. A victim that is gone just now is left alone."""
        victims = [*PARTS, ENGINE, KEEPER]
        victim, kills, rest = self._random.choice(victims), self._random.random() < 0.7, self._random.random()
        seconds = self._random.uniform(0.2, LONGEST_PAUSE_SECONDS)
        index = self._random.randrange(1_000_000)
        pid, port = self._find(victim, index)
        if pid is not None:
            began = time.monotonic()
            at_risk = self._count_at_risk(victim, port) if kills else 0
            with contextlib.suppress(ProcessLookupError):
                kill_process(pid) if kills else _pause(pid, seconds)
            what = "kill" if kills else f"pause {seconds:.1f} s"
            self.faults.append(Fault(len(self.faults), what, victim, pid, began, time.monotonic(), at_risk))
        time.sleep(0.5 + 2.5 * rest)

    def _find(self, victim: str, index: int) -> tuple[int | None, int]:
        if victim in PARTS:
            return find_part(self._fleet, victim), 0
        living = members(self._fleet)
        if not living:
            return None, 0
        chosen = living[index % len(living)]
        return (chosen.engine_pid if victim == ENGINE else chosen.keeper_pid), chosen.port

    def _count_at_risk(self, victim: str, port: int) -> int:
        """Requests in flight on the gateway, or the gateway's connections to the engine."""
        if victim == GATEWAY:
            return self._traffic.in_flight
        gateway = find_part(self._fleet, GATEWAY)
        if not port or gateway is None:
            return 0
        with contextlib.suppress(psutil.Error):
            return sum(
                bool(each.raddr) and each.raddr.port == port for each in psutil.Process(gateway).net_connections()
            )
        return 0

    def unexplained(self) -> list[Sent]:
        """Requests that were lost beyond those in flight on what was killed."""
        lost = [one for one in self._traffic.sent if one.failure]
        for fault in self.faults:
            struck = [
                one
                for one in lost
                if one.began <= fault.ended + TEARDOWN_SECONDS
                and fault.began <= one.ended <= fault.ended + NOTICE_SECONDS
            ]
            # What the gateway's socket still took while the process ended was in flight on it too, and so was what came
            # to any victim between the count and its end.
            late = sum(one.began >= fault.began for one in struck) if fault.what == "kill" else 0
            count = len(struck) if fault.victim == GATEWAY and fault.at_risk else fault.at_risk + late
            for one in sorted(struck, key=lambda one: one.ended)[:count]:
                lost.remove(one)
        return lost


def _pause(pid: int, seconds: float) -> None:
    os.kill(pid, signal.SIGSTOP)
    try:
        time.sleep(seconds)
    finally:
        os.kill(pid, signal.SIGCONT)


@dataclass(frozen=True, slots=True)
class Footprint:
    """What a fleet takes: compared before and after, nothing may have leaked."""

    processes: int
    listening_ports: int
    open_files: int
    state_bytes: int


def observe_footprint(fleet: RunningFleet) -> Footprint:
    processes = fleet.processes()
    return Footprint(
        processes=len(processes),
        listening_ports=_total(processes, lambda each: sum(c.status == "LISTEN" for c in each.net_connections())),
        open_files=_total(processes, lambda each: each.num_fds()),
        state_bytes=sum(_size_bytes(Path(at, name)) for at, _, names in os.walk(fleet.state) for name in names),
    )


def _size_bytes(path: Path) -> int:
    try:
        found = path.lstat()
    except FileNotFoundError:  # since it was listed
        return 0
    return found.st_size if stat.S_ISREG(found.st_mode) else 0


def _total(processes: list[psutil.Process], count: Callable[[psutil.Process], int]) -> int:
    total = 0
    for process in processes:
        with contextlib.suppress(psutil.Error):
            total += count(process)
    return total
