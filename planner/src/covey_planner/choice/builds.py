"""Which build of an engine a new Instance gets on a lane, and what that build must be able to do (docs/adr/0063)."""

from collections.abc import Collection

from covey_api.companion import CompanionRole
from covey_api.engines import Compute, EngineName, Lane, LaneState, Task
from covey_api.runtime import LlamaServerRuntime, Runtime, Switch

_TASKS = {Task.EMBEDDING: "--embeddings", Task.RERANK: "--reranking"}


def pin_lane(lane: Lane, version: str) -> Lane:
    """The lane as a new Instance gets it there whose engine is pinned to this version; empty: it isn't.

    A program that an operator gave is what it is, whatever is pinned. Of an agent that tells nothing of its other
    versions it is known that they can be installed, and nothing else.
    """
    if not version or not lane.versions or version == lane.version:
        return lane
    build = next((each for each in lane.builds if each.version == version), None)
    return lane.changed(
        version=version,
        digest=build.digest or lane.digest if build else lane.digest,
        state=build.state if build else LaneState.INSTALLABLE,
        lacks=build.lacks if build else (),
        lacks_features=build.lacks_features if build else (),
        roles=build.roles if build else lane.roles,
        builds=(),
    )


def is_version_known(lane: Lane) -> bool:
    """Whether its agent can install the version that is pinned for it."""
    return not lane.versions or lane.version in lane.versions


def needed_features(
    engine: EngineName, task: Task, runtime: Runtime, beside: Collection[CompanionRole], compute: Compute
) -> frozenset[str]:
    """Flags that such an Instance is started with and that not every build has. What all Instances need isn't here."""
    if engine is not EngineName.LLAMA_SERVER:
        return frozenset()
    needed = {_TASKS[task]} if task in _TASKS else set[str]()
    if CompanionRole.PROJECTOR in beside:
        needed |= {"--mmproj", "--image-max-tokens"}
        needed |= {"--no-mmproj-offload"} if compute is Compute.CPU else set()
    if CompanionRole.DRAFT in beside:
        needed |= {"--model-draft", "--spec-type"}
    return frozenset(needed | _runtime_features(runtime.llama_server))


def _runtime_features(runtime: LlamaServerRuntime) -> set[str]:
    asked = {
        "--numa": runtime.numa is not None,
        "--mlock": runtime.mlock is Switch.ON,
        "--poll": runtime.poll_percent is not None,
        "--cache-reuse": runtime.cache_reuse_tokens is not None,
        "--reasoning-format": runtime.reasoning_format is not None,
        "--spec-type": runtime.speculation is not None,
    }
    return {flag for flag, is_asked in asked.items() if is_asked}
