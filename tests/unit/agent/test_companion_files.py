"""A projector and a draft model on their way to the engine: fetched with the weights, told as one, given in order."""

import asyncio
from collections.abc import Mapping
from pathlib import Path

from covey_agent.performer import Performer
from covey_agent.ports import AgentError, OnTransfer
from covey_agent.supervisor.effects import EnsureEngine, FetchArtifact, StartKeeper
from covey_agent.supervisor.events import ArtifactFailed, ArtifactReady, EngineReady, FitChecked
from covey_agent.supervisor.state import State
from covey_agent.supervisor.step import step
from covey_api.companion import CompanionRole
from covey_api.instance import StampedCompanion
from covey_api.messages import MemberAssignment
from covey_api.model import ResolvedArtifact
from covey_api.reasons import FailureCause
from kit import builders
from kit.outside import World
from kit.supervised import assign, snapshot

A = "00000000000000aa"
WEIGHTS = builders.artifact(name="w.gguf", size_bytes=5000)
PROJECTOR, DRAFT = (builders.artifact(name=f"{role.lower()}.gguf", size_bytes=1000) for role in CompanionRole)
FETCH = FetchArtifact(A, WEIGHTS, (PROJECTOR, DRAFT))
PATHS: Mapping[str, Path] = {each.name: Path("/weights") / each.name for each in (WEIGHTS, PROJECTOR, DRAFT)}


def accompanied(attempt: int = 1) -> MemberAssignment:
    stamped = (
        StampedCompanion(role=CompanionRole.PROJECTOR, artifact=PROJECTOR),
        StampedCompanion(role=CompanionRole.DRAFT, artifact=DRAFT),
    )
    plain = assign(A, attempt=attempt)
    spec = plain.instance.spec.model_copy(update={"artifact": WEIGHTS, "companions": stamped})
    return plain.model_copy(update={"instance": plain.instance.model_copy(update={"spec": spec})})


def test_all_files_are_asked_for_and_given_to_the_engine_in_their_order() -> None:
    world = World()
    state, effects = step(State(), snapshot(accompanied()), 0.0)
    assert FETCH in effects
    (engine,) = (each for each in effects if isinstance(each, EnsureEngine))
    performer = Performer(world.outside, Path("/members"), lambda _: None)
    ready, provided = (asyncio.run(performer.carry_out(each)) for each in (FETCH, engine))
    assert isinstance(ready, ArtifactReady)
    assert isinstance(provided, EngineReady)
    for event in (ready, provided, FitChecked(A, "")):
        state, effects = step(state, event, 1.0)
    (start,) = (each for each in effects if isinstance(each, StartKeeper))
    assert (start.weights, *start.companions) == tuple(PATHS.values())


def test_the_next_attempt_has_the_companions_of_the_last() -> None:
    state, _ = step(State(), snapshot(accompanied()), 0.0)
    state, _ = step(state, ArtifactReady(A, PATHS["w.gguf"], (PATHS["projector.gguf"], PATHS["draft.gguf"])), 1.0)
    state, _ = step(state, snapshot(accompanied(2), serial=2), 2.0)
    assert state.members[A].weights == PATHS["w.gguf"]
    assert state.members[A].companions == (PATHS["projector.gguf"], PATHS["draft.gguf"])


def test_progress_is_that_of_all_files_together() -> None:
    world = World()
    performer = Performer(world.outside, Path("/members"), lambda _: None)
    seen: list[tuple[int, int]] = []
    before = world.artifacts.fetch

    async def fetching(artifact: ResolvedArtifact, on_transfer: OnTransfer) -> Path:
        path = await before(artifact, on_transfer)
        seen.append((performer.progress[A].done_bytes, performer.progress[A].total_bytes))
        return path

    world.artifacts.fetch = fetching
    asyncio.run(performer.carry_out(FETCH))
    assert seen == [(1, 7000), (5001, 7000), (6001, 7000)]


def test_a_companion_that_cannot_be_had_fails_the_fetch_with_its_own_words() -> None:
    world = World()
    before = world.artifacts.fetch

    async def fetching(artifact: ResolvedArtifact, on_transfer: OnTransfer) -> Path:
        if artifact is DRAFT:
            raise AgentError(FailureCause.ARTIFACT_CORRUPT, "file '/models/draft.gguf' must have sha256 a; it has b")
        return await before(artifact, on_transfer)

    world.artifacts.fetch = fetching
    failed = asyncio.run(Performer(world.outside, Path("/members"), lambda _: None).carry_out(FETCH))
    assert isinstance(failed, ArtifactFailed)
    assert (failed.cause, failed.message[:25]) == (FailureCause.ARTIFACT_CORRUPT, "file '/models/draft.gguf'")
