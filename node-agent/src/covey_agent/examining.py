"""A look at an engine that gateways doubt: does it generate, is it at work, or is it dead?

    1. it works for the first `WATCH_SECONDS`             computes: no request of ours delays what it is at
    2. what generates in it says that nothing is asked    generates: no request of ours takes a conversation's place
    3. it completes the smallest request                  generates
    4. it doesn't in time, but it has worked meanwhile    computes
    5. nothing of it moved all the while                  dead

It works when its own counters move, its processes take processor time, or they read from a disk. Its health page is not
asked: threads that take requests live on when the one that generates is dead. The smallest request is that of
readiness; it ends with its connection, and costs the conversation in whose slot it was done what was kept of it.

With an accelerator at work the processor may do next to nothing, and counters stand still, for as long as one batch
lasts: two minutes at most where a model is very large for its machine. There the look takes as long. An engine that is
killed while it computes costs its users their answers; one that is dead a little longer costs less.
"""

import asyncio
from dataclasses import dataclass, field

from covey_api.engines import Compute
from covey_api.messages import MemberAssignment

from covey_agent.ports import Effort, EngineAdapter, EngineProcess, Facts
from covey_agent.supervisor.events import Finding

# A loaded machine may give a computing engine nothing for a second, not for five.
WATCH_SECONDS = 5.0
# Between two tries of a request that was refused (a full line), and two readings of counters.
AGAIN_SECONDS = 1.0
# How long the smallest request may take once nothing seems to move. With the watch and the doubt's way: 30 s on a CPU.
# On an accelerator a batch of 2048 tokens must pass, at 17 tokens a second.
CPU_PROBE_SECONDS = 15.0
ACCELERATOR_PROBE_SECONDS = 115.0
# Processor time per second that is work. Measured of llama-server: 0.001 idle, 0.003 dead with six requests waiting,
# and 0.24 of one that computes with one thread on a machine that has four times as much to do as it can.
WORKING_SHARE = 0.02
# Weights that come back from a disk are work, whatever processor time that takes.
WORKING_READ_BYTES = 1 << 20


@dataclass(slots=True)
class _Look:
    """What was seen of one engine since `began`."""

    adapter: EngineAdapter
    facts: Facts
    assignment: MemberAssignment
    process: EngineProcess
    began: float
    first: Effort | None
    counted: set[str] = field(default_factory=set[str])
    """What its counters said."""
    met: str = ""
    """What the last try of the smallest request met."""

    @property
    def probe_seconds(self) -> float:
        is_on_cpu = self.assignment.instance.spec.compute is Compute.CPU
        return CPU_PROBE_SECONDS if is_on_cpu else ACCELERATOR_PROBE_SECONDS

    def is_gone(self) -> bool:
        return self.first is None or self.facts.observe_effort(self.process.pid) is None

    def has_worked(self, now: float) -> bool:
        """Whether anything moved. Of an engine that is gone its exit tells: nothing is held against it."""
        last = self.facts.observe_effort(self.process.pid)
        if self.first is None or last is None or len(self.counted) > 1:
            return True
        is_reading = last.disk_bytes - self.first.disk_bytes >= WORKING_READ_BYTES
        return is_reading or last.cpu_seconds - self.first.cpu_seconds >= (now - self.began) * WORKING_SHARE


async def examine(
    adapter: EngineAdapter, facts: Facts, assignment: MemberAssignment, process: EngineProcess
) -> tuple[Finding, str]:
    """What is found, and in words that can be shown. Bounded by the times above; raises what the adapter raises."""
    now = asyncio.get_running_loop().time
    look = _Look(adapter, facts, assignment, process, now(), facts.observe_effort(process.pid))
    async with asyncio.TaskGroup() as group:
        counting = group.create_task(_count(look))
        finding = await _find(look)
        counting.cancel()
    return finding, _explain(look) if finding is Finding.DEAD else finding.value


async def _find(look: _Look) -> Finding:
    now = asyncio.get_running_loop().time
    await asyncio.sleep(WATCH_SECONDS)
    if look.has_worked(now()):
        return Finding.COMPUTES
    if await _rests(look) or await _completes(look):
        return Finding.GENERATES
    return Finding.COMPUTES if look.has_worked(now()) else Finding.DEAD


async def _rests(look: _Look) -> bool:
    """Whether it says that nothing is asked of it. One that told no counter while it was watched isn't asked."""
    if not look.counted:
        return False
    try:
        async with asyncio.timeout(WATCH_SECONDS):
            return await look.adapter.is_at_rest(look.process.port, look.assignment.key)
    except TimeoutError:
        return False


async def _completes(look: _Look) -> bool:
    """Whether it completes the smallest request in its time. One that is gone is not waited for."""
    assignment, port = look.assignment, look.process.port
    try:
        async with asyncio.timeout(look.probe_seconds):
            while met := await look.adapter.explain_unready(assignment.instance, port, assignment.key):
                look.met = met
                if look.is_gone():
                    return False
                await asyncio.sleep(AGAIN_SECONDS)
            return True
    except TimeoutError:
        return False


async def _count(look: _Look) -> None:
    """Read its counters again and again, until cancelled or they have moved."""
    while len(look.counted) < 2:
        said = await look.adapter.observe_progress(look.process.port, look.assignment.key)
        if said is not None:
            look.counted.add(said)
        await asyncio.sleep(AGAIN_SECONDS)


def _explain(look: _Look) -> str:
    spec = look.assignment.instance.spec
    met = f" ({look.met})" if look.met else ""
    return (
        f"'{spec.engine}' lives, but gave gateways no byte, did not complete the smallest request within "
        f"{look.probe_seconds:.0f} s{met}, and did no work meanwhile: what generates in it is dead. It is stopped. Its "
        f"output: 'agent/members/{spec.instance_id}/output.log' in the node's state folder"
    )
