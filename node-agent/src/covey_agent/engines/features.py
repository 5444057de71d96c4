"""What one build of llama-server can do, from its own help: builds differ, and an unknown flag ends a start.

A feature is a flag that the help names. Only flags that are rendered for some Instances and not for all are asked for;
what every Instance needs is needed, and a build without it fails with its own words.
"""

import re

from covey_api.reasons import FailureCause

from covey_agent.ports import AgentError, EngineProgram

_FLAG = re.compile(r"(?<![\w-])--?[a-z][a-z0-9-]*")
WATCHED = frozenset(
    {
        "--cache-reuse",
        "--embeddings",
        "--image-max-tokens",
        "--kv-unified",
        "--mlock",
        "--mmproj",
        "--no-mmproj-offload",
        "--model-draft",
        "--numa",
        "--poll",
        "--reasoning-format",
        "--reranking",
        "--spec-type",
    }
)


def parse_features(text: str) -> frozenset[str]:
    """The watched flags that the output of `--help` names."""
    return WATCHED & frozenset(_FLAG.findall(text))


def list_lacking(features: frozenset[str] | None) -> tuple[str, ...]:
    """Watched flags that a build doesn't have, sorted; none of one whose help is not known."""
    return () if features is None else tuple(sorted(WATCHED - features))


def require_features(argv: tuple[str, ...], program: EngineProgram) -> None:
    """AgentError when a command line has a watched flag that this build is known not to have."""
    if program.features is None:
        return
    missing = sorted((WATCHED & frozenset(argv)) - program.features)
    if missing:
        raise AgentError(
            FailureCause.NO_USABLE_ENGINE,
            f"{program.path} {program.version} has no `{'`, `'.join(missing)}`, which this Instance needs. Give a "
            "newer build in the Node's `spec.engines`, or leave the option out of the Model.",
        )
