"""How far a load is, from what the kernel counts."""

import pytest
from covey_agent.loading import SAMPLE_SECONDS, Loads
from covey_agent.ports import Effort, EngineProcess
from covey_agent.supervisor.state import MemberState
from covey_api.engines import EngineName
from covey_api.instance import MemberPhase
from covey_api.messages import MemberAssignment, MemberGoal, Progress
from kit import builders
from kit.outside import FakeFacts

TOTAL = builders.instance().spec.artifact.size_bytes
PROCESS = EngineProcess(1, 5000, 77, "77@boot")


class Machine(FakeFacts):
    def __init__(self) -> None:
        super().__init__()
        self.read_bytes = 0

    def observe_effort(self, pid: int) -> Effort | None:
        assert pid == PROCESS.pid
        return Effort(1.0, 0, self.read_bytes)


def member(
    phase: MemberPhase = MemberPhase.STARTING,
    engine: EngineName = EngineName.LLAMA_SERVER,
    keeper: EngineProcess | None = PROCESS,
) -> MemberState:
    assignment = MemberAssignment(
        instance=builders.instance(engine=engine), member="0", goal=MemberGoal.SERVE, key="secret"
    )
    return MemberState(assignment, MemberGoal.SERVE, phase=phase, keeper=keeper)


def test_bytes_read_are_told_of_the_weights_bytes_with_the_rate_since_the_last_look() -> None:
    machine = Machine()
    loads = Loads(machine)
    assert loads.observe(member(), 100.0) is None, "the first look only begins to measure"
    machine.read_bytes = TOTAL // 4
    assert loads.observe(member(), 100.0 + SAMPLE_SECONDS / 2) is None, "too soon for a rate"
    first = loads.observe(member(), 102.0)
    assert first == Progress(step="load", done_bytes=TOTAL // 4, total_bytes=TOTAL, bytes_per_second=TOTAL // 4 // 2)
    machine.read_bytes = TOTAL // 2
    assert loads.observe(member(), 102.5) is first
    second = loads.observe(member(), 103.0)
    assert second is not None
    assert (second.done_bytes, second.bytes_per_second) == (TOTAL // 2, TOTAL // 2 - TOTAL // 4)


@pytest.mark.parametrize(
    ("engine", "output", "percent"),
    [
        (
            EngineName.VLLM,
            "\rLoading safetensors checkpoint shards:   0% Completed | 0/5 [00:00<?, ?it/s]\n"
            "\rLoading safetensors checkpoint shards:  40% Completed | 2/5 [00:00<00:00,  4.45it/s]\n",
            40,
        ),
        (EngineName.VLLM, "Loading pt checkpoint shards: 100% Completed | 1/1 [00:00<00:00]", 100),
        (EngineName.VLLM, "INFO Starting to load model", None),
        (EngineName.MLX, f"covey-engine: loaded {TOTAL // 10}\ncovey-engine: loaded {TOTAL // 2}\n", 50),
        (EngineName.LLAMA_CPP, "load_tensors: CPU model buffer size = 85.00 MiB\n.......", 7),
        (EngineName.LLAMA_SERVER, f"load_tensors: loading\n{'.' * 100}\nllama_context: n_ctx = 1\n", 100),
    ],
)
def test_what_an_engine_prints_of_its_load_is_told(engine: EngineName, output: str, percent: int | None) -> None:
    """Of one that maps its weights, and where nobody counts what is read."""
    loads = Loads(Machine(), lambda key: output)
    loads.observe(member(engine=engine), 0.0)
    progress = loads.observe(member(engine=engine), 5.0)
    assert (progress and round(100 * progress.done_bytes / TOTAL)) == percent


def test_what_is_read_is_nearer_than_dots_and_nothing_goes_back() -> None:
    machine, printed = Machine(), "....\n"
    loads = Loads(machine, lambda key: printed)
    loads.observe(member(), 0.0)
    machine.read_bytes = TOTAL // 2
    first = loads.observe(member(), 5.0)
    machine.read_bytes = 0  # as where nobody counts: the dots of a second file
    second = loads.observe(member(), 10.0)
    assert [each and each.done_bytes for each in (first, second)] == [TOTAL // 2, TOTAL // 2]


def test_what_a_program_reads_of_itself_never_makes_more_than_the_whole() -> None:
    machine = Machine()
    loads = Loads(machine)
    loads.observe(member(), 0.0)
    machine.read_bytes = 2 * TOTAL
    progress = loads.observe(member(), 5.0)
    assert progress is not None
    assert progress.done_bytes == progress.total_bytes == TOTAL


@pytest.mark.parametrize(
    "other",
    [
        member(phase=MemberPhase.READY),
        member(phase=MemberPhase.FETCHING, keeper=None),
        member(engine=EngineName.VLLM),
    ],
)
def test_nothing_is_told_of_who_doesnt_load_or_maps_its_weights(other: MemberState) -> None:
    machine = Machine()
    loads = Loads(machine)
    machine.read_bytes = TOTAL // 2
    assert [loads.observe(other, float(now)) for now in range(5)] == [None] * 5


def test_another_engine_begins_anew_and_a_system_that_counts_nothing_tells_nothing() -> None:
    machine = Machine()
    loads = Loads(machine)
    loads.observe(member(), 0.0)
    assert loads.observe(member(), 5.0) is None, "no byte is counted"
    machine.read_bytes = TOTAL // 2
    assert loads.observe(member(), 10.0) is not None
    again = EngineProcess(1, 5001, 77, "77@another")
    assert loads.observe(member(keeper=again), 11.5) is None
    loads.forget(frozenset())
    assert loads.observe(member(keeper=again), 20.0) is None
