"""Keepers as processes: starts, claims, sweeps. The adapter of the port `Keepers`.

Owns what is in `agent/members/<instanceId>/` while no keeper lives there, and the open links to those that do. Must not
know goals or restarts.

A keeper is ours when three things agree: its lock is held, it answers on its socket with the same `instanceId`, and
the process that the kernel names at the socket's other end is the one of the answer, by id and start time. A process id
alone proves nothing: ids are used again. `keeper.json` holds the same record for those who find no keeper any more.
Rejected: to demand that file as well (whoever loses it would lose a healthy engine with it).
"""

import asyncio
import contextlib
import errno
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from covey_api.messages import render_front_name
from covey_api.reasons import FailureCause
from covey_fleet_client.files import ensure_private_folder, write_private

from covey_agent.keeper.holder import observe_holder
from covey_agent.keeper.joining import FrontSettings, render_group
from covey_agent.keeper.kept_ports import KeptPorts
from covey_agent.keeper.left import end_engine, end_marked, render_mark
from covey_agent.keeper.link import KeeperLink, LinkError, connect
from covey_agent.keeper.observed import is_locked, observe_start_time
from covey_agent.keeper.output import EXIT_TAIL_BYTES, read_tail
from covey_agent.keeper.records import ExitRecord, KeeperRecord, parse_answer, read_record, read_text
from covey_agent.ports import AgentError, EngineExit, EngineProcess, Launch

# Run as a script, never imported.
KEEPER = Path(__file__).with_name("keeper.py")
# The launcher's own limit is `launcher.LAUNCH_SECONDS`; this adds the start of an interpreter on a busy machine.
START_SECONDS = 20.0
# A keeper that holds its lock and doesn't answer for this long is taken for stopped, and killed with its engine.
FIND_SECONDS = 30.0
# What was killed or told to end is gone in milliseconds; this is for a machine that swaps.
END_SECONDS = 10.0
# A member of several that no agent claims holds memory of other nodes too.
GROUP_ORPHAN_GRACE_SECONDS = 10.0
# How often a wait for another process looks again.
LOOK_SECONDS = 0.02


class ProcessKeepers:
    """Keepers under one folder. `orphan_grace_seconds`: how long an engine runs without an agent.

    `observe_front`: how those that start now listen; None where every gateway is on this machine.
    """

    def __init__(
        self,
        folder: Path,
        orphan_grace_seconds: float,
        observe_front: Callable[[], FrontSettings | None] = lambda: None,
    ) -> None:
        self._folder = folder
        self._observe_front = observe_front
        self._orphan_grace_seconds = orphan_grace_seconds
        self._links: dict[str, KeeperLink] = {}
        self._kept_ports = KeptPorts()

    def observe_living(self) -> dict[str, str]:
        if not self._folder.is_dir():
            return {}
        living = (folder for folder in sorted(self._folder.iterdir()) if is_locked(str(folder)))
        return {folder.name: read_text(folder / "assignment.json") for folder in living}

    async def find(self, instance_id: str, engine: str) -> EngineProcess | EngineExit | None:
        folder = self._folder / instance_id
        try:
            async with asyncio.timeout(FIND_SECONDS):
                while is_locked(str(folder)):
                    try:
                        return await self._claim(instance_id)
                    except LinkError:
                        await asyncio.sleep(LOOK_SECONDS)
        except TimeoutError:
            await self._kill_keeper(instance_id)
        return await self._sweep(instance_id, engine)

    async def _claim(self, instance_id: str) -> EngineProcess:
        """LinkError when the keeper isn't there yet, not any more, or is another."""
        link = await connect(self._folder / instance_id)
        try:
            status = await link.ask("claim")
            record = parse_answer(status)
            if record.instance_id != instance_id:
                raise LinkError(f"the socket belongs to a keeper of instance '{record.instance_id}'")
            if record.pid != link.peer_pid or observe_start_time(record.pid) != record.start_time:
                raise LinkError(f"the socket belongs to process {link.peer_pid}, which is not the keeper that it names")
        except LinkError:
            link.close()
            raise
        if status["exit"] is not None:
            link.set_exit(status["exit"])
        if previous := self._links.pop(instance_id, None):
            previous.close()
        self._links[instance_id] = link
        return record.process

    def keep_port(self, instance_id: str) -> int:
        return self._kept_ports.keep(instance_id, self._observe_front())

    async def start(self, instance_id: str, attempt: int, port: int, launch: Launch) -> EngineProcess:
        if running := await self._clear(instance_id):
            return running
        try:
            self._write_launch(instance_id, attempt, port, launch)
        except OSError as error:
            cause = FailureCause.DISK_FULL if error.errno == errno.ENOSPC else FailureCause.EXITED
            raise AgentError(cause, f"'{self._folder / instance_id}' can't be written: {error.strerror}") from error
        self._kept_ports.let_go(instance_id)
        try:
            await launch_keeper(self._folder / instance_id)
        except AgentError:  # also of a keeper that was killed before it wrote down whose engine it had started
            await self._end_marked(lambda key: key == instance_id)
            raise
        try:
            return await self._claim(instance_id)
        except LinkError as error:
            message = f"the keeper of instance id '{instance_id}' started, then: {error}"
            raise AgentError(FailureCause.KEEPER_LOST, message) from error

    def _write_launch(self, instance_id: str, attempt: int, port: int, launch: Launch) -> None:
        folder = self._folder / instance_id
        ensure_private_folder(self._folder)
        ensure_private_folder(folder)
        settings = self._observe_front()
        front = settings and {
            "address": settings.address,
            "identity": str(settings.identity),
            "name": render_front_name(instance_id, attempt),
        }
        spec: dict[str, object] = {
            "instanceId": instance_id,
            "attempt": attempt,
            "port": port,
            "argv": launch.argv,
            "environment": launch.environment | render_mark(folder),
            "orphanGraceSeconds": self._orphan_grace_seconds,
            "memoryBytes": launch.memory_bytes,
            "front": front,
        }
        if launch.group is not None:
            spec["orphanGraceSeconds"] = min(self._orphan_grace_seconds, GROUP_ORPHAN_GRACE_SECONDS)
            spec["group"] = render_group(instance_id, attempt, launch.group, settings)
        for name, content in (*launch.files, ("launch.json", json.dumps(spec))):
            write_private(folder / name, content)

    async def _clear(self, instance_id: str) -> EngineProcess | None:
        """Make room for a new keeper; the engine that is in the way, if one runs."""
        found = await self.find(instance_id, "")
        if not isinstance(found, EngineProcess):
            return None
        if not self._links[instance_id].exit.done():
            return found
        await self.release(instance_id)
        return None

    async def wait_exit(self, instance_id: str) -> EngineExit:
        while link := self._links.get(instance_id):
            record = await asyncio.shield(link.exit)
            if record is not None:
                return ExitRecord.model_validate(record).exit
            # The connection ended without a word: the keeper is dead, or it dropped this one connection.
            found = await self.find(instance_id, "")
            if isinstance(found, EngineExit):
                return found
            if found is None:
                break
        return EngineExit(0, "", None, "", False, "")

    async def stop(self, instance_id: str, grace_seconds: float) -> None:
        if link := self._links.get(instance_id):
            try:
                await link.ask("stop", graceSeconds=grace_seconds)
            except LinkError:
                # A keeper that doesn't answer can't stop its engine; it dies with it.
                await self._kill_keeper(instance_id)

    async def read_tail(self, instance_id: str, count: int) -> str:
        link = self._links.get(instance_id)
        if link is not None and not link.exit.done():
            try:
                return (await link.ask("tail", bytes=count))["text"]
            except LinkError as error:
                raise AgentError(FailureCause.KEEPER_LOST, str(error)) from error
        return await asyncio.to_thread(read_tail, str(self._folder / instance_id), count)

    async def release(self, instance_id: str) -> None:
        link = self._links.pop(instance_id, None)
        folder = self._folder / instance_id
        if link is not None:
            try:
                await link.ask("bye")
            except LinkError:
                pass  # it is gone, which is what was wanted; a living one shows by its lock below
            finally:
                link.close()
        if not await wait_until(lambda: not is_locked(str(folder))):
            await self._kill_keeper(instance_id)
        await self._end_marked(lambda key: key == instance_id)

    async def end_left(self) -> None:
        """What members left whose keepers were killed while no agent ran, whether or not one is still asked for."""
        for folder in sorted(self._folder.iterdir()) if self._folder.is_dir() else ():
            record = None if is_locked(str(folder)) else read_record(folder / "keeper.json", KeeperRecord)
            if record is not None:
                await asyncio.to_thread(end_engine, record.engine_pid, record.engine_start_time)
        await self._end_marked(lambda key: True)

    async def _end_marked(self, is_asked: Callable[[str], bool]) -> None:
        """Of members that no keeper holds. Looked at after the processes: a keeper has its lock before an engine."""
        await asyncio.to_thread(
            end_marked, self._folder, lambda key: is_asked(key) and not is_locked(str(self._folder / key))
        )

    def forget(self, instance_id: str) -> None:
        self._kept_ports.let_go(instance_id)
        shutil.rmtree(self._folder / instance_id, ignore_errors=True)

    def close(self) -> None:
        """Give up every claim: the keepers run on, for their grace."""
        self._kept_ports.close()
        for link in self._links.values():
            link.close()
        self._links.clear()

    async def _kill_keeper(self, instance_id: str) -> None:
        """SIGKILL to the recorded keeper, if it still is that process; its engine dies with it. Without a record to
        whom its socket shows."""
        folder = self._folder / instance_id
        record = read_record(folder / "keeper.json", KeeperRecord)
        if record is None:
            pid = await observe_holder(folder)
        else:
            pid = record.pid if observe_start_time(record.pid) == record.start_time else 0
        if pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if not await wait_until(lambda: not is_locked(str(folder))):
            message = (
                f"the lock '{folder}/keeper.lock' is held by a process that is no keeper: end it, or restart the node"
            )
            raise AgentError(FailureCause.KEEPER_LOST, message)

    async def _sweep(self, instance_id: str, engine: str) -> EngineExit | None:
        """What a dead keeper left: its exit record, or nothing but an engine that has to end.

        A folder that was removed under a living keeper leaves the identity alone: that engine ends too, before another
        may be started.
        """
        folder = self._folder / instance_id
        if ended := read_record(folder / "exit.json", ExitRecord):
            return ended.exit
        record = read_record(folder / "keeper.json", KeeperRecord)
        if record is None:
            pid, _, start_time = engine.partition("@")
            if pid.isdigit():
                await asyncio.to_thread(end_engine, int(pid), start_time)
                await self._end_marked(lambda key: key == instance_id)
            return None
        await asyncio.to_thread(end_engine, record.engine_pid, record.engine_start_time)
        await self._end_marked(lambda key: key == instance_id)
        tail = await asyncio.to_thread(read_tail, str(folder), EXIT_TAIL_BYTES)
        return EngineExit(record.attempt, record.identity, None, "", False, tail)


async def launch_keeper(folder: Path) -> None:
    """Run the launcher; returns once the engine was started. AgentError with its words when it was not."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-S", str(KEEPER), str(folder)),
        env={},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(START_SECONDS):
            _, words = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        message = f"the keeper in '{folder}' must start its engine within {START_SECONDS:.0f} s; it did not"
        raise AgentError(FailureCause.KEEPER_LOST, message) from None
    if process.returncode != 0:
        found = words.decode(errors="replace").strip() or f"exit status {process.returncode}"
        raise AgentError(FailureCause.EXITED, f"the engine could not be started: {found}")


async def wait_until(is_done: Callable[[], bool]) -> bool:
    """Look again and again, for `END_SECONDS` at most; whether it came true."""
    deadline = asyncio.get_running_loop().time() + END_SECONDS
    while not is_done():
        if asyncio.get_running_loop().time() > deadline:
            return False
        await asyncio.sleep(LOOK_SECONDS)
    return True
