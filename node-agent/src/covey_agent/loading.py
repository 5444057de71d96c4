"""How far an engine that loads has come: the bytes that its processes have read, of the bytes of its weights.

One way for all engines whose weights are read (`READING`), by what the kernel counts. Rejected:

- what an engine says itself: llama-server's callback counts tensors that are set up and tells nobody over HTTP, mlx-lm
  has none, and a server of ours would tell it through a door that opens only once it is loaded;
- resident memory: with an accelerator it is what was copied last, and what is laid out anew for a processor is
  counted twice.

Its error: the program's own code and the model's header are read too, some 30 MB of llama-server and 80 MB of an engine
in Python. So it is a little ahead, and stands at the whole while the engine warms up. vLLM maps its weights, and macOS
counts no such bytes: there nothing is told.
"""

from dataclasses import dataclass

from covey_api.engines import EngineName
from covey_api.instance import InstanceSpec, MemberPhase
from covey_api.messages import Progress

from covey_agent.ports import Facts
from covey_agent.supervisor.state import MemberState

STEP = "load"
READING = frozenset({EngineName.LLAMA_SERVER, EngineName.LLAMA_CPP, EngineName.MLX})
# Reports follow each other within milliseconds when something changes; a rate of such a time says nothing, and an
# engine that has loaded by then needs none.
SAMPLE_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class _Sample:
    identity: str
    at_seconds: float
    progress: Progress | None


class Loads:
    """What was seen last of each engine that loads."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._samples: dict[str, _Sample] = {}

    def observe(self, member: MemberState, now: float) -> Progress | None:
        """`now` in seconds of any clock. None: it doesn't load, or nothing is known."""
        key, keeper = member.instance_id, member.keeper
        is_loading = keeper is not None and member.phase is MemberPhase.STARTING and member.spec.engine in READING
        if keeper is None or not is_loading:
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
        effort, total = self._facts.observe_effort(pid), loaded_bytes(member.spec)
        if effort is None or effort.read_bytes == 0:
            return None
        done = min(effort.read_bytes, total)
        before = last.progress.done_bytes if last.progress else 0
        rate = int(max(0, done - before) / (now - last.at_seconds))
        return Progress(step=STEP, done_bytes=done, total_bytes=total, bytes_per_second=rate)


def loaded_bytes(spec: InstanceSpec) -> int:
    """Of all files that the engine reads before it is ready."""
    return spec.artifact.size_bytes + sum(each.artifact.size_bytes for each in spec.companions)
