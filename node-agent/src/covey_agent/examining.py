"""A look at an engine that gateways doubt: does it generate, is it at work, or is it dead?

    1. its processes work for `WATCH_SECONDS`                  computes: no request of ours delays what it is at
    2. it completes the smallest request                       generates
    3. it doesn't in time, but its processes worked meanwhile  computes
    4. nothing of it moved all the while                       dead

Its health page is not asked: threads that take requests live on when the one that generates is dead. The probe is that
of readiness, which spares the users' prompt cache, and it ends with its connection.

How much work is enough differs. A CPU that computes takes a core or more, and what takes requests a few hundredths of
one. With an accelerator at work the processor may do next to nothing for as long as one batch lasts, which for a large
model is half a minute: there the look lasts longer and the least work counts. An engine that is killed while it
computes costs its users their answers; one that is dead a little longer costs less.
"""

import asyncio
from dataclasses import dataclass

from covey_api.engines import Compute
from covey_api.messages import MemberAssignment

from covey_agent.ports import Effort, EngineAdapter, EngineProcess, Facts
from covey_agent.supervisor.events import Finding

# A loaded machine may give a computing engine nothing for a second, not for five.
WATCH_SECONDS = 5.0
# A probe that was refused (a full line of requests) is tried again.
AGAIN_SECONDS = 1.0
# Weights that come back from a disk are work, whatever processor time that takes.
READ_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Patience:
    """What an engine may be given before it counts as dead."""

    probe_seconds: float
    """How long the smallest request may take, once nothing seems to move."""
    cpu_share: float
    """Processor time per second that is work."""


# With the watch before it, and what a doubt takes on its way: within 30 s.
ON_CPU = Patience(probe_seconds=15.0, cpu_share=0.05)
# Two batches of a large model at 70 tokens a second.
ON_ACCELERATOR = Patience(probe_seconds=55.0, cpu_share=0.001)


async def examine(
    adapter: EngineAdapter, facts: Facts, assignment: MemberAssignment, process: EngineProcess
) -> tuple[Finding, str]:
    """What is found, and in words that can be shown. Bounded by the patience; raises what the adapter raises."""
    patience = ON_CPU if assignment.instance.spec.compute is Compute.CPU else ON_ACCELERATOR
    loop = asyncio.get_running_loop()
    began, first = loop.time(), facts.observe_effort(process.pid)
    await asyncio.sleep(WATCH_SECONDS)
    if _is_at_work(first, facts.observe_effort(process.pid), loop.time() - began, patience):
        return Finding.COMPUTES, "it computes"
    if await _completes(adapter, facts, assignment, process, patience.probe_seconds):
        return Finding.GENERATES, "it generates"
    if _is_at_work(first, facts.observe_effort(process.pid), loop.time() - began, patience):
        return Finding.COMPUTES, "it computes"
    return Finding.DEAD, (
        f"'{assignment.instance.spec.engine}' lives, but gave gateways no byte, did not complete the smallest request "
        f"within {patience.probe_seconds:.0f} s, and did no work meanwhile: what generates in it is dead. "
        f"It is stopped. Its output: 'agent/members/{assignment.instance.spec.instance_id}/output.log' in the node's "
        "state folder"
    )


def _is_at_work(first: Effort | None, last: Effort | None, seconds: float, patience: Patience) -> bool:
    """Whether something of it moved; of an engine that is gone its exit tells, so nothing is held against it."""
    if first is None or last is None:
        return True
    is_reading = last.read_bytes - first.read_bytes >= READ_BYTES
    return is_reading or last.cpu_seconds - first.cpu_seconds >= seconds * patience.cpu_share


async def _completes(
    adapter: EngineAdapter, facts: Facts, assignment: MemberAssignment, process: EngineProcess, seconds: float
) -> bool:
    """Whether it completes the smallest request in this time. One that is gone is not waited for."""
    try:
        async with asyncio.timeout(seconds):
            while not await adapter.is_ready(assignment.instance, process.port, assignment.key):
                if facts.observe_effort(process.pid) is None:
                    return False
                await asyncio.sleep(AGAIN_SECONDS)
            return True
    except TimeoutError:
        return False
