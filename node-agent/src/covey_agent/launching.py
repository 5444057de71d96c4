"""How an engine process is started: the adapter's rendering, in a clean environment, on a free port of loopback."""

import os
import socket
from dataclasses import replace
from pathlib import Path

from covey_api.engines import HOST_POOL, EngineName

from covey_agent.ports import EngineAdapter, Launch
from covey_agent.supervisor.effects import StartKeeper

# What an engine may see of the agent's environment. Nothing else: it may hold tokens, and `LLAMA_ARG_*` would overrule
# what the stamp says.
INHERITED = ("HOME", "LANG", "PATH", "TMPDIR", "TZ", "XDG_CACHE_HOME", "XDG_RUNTIME_DIR")


def render_launch(adapter: EngineAdapter, start: StartKeeper, folder: Path, port: int) -> Launch:
    """The launch with its environment and the assignment, by which an agent that lost its file knows what runs."""
    assignment = start.assignment
    launch = adapter.render(
        start.program, assignment.instance, start.weights, folder, port, assignment.key, start.companions
    )
    clean = {name: os.environ[name] for name in INHERITED if name in os.environ}
    files = (*launch.files, ("assignment.json", assignment.model_dump_json(by_alias=True, exclude_none=True)))
    # vLLM's figures are of one load on another machine, and old stamps have a small process's.
    is_measured = assignment.instance.spec.engine is not EngineName.VLLM
    own = [member for member in assignment.instance.spec.members if member.name == assignment.member]
    memory_bytes = sum(costs.total_bytes for member in own for costs in member.costs if costs.pool == HOST_POOL)
    bound = memory_bytes if is_measured else 0
    return replace(launch, environment=clean | launch.environment, files=files, memory_bytes=bound)


def choose_port() -> int:
    """A port of loopback that is free now. Who takes it before the engine does makes it exit; it then gets another."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
