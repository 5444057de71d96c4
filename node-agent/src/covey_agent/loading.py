"""How far an engine that loads has come: what it says itself in its output, or the bytes that its processes have read.

1. What it prints (`engines.told`): vLLM its shards, our server of mlx-lm the bytes of its tensors.
2. Of engines whose weights are read (`READING`): what the kernel counts, of the bytes of the weights.
3. Where it counts none: a dot for each percent, as llama.cpp prints them, of each file anew.

Rejected: a way over HTTP (a server of ours would tell it through a door that opens only once it is loaded), and
resident memory (with an accelerator it is what was copied last, and what is laid out anew for a processor is counted
twice).

The second's error: the program's own code and the model's header are read too, some 30 MB of llama-server and 80 MB of
an engine in Python. So it is a little ahead, and stands at the whole while the engine warms up. macOS counts no such
bytes: there nothing is told of a llama-server that prints no dots.
"""

from collections.abc import Callable
from dataclasses import dataclass

from covey_api.engines import EngineName
from covey_api.instance import InstanceSpec, MemberPhase
from covey_api.messages import Progress

from covey_agent.engines.told import parse_loaded
from covey_agent.ports import Facts
from covey_agent.supervisor.state import MemberState

STEP = "load"
READING = frozenset({EngineName.LLAMA_SERVER, EngineName.LLAMA_CPP, EngineName.MLX})
# Their own words are nearer to it.
TELLING = frozenset({EngineName.MLX, EngineName.VLLM})
# Reports follow each other within milliseconds when something changes; a rate of such a time says nothing, and an
# engine that has loaded by then needs none.
SAMPLE_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class _Sample:
    identity: str
    at_seconds: float
    progress: Progress | None


class Loads:
    """What was seen last of each engine that loads. `read_output`: the last that a member's engine printed."""

    def __init__(self, facts: Facts, read_output: Callable[[str], str] = lambda key: "") -> None:
        self._facts = facts
        self._read_output = read_output
        self._samples: dict[str, _Sample] = {}

    def observe(self, member: MemberState, now: float) -> Progress | None:
        """`now` in seconds of any clock. None: it doesn't load, or nothing is known."""
        key, keeper = member.instance_id, member.keeper
        if keeper is None or member.phase is not MemberPhase.STARTING:
            self._samples.pop(key, None)
            return None
        last = self._samples.get(key)
        if last is None or last.identity != keeper.identity:
            self._samples[key] = _Sample(keeper.identity, now, None)
            return None
        if now - last.at_seconds < SAMPLE_SECONDS:
            return last.progress
        progress = self._measure(member, keeper.pid, last, now)
        self._samples[key] = _Sample(keeper.identity, now, progress)
        return progress

    def forget(self, members: frozenset[str]) -> None:
        """All but these."""
        for key in self._samples.keys() - members:
            del self._samples[key]

    def _measure(self, member: MemberState, pid: int, last: _Sample, now: float) -> Progress | None:
        total = loaded_bytes(member.spec)
        told = parse_loaded(member.spec.engine, self._read_output(member.instance_id), total)
        read = self._observe_read(member, pid)
        first, second = (told, read) if member.spec.engine in TELLING else (read, told)
        found = second if first is None else first
        if found is None:
            return None
        before = last.progress.done_bytes if last.progress else 0
        done = max(before, min(found, total))
        rate = int((done - before) / (now - last.at_seconds))
        return Progress(step=STEP, done_bytes=done, total_bytes=total, bytes_per_second=rate)

    def _observe_read(self, member: MemberState, pid: int) -> int | None:
        effort = self._facts.observe_effort(pid) if member.spec.engine in READING else None
        return None if effort is None or effort.read_bytes == 0 else effort.read_bytes


def loaded_bytes(spec: InstanceSpec) -> int:
    """Of all files that the engine reads before it is ready."""
    return spec.artifact.size_bytes + sum(each.artifact.size_bytes for each in spec.companions)
