"""One agent for many stories: the rig on a loop of its own thread, so that its streams live on between tests."""

import asyncio
import hashlib
import json
import threading
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from agent_rig import A, AgentRig, running_rig
from covey_api.instance import MemberPhase
from covey_api.messages import MemberAssignment, MemberGoal
from covey_api.model import ResolvedArtifact

STORY_SECONDS = 90.0
OVER = (MemberPhase.STOPPED, MemberPhase.FAILED)
Story = Callable[[AgentRig], Awaitable[None]]


@dataclass(slots=True)
class SharedRig:
    rig: AgentRig
    _loop: asyncio.AbstractEventLoop

    def tell(self, story: Story) -> None:
        """The story, and after it a node on which nothing is wished."""

        async def whole() -> None:
            async with asyncio.timeout(STORY_SECONDS):
                try:
                    await story(self.rig)
                finally:
                    await stop_all(self.rig)

        asyncio.run_coroutine_threadsafe(whole(), self._loop).result(STORY_SECONDS + 10)


async def stop_all(rig: AgentRig) -> None:
    """As a controller ends Instances: each is stopped, and then no longer assigned."""
    rig.board.wish(*(each.changed(goal=MemberGoal.STOP) for each in rig.board.wishes))
    await rig.wait(lambda: all(each.phase in OVER for each in rig.board.members.values()), "every member has ended")
    rig.board.wish()
    await rig.wait(lambda: not rig.board.members, "nothing is left of any member")


@contextmanager
def shared_rig(folder: Path) -> Generator[SharedRig]:
    """Its agent runs. Models have their own knobs (`assign_model`)."""
    loop = asyncio.new_event_loop()
    ready, over = threading.Event(), asyncio.Event()
    found: list[SharedRig] = []

    async def live() -> None:
        async with running_rig(folder) as rig:
            rig.start()
            await rig.wait(lambda: bool(rig.board.reports), "the agent reports")
            found.append(SharedRig(rig, loop))
            ready.set()
            await over.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(live()), daemon=True)
    thread.start()
    try:
        assert ready.wait(60), "the agent must start"
        yield found[0]
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join(30)
        loop.close()


def assign_model(
    rig: AgentRig,
    content: bytes = b"GGUF" + bytes(1000),
    knobs: Mapping[str, str] = MappingProxyType({}),
    key: str = A,
    startup_seconds: int = 60,
) -> MemberAssignment:
    """A model of its own, by its content and the engine's knobs for it."""
    path = model_of(rig, key)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    path.with_name(f"{path.name}.knobs").write_text(json.dumps(dict(knobs)))
    artifact = ResolvedArtifact(
        source=f"file://{path}",
        name=path.name,
        size_bytes=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
    )
    return rig.assign(key, artifact=artifact, startup_seconds=startup_seconds)


def model_of(rig: AgentRig, key: str = A) -> Path:
    return rig.folder / "models" / f"{key}.gguf"
