"""Seeded faults on a running fleet: a random part is killed, paused or cut off, and what it may cost is counted."""

import contextlib
import os
import random
import shutil
import signal
import socket
import stat
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

from kit.fleet import RunningFleet, Sent, Traffic
from kit.parts import GATEWAY, PARTS, find_part, kill_process, members
from kit.processes import observe_pss_bytes

LONGEST_PAUSE_SECONDS = 3.0
# A request whose connection was torn down is seen to fail this much later, on a busy machine: 1.4 s were seen. How many
# a fault may cost is counted, whenever they are seen.
NOTICE_SECONDS = 20.0
# A killed process's socket takes connections until its last thread has ended.
TEARDOWN_SECONDS = 0.2
ENGINE, KEEPER = "engine", "keeper"
KILLS = 0.7
CUT_SECONDS = 30


@dataclass(frozen=True, slots=True)
class Fault:
    """One kill, pause or cut, and the requests that were in flight on what was killed or cut off."""

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
    """Draws faults from one seed. `story` is what it did, for the words of a failure.

    `cuts`: the share of faults in which all TCP connections of the victim are torn down; only where `can_cut`.
    """

    def __init__(self, fleet: RunningFleet, traffic: Traffic, seed: int, cuts: float = 0.0) -> None:
        self._fleet = fleet
        self._cuts = cuts
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
        victim, drawn, rest = self._random.choice(victims), self._random.random(), self._random.random()
        cuts = drawn >= 1 - self._cuts
        kills = not cuts and drawn < KILLS
        seconds = self._random.uniform(0.2, LONGEST_PAUSE_SECONDS)
        index = self._random.randrange(1_000_000)
        pid, port = self._find(victim, index)
        if pid is not None:
            began = time.monotonic()
            at_risk = self._count_at_risk(victim, port) if kills or cuts else 0
            with contextlib.suppress(ProcessLookupError):
                if cuts:
                    cut(pid)
                elif kills:
                    kill_process(pid)
                else:
                    _pause(pid, seconds)
            what = "cut" if cuts else "kill" if kills else f"pause {seconds:.1f} s"
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
            late = sum(one.began >= fault.began for one in struck) if fault.what in ("kill", "cut") else 0
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


def can_cut() -> bool:
    """Whether a connection can be torn down from outside: root, and a kernel that destroys sockets."""
    if shutil.which("ss") is None:
        return False
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as client,
        server.accept()[0],
    ):
        _tear_down([(client.getsockname()[1], server.getsockname()[1])])
        client.setblocking(False)
        try:
            return client.recv(1) == b""
        except BlockingIOError:
            return False
        except OSError:
            return True


def cut(pid: int) -> None:
    """Tear down the process's TCP connections, as a network does that loses its state; what listens goes on."""
    with contextlib.suppress(psutil.Error):
        _tear_down(
            [
                (each.laddr.port, each.raddr.port)
                for each in psutil.Process(pid).net_connections("tcp")
                if each.raddr and each.status == psutil.CONN_ESTABLISHED
            ]
        )


def _tear_down(ports: list[tuple[int, int]]) -> None:
    """Connections by the port of the one end and of the other."""
    if ports:
        ends = " or ".join(f"( sport = {here} and dport = {there} )" for here, there in ports)
        subprocess.run(["ss", "-K", "-tn", ends], capture_output=True, timeout=CUT_SECONDS, check=False)


@dataclass(frozen=True, slots=True)
class Footprint:
    """What a fleet takes: compared before and after, nothing may have leaked."""

    processes: int
    listening_ports: int
    open_files: int
    state_bytes: int
    log_bytes: int
    """Of the state: rings of two files each, that fill and stay."""
    memory_bytes: int
    """Of `covey` and its parts (PSS), without keepers and engines: those come and go by what is wished."""


def observe_footprint(fleet: RunningFleet) -> Footprint:
    processes = fleet.processes()
    files = [Path(at, name) for at, _, names in os.walk(fleet.state) for name in names]
    return Footprint(
        processes=len(processes),
        listening_ports=_total(processes, lambda each: sum(c.status == "LISTEN" for c in each.net_connections())),
        open_files=_total(processes, lambda each: each.num_fds()),
        state_bytes=sum(map(_size_bytes, files)),
        log_bytes=sum(_size_bytes(path) for path in files if path.name.endswith((".log", ".log.1"))),
        memory_bytes=_total(processes, lambda each: observe_pss_bytes(each.pid) if _is_part(each) else 0),
    )


def _is_part(process: psutil.Process) -> bool:
    return not {"covey", *(f"covey_{part}" for part in PARTS)}.isdisjoint(process.cmdline())


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
